"""On a real broker that wants logins and certificates and grants rights: whatever fits works, whatever does not is one
line that says what to do, within seconds, and no secret is seen anywhere."""

from __future__ import annotations

import base64
import json
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from booting import CHEAP_JVM
from integration.migration.command import COMMAND, environment, walferry
from integration.migration.moves import cluster_keys, unique
from kafka_reading import read
from walferry.embedded.certificates import Authority, Certificate
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker, Security
from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.streams.kafka import errors as kafka_errors
from walferry.streams.kafka import topics
from walferry.streams.kafka.new_topics import Creation
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import StreamTopics, prepare

pytestmark = pytest.mark.cluster

DOCS = Path(__file__).parents[3] / "docs" / "streams.md"
PASSWORD = "the0password1of2walferry"
WRONG = "a5password6that7is8wrong"
KEY_PASSWORD = "the3password4of5the6key"
LIMITED = "User:limited"
"""has the rights that the docs name, and no other"""
CHANGES, POSITIONS = "shop.orders", "walferry.orders_stream.positions"
LOGIN = {"sasl.username": "walferry", "sasl.password": PASSWORD}
AT_ONCE_S = 8.0


@dataclass(frozen=True)
class Secured:
    """The broker, whose administrators use its plain listener, and the certificates."""

    broker: Broker
    own: Authority
    other: Authority
    client: Certificate
    stranger: Certificate

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.address})

    def settings(self, listener: str, changed: Mapping[str, str | None]) -> KafkaSettings:
        """Those that fit a listener, but for what is changed; None leaves a setting out."""
        client = {name: value for name, value in {**self._fitting(listener), **changed}.items() if value is not None}
        address = self.broker.address if listener == "PLAINTEXT" else self.broker.secured(listener)
        return KafkaSettings.model_validate({"bootstrap": address, "client": client})

    def _fitting(self, listener: str) -> dict[str, str | None]:
        login = {"sasl.mechanism": "PLAIN", **LOGIN}
        trust = {"ssl.ca.location": str(self.own.bundle)}
        fitting: dict[str, dict[str, str | None]] = {
            "PLAINTEXT": {},
            "SASL_PLAINTEXT": {"security.protocol": "sasl_plaintext", **login},
            "SASL_SSL": {"security.protocol": "sasl_ssl", **login, **trust},
            "SSL": {"security.protocol": "ssl", **trust},
            "MUTUAL": {"security.protocol": "ssl", **trust, **certificate(self.client)},
        }
        return fitting[listener]

    def secrets(self) -> list[str]:
        """Whatever must be seen nowhere; of a key, the lines between its first and last."""
        key = self.client.key.read_text().splitlines()[1:-1]
        return [PASSWORD, WRONG, KEY_PASSWORD, base64.b64encode(PASSWORD.encode()).decode(), *key]


def certificate(of: Certificate) -> dict[str, str | None]:
    return {
        "ssl.certificate.location": str(of.certificate),
        "ssl.key.location": str(of.key),
        "ssl.key.password": KEY_PASSWORD,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    own, other = Authority(folder / "own"), Authority(folder / "other")
    security = Security(own, {"walferry": PASSWORD, "limited": PASSWORD}, authorizes=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        with Broker.start(folder / "broker", security) as broker:
            made = Secured(
                broker, own, other, own.issue("walferry", password=KEY_PASSWORD),
                other.issue("stranger", password=KEY_PASSWORD),
            )  # fmt: skip
            for user in ("User:walferry", "User:CN=walferry"):
                for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID):
                    grant(made.admin, AclBinding(kind, "*", ResourcePatternType.LITERAL, user, "*", AclOperation.ALL,
                                                 AclPermissionType.ALLOW))  # fmt: skip
            yield made


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_errors, "SLICE_S", 0.7)
    monkeypatch.setattr(topics, "SETTLE_S", 0.5)


def grant(admin: AdminClient, right: AclBinding) -> None:
    for future in admin.create_acls([right]).values():
        future.result(30)


def granted(admin: AdminClient, principal: str) -> list[AclBinding]:
    anything: Any = None
    every = AclBindingFilter(ResourceType.ANY, anything, ResourcePatternType.ANY, principal, anything, AclOperation.ANY,
                             AclPermissionType.ANY)  # fmt: skip
    rights: list[AclBinding] = admin.describe_acls(every).result(30)
    return rights


@contextmanager
def revoked(admin: AdminClient, right: AclBinding) -> Iterator[None]:
    exactly = AclBindingFilter(right.restype, right.name, right.resource_pattern_type, right.principal, right.host,
                               right.operation, right.permission_type)  # fmt: skip
    for future in admin.delete_acls([exactly]).values():
        assert len(future.result(30)) == 1
    yield
    grant(admin, right)


def write_and_read(settings: KafkaSettings, stream: str, prepared: StreamTopics, *, times: int = 2) -> None:
    """What a stream does: each opening reads what the one before has written."""
    (changes,) = prepared.changes
    for number in range(times):
        with Sink.open(settings, Shard("source", stream), prepared, expected=number > 0) as sink:
            assert number == 0 or sink.positions == {"at": b"%d" % (number - 1)}
            sink.send(changes, 0, b"row", b"value")
            sink.commit({"at": b"%d" % number})


SCRAM = {"sasl.mechanism": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("way", "listener", "changed"),
    [
        ("plain", "SASL_PLAINTEXT", {}),
        ("scram", "SASL_PLAINTEXT", SCRAM),
        ("plain_by_tls", "SASL_SSL", {}),
        ("scram_by_tls", "SASL_SSL", SCRAM),
        ("tls", "SSL", {}),
        ("mutual_tls", "MUTUAL", {}),
    ],
)
def test_a_sink_works_over_each_way_to_log_in(
    secured: Secured, caplog: pytest.LogCaptureFixture, way: str, listener: str, changed: dict[str, str | None]
) -> None:
    settings = secured.settings(listener, {"debug": "all"} | changed)
    with caplog.at_level(logging.DEBUG):
        prepared = prepare(settings, {way: None}, f"{way}.positions", create=Creation(1, 1))
        write_and_read(settings, way, prepared)
    assert len(caplog.text) > 10_000, "the client tells everything"
    assert [secret for secret in secured.secrets() if secret in caplog.text] == []


def test_certificate_and_key_may_be_given_as_texts(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    texts = {
        "ssl.certificate.pem": secured.client.certificate.read_text(),
        "ssl.key.pem": secured.client.key.read_text(),
    }
    without: dict[str, str | None] = dict.fromkeys(["ssl.certificate.location", "ssl.key.location"])
    settings = secured.settings("MUTUAL", {"debug": "all"} | without | texts)
    with caplog.at_level(logging.DEBUG):
        write_and_read(settings, "texts", prepare(settings, {"texts": None}, "texts.positions", create=Creation(1, 1)))
    assert [secret for secret in secured.secrets() if secret in caplog.text] == []


def other_authority(secured: Secured) -> dict[str, str | None]:
    return {"ssl.ca.location": str(secured.other.bundle)}


def without_certificate(secured: Secured) -> dict[str, str | None]:
    return dict.fromkeys(certificate(secured.client))


def of_stranger(secured: Secured) -> dict[str, str | None]:
    return certificate(secured.stranger)


def key_of_stranger(secured: Secured) -> dict[str, str | None]:
    return {"ssl.key.location": str(secured.stranger.key)}


Change = dict[str, str | None] | Callable[[Secured], dict[str, str | None]]


@pytest.mark.parametrize(
    ("listener", "changed", "told"),
    [
        ("SASL_PLAINTEXT", {"sasl.password": WRONG}, "check sasl.username and sasl.password"),
        ("SASL_SSL", SCRAM | {"sasl.password": WRONG}, "check sasl.username and sasl.password"),
        ("SASL_PLAINTEXT", {"sasl.password": None}, "set them, or login and password of the connection"),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "SCRAM-SHA-256"}, r"set sasl\.mechanism to one .*: PLAIN,SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "NONE"}, r"does not know the mechanism: set sasl\.mechanism"),
        ("SASL_PLAINTEXT", {"sasl.mechanism": None}, r"sasl\.mechanism is not set.*confluent-kafka from source"),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "GSSAPI"}, "Kerberos .*confluent-kafka from source"),
        ("SASL_SSL", other_authority, r"certificate is not trusted: set ssl\.ca\.location"),
        ("SASL_SSL", {"ssl.ca.location": "/none.pem"}, r"cannot be read: set ssl\.ca\.location"),
        ("MUTUAL", without_certificate, r"refuse the client's certificate: set ssl\.certificate\.location"),
        ("MUTUAL", of_stranger, r"refuse the client's certificate: set ssl\.certificate\.location"),
        ("MUTUAL", key_of_stranger, r"another certificate's: set ssl\.key\.location"),
        ("MUTUAL", {"ssl.key.password": WRONG}, r"check ssl\.key\.location, .* and ssl\.key\.password"),
        ("SSL", {"security.protocol": "plaintext"}, "wants TLS: set it to ssl or sasl_ssl"),
        ("SASL_SSL", {"security.protocol": "sasl_plaintext"}, "wants TLS: set it to sasl_ssl"),
        ("SASL_PLAINTEXT", {"security.protocol": "plaintext"}, r"wants a login \(PLAIN, SCRAM-SHA-512\)"),
        ("SASL_SSL", {"security.protocol": "ssl"}, r"wants a login \(PLAIN, SCRAM-SHA-512\)"),
        ("SASL_PLAINTEXT", {"security.protocol": "sasl_ssl"}, "has no TLS: set it to sasl_plaintext"),
        ("PLAINTEXT", {"security.protocol": "ssl"}, "has no TLS: set it to plaintext or sasl_plaintext"),
        ("PLAINTEXT", {"security.protocol": "sasl_plaintext"} | SCRAM | LOGIN, "takes no login: set security.protocol"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_with_what_to_do(
    secured: Secured, caplog: pytest.LogCaptureFixture, listener: str, changed: Change, told: str
) -> None:
    settings = secured.settings(listener, changed if isinstance(changed, dict) else changed(secured))
    started = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(UsageError, match=told) as caught:
        prepare(settings, {"refused": None}, "refused.positions")
    assert time.monotonic() - started < AT_ONCE_S
    error = caught.value
    assert "\n" not in str(error)
    assert error.exit_code == 2
    seen = caplog.text + str(error) + repr(error.facts)
    assert [secret for secret in secured.secrets() if secret in seen] == []


def test_a_stream_works_with_the_rights_that_the_docs_name_and_not_without_any_of_them(secured: Secured) -> None:
    commands = [
        re.sub(r"^.*?(?=--operation)", "", line).split()
        for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("kafka-acls.sh ")
    ]  # fmt: skip
    settings = secured.settings("SASL_PLAINTEXT", {"sasl.username": "limited"})
    head = [f"--bootstrap-server={secured.broker.address}", "--add", f"--allow-principal={LIMITED}"]

    def stream(create: Creation | None = None) -> None:
        prepared = prepare(settings, {CHANGES: None}, POSITIONS, create=create)
        write_and_read(settings, "orders_stream", prepared, times=1)

    with pytest.raises(UsageError, match=r"unknown topic .* without the right Describe on it does not see it"):
        stream()
    *to_stream, to_create = commands
    for command in to_stream:
        secured.broker.run("kafka.admin.AclCommand", [*head, *command])
    with pytest.raises(UsageError, match=f"may not create topic {CHANGES}: grant Create"):
        stream(Creation(1, 1))
    secured.broker.run("kafka.admin.AclCommand", [*head, *to_create])
    rights: dict[tuple[str, object], AclBinding] = {
        (right.name, right.operation): right for right in granted(secured.admin, LIMITED)
    }
    with (
        revoked(secured.admin, rights.pop((POSITIONS, AclOperation.CREATE))),
        pytest.raises(UsageError, match=f"may not create topic {POSITIONS}: grant Create"),
    ):
        stream(Creation(1, 1))
    stream(Creation(1, 1))
    with revoked(secured.admin, rights.pop((CHANGES, AclOperation.CREATE))):
        stream()
    told: dict[tuple[str, object], str] = {
        (CHANGES, AclOperation.WRITE): f"unknown topic {CHANGES}: .* without the right Describe",
        (CHANGES, AclOperation.DESCRIBE_CONFIGS): f"configuration of topic {CHANGES}: .*grant .*DescribeConfigs",
        (POSITIONS, AclOperation.WRITE): f"writing to topic {POSITIONS}: .*grant .*Write",
        (POSITIONS, AclOperation.READ): f"reading the positions in topic {POSITIONS}: .*Read, too",
        (POSITIONS, AclOperation.DESCRIBE_CONFIGS): f"configuration of topic {POSITIONS}: .*grant .*DescribeConfigs",
        ("walferry-", AclOperation.WRITE): "transactional id walferry-source-orders_stream-0: .*grant Write",
    }
    assert rights.keys() == told.keys()
    for name, right in rights.items():
        started = time.monotonic()
        with revoked(secured.admin, right), pytest.raises(UsageError, match=told[name]) as caught:
            stream()
        assert "\n" not in str(caught.value)
        assert time.monotonic() - started < AT_ONCE_S
    stream()


@pytest.fixture(scope="module")
def table(source: MiniCluster, at_source: HBaseClient) -> str:
    name = unique()
    at_source.create_table(name, {"f": {}})
    return name


@pytest.fixture
def spec(source: MiniCluster, table: str, tmp_path: Path) -> dict[str, Any]:
    """In stream.yaml; Kafka's connection is `secured`."""
    keys: dict[str, Any] = {
        "name": unique("stream_"),
        "source": cluster_keys(source),
        "kafka": "secured",
        "tables": [table],
        "create_topics": {"partitions": 1},
    }
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(keys))
    return keys


def connection(secured: Secured, password: str = PASSWORD) -> str:
    """With each kind of secret, in Airflow's JSON."""
    settings = {
        "bootstrap.servers": secured.broker.secured("SASL_SSL"),
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.ca.location": str(secured.own.bundle),
        "ssl.certificate.location": str(secured.client.certificate),
        "ssl.key.pem": secured.client.key.read_text(),
        "ssl.key.password": KEY_PASSWORD,
    }
    fields = {"conn_type": "kafka", "login": "walferry", "password": password, "extra": settings}
    return json.dumps(fields)


def found_in_files(folder: Path, secrets: list[str]) -> list[tuple[str, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "ledger.db-wal" or path.name == "ledger.db" for path in files)
    return [(path.name, secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]


def found_in_arguments(secrets: list[str]) -> list[str]:
    listed = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert "walferry.cli" in listed
    return [secret for secret in secrets if secret in listed]


def test_the_command_reads_a_connection_of_airflows_in_both_of_its_forms(
    secured: Secured, spec: dict[str, Any], table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": str(secured.own.bundle),
    }
    as_uri = f"kafka://walferry:{quote(PASSWORD)}@{secured.broker.secured('SASL_SSL')}/?{urlencode(query)}"
    for value in (connection(secured), as_uri):
        monkeypatch.setenv("AIRFLOW_CONN_SECURED", value)
        answer = walferry(tmp_path, "stream", "stream.yaml", "--dry-run")
        assert answer.returncode == 0, answer.stderr
        assert f"{table} -> default.{table}" in answer.stdout
        assert [secret for secret in secured.secrets() if secret in answer.stdout + answer.stderr] == []


def test_the_command_ends_with_2_and_one_error_if_the_login_is_refused(
    secured: Secured, spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SECURED", connection(secured, WRONG))
    answer = walferry(tmp_path, "stream", "stream.yaml")
    assert answer.returncode == 2, answer.stderr
    errors = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
    assert errors == answer.stderr.splitlines()[-1:]
    assert "check sasl.username and sasl.password" in errors[0]
    assert [secret for secret in secured.secrets() if secret in answer.stdout + answer.stderr] == []
    assert found_in_files(tmp_path, secured.secrets()) == []


def test_a_stream_at_work_shows_no_secret_in_its_output_its_ledger_or_the_list_of_processes(
    secured: Secured, spec: dict[str, Any], table: str, at_source: HBaseClient, tmp_path: Path
) -> None:
    variables = environment(tmp_path) | {"AIRFLOW_CONN_SECURED": connection(secured)}
    output = tmp_path / "output.txt"
    with output.open("wb") as told:
        running = subprocess.Popen([*COMMAND, "stream", "stream.yaml"], cwd=tmp_path, env=variables, stdout=told,
                                   stderr=subprocess.STDOUT)  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        sent = False
        while not sent:
            assert running.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            assert found_in_arguments(secured.secrets()) == []
            at_source.put(table, [Cell(b"row", b"f", b"q", b"value")])
            time.sleep(0.5)
            known = secured.admin.list_topics(timeout=10).topics
            sent = f"default.{table}" in known and bool(read(secured.broker.address, f"default.{table}", 1))
        assert (tmp_path / "ledger.db-wal").exists()
        assert found_in_files(tmp_path, secured.secrets()) == []
        ended = walferry(tmp_path, "abort", spec["name"], "--reason", "shown")
        assert ended.returncode == 0, ended.stderr
        running.wait(30)
    finally:
        running.kill()
        running.wait()
    assert found_in_files(tmp_path, secured.secrets()) == []
