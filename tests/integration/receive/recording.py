"""A receiver that records what real sources send it, and refuses what the test wants it to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from integration.migration.moves import unique
from integration.replication.native import REPLICATED, native_peer
from rpc_serving import Served, serving
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.rpc_server import CallRefusedError, ReceivedCall
from walferry.receive.presence import Presence, remove

ARRIVES_S = 90.0
MEMORY = 256 << 20


@dataclass(frozen=True)
class Recorded:
    """One call, and whether it was refused."""

    service: str
    method: str
    parameter: bytes
    cells: bytes
    refused: bool


@dataclass
class Recorder:
    """Handles calls: the next `refuse` ones are refused with this exception."""

    refuse: int = 0
    java_class: str = "java.io.IOException"
    do_not_retry: bool = False
    calls: list[Recorded] = field(default_factory=list)

    async def handle(self, call: ReceivedCall) -> bytes:
        refused = self.refuse > 0
        self.refuse -= refused
        self.calls.append(Recorded(call.service, call.method, bytes(call.parameter), bytes(call.cells), refused))
        if refused:
            raise CallRefusedError("the test refuses", java_class=self.java_class, do_not_retry=self.do_not_retry)
        return b""

    def with_row(self, row: bytes) -> list[Recorded]:
        """The calls with a row."""
        return [call for call in self.calls if row in call.cells]

    def await_accepted(self, row: bytes) -> list[Recorded]:
        """Wait until a row was accepted, and return all calls that had it."""
        deadline = time.monotonic() + ARRIVES_S
        while not any(not call.refused for call in self.with_row(row)):
            assert time.monotonic() < deadline, f"{row!r} did not come"
            time.sleep(0.1)
        return self.with_row(row)


@dataclass(frozen=True)
class Receiving:
    """A table of the source whose edits go to the recorder."""

    client: HBaseClient
    table: str
    recorder: Recorder
    served: Served
    presence: Presence
    beside: Callable[[Recorder], AbstractContextManager[Presence]]
    """another receiver of the same sink, with a recorder of its own, which does not show itself yet"""

    def write(self, row: bytes, value: bytes = b"v") -> None:
        self.client.put(self.table, [Cell(row, b"f", b"q", value)])


@contextmanager
def receiving(source: MiniCluster, sink: MiniCluster) -> Iterator[Receiving]:
    """A peer of the source that leads to a recorder, which shows itself in the sink's ZooKeeper."""
    path, recorder = f"/walferry/receive/{unique('r')}", Recorder()
    with (
        HBaseClient(source.address) as client,
        HBaseClient(sink.address) as at_sink,
        serving(recorder.handle, MEMORY) as served,
    ):
        table = unique("received")
        client.create_table(table, {"f": REPLICATED})
        sink_id = at_sink.zookeeper.cluster_id()

        @contextmanager
        def beside(recorder: Recorder) -> Iterator[Presence]:
            with (
                serving(recorder.handle, MEMORY) as other,
                Presence(sink.address, path, sink_id, sink.host, other.port) as presence,
            ):
                yield presence

        with Presence(sink.address, path, sink_id, sink.host, served.port) as presence:
            presence.show()
            key = f"{sink.host}:{sink.ports.zookeeper}:{path}"
            with native_peer(source, sink, [table], key=key):
                yield Receiving(client, table, recorder, served, presence, beside)
        remove(sink.address, path)
        client.disable_table(table)
        client.delete_table(table)
