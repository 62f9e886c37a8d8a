"""The arithmetic of queues, the causes that can be told, and what people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import Queue, SourceLoad
from walferry.replication import sink as sinks
from walferry.replication import status
from walferry.replication.sink import Sink, addresses_of
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
    servers_without_queue,
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
    SERVER, SERVER, "g", "live", 2, (), (), 4_000_000, True, EDIT, 725_000, True, None, None, 724_000, None, None, None,
    True, False, (),
)  # fmt: skip
IDLE = replace(
    STUCK, logs=1, bytes=0, bytes_at_least=False, oldest=None, age_ms=None, reported_lag_ms=0, stuck=False
)  # fmt: skip
WATCHED = PeerStatus("1", True, False, SINK, 2, 9_000_000, 4_000_000, True, 0, 0, (), (STUCK,))
UNREAD = replace(IDLE, read_whole=False)


def queue(logs: Mapping[str, tuple[str, ...]], shipped: Mapping[str, int], writer: str = SERVER) -> Queue:
    return Queue("1", SERVER, writer, logs, shipped)


def wals(lengths: Mapping[str, int], place: Place = Place.ARCHIVED) -> dict[str, WalFile]:
    return {name: WalFile(name, "g", SERVER, 1, name, place, length) for name, length in lengths.items()}


def shown(*peers: PeerStatus) -> list[str]:
    return lines(ReplicationStatus("zk:2181/hbase", "0e1c", "2.6.3", 0, 0, peers))[1:]


class TestBytes:
    def test_what_waits_of_a_group_begins_at_the_position_of_its_oldest_log(self) -> None:
        one = queue({"g": ("g.1", "g.2"), "h": ("h.1",)}, {"g": 30, "h": 5})
        there = wals({"g.1": 100, "g.2": 50, "h.1": 10})
        assert [bytes_waiting(one, group, there, {}) for group in "gh"] == [70 + 50, 5]

    def test_an_open_log_has_what_was_read_of_it(self) -> None:
        one = queue({"g": ("g.1",)}, {"g": 30})
        assert bytes_waiting(one, "g", wals({"g.1": 0}, Place.LIVE), {"g.1": 80}) == 50
        assert bytes_waiting(one, "g", wals({"g.1": 0}, Place.LIVE), {}) == 0

    def test_a_log_without_a_file_has_none(self) -> None:
        assert bytes_waiting(queue({"g": ("g.1", "g.2")}, {"g": 30}), "g", wals({"g.2": 50}), {}) == 50

    def test_only_archived_logs_that_no_other_peer_has_are_pinned_by_this_one(self) -> None:
        there = wals({"g.1": 100, "g.2": 10}) | wals({"g.3": 1}, Place.LIVE)
        assert pinned_bytes(there, {"g.1", "g.2", "g.3", "g.4"}, {"g.2"}) == 100

    @pytest.mark.parametrize(
        ("after", "shipped", "bytes"),
        [(("g.1", "g.2"), 45, 15), (("g.2", "g.3"), 5, 75), (("g.3",), 5, 125)],
        ids=["in one log", "on to the next", "two logs"],
    )
    def test_shipped_is_by_how_much_the_position_moved(self, after: tuple[str, ...], shipped: int, bytes: int) -> None:
        before = queue({"g": ("g.1", "g.2"), "h": ("h.1",)}, {"g": 30, "h": 0})
        now = queue({"g": after, "h": ("h.1",)}, {"g": shipped, "h": 500})
        assert shipped_between(before, now, "g", {"g.1": 100, "g.2": 50, "g.3": 9}) == bytes


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
        return queue_status(queues[1], "g", found, peer, known)

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

    def test_a_group_that_is_stuck_is_not_hidden_by_another_that_moves(self) -> None:
        names = {"g": ("g.1",), "h": ("h.1",), "new": ("new.1",)}
        earlier = queue({"g": ("g.1",), "h": ("h.1",)}, {"g": 100, "h": 100})
        later = queue(names, {"g": 100, "h": 600, "new": 50})
        there = wals({"g.1": 1_000, "h.1": 2_000, "new.1": 100})
        before, now = Look(100.0, self.now_ms - 10_000, (earlier,), there), Look(110.0, self.now_ms, (later,), there)
        known = Known(Local(), "/", now, before, frozenset({SERVER}), ())
        stuck, slow, new = (queue_status(later, group, Unshipped(EDIT), PEER, known) for group in names)
        assert (stuck.group, stuck.moving, stuck.bytes, stuck.catch_up_s) == ("g", False, 900, None)
        assert (slow.group, slow.moving, slow.bytes, slow.catch_up_s) == ("h", True, 1_400, 1_400 / 500 * 10)
        assert (new.shipped_bytes, new.moving) == (None, None)  # it was not there at the first look

    def test_the_rest_takes_as_long_as_at_the_rate_between_the_looks(self) -> None:
        assert self.status(Unshipped(EDIT), shipped=(100, 600)).catch_up_s == 400 / 500 * 10
        assert self.status(Unshipped(EDIT)).catch_up_s is None
        assert self.status(Unshipped(), shipped=(100, 600)).catch_up_s is None

    def test_the_end_of_an_open_log_is_known_only_if_it_was_read(self) -> None:
        assert self.status(Unshipped(EDIT, ends={"g.1": 2_000})).bytes_at_least
        read = self.status(Unshipped(EDIT, ends={"g.1": 2_000}, read_to_end={"g.1"}))
        assert (read.bytes, read.bytes_at_least) == (2_000, False)
        assert not self.status(Unshipped(EDIT), place=Place.ARCHIVED).bytes_at_least

    def test_what_was_not_read_is_perhaps_stuck_if_it_may_be_old_and_nothing_moved(self) -> None:
        old, new = (Unshipped(whole=False, read_to_ms=self.now_ms - ms) for ms in (60_001, 60_000))
        assert self.status(old, looks=1).perhaps_stuck
        assert self.status(old).perhaps_stuck
        assert self.status(old).moving is False
        assert not self.status(old, shipped=(0, 1)).perhaps_stuck
        assert not self.status(new).perhaps_stuck
        assert self.status(new).moving is False
        assert self.status(Unshipped(whole=False)).perhaps_stuck
        assert not self.status(old, peer=replace(PEER, enabled=False)).perhaps_stuck

    def test_a_log_without_a_header_perhaps_stops_its_queue(self) -> None:
        headless = Unshipped(headless=("g.1",))
        assert (self.status(headless).perhaps_stuck, self.status(headless).moving) == (True, False)
        assert not self.status(headless, shipped=(0, 1)).perhaps_stuck

    def test_a_queue_is_not_judged_if_a_log_cannot_be_read_before_an_edit_is_found(self) -> None:
        assert self.status(Unshipped(whole=False, unreadable="damaged")).unjudged
        assert not self.status(Unshipped(whole=False, unreadable="damaged")).perhaps_stuck
        assert not self.status(Unshipped(EDIT, unreadable="damaged")).unjudged

    def test_what_follows_unread_is_younger_than_what_was_read(self) -> None:
        status = self.status(Unshipped(whole=False, read_to_ms=self.now_ms - 500))
        assert (status.age_ms, status.younger_than_ms, status.read_whole) == (None, 500, False)

    def test_a_lost_log_is_told_and_its_queue_is_not_said_to_move(self) -> None:
        gone = queue({"g": ("g.1", "g.2", "g.3")}, {"g": 0})
        now = Look(110.0, self.now_ms, (gone,), wals({"g.1": 5}), frozenset({"g.2", "of another queue"}))
        known = Known(Local(), "/", now, now, frozenset({SERVER}), ())
        status = queue_status(gone, "g", Unshipped(), PEER, known)
        assert (status.lost_logs, status.moving) == (("g.2",), False)

    def test_a_live_server_without_a_queue_of_an_enabled_peer_is_named(self) -> None:
        taken = replace(queue({"g": ("g.1",)}, {"g": 0}, writer="rs3,16020,3"), holder=DEAD)
        now = Look(0, 0, (queue({"g": ("g.1",)}, {"g": 0}), taken), {})
        known = Known(Local(), "/", now, None, frozenset({SERVER, DEAD}), ())
        assert servers_without_queue(PEER, known) == (DEAD,)  # it has only that of a dead one
        off = replace(PEER, enabled=False)
        assert servers_without_queue(off, known) == ()
        assert servers_without_queue(replace(off, id="2"), known) == (SERVER, DEAD)

    def test_a_queue_whose_holder_is_dead_is_not_claimed(self) -> None:
        assert self.status(Unshipped(EDIT)).state == "live"
        assert self.status(Unshipped(EDIT), alive=DEAD).state == "unclaimed"


class TestReportedLag:
    def load(self, lag_ms: int, queue_id: str | None = None, server: str = SERVER) -> SourceLoad:
        return SourceLoad(server, "1", queue_id, lag_ms)

    def test_it_is_that_of_the_queue_where_the_server_tells_them_apart(self) -> None:
        loads = [self.load(5, "1"), self.load(900, f"1-{DEAD}"), self.load(7_000, "1", DEAD)]
        assert reported_lag(queue({}, {}), loads) == 5
        assert reported_lag(queue({}, {}, DEAD), loads) == 900

    def test_before_2_5_it_is_that_of_all_queues_of_the_peer(self) -> None:
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


class TestPlaces:
    """Where the peers of a source lead, given the ids of the clusters that are reached."""

    def places(
        self, monkeypatch: pytest.MonkeyPatch, ids: Mapping[str, str], peer: str | None, *keys: str
    ) -> list[str]:
        monkeypatch.setattr(sinks, "cluster_id_at", lambda place: ids.get(place.zookeeper))
        source, target = (Cluster(zookeeper=f"{name}:1", webhdfs="http://nn:1", rootdir="/") for name in ("s", "t"))
        spec = resolve_replicate(ReplicateSpec(source=source, target=target, peer=peer), pytest.fail)
        peers = [replace(PEER, id=key, cluster_key=key) for key in keys]
        places = addresses_of(spec, peers)
        return [place if isinstance(place, str) else place.zookeeper for place in places.values()]

    def test_a_target_stands_for_those_that_lead_to_its_cluster_or_cannot_be_followed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = ("same:1:/hbase", "other:1:/hbase", "away:1:/hbase", "hbase+zk://uri")
        ids = {"t:1": "T", "same:1": "T", "other:1": "O"}
        assert self.places(monkeypatch, ids, None, *keys) == ["t:1", "other:1", "t:1", "t:1"]
        assert self.places(monkeypatch, {"other:1": "O"}, None, *keys) == ["t:1"] * 4

    def test_a_target_stands_for_the_peer_that_is_named_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = {"t:1": "T", "other:1": "O"}
        assert self.places(monkeypatch, ids, "other:1:/hbase", "other:1:/hbase") == ["t:1"]


class TestLook:
    """Queues and logs are two requests."""

    def lost(self, root: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> frozenset[str]:
        """What is lost if the queue has these names in turn, and no file is there."""
        (root / "WALs").mkdir()
        queues = [[queue({"rs%2C1%2C2": (name,)}, {"rs%2C1%2C2": 0})] for name in names]
        monkeypatch.setattr(status, "peer_configs", lambda _: [])
        monkeypatch.setattr(status, "replication_queues", lambda *_: queues.pop(0))
        return status.taken(cast(HBaseClient, None), Local(), str(root)).lost

    def test_a_log_that_no_listing_has_is_lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lost(tmp_path, monkeypatch, "rs%2C1%2C2.7", "rs%2C1%2C2.7") == {"rs%2C1%2C2.7"}

    def test_a_log_that_was_shipped_and_deleted_meanwhile_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.lost(tmp_path, monkeypatch, "rs%2C1%2C2.7", "rs%2C1%2C2.8") == frozenset()

    def test_a_log_of_no_user_table_is_not_looked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lost(tmp_path, monkeypatch, "rs%2C1%2C2.meta.7.meta") == frozenset()


class TestOrder:
    def test_lost_logs_come_first_then_what_is_stuck_perhaps_stuck_and_not_judged(self) -> None:
        queues = [
            replace(IDLE, lost_logs=("g.1",)),
            STUCK,
            replace(UNREAD, perhaps_stuck=True),
            replace(UNREAD, unreadable="damaged"),
            replace(STUCK, stuck=False),
            IDLE,
        ]
        assert sorted(queues[3:] + queues[:3], key=status.worst_queue) == queues
        peers = [replace(WATCHED, queues=(one,), bytes=0) for one in queues]
        peers.append(replace(WATCHED, queues=(), bytes=0))
        assert sorted(peers[3:] + peers[:3], key=status.worst_peer)[:5] == peers[:5]


class TestCauses:
    found = Unshipped(EDIT, {"shop:orders": frozenset({"d"})})

    def test_what_is_known_comes_without_the_advice_to_look_further(self) -> None:
        refusals = {"shop:orders": ["table shop:orders is missing"], "else": ["of another queue"]}
        assert causes_of(STUCK, self.found, PEER, SINK, refusals) == ["table shop:orders is missing"]
        gone = replace(SINK, fault="no region server of it is alive")
        assert causes_of(STUCK, self.found, PEER, gone, {}) == ["no region server of it is alive"]
        dead = replace(STUCK, state="unclaimed")
        assert "no other server has claimed" in causes_of(dead, self.found, PEER, SINK, {})[0]

    def test_what_is_not_known_names_where_to_look(self) -> None:
        last = "unknown: look for ReplicationSource and 1 in the log of region server rs1,16020"
        assert causes_of(STUCK, self.found, PEER, SINK, {}) == [last]
        slow = causes_of(STUCK, self.found, replace(PEER, bandwidth=9, serial=True), SINK, {})
        assert [cause.partition(" ")[0] for cause in slow] == ["perhaps", "perhaps", "unknown:"]

    def test_a_sink_that_only_walferry_does_not_reach_proves_nothing(self) -> None:
        away = replace(SINK, fault="it cannot be looked at from here: no answer", proved=False)
        first, last = causes_of(STUCK, self.found, PEER, away, {})
        assert first == "perhaps its cluster takes no changes: it cannot be looked at from here: no answer"
        assert last.startswith("unknown: look for")

    def test_what_is_proved_comes_first_and_ends_the_search(self) -> None:
        away = replace(SINK, fault="it cannot be looked at from here: no answer", proved=False)
        dead = replace(STUCK, state="unclaimed")
        assert [cause.partition(" ")[0] for cause in causes_of(dead, self.found, PEER, away, {})] == ["its", "perhaps"]
        damaged = replace(STUCK, unreadable="g.5 is damaged")
        refused, perhaps = causes_of(damaged, self.found, PEER, SINK, {"shop:orders": ["table shop:orders is missing"]})
        assert refused == "table shop:orders is missing"
        assert perhaps.startswith("perhaps its region server")

    def test_a_bulk_load_perhaps_cannot_be_read_by_the_sink(self) -> None:
        load = replace(STUCK, oldest=replace(EDIT, row=None))
        first, last = causes_of(load, self.found, PEER, SINK, {})
        assert first == "perhaps the sink cannot read the files of the source (hbase.replication.conf.dir there)"
        assert last.startswith("unknown: look for")

    def test_what_is_wrong_with_logs_is_told_also_of_what_is_not_stuck(self) -> None:
        lost = replace(IDLE, lost_logs=tuple(f"g.{number}" for number in range(7)))
        assert causes_of(lost, Unshipped(), PEER, SINK, {}) == [
            "log lost: HDFS has no such file: g.0, g.1, g.2, g.3, g.4 and 2 more: its edits are gone, or block the "
            "queue"
        ]
        (headless,) = causes_of(replace(IDLE, headless_logs=("g.4",), perhaps_stuck=True), Unshipped(), PEER, SINK, {})
        assert headless.startswith("log without a complete header: g.4: ")
        assert "replication.source.eof.autorecovery" in headless
        damaged = replace(UNREAD, unreadable="g.5 is damaged")
        first, last = causes_of(damaged, Unshipped(), PEER, SINK, {})
        assert first == "perhaps its region server cannot read on either: g.5 is damaged"
        assert last.startswith("unknown: look for")
        assert causes_of(damaged, Unshipped(), replace(PEER, enabled=False), SINK, {}) == [first]

    def test_a_queue_that_moves_needs_no_cause(self) -> None:
        assert causes_of(replace(STUCK, moving=True), self.found, PEER, SINK, {}) == []


class TestLines:
    def test_a_stuck_queue_has_its_edit_and_its_causes(self) -> None:
        queue = replace(STUCK, causes=("table shop:orders is missing",))
        assert shown(replace(WATCHED, queues=(queue,), pinned_bytes=5_000_000, waiting_files=1)) == [
            "peer 1 to zk:2181/hbase: 1 of 1 queue stuck or slow; 2 logs, at least 4.0 MB not shipped; 1 file of bulk "
            "loads not shipped",
            "  its cluster: 0e1c, 2 region servers",
            "  only this peer keeps 5.0 MB in oldWALs",
            "  STUCK OR SLOW rs1,16020,1: 2 logs, at least 4.0 MB not shipped; oldest edit 12 min 05 s old; lag by the "
            "server's own count 12 min 04 s",
            r"    waits: row '\x00one' of shop:orders, family d, written 2023-11-14T22:13:20Z: g.3 at byte 812",
            "    cause: table shop:orders is missing",
        ]

    def test_a_bulk_load_has_no_row(self) -> None:
        queue = replace(STUCK, oldest=replace(EDIT, row=None))
        line = "    waits: a bulk load into shop:orders, family d, written 2023-11-14T22:13:20Z: g.3 at byte 812"
        assert shown(replace(WATCHED, queues=(queue,)))[-1] == line

    def test_two_looks_tell_the_stuck_from_the_slow(self) -> None:
        still = replace(STUCK, moving=False, shipped_bytes=0)
        slow = replace(STUCK, server=DEAD, writer=DEAD, moving=True, catch_up_s=75.0)
        (_, _, first, _, second, _) = shown(replace(WATCHED, queues=(still, slow)))
        assert first.startswith("  STUCK rs1,16020,1: ")
        assert first.endswith("; not moving")
        assert second.startswith("  SLOW rs2,16020,2: ")
        assert second.endswith("; caught up in about 1 min 15 s if nothing else is written")

    def test_the_summary_never_says_that_a_queue_ships_which_may_be_stuck_or_was_not_judged(self) -> None:
        perhaps = replace(
            UNREAD, server="b", writer="b", perhaps_stuck=True, younger_than_ms=70_000, reported_lag_ms=None
        )  # fmt: skip
        unjudged = replace(UNREAD, server="c", writer="c", unreadable="damaged", reported_lag_ms=None)
        lost = replace(IDLE, lost_logs=("g.2", "g.3"), reported_lag_ms=None)
        found = shown(replace(WATCHED, queues=(lost, perhaps, unjudged)))
        assert [found[0], *found[2:]] == [
            "peer 1 to zk:2181/hbase: 2 logs lost; 1 of 3 queues perhaps stuck; 1 queue could not be judged; 2 logs, "
            "at least 4.0 MB not shipped",
            "  LOG LOST rs1,16020,1: 1 log, 0 bytes not shipped; no edit waits in the logs that are there",
            "  PERHAPS STUCK b: 1 log, 0 bytes not shipped; no edit to ship in what was read; what follows "
            "is at most 1 min 10 s old",
            "  NOT JUDGED c: 1 log, 0 bytes not shipped; no edit to ship in what was read; how old what "
            "follows is, is not known",
        ]
        both = replace(STUCK, lost_logs=("g.2",))
        assert shown(replace(WATCHED, queues=(both,)))[2].startswith("  LOG LOST, STUCK OR SLOW rs1,16020,1: ")
        off = shown(replace(WATCHED, enabled=False, queues=(lost,)))[0]
        assert off == "peer 1 to zk:2181/hbase: 2 logs lost; disabled: keeps 2 logs, 9.0 MB"

    def test_groups_have_lines_of_their_own_and_count_as_one_queue(self) -> None:
        other = replace(IDLE, group="h", reported_lag_ms=None)
        alone = replace(other, server=DEAD, writer=DEAD, state="unclaimed")
        found = shown(replace(WATCHED, queues=(STUCK, replace(UNREAD, group="i", perhaps_stuck=True), other, alone)))
        assert found[0].startswith("peer 1 to zk:2181/hbase: 1 of 2 queues stuck or slow; 2 logs, ")
        assert [line.partition(": ")[0] for line in found if line.startswith("  ") and " bytes " in line] == [
            "  PERHAPS STUCK rs1,16020,1, group i",
            "  rs1,16020,1, group h",
            "  rs2,16020,2, which is dead",
        ]
        assert found[2].startswith("  STUCK OR SLOW rs1,16020,1, group g: 2 logs, ")

    def test_files_of_bulk_loads_wait_even_if_no_edit_does(self) -> None:
        peer = replace(WATCHED, waiting_files=3, queues=(IDLE,))
        assert shown(peer)[0] == "peer 1 to zk:2181/hbase: 3 files of bulk loads not shipped"

    def test_a_server_without_a_queue_is_named(self) -> None:
        peer = replace(WATCHED, servers_without_queue=(DEAD,), queues=())
        assert [shown(peer)[0], *shown(peer)[2:]] == [
            "peer 1 to zk:2181/hbase: no queue",
            "  no queue at rs2,16020,2: hbase.replication may be off there, or it has written no log yet",
        ]

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

    def test_the_version_of_its_cluster_is_told_or_why_its_master_does_not_tell_it(self) -> None:
        sink = replace(SINK, version="2.6.3")
        assert shown(replace(WATCHED, sink=sink))[1] == "  its cluster: HBase 2.6.3, 0e1c, 2 region servers"
        silent = replace(SINK, master_fault="no master")
        line = "  its cluster: 0e1c, 2 region servers; its master does not answer: no master"
        assert shown(replace(WATCHED, sink=silent))[1] == line

    def test_a_cluster_that_cannot_be_asked_and_no_peer_are_told(self) -> None:
        away = replace(WATCHED, sink=Sink("zk:1/hbase", fault="ZooKeeper at zk:1 did not answer"), queues=())
        assert shown(away) == ["peer 1 to zk:1/hbase: nothing waits", "  its cluster: ZooKeeper at zk:1 did not answer"]
        assert shown() == ["no replication peer leads to a cluster"]
