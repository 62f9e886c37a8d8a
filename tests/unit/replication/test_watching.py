"""A run that watches what HBase replicates by itself: what each look records, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.replication.watch_ledger import (
    EDIT,
    IDLE,
    LOST_CANARY,
    OTHER,
    ROW,
    SERVER,
    STATES,
    STOP,
    Clusters,
    brought_to,
    opened,
    peer,
    waiting,
)
from unit.replication.watch_ledger import clusters as clusters
from walferry.errors import UsageError
from walferry.ledger import Ledger, PeerLook, RunLedger
from walferry.replication.canary import Arrival, Flown
from walferry.replication.finding import NO_PEER, Finding, disabled
from walferry.replication.spec import recorded_replicate_spec
from walferry.replication.status import QueueStatus
from walferry.run.heartbeat import RunBusyError, beating
from walferry.run.notes.watched_replication import keep_awake, kept_plan, watched
from walferry.run.progress.lag import lag_of
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_REPLICATION, StateName
from walferry.run.progress.states import STATES as EVERY
from walferry.run.progress.status import status, status_line

ARRIVED = Flown("west", [Arrival("rs1:16020", 1.5), Arrival("rs2:16020", 4.25)])
BOARD = Path(__file__).parents[3] / "docs" / "board.md"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


@pytest.fixture
def run(book: Ledger, clusters: Clusters) -> RunLedger:
    return opened(book)


class TestStates:
    @pytest.mark.parametrize("name", STATES)
    def test_each_state_can_be_told_from_the_ledger_alone(
        self, run: RunLedger, clusters: Clusters, name: StateName
    ) -> None:
        brought_to(run, name, clusters)
        state = state_of(run)
        assert (state.name, "NAME" in state.next_step) == (name, False)
        assert (status(run).state, status(run).kind) == (name, "replication")
        assert f"State: {name}" in status_line(status(run))

    def test_the_documents_say_what_each_state_means(self) -> None:
        text = BOARD.read_text()
        for name, kind in OF_REPLICATION.items():
            assert f"| {name} | {kind.cause} | {kind.next_step} |" in text
            assert kind.colour == EVERY[name].colour

    def test_a_queue_that_is_late_by_less_than_max_lag_is_catching_up(self, book: Ledger, clusters: Clusters) -> None:
        patient = opened(book, max_lag=900)
        assert clusters.seen(patient, waiting(899)).troubles == ()
        assert state_of(patient).name == "catching up"
        assert clusters.seen(patient, waiting(901)).troubles != ()
        assert state_of(patient).name == "stuck"

    def test_a_look_that_takes_long_is_no_interruption_and_neither_is_a_pause(
        self, book: Ledger, run: RunLedger, clusters: Clusters
    ) -> None:
        brought_to(run, "interrupted", clusters)
        with beating(run, "watch", "airflow"):
            assert state_of(run).name == "following"
        assert state_of(run).name == "interrupted"
        book.set_paused(run.run_id, True, "kim")
        keep_awake(run)
        book.set_paused(run.run_id, False, "kim")
        assert state_of(run).name == "following"

    def test_a_state_began_when_it_was_first_seen(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.seen(run, waiting(301))
        first = state_of(run).since_ms
        clusters.seen(run, waiting(302))
        assert state_of(run).since_ms == first
        clusters.seen(run, IDLE)
        assert state_of(run).since_ms > first

    def test_looks_fail_since_the_first_that_did_until_one_succeeds(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.seen(run)
        clusters.fault = "ZooKeeper does not answer"
        (trouble,) = clusters.seen(run).troubles
        since = state_of(run).since_ms
        clusters.seen(run)
        assert (state_of(run).since_ms, state_of(run).name) == (since, "failed")
        assert (trouble.event, "ZooKeeper does not answer" in trouble.text) == ("unwatched", True)
        assert (lag_of(run).seconds, lag_of(run).unknown[:27]) == (None, "nobody has looked since 202")
        clusters.fault = ""
        clusters.seen(run)
        assert state_of(run).name == "following"


class TestTroubles:
    def test_a_stuck_queue_is_told_with_its_place_and_causes_and_without_its_row(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        (trouble,) = clusters.seen(run, waiting(301, "table shop:orders is missing at the sink")).troubles
        assert trouble.text == (
            f"peer east at {SERVER}: an edit of shop:orders has not been shipped for 5 min 01 s "
            f"({EDIT.file} at byte 812): table shop:orders is missing at the sink"
        )
        assert ROW not in trouble.text + trouble.key + state_of(run).cause

    def test_a_trouble_has_the_same_key_as_long_as_it_lasts_and_another_one_another(
        self, book: Ledger, clusters: Clusters
    ) -> None:
        def told(peer_id: str, used: int, offset: int) -> list[str]:
            message = (
                f"at the sink of peer {peer_id} the table orders1 is over its quota of space ({used} of 100 bytes): …"
            )
            clusters.findings = [Finding("stop", "orders1", message)]
            later(run, 60)
            return [one.key for one in clusters.seen(run, waiting_at(offset)).troubles]

        def waiting_at(offset: int) -> QueueStatus:
            return replace(waiting(300 + offset), oldest=replace(EDIT, offset=offset))

        clusters.findings = [STOP]
        run = opened(book)
        first = told("1", 101, 10)
        assert told("1", 205, 20) == first
        assert [mine == other for mine, other in zip(told("2", 205, 20), first, strict=True)] == [True, False]

    def test_a_lost_log_is_a_gap_and_comes_first(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.findings = [STOP]
        later(run, 15 * 60)
        found = clusters.seen(run, waiting(400), replace(OTHER, lost_logs=("rs2%2C16020%2C2.2",))).troubles
        assert [one.event for one in found] == ["gap", "replication", "replication"]
        assert state_of(run).cause.startswith("peer east at rs2,16020,2: 1 log lost: HDFS has no rs2%2C16020%2C2.2")

    def test_very_many_lost_logs_of_a_queue_are_one_and_are_not_all_kept(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        (trouble,) = clusters.seen(run, replace(IDLE, lost_logs=tuple(f"log.{n}" for n in range(50_000)))).troubles
        assert "50000 logs lost" in trouble.text
        assert len(trouble.text) < 300
        assert len(str(run.notes.get("replication queues"))) < 10_000

    def test_a_queue_that_perhaps_ships_nothing_is_one_unless_what_follows_is_young(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        unread = replace(IDLE, read_whole=False, perhaps_stuck=True)
        (trouble,) = clusters.seen(run, unread).troubles
        assert trouble.text == f"peer east at {SERVER}: perhaps nothing is shipped"
        assert clusters.seen(run, replace(unread, younger_than_ms=299_000)).troubles == ()
        assert len(clusters.seen(run, replace(unread, younger_than_ms=301_000)).troubles) == 1
        (trouble,) = clusters.seen(run, replace(IDLE, read_whole=False, unreadable="…", causes=("a key",))).troubles
        assert trouble.text.endswith("perhaps nothing is shipped: a key")

    def test_a_setting_that_stops_edits_is_one_although_nothing_waits(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.findings = [STOP, Finding("note", "peer east", "it is not SERIAL")]
        later(run, 15 * 60)
        seen = clusters.seen(run)
        assert [one.text for one in seen.troubles] == [f"shop:orders: {STOP.message}"]
        assert (state_of(run).name, seen.stops) == ("stuck", 1)

    def test_a_canary_that_has_not_arrived_is_one(self, book: Ledger, clusters: Clusters) -> None:
        clusters.flown = [LOST_CANARY]
        flies = opened(book, canary=True)
        seen = clusters.seen(flies)
        assert [one.text for one in seen.troubles] == ["the canary of peer east from rs2:16020 has not arrived in 60 s"]
        assert seen.canary_seconds is None
        opened(book, canary=False)  # the form again, without it
        assert clusters.seen(flies).troubles == ()

    def test_a_canary_that_was_not_flown_is_one_unless_the_settings_say_why(
        self, book: Ledger, clusters: Clusters
    ) -> None:
        clusters.flown = [Flown("east", [], "peer east replicates named tables only"), ARRIVED]
        flies = opened(book, canary=True)
        seen = clusters.seen(flies)
        assert [one.text for one in seen.troubles] == ["no canary was flown: peer east replicates named tables only"]
        assert seen.canary_seconds is None
        clusters.findings = [Finding("stop", "peer east", "its key leads to another cluster")]
        later(flies, 15 * 60)
        assert [one.key.split(":")[0] for one in clusters.seen(flies).troubles] == ["peer east"]
        clusters.findings, clusters.flown = [], [ARRIVED]
        note = flies.notes.get("replication canary")
        assert note is not None
        flies.notes.keep("replication canary", note | {"at_ms": note["at_ms"] - 60_000})
        assert clusters.seen(flies).troubles == (), "it is flown again after a minute"

    def test_the_time_of_the_canary_is_that_of_its_last_row(self, book: Ledger, clusters: Clusters) -> None:
        clusters.flown = [ARRIVED]
        assert clusters.seen(opened(book, canary=True)).canary_seconds == 4.25

    def test_a_group_keeps_its_key_when_the_others_of_its_queue_are_through(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        stuck = waiting(301)
        both = clusters.seen(run, stuck, replace(stuck, group="h"))
        assert both.looks[0].stuck_queues == 1
        (left,) = clusters.seen(run, stuck).troubles
        assert left.key in {one.key for one in both.troubles}


class TestSettings:
    def test_they_are_looked_at_each_plan_minutes(self, run: RunLedger, clusters: Clusters) -> None:
        for _ in range(3):
            clusters.seen(run)
        assert clusters.plans == 1
        later(run, 15 * 60)
        clusters.seen(run)
        assert clusters.plans == 2

    def test_as_long_as_something_stops_edits_they_are_looked_at_after_a_minute(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        clusters.findings = [STOP]
        later(run, 15 * 60)
        clusters.seen(run)
        clusters.findings = []
        assert len(clusters.seen(run).troubles) == 1
        later(run, 60)
        assert clusters.seen(run).troubles == ()
        later(run, 60)
        clusters.seen(run)
        assert clusters.plans == 3

    @pytest.mark.parametrize("fault", [UsageError("the source has no table shop:orders"), KeyError("d")])
    def test_queues_are_looked_at_although_the_settings_cannot_be(
        self, run: RunLedger, clusters: Clusters, fault: Exception
    ) -> None:
        clusters.plan_fault = fault
        later(run, 15 * 60)
        seen = clusters.seen(run)
        ((event, text),) = [(one.event, one.text) for one in seen.troubles]
        assert (event, text.startswith("the settings cannot be looked at: "), str(fault) in text) == (
            "unwatched", True, True,
        )  # fmt: skip
        assert (len(seen.looks), state_of(run).name) == (1, "stuck")

    def test_what_each_look_shows_needs_no_new_plan(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.peers = [replace(peer(IDLE), enabled=False)]
        assert [one.key for one in clusters.seen(run).troubles] == [
            "peer east: it is disabled, and keeps each log since"
        ]
        clusters.findings = [disabled("east")]
        later(run, 15 * 60)
        assert len(clusters.seen(run).troubles) == 1
        clusters.peers, clusters.findings = [replace(peer(), servers_without_queue=(SERVER,))], []
        later(run, 60)
        assert [one.text for one in clusters.seen(run).troubles] == [
            f"peer east: it has no queue: at {SERVER} hbase.replication may be off, or no log has been written yet"
        ]
        clusters.findings = [disabled("east"), NO_PEER]
        later(run, 60)
        clusters.peers = [peer(IDLE)]
        assert clusters.seen(run).troubles == (), "a look knows better than the plan"
        clusters.findings = []
        later(run, 60)
        clusters.peers = [replace(peer(IDLE), sink=replace(peer(IDLE).sink, fault="no region server of it is alive"))]
        assert [one.text for one in clusters.seen(run).troubles] == [
            "peer east: its sink takes no changes: no region server of it is alive"
        ]
        away = replace(peer(IDLE).sink, fault="it cannot be looked at from here", proved=False)
        clusters.peers = [replace(peer(replace(waiting(9), moving=False)), sink=away)]
        assert clusters.seen(run).troubles == ()
        assert state_of(run).cause.startswith("peer east: nothing shipped between the looks; ")
        assert "; its cluster: it cannot be looked at from here; " in state_of(run).cause
        clusters.peers = []
        assert [one.key for one in clusters.seen(run).troubles] == [
            "source: it has no replication peer that leads to a cluster"
        ]
        assert state_of(run).name == "stuck"


def later(run: RunLedger, seconds: int) -> None:
    """So many seconds later, as far as the newest plan goes."""
    plan = kept_plan(run)
    assert plan is not None
    run.notes.keep("replication plan", plan | {"at_ms": plan["at_ms"] - seconds * 1000})


class TestNumbers:
    def test_each_look_is_recorded_with_the_oldest_edit_of_all_queues(self, run: RunLedger, clusters: Clusters) -> None:
        seen = clusters.seen(run, IDLE, waiting(30), waiting(61))
        assert run.peer_looks.since(0) == list(seen.looks)
        (look,) = seen.looks
        assert look == PeerLook("east", look.looked_ms, 61_000, 8_000_000, 7, 1, 0, 1)
        assert (lag_of(run).seconds, status(run).backlog_bytes) == (61.0, 8_000_000)

    def test_the_age_is_not_told_if_a_queue_was_not_read_and_at_most_if_it_is_bounded(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        unread = replace(IDLE, read_whole=False)
        (look,) = clusters.seen(run, waiting(30), unread).looks
        assert (look.oldest_age_ms, lag_of(run).seconds, state_of(run).name) == (None, None, "catching up")
        assert state_of(run).cause.endswith("how old the oldest edit is that waits, could not be told")
        (look,) = clusters.seen(run, waiting(30), replace(unread, younger_than_ms=45_000)).looks
        assert (look.oldest_age_ms, state_of(run).name) == (45_000, "following")


class TestOpening:
    def test_the_recorded_spec_is_the_one_given_and_works_on_no_table(self, run: RunLedger) -> None:
        spec = recorded_replicate_spec(run.record)
        assert (spec.name, spec.tables, spec.target, spec.max_lag) == ("east", ["shop:*"], None, 300)
        assert run.record.spec["tables"] == []

    def test_another_dag_run_goes_on_with_it_with_other_tables_and_times(self, book: Ledger, run: RunLedger) -> None:
        again = opened(book, "airflow manual__2", tables=["audit:*"], look_seconds=30)
        assert (again.run_id, again.record.owner) == (run.run_id, "airflow manual__2")
        spec = recorded_replicate_spec(again.record)
        assert (spec.tables, spec.look_seconds) == (["audit:*"], 30)

    def test_a_form_that_cannot_be_used_leaves_the_watch_as_it_is(
        self, book: Ledger, run: RunLedger, clusters: Clusters
    ) -> None:
        before = run.record
        clusters.plan_fault = UsageError("no table of the source matches shopp:*")
        with pytest.raises(UsageError, match="shopp"):
            opened(book, "airflow manual__2", tables=["shopp:*"])
        assert run.record == before

    def test_while_a_process_looks_no_other_dag_run_takes_the_run(self, book: Ledger, run: RunLedger) -> None:
        with beating(run, "watch", "airflow"), pytest.raises(RunBusyError):
            opened(book, "airflow manual__2")

    def test_another_cluster_needs_a_run_of_its_own(self, book: Ledger, run: RunLedger) -> None:
        with pytest.raises(UsageError, match=r"with another spec \(target\).*walferry abort east"):
            opened(book, target="hbase_source")

    def test_nothing_of_a_run_is_in_the_audit_trail_but_its_beginning_and_end(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        clusters.seen(run)
        clusters.seen(run)
        run.end("aborted", "kim", "no longer needed")
        assert [line.action for line in run.audit_trail()] == ["open run", "end run"]


def test_a_look_after_the_end_is_refused(run: RunLedger, clusters: Clusters) -> None:
    run.end("aborted", "kim")
    with pytest.raises(UsageError, match="has ended"):
        clusters.seen(run)
    assert watched(run) is None
