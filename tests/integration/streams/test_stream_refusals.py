"""What a user can get wrong with `walferry stream`: one line that says what to do, an exit code, and no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from integration.migration.moves import unique
from integration.streams.judging import wait_until
from integration.streams.streamers import PARTITIONS, Streamer, beside_log, lay_out
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.embedded.processes import free_ports
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

pytestmark = pytest.mark.cluster

SECRET = "open-sesame-4711"
Lay = Callable[..., Streamer]


@pytest.fixture(scope="module")
def table(at_source: HBaseClient) -> str:
    """A table of two regions."""
    name = unique("s")
    at_source.create_table(name, {"f": {}}, [b"m"])
    return name


@pytest.fixture
def lay(source: MiniCluster, broker: Broker, table: str, tmp_path: Path) -> Iterator[Lay]:
    """Lays out a stream of the table, whose processes and peer are gone at the end."""
    laid: list[Streamer] = []

    def one(**keys: Any) -> Streamer:
        folder = tmp_path / str(len(laid))
        folder.mkdir()
        laid.append(lay_out(folder, source, broker.address, keys.pop("tables", [table]), **keys))
        return laid[-1]

    yield one
    for streamer in laid:
        streamer.end()


def create(admin: AdminClient, name: str, partitions: int, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)


def delete(admin: AdminClient, name: str) -> None:
    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: name not in admin.list_topics(timeout=10).topics, f"{name} is still there")


def refusal(streamer: Streamer, *arguments: str, code: int = 2) -> str:
    """A command that must be refused: its one line on stderr beside the log."""
    answer = streamer.command(*(arguments or ("stream", "stream.yaml")))
    assert answer.returncode == code, answer.stderr
    (line,) = beside_log(answer.stderr)
    assert line.startswith("error: ")
    assert "Traceback" not in answer.stderr
    return line


def test_a_spec_that_cannot_be_followed_is_refused_in_one_line_and_changes_nothing(
    lay: Lay, table: str, admin: AdminClient, at_source: HBaseClient
) -> None:
    peers, topics = at_source.peers(), set(admin.list_topics(timeout=10).topics)
    missing = unique("missing")
    assert f"unknown topic {missing}: create it with N partitions, or set create_topics" in refusal(
        lay(topic=missing, create_topics=None)
    )
    assert f"there is no table {missing} at the source" in refusal(lay(tables=[table, missing]))
    assert "no name server knows no-such-host.invalid:9092" in refusal(
        lay(kafka={"bootstrap": "no-such-host.invalid:9092"})
    )
    assert "there is no function nowhere:decode" in refusal(lay(decode="nowhere:decode"))
    assert set(admin.list_topics(timeout=10).topics) == topics
    compacted = unique("compacted")
    create(admin, compacted, 1, cleanup_policy="compact")
    assert "compaction would remove changes" in refusal(lay(topic=compacted))
    assert at_source.peers() == peers


@pytest.mark.long
def test_a_broker_that_does_not_answer_is_named(lay: Lay) -> None:
    (port,) = free_ports(1)
    assert f"Kafka at 127.0.0.1:{port}" in refusal(lay(kafka={"bootstrap": f"127.0.0.1:{port}"}), code=1)


def test_a_secret_is_taken_from_a_connection_only_and_shown_nowhere(
    lay: Lay, broker: Broker, table: str, at_source: HBaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = lay(kafka={"bootstrap": broker.address, "client": {"sasl.password": SECRET}})
    assert "sasl.password: a spec has no secrets; put them into a connection" in refusal(refused)
    assert not (refused.folder / "ledger.db").exists()

    host, _, port = broker.address.partition(":")
    connection = {
        "conn_type": "kafka", "host": host, "port": int(port), "login": "writer", "password": SECRET,
        "extra": {"debug": "conf"},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    streamer = lay(kafka="kafka_default")
    judge = streamer.judge(table)
    streamer.start()
    at_source.put(table, [Cell(b"row", b"f", b"q", b"1")])
    judge.await_more(0)
    status = streamer.command("status", streamer.name, "--json").stdout
    assert json.loads(status)["run"] == f"{streamer.name}-1"
    streamer.command("report", streamer.name)
    streamer.kill()
    found = [path for path in streamer.folder.rglob("*") if path.is_file()]
    assert len(found) >= 4
    assert not [path for path in found if SECRET.encode() in path.read_bytes()]
    assert SECRET not in status


@pytest.mark.long
def test_topics_that_have_changed_under_a_stream_end_it_with_what_to_do(
    lay: Lay, table: str, admin: AdminClient, at_source: HBaseClient
) -> None:
    streamer = lay()
    topic, positions = f"{streamer.name}.{table}", f"walferry.{streamer.name}.positions"
    judge = streamer.judge(table)
    streamer.start()
    at_source.put(table, [Cell(b"row", b"f", b"q", b"1")])
    judge.await_more(0)
    streamer.kill()

    other, peers = lay(positions=positions), at_source.peers()
    for arguments in (("stream", "stream.yaml", "--dry-run"), ("stream", "stream.yaml")):
        assert f"topic {positions} belongs to stream {streamer.name} of cluster" in refusal(other, *arguments)
    assert at_source.peers() == peers
    assert f"{other.name}.{table}" not in admin.list_topics(timeout=10).topics

    resume = ("resume", streamer.name)
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result(30)
    grown = f"has {PARTITIONS + 1} partitions, but the stream began with {PARTITIONS}"
    wait_until(lambda: len(admin.list_topics(timeout=10).topics[topic].partitions) > PARTITIONS, "it has not grown")
    assert grown in refusal(streamer, *resume)
    delete(admin, topic)
    assert f"topic {topic}, which the stream began with, is gone" in refusal(streamer, *resume)
    create(admin, topic, 1)
    assert f"has 1 partitions, but the stream began with {PARTITIONS}" in refusal(streamer, *resume)
    delete(admin, positions)
    assert f"positions of the stream in topic {positions} are lost" in refusal(streamer, *resume)


def quarantine(streamer: Streamer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(streamer.command("quarantine", "list", streamer.name, "--json").stdout)
    return items


@pytest.mark.long
def test_a_decoder_that_fails_holds_the_region_and_the_others_go_on(
    lay: Lay, table: str, at_source: HBaseClient
) -> None:
    streamer = lay(decode="decoding:decode")
    (streamer.folder / "decoding.py").write_text(
        "def decode(table, family, qualifier, value):\n    return int(value)\n"
    )
    judge = streamer.judge(table)
    streamer.start()
    at_source.put(table, [Cell(b"a", b"f", b"q", b"1"), Cell(b"z", b"f", b"q", b"2")])
    judge.await_more(1)
    at_source.put(table, [Cell(b"a", b"f", b"q", b"no number")])
    at_source.put(table, [Cell(b"a", b"f", b"q", b"3"), Cell(b"z", b"f", b"q", b"4")])
    judge.await_more(2)
    wait_until(lambda: quarantine(streamer), "nothing is in quarantine")
    at_source.put(table, [Cell(b"b", b"f", b"q", b"5"), Cell(b"z", b"f", b"q", b"6")])
    judge.await_more(3)
    (item,) = quarantine(streamer)
    assert (item["state"], item["table"], item["region"]) == (
        "held", table, at_source.locate(table, b"a").encoded
    )  # fmt: skip
    assert "the decoder failed for column 'f', b'q': ValueError" in item["reason"]
    status = json.loads(streamer.command("status", streamer.name, "--json").stdout)
    assert status["state"] == "held"
    assert "held" in streamer.command("quarantine", "list", streamer.name).stdout
    values = [(json.loads(one.key or b"")["row"], one.value) for one in judge.seen()]
    assert [json.loads(value or b"")["cells"][0]["value"] for _, value in values] in ([1, 2, 4, 6], [2, 1, 4, 6])
