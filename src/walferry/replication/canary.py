"""A canary: rows of a table of its own, one written at each server of the source, that must arrive at the sink.

Whether a source's servers reach a sink's, by the names and ports that they see, can't be asked. Each source has a table
of its own, so that two clusters can fly canaries to each other. It stays at both: to drop it at the sink while one of
its edits is still to come would stop the peer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event

from walferry.background import beside
from walferry.clock import steady_s
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.scan import split_rows
from walferry.hbase.zookeeper import Server
from walferry.replication.finding import NotReplicatedError
from walferry.replication.sink import sink_address, watched_peers
from walferry.replication.spec import ResolvedReplicateSpec

PREFIX, FAMILY = "walferry_canary_", "c"
_QUALIFIER = b"written"
LOOK_SECONDS = 0.25
PUTS = 3
"""of a row, at most: HBase may move the region meanwhile"""


@dataclass(frozen=True)
class Arrival:
    """Of a row that was written at a server: after how many seconds it was seen at the sink; None: not in time, or it
    could not be written, `why`."""

    server: str
    seconds: float | None
    why: str | None = None


@dataclass(frozen=True)
class Flown:
    """What became of one peer's canary. `kept_back`: why none was flown, else None; `others`: peers that may have
    brought it instead."""

    peer: str
    arrivals: list[Arrival]
    kept_back: str | None = None
    others: tuple[str, ...] = ()


Tracked = Callable[[Sequence[Server]], Iterable[Server]]
"""shows how far the work is"""


def table_of(cluster_id: str) -> str:
    """The name of a source's table."""
    return f"{PREFIX}{cluster_id[:8]}"


def is_canary(table: str) -> bool:
    """Whether a table is some cluster's canary's."""
    return table.startswith(PREFIX)


def fly_all(
    spec: ResolvedReplicateSpec,
    stopped: Collection[str],
    wait_s: float,
    *,
    dry_run: bool = False,
    tracked: Tracked = lambda servers: servers,
) -> Iterator[Flown]:
    """Fly a canary for each watched peer, one after the other. `stopped`: the peers that lead nowhere, or elsewhere, by
    a plan. `dry_run`: change nothing. Raises the errors of the source's client; what fails at a sink is told."""
    with HBaseClient(spec.source.address()) as source:
        table, every = table_of(source.cluster_id()), peer_configs(source)
        for peer in watched_peers(spec, every):
            why = obstacle(peer, table)
            if why is None and peer.id in stopped:
                why = f"peer {peer.id} does not lead to a cluster that can take it: see above"
            if why is None and dry_run:
                why = f"peer {peer.id}: a row would be written into {table} at each region server of the source"
            if why is not None:
                yield Flown(peer.id, [], why)
                continue
            others = tuple(
                other.id for other in every if other.id != peer.id and other.is_hbase and obstacle(other, table) is None
            )
            try:
                with HBaseClient(sink_address(spec, peer)) as sink:
                    make_tables(source, sink, table)
                    yield Flown(peer.id, fly(source, sink, table, wait_s, tracked), others=others)
            except WalferryError as error:
                yield Flown(peer.id, [], f"peer {peer.id}: {error}")


def require_arrived(flown: Sequence[Flown], wait_s: float) -> None:
    """Raise NotReplicatedError unless each peer's canary was flown and arrived."""
    lost = [f"peer {one.peer} from {row.server}" for one in flown for row in one.arrivals if row.seconds is None]
    if lost:
        raise NotReplicatedError(
            f"the canary has not arrived in {wait_s:g} s: {'; '.join(lost)}. `walferry replicate status` says what "
            "waits. A server may not reach the sink's servers by the names and ports that they have in its ZooKeeper",
            findings=lost,
        )
    if kept := [one.kept_back for one in flown if one.kept_back is not None]:
        raise NotReplicatedError(f"the canary was not flown: {'; '.join(kept)}", findings=kept)


def obstacle(peer: PeerConfig, table: str) -> str | None:
    """Why a peer would not ship the canary's table, if so."""
    if not peer.enabled:
        return f"peer {peer.id} is disabled"
    if not peer.replicates(table, FAMILY):
        if peer.all_tables:
            return f"peer {peer.id} leaves the table {table} out"
        return (
            f"peer {peer.id} replicates named tables only; in HBase's shell: "
            f"append_peer_tableCFs '{peer.id}', {{'{table}' => []}}"
        )
    return None


def make_tables(source: HBaseClient, sink: HBaseClient, table: str) -> None:
    """Create the canary's table where it is missing, at the sink first: the source would stop without it."""
    for client, scope in ((sink, "0"), (source, "1")):
        if not client.table_exists(table):
            client.create_table(table, {FAMILY: {"VERSIONS": "1", "REPLICATION_SCOPE": scope}})
    if source.describe(table).families[FAMILY].attributes.get("REPLICATION_SCOPE") != "1":
        raise UsageError(
            f"the table {table} of the source has REPLICATION_SCOPE 0: alter '{table}', {{NAME => '{FAMILY}', "
            "REPLICATION_SCOPE => '1'}",
            table=table,
        )


def fly(
    source: HBaseClient, sink: HBaseClient, table: str, wait_s: float, tracked: Tracked = lambda servers: servers
) -> list[Arrival]:
    """Write a row at each live server of the source, and wait for all of them at the sink, for up to `wait_s` after the
    last. The table's region is moved from server to server. A server at which no row can be written is told; raises the
    errors of the sink's client."""
    flight = _Flight(source, sink, table)
    unwritten: list[Arrival] = []
    with beside(flight.look_on, "canary"):
        for server in tracked(source.servers()):
            try:
                flight.write(server)
            except WalferryError as error:
                unwritten.append(Arrival(server.address, None, str(error)))
        deadline = steady_s() + wait_s
        while flight.on_the_way and steady_s() < deadline:
            time.sleep(LOOK_SECONDS)
    if flight.failure is not None:
        raise flight.failure
    return [*unwritten, *(Arrival(row.decode(), flight.arrived.get(row)) for row in sorted(flight.written))]


class _Flight:
    def __init__(self, source: HBaseClient, sink: HBaseClient, table: str) -> None:
        self._source, self._sink, self._table = source, sink, table
        self.written: dict[bytes, tuple[bytes, float]] = {}
        """by row, "host:port" of the server whose log it is in: its value, and when it was written"""
        self.arrived: dict[bytes, float] = {}
        """by row: after how many seconds"""
        self.failure: WalferryError | None = None
        """of the last look at the sink"""

    @property
    def on_the_way(self) -> set[bytes]:
        return set(self.written) - set(self.arrived)

    def write(self, server: Server) -> None:
        """Write a row while a server has its region."""
        row, value = server.address.encode(), uuid.uuid4().bytes
        for _ in range(PUTS):
            if (region := self._region(row)).server != server:
                self._source.move_region(region, server)
            began = steady_s()
            self._source.put(self._table, [Cell(row, FAMILY.encode(), _QUALIFIER, value)])
            if self._region(row).server == server:
                self.written[row] = value, began
                return
        raise TransientError(f"the region of {self._table} does not stay there", server=server.address)

    def _region(self, row: bytes) -> Region:
        for region in self._source.regions(self._table):
            if region.holds(row):
                return region
        raise TransientError(f"no region of {self._table} has the row {row!r} now", table=self._table)

    def look_on(self, over: Event) -> None:
        """Look until it is over, also while the sink fails."""
        while not over.wait(LOOK_SECONDS):
            try:
                self._look()
                self.failure = None
            except WalferryError as error:
                self.failure = error

    def _look(self) -> None:
        """Note the rows that have arrived."""
        if not self.on_the_way:
            return
        there = {row: cells for block in self._sink.scan(self._table) for row, cells in split_rows(block).items()}
        for row in self.on_the_way:
            value, began = self.written[row]
            if value in there.get(row, b""):
                self.arrived[row] = steady_s() - began
