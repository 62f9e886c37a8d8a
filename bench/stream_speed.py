"""How fast a stream sends a backlog to Kafka, beside a plain producer at its limit: `python -m bench.stream_speed`, or
`make bench-stream`.

One real HBase and one real broker on this machine. The rows are written while the stream is paused, so that it then
has nothing to wait for; its transactions, JSON and read points are in the time. Then all rows of the table are sent
again, from a snapshot, which is taken within the time. The plain producer sends the same keys and values as the changes
had, which it has in memory, without transactions. What the stream costs the source is the processor time of HBase and
HDFS while the changes are sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import typer
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kafka import Broker
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell

TABLE, TOPIC, PARTITIONS, REGIONS, BATCH = "b", "default.b", 8, 8, 1000
PATIENCE_SECONDS = 300.0


def main(
    rows: Annotated[int, typer.Option(help="rows to write, one cell each")] = 500_000,
    value_bytes: Annotated[int, typer.Option(help="bytes of each value")] = 100,
    rounds: Annotated[int, typer.Option(help="how often each way is timed")] = 3,
    image: Annotated[bool, typer.Option(help="each change with the row after it")] = False,
) -> None:
    """Print one line for each round, and JSON with the best rates."""
    with tempfile.TemporaryDirectory(prefix="walferry-bench") as folder, servers(Path(folder)) as (cluster, broker):
        found = []
        for number in range(rounds):
            given = {"image": "after"} if image else {}
            streamed, again, source = stream_seconds(
                Path(folder) / str(number), cluster, broker, number, rows, value_bytes, given
            )
            sent, plain = producer_seconds(broker, f"{TOPIC}{number}")
            found.append((rows / streamed, rows / again, sent / plain))
            told = "stream {:,.0f}/s, rows of a snapshot {:,.0f}/s, plain producer {:,.0f}/s".format(*found[-1])
            print(f"{rows} events: {told}; {1e6 * source / rows:.0f} µs of the source's processors each", flush=True)
    stream, snapshot, producer = (max(rates) for rates in zip(*found, strict=True))
    best = {"stream": round(stream), "snapshot": round(snapshot), "producer": round(producer)}
    print(json.dumps(best | {"ratio": round(stream / producer, 2)}))


@contextmanager
def servers(folder: Path) -> Iterator[tuple[MiniCluster, Broker]]:
    """A cluster with one region server, and a broker."""
    with MiniCluster.start(folder / "hbase", thrift=False) as cluster, Broker.start(folder / "kafka") as broker:
        yield cluster, broker


def stream_seconds(
    folder: Path, cluster: MiniCluster, broker: Broker, number: int, rows: int, value_bytes: int, given: dict[str, str]
) -> tuple[float, float, float]:
    """Write rows while a stream is paused; how long it then takes until Kafka has committed all of them, how long it
    takes to send all rows of the table again, and the source's processor seconds of the first. `given`: more keys of
    the spec."""
    folder.mkdir()
    table, topic = f"{TABLE}{number}", f"{TOPIC}{number}"
    spec = {
        "name": table, "tables": [table], "kafka": {"bootstrap": broker.address},
        "source": {
            "zookeeper": cluster.address.zookeeper, "webhdfs": cluster.address.webhdfs, "rootdir": cluster.rootdir,
        },
        "create_topics": {"partitions": PARTITIONS}, "resolved": 0, **given,
    }  # fmt: skip
    path = folder / "stream.yaml"
    path.write_text(yaml.safe_dump(spec))
    environment = os.environ | {"WALFERRY_LEDGER": f"sqlite:///{folder / 'ledger.db'}"}
    with HBaseClient(cluster.address) as client:
        client.create_table(table, {"f": {}}, tuple(b"row%d" % region for region in range(1, REGIONS)))
        write(client, table, BATCH, value_bytes)  # a first batch shows that the stream is at work
        with running(path, environment, folder / "log"):
            write(client, table, BATCH, value_bytes, "first")
            await_messages(broker, topic, BATCH)
            walferry(["pause", table], environment)
            time.sleep(3)
            write(client, table, rows, value_bytes, "more")
            used, began = processor_seconds(cluster), time.monotonic()
            walferry(["resume", table], environment)
            await_messages(broker, topic, BATCH + rows)
            took, used = time.monotonic() - began, processor_seconds(cluster) - used
            began = time.monotonic()
            walferry(["send-again", table, "--table", table, "--reason", "measured"], environment)
            await_messages(broker, topic, 2 * (BATCH + rows))
            again = time.monotonic() - began
        walferry(["abort", table, "--reason", "measured"], environment)
    return took, again, used


def processor_seconds(cluster: MiniCluster) -> float:
    """What HBase and HDFS have used of the processors since they were started."""
    times = [psutil.Process(pid).cpu_times() for pid in cluster.pids.values()]
    return sum(one.user + one.system for one in times)


def write(client: HBaseClient, table: str, rows: int, value_bytes: int, prefix: str = "row") -> None:
    """Write rows of one cell each, spread over the regions."""
    value = b"v" * value_bytes
    for first in range(0, rows, BATCH):
        client.mutate(
            table,
            [
                mutate.put(b"row%d-%s-%d" % (row % REGIONS, prefix.encode(), row), [Cell(b"", b"f", b"q", value)])
                for row in range(first, first + BATCH)
            ],
        )


@contextmanager
def running(spec: Path, environment: dict[str, str], log: Path) -> Iterator[None]:
    """A stream in a process of its own."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "walferry.cli", "stream", str(spec)], env=environment, stdout=output, stderr=output
        )
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "brokers are" not in log.read_text() and "stream: started" not in log.read_text():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the stream did not begin:\n{log.read_text()}")
                time.sleep(0.5)
            yield
        finally:
            process.terminate()
            process.wait()


def walferry(arguments: list[str], environment: dict[str, str]) -> None:
    """Run a command of walferry."""
    subprocess.run([sys.executable, "-m", "walferry.cli", *arguments], env=environment, check=True, capture_output=True)


def await_messages(broker: Broker, topic: str, count: int) -> None:
    """Wait until a consumer that reads committed could read so many messages."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with_offsets = consumer(broker)
    try:
        while True:
            ends = [
                with_offsets.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
                for number in range(PARTITIONS)
            ]  # of a consumer that reads committed, these are the last stable offsets; transactions add a marker each
            if sum(high for _, high in filter(None, ends)) >= count:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"only {ends} of {count} messages came")
            time.sleep(0.05)
    finally:
        with_offsets.close()


def consumer(broker: Broker) -> Consumer:
    """A consumer that reads committed messages."""
    return Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "bench", "isolation.level": "read_committed",
            "enable.auto.commit": False, "enable.partition.eof": True,
        }
    )  # fmt: skip


def producer_seconds(broker: Broker, topic: str) -> tuple[int, float]:
    """How many messages a topic has, and how long a plain producer takes to send them to a topic of its own."""
    reading = consumer(broker)
    reading.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found, ends = [], 0
    while ends < PARTITIONS:
        for message in reading.consume(10_000, 1.0):
            if message.error():
                ends += 1
            else:
                found.append((message.key(), message.value()))
    reading.close()
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "compression.type": "lz4"})
    to = f"{topic}.plain"
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic(to, PARTITIONS)]).values():
        made.result(PATIENCE_SECONDS)
    began = time.monotonic()
    for key, value in found:
        while True:
            try:
                producer.produce(to, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()
    return len(found), time.monotonic() - began


if __name__ == "__main__":
    typer.run(main)
