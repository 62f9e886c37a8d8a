"""On a real broker that wants a login and grants rights: each refusal is one line that says what to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from booting import CHEAP_JVM
from walferry.embedded import processes
from walferry.embedded.kafka import Broker
from walferry.errors import TransientError, UsageError
from walferry.streams import kafka_errors
from walferry.streams.kafka_settings import KafkaSettings
from walferry.streams.new_topics import Creation, positions_topic
from walferry.streams.sink import Shard, Sink
from walferry.streams.topics import prepare

HOST = "127.0.0.1"
PASSWORD = "the-password-of-writer"


@dataclass
class SecuredBroker(Broker):
    """Beside its plain listener, for administrators, it has one for users that log in."""

    secured_port: int = 0

    def _write_configuration(self) -> None:
        super()._write_configuration()
        path = self._properties
        lines = [line for line in path.read_text().splitlines() if "listeners=" not in line]
        plain, secured = f"PLAINTEXT://{self.address}", f"SASL_PLAINTEXT://{HOST}:{self.secured_port}"
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_writer="{PASSWORD}";'
        lines += [
            f"listeners={plain},{secured},CONTROLLER://{HOST}:{self.controller_port}",
            f"advertised.listeners={plain},{secured}",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN",
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={login}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
        ]
        path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALFERRY_JVM_FLAGS", CHEAP_JVM)
        ports = processes.free_ports(3)
        with SecuredBroker(tmp_path_factory.mktemp("secured"), ports[0], ports[1], secured_port=ports[2]) as broker:
            broker.boot()
            yield broker


def login(broker: SecuredBroker, password: str = PASSWORD) -> KafkaSettings:
    client = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "writer",
        "sasl.password": password,
    }
    return KafkaSettings(bootstrap=f"{HOST}:{broker.secured_port}", client=client)


def grant(broker: SecuredBroker, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    prefixed = ResourcePatternType.LITERAL if kind is ResourceType.BROKER else ResourcePatternType.PREFIXED
    acls = [
        AclBinding(kind, name, prefixed, "User:writer", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in admin.create_acls(acls).values():
        future.result(30)


def test_a_wrong_password_is_refused_at_once_and_shown_nowhere(
    secured: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(UsageError, match=r"check .* sasl\.password") as caught:
        prepare(login(secured, "the-wrong-password"), {"refused": None}, "positions")
    assert time.monotonic() - started < 15
    assert "\n" not in str(caught.value)
    assert "the-wrong-password" not in caplog.text + str(caught.value) + repr(caught.value.facts)


def test_a_client_that_does_not_log_in_is_told_what_may_be_wrong(
    secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_errors, "LONGEST_WAIT_S", 3.0)
    with pytest.raises(TransientError, match="Disconnected: connection closed by peer"):
        prepare(KafkaSettings(bootstrap=f"{HOST}:{secured.secured_port}"), {"refused": None}, "positions")


def test_each_right_that_is_missing_is_named_until_the_stream_can_write(secured: SecuredBroker) -> None:
    plain, settings = KafkaSettings(bootstrap=secured.address), login(secured)
    positions = positions_topic("granted")
    topics = prepare(plain, {"granted": None}, positions, create=Creation(1, 1))

    def open_and_write() -> None:
        with Sink.open(settings, Shard("source", "granted"), topics) as sink:
            sink.send("granted", 0, b"row", b"value")
            sink.commit({"at": b"1"})

    with pytest.raises(UsageError, match="without the right Describe"):
        prepare(settings, {"granted": None}, positions)
    for name in ("granted", positions):
        grant(secured, ResourceType.TOPIC, name, AclOperation.DESCRIBE)
    with pytest.raises(UsageError, match="grant Describe, DescribeConfigs and Write"):
        prepare(settings, {"granted": None}, positions)
    for name in ("granted", positions):
        grant(secured, ResourceType.TOPIC, name, AclOperation.DESCRIBE_CONFIGS)
    assert prepare(settings, {"granted": None}, positions) == topics
    with pytest.raises(UsageError, match="grant Write and Describe on transactional ids"):
        open_and_write()
    grant(secured, ResourceType.TRANSACTIONAL_ID, "walferry-", AclOperation.WRITE, AclOperation.DESCRIBE)
    with pytest.raises(UsageError, match="grant Describe, DescribeConfigs and Write"):
        open_and_write()
    for name in ("granted", positions):
        grant(secured, ResourceType.TOPIC, name, AclOperation.WRITE)
    open_and_write()
    with pytest.raises(UsageError, match="and Read, too, on the position topic"):
        open_and_write()
    grant(secured, ResourceType.TOPIC, positions, AclOperation.READ)
    open_and_write()
