"""How fast a source ships a backlog through `walferry receive` into Kafka, beside Apache's HBase Kafka Proxy:
`python -m bench.receive_kafka_speed`, or `make bench-receive-kafka`.

One real HBase and one real broker on this machine. Rows are written while the peer is disabled. Then it is enabled, and
the time counts until a consumer that reads committed messages has seen every row. The proxy (hbase-kafka-proxy of
hbase-connectors) poses as a region server, too, and sends each cell by a producer without transactions, in Avro. Its
class path is given, since HBase's own jars do not have it; without it walferry alone is measured. The contenders take
turns; each round has tables of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import quoteattr

import psutil
import typer
import yaml
from bench.receivers import add_peer, command
from bench.side_by_side.timing import cpu_of
from bench.stream_speed import PARTITIONS, REGIONS, consumer, processor_seconds, servers, write
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster, site
from walferry.embedded.kafka import Broker
from walferry.embedded.processes import free_ports
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import enable_peer

PATIENCE_SECONDS = 600.0
PROXY_NODE = "/kafkaproxy"
"""the proxy's node in ZooKeeper; it takes no other"""


def main(
    rows: Annotated[int, typer.Option(help="rows to write, one cell each; a multiple of 1,000")] = 300_000,
    value_bytes: Annotated[int, typer.Option(help="bytes of each value")] = 100,
    rounds: Annotated[int, typer.Option(help="how often each way is timed")] = 2,
    proxy: Annotated[str, typer.Option(help="class path of the HBase Kafka Proxy and Avro; default: without it")] = "",
) -> None:
    """Print one line for each round, and JSON with the best rates."""
    with tempfile.TemporaryDirectory(prefix="walferry-bench") as folder, servers(Path(folder)) as (source, broker):
        rates: dict[str, list[float]] = {way: [] for way in ("receive", *(["proxy"] if proxy else []))}
        for number in range(rounds):
            for way, found in rates.items():
                name = f"{way}{number}"
                shipped = Shipped(Path(folder) / name, source, broker, name, rows, value_bytes)
                seconds, used = shipped.received() if way == "receive" else shipped.by_proxy(proxy)
                found.append(rows / seconds)
                each = {what: round(1e6 * cost / rows) for what, cost in used.items()}
                print(f"{way}: {rows} edits, {found[-1]:,.0f}/s; µs of processors each: {each}", flush=True)
    best = {way: round(max(found)) for way, found in rates.items()}
    ratio = {"ratio": round(best["receive"] / best["proxy"], 2)} if proxy else {}
    print(json.dumps(best | ratio))


class Shipped:
    """One table of the source, its topic, and the peer that leads to what sends one to the other."""

    def __init__(
        self, folder: Path, source: MiniCluster, broker: Broker, name: str, rows: int, value_bytes: int
    ) -> None:
        folder.mkdir()
        self._folder, self._source, self._broker, self._name = folder, source, broker, name
        self._rows, self._value_bytes = rows, value_bytes
        with HBaseClient(source.address) as client:
            borders = tuple(b"row%d" % region for region in range(1, REGIONS))
            client.create_table(name, {"f": {"REPLICATION_SCOPE": "1"}}, borders)

    def received(self) -> tuple[float, dict[str, float]]:
        """How long it takes by one process of `walferry receive`, and what it costs."""
        address = self._source.address
        spec = {
            "name": self._name, "tables": [self._name], "topic": "{table}",
            "kafka": {"bootstrap": self._broker.address},
            "create_topics": {"partitions": PARTITIONS, "replication": 1},
            "source": {"zookeeper": address.zookeeper, "webhdfs": address.webhdfs, "rootdir": self._source.rootdir},
        }  # fmt: skip
        (self._folder / "receive.yaml").write_text(yaml.safe_dump(spec))
        environment = os.environ | {"WALFERRY_LEDGER": f"sqlite:///{self._folder / 'ledger.db'}"}
        node = f"/walferry/receive/{self._name}"
        with self._running(command(self._folder / "receive.yaml"), environment) as process:
            self._await(process, lambda: "is held by" in self._log.read_text())
            return self._shipped(process, node, Message.key)

    def by_proxy(self, classpath: str) -> tuple[float, dict[str, float]]:
        """The same by Apache's proxy."""
        admin = AdminClient({"bootstrap.servers": self._broker.address})
        for made in admin.create_topics([NewTopic(self._name, PARTITIONS)]).values():
            made.result(PATIENCE_SECONDS)
        rules = self._folder / "rules.xml"
        routed = f"table={quoteattr(f'default:{self._name}')} topic={quoteattr(self._name)}"
        rules.write_text(f'<rules><rule action="route" {routed}/></rules>')
        zookeeper = self._source.address.zookeeper
        host, _, port = zookeeper.partition(":")
        settings = {
            "hbase.zookeeper.quorum": host, "hbase.zookeeper.property.clientPort": port,
            "hbase.regionserver.port": str(free_ports(1)[0]), "hbase.regionserver.info.port": "-1",
            "hbase.regionserver.hostname": "127.0.0.1",
        }  # fmt: skip
        (self._folder / "hbase-site.xml").write_text(site(settings))
        given = [f"-D{key}={value}" for key, value in settings.items()]
        of_proxy = [
            jars.java(), *JVM_FLAGS, "-Xmx1g", "-cp", f"{self._folder}{os.pathsep}{classpath}",
            "org.apache.hadoop.hbase.kafka.KafkaProxy", *given,
            "-b", self._broker.address, "-p", self._name, "-r", str(rules),
        ]  # fmt: skip
        with self._running(of_proxy, dict(os.environ)) as process:
            # Its keys are whatever the array has that a cell's row is in.
            return self._shipped(process, PROXY_NODE, Message.value)

    def _shipped(
        self, process: subprocess.Popen[bytes], node: str, row_of: Callable[[Message], bytes | None]
    ) -> tuple[float, dict[str, float]]:
        sink = replace(self._source.address, znode=node)
        with HBaseClient(self._source.address) as client:
            self._await(process, lambda: client.zk.exists(f"{node}/hbaseid") is not None)
            add_peer(client, self._name, sink.cluster_key, [self._name])
            try:
                self._await(
                    process, lambda: bool(client.zk.exists(f"{node}/rs") and client.zk.get_children(f"{node}/rs"))
                )
                write(client, self._name, self._rows, self._value_bytes)
                before, began = self._costs(process), time.monotonic()
                enable_peer(client, self._name)
                self._read_all(process, row_of)
                took, after = time.monotonic() - began, self._costs(process)
            finally:
                client.remove_peer(self._name)
        return took, {what: after[what] - before[what] for what in after}

    def _costs(self, process: subprocess.Popen[bytes]) -> dict[str, float]:
        """What has used how much of the processors so far, in seconds."""
        assert self._broker.server is not None
        pids = {"receiver": process.pid, "broker": self._broker.server.pid}
        used = {what: cpu_of(psutil.Process(pid)) for what, pid in pids.items()}
        return {"source": processor_seconds(self._source)} | used

    @contextmanager
    def _running(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        with self._log.open("w") as output:
            process = subprocess.Popen(arguments, cwd=self._folder, env=environment, stdout=output, stderr=output)
            try:
                yield process
            finally:
                process.terminate()
                process.wait()

    def _await(self, process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self._name} did not begin:\n{self._log.read_text()}")
            time.sleep(0.2)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _read_all(self, process: subprocess.Popen[bytes], row_of: Callable[[Message], bytes | None]) -> None:
        """Return once a consumer has seen each row."""
        reading, seen, deadline = consumer(self._broker), set[int](), time.monotonic() + PATIENCE_SECONDS
        reading.assign([TopicPartition(self._name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        try:
            while len(seen) < self._rows:
                for message in reading.consume(10_000, 0.1):
                    if message.error() is None:
                        seen.add(hash(row_of(message)))
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{len(seen)} of {self._rows} rows came\n{self._log.read_text()}")
        finally:
            reading.close()


if __name__ == "__main__":
    typer.run(main)
