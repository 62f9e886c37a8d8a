"""What a table has already is copied once, by one process after the other, and only when nothing can be lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from unit.receive.two_clusters import KEYS
from walferry.clock import now_ms
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import encode_cell
from walferry.hbase.descriptors import new_table
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import QueueNode
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, RunLedger
from walferry.ledger.batches import in_one
from walferry.receive import history
from walferry.receive.history import HistoryCopy
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.notes.history import History, history_of
from walferry.run.spec import TablePair

TABLE, TARGET = "shop:orders", "east:orders"
SERVERS = [Server("a", 1, 1), Server("b", 1, 1)]
BORDERS = [b"", b"row3", b"row6", b""]


def block(row: bytes) -> bytes:
    return encode_cell(row, b"d", b"q", 1, 4, b"v")


def peer_of(*tables: str, families: tuple[str, ...] = (), name: str = "east") -> PeerConfig:
    of = {table: frozenset(families) for table in tables}
    return PeerConfig(name, True, "key", "", False, of, frozenset(), {}, frozenset(), False, 0)


class Cluster:
    """A source with ten rows in three regions, and what a target has got of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scopes = {"d": "1", "e": "1"}
        self.peers = [peer_of(TABLE)]
        self.created: int | None = 7
        self.queues = [QueueNode("east", server.name, "east", 1, ("log",)) for server in SERVERS]
        self.there: list[bytes] = []
        self.borders = BORDERS
        self.sent: list[bytes] = []
        self.scans: list[tuple[bytes, bytes]] = []
        self.before_row: Callable[[bytes], object] = lambda row: None
        self.before_send: Callable[[bytes], object] = lambda row: None
        monkeypatch.setattr(history, "peers_here", lambda *_: self.peers)
        monkeypatch.setattr(history, "peer_created", lambda *_: self.created)
        monkeypatch.setattr(history, "queue_nodes", lambda _, peers: [q for q in self.queues if q.peer in peers])
        monkeypatch.setattr(history, "writer_to", lambda _: None)
        monkeypatch.setattr(history, "send_cells", self._send)
        for name, seconds in (
            ("SAVE_SECONDS", 0.01), ("AGAIN_SECONDS", 0.01), ("LOOK_SECONDS", 0.0), ("STANDS_SECONDS", 0.02),
            ("PEER_SECONDS", 0.0),
        ):  # fmt: skip
            monkeypatch.setattr(history, name, seconds)

    def describe(self, table: str) -> Any:
        return new_table(table, {name: {"REPLICATION_SCOPE": scope} for name, scope in self.scopes.items()})

    def servers(self) -> list[Server]:
        return SERVERS

    def regions(self, table: str) -> list[Any]:
        return [SimpleNamespace(start=start, end=end) for start, end in pairwise(self.borders)]

    def scan_raw(self, table: str, start: bytes = b"", stop: bytes = b"") -> Iterator[bytes]:
        if table == TARGET:
            yield from self.there
            return
        self.scans.append((start, stop))
        for row in (b"row%d" % number for number in range(10)):
            if start <= row and (not stop or row < stop):
                self.before_row(row)
                yield block(row)

    def _send(self, writer: object, route: object, table: str, cells: bytes) -> int:
        row = next(one for one in (b"row%d" % number for number in range(10)) if block(one) == cells)
        self.before_send(row)
        self.sent.append(row)
        return 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def run(ledger: Ledger, cluster: Cluster) -> Any:
    record = ledger.open_run("east", "kim", KEYS | {"receive": {"path": None, "history": "scan"}}, "kim", "receive")
    return SimpleNamespace(
        ledger=ledger.of(record.run_id), record=record, source=cluster, target=cluster,
        log_times=SimpleNamespace(clock_skew_seconds=0.0), tables=[TablePair(source=TABLE, target=TARGET)],
    )  # fmt: skip


class Copier:
    """One process that holds the table's lease."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.wanted = True
        self.turn, self.looking = threading.Lock(), threading.Lock()
        self.told: list[str] = []
        self.guard: Callable[[], None] = lambda: None

    def go(self) -> bool:
        pair = TablePair(source=TABLE, target=TARGET)
        limits = SimpleNamespace(settle_seconds=0)
        holding: Any = SimpleNamespace(
            pair=pair, route=SimpleNamespace(limits=limits), check=in_one(), guard=lambda: self.guard()
        )
        return HistoryCopy(self.run, holding, lambda: self.wanted, self.looking).go(self.turn, self._tell)

    def _tell(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture
def copier(run: Any) -> Copier:
    return Copier(run)


def kept(run: Any) -> History:
    ledger: RunLedger = run.ledger
    return history_of(ledger, TABLE)


def test_all_rows_are_copied_once_and_the_ledger_says_so(copier: Copier, cluster: Cluster) -> None:
    assert copier.go()
    assert sorted(cluster.sent) == [b"row%d" % number for number in range(10)]
    assert kept(copier.run).is_done
    assert (kept(copier.run).cells, kept(copier.run).peer) == (10, "east")
    assert copier.go()
    assert len(cluster.sent) == 10, "the next holder copies nothing"


def test_the_next_holder_goes_on_where_this_one_has_stopped(
    copier: Copier, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LANES", 1)

    def give_back(row: bytes) -> None:
        if row == b"row4":
            copier.wanted = False

    cluster.before_send = give_back
    cluster.before_row = lambda row: threading.Event().wait(0.05)
    assert not copier.go()
    stopped = len(cluster.sent)
    assert 5 <= stopped < 10
    assert not kept(copier.run).is_done
    copier.wanted, cluster.before_send = True, lambda row: None
    assert copier.go()
    assert sorted(cluster.sent) == [b"row%d" % number for number in range(10)]
    assert kept(copier.run).cells == 10


def test_a_source_that_fails_is_asked_again_from_the_next_row_on(copier: Copier, cluster: Cluster) -> None:
    failures = iter([True, True])

    def fail(row: bytes) -> None:
        if row == b"row4" and next(failures, False):
            raise TransientError("the region moves")

    cluster.before_row = fail
    assert copier.go()
    assert sorted(cluster.sent) == [b"row%d" % number for number in range(10)]
    assert cluster.scans.count((b"row3\0", b"row6")) == 2
    assert kept(copier.run).waits == ""


def test_an_error_of_the_target_is_shown_until_the_copy_goes_on_and_what_was_copied_stays_recorded(
    copier: Copier, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LANES", 1)
    refused = list[int]()

    def fail(row: bytes) -> None:
        if row == b"row7" and len(refused) < 3:
            refused.append(kept(copier.run).waits_ms)
            assert kept(copier.run).cells in (0, 7)
            raise WalferryError("the target refuses the cells")

    def mended(text: str) -> None:
        if "refuses the cells" in text and len(refused) == 3:
            assert kept(copier.run).left == ((b"row6\0", b""),)
            assert kept(copier.run).waits == "the target refuses the cells"

    cluster.before_send, copier._tell = fail, mended  # type: ignore[method-assign]
    assert copier.go()
    assert sorted(cluster.sent) == [b"row%d" % number for number in range(10)]
    assert refused[1] == refused[2] > 0, "since when it waits does not change with each attempt"
    assert (kept(copier.run).waits, kept(copier.run).waits_ms) == ("", 0)


def test_a_bug_is_shown_too(copier: Copier, cluster: Cluster) -> None:
    def fail(row: bytes) -> None:
        raise IndexError("a bug")

    cluster.before_send = fail
    with pytest.raises(IndexError):
        copier.go()
    assert kept(copier.run).waits == "a bug"


@pytest.mark.parametrize("at", ["pause", "empty", "error"])
def test_no_range_is_given_up_when_a_copy_ends_between_two_of_them(
    copier: Copier, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """In the pause after an error of the source, in a region without rows, and when another lane fails."""
    monkeypatch.setattr(history, "LANES", 2)
    cluster.borders = [b"", *(b"s%02d" % number for number in range(20)), b""]
    rows = [b"row%d" % number for number in range(10)]

    def before_row(row: bytes) -> None:
        copier.wanted = at == "error"
        threading.Event().wait(0.1)
        if at == "pause":
            raise TransientError("the region moves")

    def before_send(row: bytes) -> None:
        if at == "error":
            copier.wanted = False
            raise WalferryError("the target refuses the cells")

    cluster.before_row, cluster.before_send = before_row, before_send
    assert not copier.go()
    assert not kept(copier.run).is_done
    cluster.before_row = cluster.before_send = lambda row: None
    copier.wanted = True
    assert copier.go()
    assert sorted(set(cluster.sent)) == rows


def test_without_the_lease_nothing_more_is_copied_or_recorded(copier: Copier, cluster: Cluster) -> None:
    def lose(row: bytes) -> None:
        def lost() -> None:
            raise LeaseLostError("the lease is lost", table=TARGET, number=1)

        copier.guard = lost
        threading.Event().wait(0.1)

    cluster.before_send = lose
    with pytest.raises(LeaseLostError, match="lease is lost"):
        copier.go()
    assert len(cluster.sent) < 10
    assert kept(copier.run).cells == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"peers": []}, "the source has no peer that leads here"),
        ({"peers": [peer_of("shop:items")]}, "peer east does not replicate it"),
        ({"peers": [peer_of(TABLE, families=("d",))]}, "peer east does not replicate family e"),
        (
            {"peers": [peer_of(TABLE, families=("d",)), peer_of(TABLE, families=("e",), name="more")]},
            "no peer that leads here replicates all of its families",
        ),
        ({"scopes": {"d": "1", "e": "0"}}, "family e has REPLICATION_SCOPE 0"),
        ({"queues": [QueueNode("east", "a,1,1", "east", 1, ("log",))]}, "no log of b,1,1 is in a queue of peer east"),
        (
            {"queues": [QueueNode("east", "a,1,1", "east", 1, ("log",)), QueueNode("east", "b,1,1", "east", 1, ())]},
            "no log of b,1,1",
        ),
        (
            {
                "queues": [
                    QueueNode("east", "a,1,1", "east", 1, ("log",)),
                    QueueNode("east", "b,1,1", "east-c,1,1", 1, ("log",)),
                ]
            },
            "no log of b,1,1",
        ),
        ({"there": [block(b"row1")]}, "target table east:orders is not empty: truncate it"),
    ],
)
def test_nothing_is_copied_until_a_peer_keeps_all_that_is_written_and_the_target_is_empty(
    copier: Copier, cluster: Cluster, change: dict[str, Any], told: str
) -> None:
    right = {name: getattr(cluster, name) for name in change}
    for name, value in change.items():
        setattr(cluster, name, value)
    done = threading.Thread(target=copier.go, daemon=True)
    done.start()
    while not any(told in one for one in copier.told):
        assert done.is_alive()
        threading.Event().wait(0.01)
    assert told in kept(copier.run).waits
    assert cluster.scans == []
    for name, value in right.items():
        setattr(cluster, name, value)
    done.join(10)
    assert kept(copier.run).is_done
    assert kept(copier.run).waits == ""


@pytest.mark.parametrize("change", ["added again", "removed", "narrowed"])
@pytest.mark.parametrize("when", ["between holders", "meanwhile", "at the end"])
def test_a_peer_that_did_not_keep_the_log_all_the_time_stops_the_copy(
    copier: Copier, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    monkeypatch.setattr(history, "LANES", 1)
    if when != "meanwhile":
        monkeypatch.setattr(history, "PEER_SECONDS", 1000.0)

    def replaced() -> None:
        match change:
            case "added again":
                cluster.created = 8
            case "removed":
                cluster.peers = []
            case "narrowed":
                cluster.peers = [peer_of(TABLE, families=("d",))]

    def before_send(row: bytes) -> None:
        threading.Event().wait(0.05)
        if when == "between holders":
            copier.wanted = False
        elif row == (b"row2" if when == "meanwhile" else b"row9"):
            replaced()

    def stop(text: str) -> None:
        copier.wanted = "was removed, added again, or no longer replicates" not in text

    cluster.before_send = before_send
    copier._tell = stop  # type: ignore[method-assign]
    assert not copier.go()
    if when == "between holders":
        sent = len(cluster.sent)
        replaced()
        copier.wanted = True
        assert not copier.go()
        assert len(cluster.sent) == sent
    assert not kept(copier.run).is_done
    assert "truncate east:orders there, and begin again" in kept(copier.run).waits


def test_another_peer_that_leads_here_too_does_not_matter(
    copier: Copier, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_back(row: bytes) -> None:
        copier.wanted = False
        threading.Event().wait(0.05)

    cluster.before_send = give_back
    assert not copier.go()
    cluster.peers.insert(0, peer_of(TABLE, name="another"))
    cluster.before_send, copier.wanted = lambda row: None, True
    assert copier.go()


def test_edits_are_left_out_from_a_moment_that_no_clock_takes_for_another_side_of_the_queues_or_of_the_scan(
    copier: Copier, cluster: Cluster
) -> None:
    copier.run.log_times.clock_skew_seconds = 0.2
    read = list[int]()
    cluster.before_row = lambda row: read.append(now_ms())
    cluster.queues, queues = [], cluster.queues
    done = threading.Thread(target=copier.go, daemon=True)
    done.start()
    while not kept(copier.run).waits:
        threading.Event().wait(0.01)
    added = now_ms()
    cluster.queues = queues
    done.join(10)
    since = kept(copier.run).since_ms
    assert added + 200 <= since <= min(read) - 199
    assert copier.go()
    assert kept(copier.run).since_ms == since


def test_a_peer_that_is_added_again_before_rows_are_read_counts_from_then_on(copier: Copier, cluster: Cluster) -> None:
    copier.run.log_times.clock_skew_seconds = 0.2
    added = list[int]()

    def again(text: str) -> None:
        if "is copied in" in text and not added:
            cluster.created = 8
            added.append(now_ms())

    copier._tell = again  # type: ignore[method-assign]
    assert copier.go()
    assert kept(copier.run).created == 8
    assert kept(copier.run).since_ms >= added[0] + 200


def test_tables_are_copied_one_after_the_other_and_one_that_is_not_ready_keeps_none_waiting(
    copier: Copier, cluster: Cluster
) -> None:
    copier.turn.acquire()
    done = threading.Thread(target=copier.go, daemon=True)
    done.start()
    while not any("not copied yet" in one for one in copier.told):
        threading.Event().wait(0.01)
    assert cluster.scans == []
    copier.turn.release()
    done.join(10)
    assert kept(copier.run).is_done
    assert not copier.turn.locked()

    cluster.peers = []
    other = Copier(copier.run)
    copier.run.ledger.notes.drop("history", TABLE)
    waits = threading.Thread(target=other.go, daemon=True)
    waits.start()
    while not kept(copier.run).waits:
        threading.Event().wait(0.01)
    assert not other.turn.locked()
    other.wanted = False
    waits.join(10)


def test_what_is_mended_is_no_longer_shown_while_the_clocks_are_waited_for(copier: Copier, cluster: Cluster) -> None:
    copier.run.log_times.clock_skew_seconds = 30.0
    cluster.peers, peers = [], cluster.peers
    waits = threading.Thread(target=copier.go, daemon=True)
    waits.start()
    while not kept(copier.run).waits:
        threading.Event().wait(0.01)
    cluster.peers = peers
    while kept(copier.run).waits:
        threading.Event().wait(0.01)
    copier.wanted = False
    waits.join(10)


def test_however_many_tables_wait_the_source_is_looked_at_for_one_at_a_time(
    copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[float]()

    def peers(*_: object) -> list[PeerConfig]:
        looks.append(time.monotonic())
        return []

    monkeypatch.setattr(history, "peers_here", peers)
    monkeypatch.setattr(history, "LOOK_SECONDS", 0.1)
    others = [Copier(copier.run) for _ in range(10)]
    for other in others:
        other.looking = copier.looking
    waiting = [threading.Thread(target=other.go, daemon=True) for other in others]
    for one in waiting:
        one.start()
    while len(looks) < 5:
        threading.Event().wait(0.01)
    for other in others:
        other.wanted = False
    for one in waiting:
        one.join(10)
    assert min(later - before for before, later in pairwise(looks)) >= 0.1
