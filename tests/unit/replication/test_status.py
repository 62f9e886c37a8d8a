"""The arithmetic of queues, the causes that can be told, and what people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import Queue, SourceLoad
from walferry.replication import status
from walferry.replication.causes import Sink
from walferry.replication.spec import ReplicateSpec, resolve_replicate
from walferry.replication.status import (
    Known,
    Look,
    PeerStatus,
    QueueStatus,
    ReplicationStatus,
    bytes_waiting,
    causes_of,
    look,
    pinned_bytes,
    queue_status,
    reported_lag,
    shipped_between,
)
from walferry.replication.status_lines import lines
from walferry.replication.unshipped import Edit, Unshipped
from walferry.run.spec import Cluster
from walferry.storage import Local
from walferry.wal.files import Place, WalFile

SERVER, DEAD = "rs1,16020,1", "rs2,16020,2"
PEER = PeerConfig("1", True, "zk:2181:/hbase", "", True, {}, frozenset(), {}, frozenset(), False, 0)
EDIT = Edit("g.3", 812, "shop:orders", r"\x00one", ("d",), 1_700_000_000_000)
SINK = Sink("zk:2181/hbase", "0e1c", 2)
STUCK = QueueStatus(
    SERVER, SERVER, "live", 2, (), 4_000_000, True, EDIT, 725_000, True, None, None, 724_000, None, None, None, True, ()
)  # fmt: skip
IDLE = replace(
    STUCK, logs=1, bytes=0, bytes_at_least=False, oldest=None, age_ms=None, reported_lag_ms=0, stuck=False
)  # fmt: skip
WATCHED = PeerStatus("1", True, False, SINK, 2, 9_000_000, 4_000_000, True, 0, 0, (STUCK,))


def queue(logs: Mapping[str, tuple[str, ...]], shipped: Mapping[str, int], writer: str = SERVER) -> Queue:
    return Queue("1", SERVER, writer, logs, shipped)


def wals(lengths: Mapping[str, int], place: Place = Place.ARCHIVED) -> dict[str, WalFile]:
    return {name: WalFile(name, "g", SERVER, 1, name, place, length) for name, length in lengths.items()}


def shown(*peers: PeerStatus) -> list[str]:
    return lines(ReplicationStatus("zk:2181/hbase", "0e1c", "2.6.3", 0, 0, peers))[1:]


class TestBytes:
    def test_what_waits_begins_at_the_position_of_each_groups_oldest_log(self) -> None:
        one = queue({"g": ("g.1", "g.2"), "h": ("h.1",)}, {"g": 30, "h": 5})
        assert bytes_waiting(one, wals({"g.1": 100, "g.2": 50, "h.1": 10}), {}) == 70 + 50 + 5

    def test_an_open_log_has_what_was_read_of_it(self) -> None:
        one = queue({"g": ("g.1",)}, {"g": 30})
        assert bytes_waiting(one, wals({"g.1": 0}, Place.LIVE), {"g.1": 80}) == 50
        assert bytes_waiting(one, wals({"g.1": 0}, Place.LIVE), {}) == 0

    def test_a_log_without_a_file_has_none(self) -> None:
        assert bytes_waiting(queue({"g": ("g.1", "g.2")}, {"g": 30}), wals({"g.2": 50}), {}) == 50

    def test_only_archived_logs_that_no_other_peer_has_are_pinned_by_this_one(self) -> None:
        there = wals({"g.1": 100, "g.2": 10}) | wals({"g.3": 1}, Place.LIVE)
        assert pinned_bytes(there, {"g.1", "g.2", "g.3", "g.4"}, {"g.2"}) == 100

    @pytest.mark.parametrize(
        ("after", "shipped", "bytes"),
        [(("g.1", "g.2"), 45, 15), (("g.2", "g.3"), 5, 75), (("g.3",), 5, 125), ((), 0, 120)],
        ids=["in one log", "on to the next", "two logs", "the whole queue"],
    )
    def test_shipped_is_by_how_much_the_position_moved(self, after: tuple[str, ...], shipped: int, bytes: int) -> None:
        before = queue({"g": ("g.1", "g.2")}, {"g": 30})
        now = queue({"g": after} if after else {}, {"g": shipped} if after else {})
        assert shipped_between(before, now, {"g.1": 100, "g.2": 50, "g.3": 9}) == bytes


class TestQueue:
    """Two looks, 10 s apart, the second a minute and 1 ms after the edit was written."""

    now_ms = EDIT.write_ms + 60_001

    def status(
        self, found: Unshipped, *, peer: PeerConfig = PEER, shipped: tuple[int, int] = (0, 0), looks: int = 2,
        alive: str = SERVER, place: Place = Place.LIVE,
    ) -> QueueStatus:  # fmt: skip
        queues = [queue({"g": ("g.1",)}, {"g": position}) for position in shipped]
        there = wals({"g.1": 1_000}, place)
        before = Look(100.0, self.now_ms - 10_000, (queues[0],), there)
        now = Look(110.0, self.now_ms, (queues[1],), there)
        known = Known(Local(), "/", now, before if looks == 2 else None, frozenset({alive}), ())
        return queue_status(queues[1], found, peer, known)

    def test_an_enabled_peer_is_stuck_once_its_oldest_edit_is_older_than_a_minute(self) -> None:
        assert self.status(Unshipped(EDIT)).stuck
        assert not self.status(Unshipped(replace(EDIT, write_ms=EDIT.write_ms + 1))).stuck
        assert not self.status(Unshipped(EDIT), peer=replace(PEER, enabled=False)).stuck
        assert not self.status(Unshipped()).stuck

    def test_it_moves_if_its_position_did_or_if_nothing_had_to_be_shipped(self) -> None:
        new = Unshipped(replace(EDIT, write_ms=self.now_ms - 9_000))
        assert self.status(Unshipped(EDIT)).moving is False
        assert self.status(Unshipped(EDIT), shipped=(0, 1)).moving is True
        assert self.status(new).moving is True
        assert self.status(Unshipped()).moving is True
        assert self.status(Unshipped(EDIT), looks=1).moving is None

    def test_the_rest_takes_as_long_as_at_the_rate_between_the_looks(self) -> None:
        assert self.status(Unshipped(EDIT), shipped=(100, 600)).catch_up_s == 400 / 500 * 10
        assert self.status(Unshipped(EDIT)).catch_up_s is None
        assert self.status(Unshipped(), shipped=(100, 600)).catch_up_s is None

    def test_the_end_of_an_open_log_is_known_only_if_it_was_read(self) -> None:
        assert self.status(Unshipped(EDIT, ends={"g.1": 2_000})).bytes_at_least
        read = self.status(Unshipped(EDIT, ends={"g.1": 2_000}, read_to_end={"g.1"}))
        assert (read.bytes, read.bytes_at_least) == (2_000, False)
        assert not self.status(Unshipped(EDIT), place=Place.ARCHIVED).bytes_at_least

    def test_what_follows_unread_is_younger_than_what_was_read(self) -> None:
        status = self.status(Unshipped(whole=False, read_to_ms=self.now_ms - 500))
        assert (status.age_ms, status.younger_than_ms, status.read_whole) == (None, 500, False)

    def test_a_log_that_is_neither_listed_nor_read_is_missing(self) -> None:
        gone = queue({"g": ("g.1", "g.2", "g.3")}, {"g": 0})
        now = Look(110.0, self.now_ms, (gone,), wals({"g.1": 5}))
        known = Known(Local(), "/", now, None, frozenset({SERVER}), ())
        assert queue_status(gone, Unshipped(ends={"g.3": 9}), PEER, known).missing_logs == ("g.2",)

    def test_a_queue_whose_holder_is_dead_is_not_claimed(self) -> None:
        assert self.status(Unshipped(EDIT)).state == "live"
        assert self.status(Unshipped(EDIT), alive=DEAD).state == "unclaimed"


class TestReportedLag:
    def load(self, lag_ms: int, queue_id: str | None = None, server: str = SERVER) -> SourceLoad:
        return SourceLoad(server, "1", queue_id, 1, None, lag_ms, None)

    def test_it_is_that_of_the_queue_where_the_server_tells_them_apart(self) -> None:
        loads = [self.load(5, "1"), self.load(900, f"1-{DEAD}"), self.load(7_000, "1", DEAD)]
        assert reported_lag(queue({}, {}), loads) == 5
        assert reported_lag(queue({}, {}, DEAD), loads) == 900

    def test_before_2_6_it_is_that_of_all_queues_of_the_peer(self) -> None:
        assert reported_lag(queue({}, {}), [self.load(5), self.load(900)]) == 900

    def test_the_greatest_number_means_that_it_is_not_known(self) -> None:
        assert reported_lag(queue({}, {}), [self.load((1 << 63) - 1)]) is None


def test_a_source_with_queues_in_a_table_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(HBaseClient):
        def version(self) -> str:
            return "3.0.0"

    monkeypatch.setattr(status, "HBaseClient", Newer)
    source = Cluster(zookeeper="zk:1", webhdfs="http://nn:1", rootdir="hdfs://nn:1/hbase")
    with pytest.raises(UsageError, match=r"HBase 3\.0\.0, which keeps replication queues in a table of its own"):
        look(resolve_replicate(ReplicateSpec(source=source), lambda name: source))


class TestCauses:
    found = Unshipped(EDIT, {"shop:orders": frozenset({"d"})})

    def test_what_is_known_comes_without_the_advice_to_look_further(self) -> None:
        refusals = {"shop:orders": "table shop:orders is missing", "else": "of another queue"}
        assert causes_of(STUCK, self.found, PEER, SINK, refusals) == ["table shop:orders is missing"]
        gone = replace(SINK, fault="ZooKeeper did not answer")
        assert causes_of(STUCK, self.found, PEER, gone, {}) == ["ZooKeeper did not answer"]
        dead = replace(STUCK, state="unclaimed")
        assert "no other server has claimed" in causes_of(dead, self.found, PEER, SINK, {})[0]

    def test_what_is_not_known_names_where_to_look(self) -> None:
        last = "unknown: look for ReplicationSource and 1 in the log of region server rs1,16020"
        assert causes_of(STUCK, self.found, PEER, SINK, {}) == [last]
        slow = causes_of(STUCK, self.found, replace(PEER, bandwidth=9, serial=True), SINK, {})
        assert [cause.partition(" ")[0] for cause in slow] == ["perhaps", "perhaps", "unknown:"]

    def test_a_queue_that_moves_needs_no_cause(self) -> None:
        assert causes_of(replace(STUCK, moving=True), self.found, PEER, SINK, {}) == []


class TestLines:
    def test_a_stuck_queue_has_its_edit_and_its_causes(self) -> None:
        queue = replace(
            STUCK, causes=("table shop:orders is missing",), missing_logs=("g.2",), unreadable="g.4 is damaged"
        )
        assert shown(replace(WATCHED, queues=(queue,), pinned_bytes=5_000_000, waiting_files=1)) == [
            "peer 1 to zk:2181/hbase: 1 of 1 queue stuck or slow; 2 logs, at least 4.0 MB not shipped",
            "  its cluster: 0e1c, 2 region servers",
            "  1 file of bulk loads not shipped",
            "  only this peer keeps 5.0 MB in oldWALs",
            "  STUCK OR SLOW rs1,16020,1: 2 logs, at least 4.0 MB not shipped; oldest edit 12 min 05 s old; lag by the "
            "server's own count 12 min 04 s",
            "    log missing: g.2",
            "    log unreadable: g.4 is damaged",
            r"    waits: row '\x00one' of shop:orders, family d, written 2023-11-14T22:13:20Z: g.3 at byte 812",
            "    cause: table shop:orders is missing",
        ]

    def test_a_bulk_load_has_no_row(self) -> None:
        queue = replace(STUCK, oldest=replace(EDIT, row=None))
        line = "    waits: a bulk load into shop:orders, family d, written 2023-11-14T22:13:20Z: g.3 at byte 812"
        assert shown(replace(WATCHED, queues=(queue,)))[-1] == line

    def test_two_looks_tell_the_stuck_from_the_slow(self) -> None:
        still, slow = replace(STUCK, moving=False, shipped_bytes=0), replace(STUCK, moving=True, catch_up_s=75.0)
        (_, _, first, _, second, _) = shown(replace(WATCHED, queues=(still, slow)))
        assert first.startswith("  STUCK rs1,16020,1: ")
        assert first.endswith("; not moving")
        assert second.startswith("  SLOW rs1,16020,1: ")
        assert second.endswith("; caught up in about 1 min 15 s if nothing else is written")

    def test_a_disabled_peer_keeps_logs(self) -> None:
        peer = replace(WATCHED, enabled=False, serial=True, queues=(replace(STUCK, stuck=False),))
        assert shown(peer)[0] == "peer 1 to zk:2181/hbase, serial: disabled: keeps 2 logs, 9.0 MB"

    def test_what_is_caught_up_waits_for_nothing(self) -> None:
        recovered = replace(IDLE, writer=DEAD, state="recovered", reported_lag_ms=None)
        beyond = replace(IDLE, read_whole=False, younger_than_ms=5_000, reported_lag_ms=None)
        peer = replace(WATCHED, queues=(IDLE, recovered))
        assert [shown(peer)[0], *shown(peer)[2:]] == [
            "peer 1 to zk:2181/hbase: nothing waits",
            "  rs1,16020,1: 1 log, 0 bytes not shipped; no edit waits; lag by the server's own count 0 s",
            "  rs1,16020,1, for rs2,16020,2, which is dead: 1 log, 0 bytes not shipped; no edit waits",
        ]
        assert shown(replace(WATCHED, queues=(beyond,)))[2].endswith(
            "no edit to ship in what was read; what follows is at most 5 s old"
        )

    def test_a_cluster_that_cannot_be_asked_and_no_peer_are_told(self) -> None:
        away = replace(WATCHED, sink=Sink("zk:1/hbase", fault="ZooKeeper at zk:1 did not answer"), queues=())
        assert shown(away) == ["peer 1 to zk:1/hbase: no queue", "  its cluster: ZooKeeper at zk:1 did not answer"]
        assert shown() == ["no replication peer leads to a cluster"]
