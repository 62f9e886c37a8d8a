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
    ROW,
    SERVER,
    STATES,
    STOP,
    Clusters,
    brought_to,
    opened,
    waiting,
)
from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import Ledger, PeerLook, RunLedger
from walferry.replication.canary import Arrival, Flown
from walferry.replication.finding import Finding
from walferry.replication.spec import recorded_replicate_spec
from walferry.run.notes.watched_replication import kept_plan, watched
from walferry.run.progress.lag import lag_of
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_REPLICATION, StateName
from walferry.run.progress.states import STATES as EVERY
from walferry.run.progress.status import status, status_line

BOARD = Path(__file__).parents[3] / "docs" / "board.md"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


@pytest.fixture
def run(book: Ledger) -> RunLedger:
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
        assert (trouble.key, "ZooKeeper does not answer" in trouble.text) == ("not looked at", True)
        clusters.fault = ""
        clusters.seen(run)
        assert state_of(run).name == "following"


class TestTroubles:
    def test_a_stuck_queue_is_told_with_its_place_and_causes_and_without_its_row(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        (trouble,) = clusters.seen(run, waiting(301, "table shop:orders is missing at the sink")).troubles
        assert trouble.text == (
            f"peer east: {SERVER} has not shipped an edit of shop:orders for 5 min 01 s ({EDIT.file} at byte 812): "
            "table shop:orders is missing at the sink"
        )
        assert ROW not in trouble.text + trouble.key + state_of(run).cause

    def test_a_trouble_has_the_same_key_as_long_as_it_lasts(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.findings = [Finding("stop", "shop:orders", "the table is over its quota of space (101 of 100 bytes)")]
        first = clusters.seen(run, waiting(301)).troubles
        clusters.findings = [Finding("stop", "shop:orders", "the table is over its quota of space (205 of 100 bytes)")]
        second = clusters.seen(run, replace(waiting(400), oldest=replace(EDIT, offset=900))).troubles
        assert [one.key for one in first] == [one.key for one in second]
        assert [one.text for one in first] != [one.text for one in second]

    def test_a_lost_log_is_a_gap_and_comes_first(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.findings = [STOP]
        found = clusters.seen(run, waiting(400), replace(IDLE, lost_logs=("rs1%2C16020%2C1.2",))).troubles
        assert [one.event for one in found] == ["gap", "replication", "replication"]
        assert state_of(run).cause.startswith("peer east: log lost: HDFS has no rs1%2C16020%2C1.2")

    def test_a_setting_that_stops_edits_is_one_although_nothing_waits(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.findings = [STOP, Finding("note", "peer east", "it is not SERIAL")]
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

    def test_the_time_of_the_canary_is_that_of_its_last_row(self, book: Ledger, clusters: Clusters) -> None:
        clusters.flown = [Flown("east", [Arrival("rs1:16020", 1.5), Arrival("rs2:16020", 4.25)])]
        assert clusters.seen(opened(book, canary=True)).canary_seconds == 4.25


class TestSettings:
    def test_they_are_looked_at_each_plan_minutes(self, run: RunLedger, clusters: Clusters) -> None:
        for _ in range(3):
            clusters.seen(run)
        assert clusters.plans == 1
        plan = kept_plan(run)
        assert plan is not None
        run.notes.keep("replication plan", plan | {"at_ms": now_ms() - 15 * 60_000})
        clusters.seen(run)
        assert clusters.plans == 2

    def test_as_long_as_something_stops_edits_they_are_looked_at_each_time(
        self, run: RunLedger, clusters: Clusters
    ) -> None:
        clusters.findings = [STOP]
        clusters.seen(run)
        clusters.findings = []
        assert clusters.seen(run).troubles == ()
        clusters.seen(run)
        assert clusters.plans == 2

    def test_queues_are_looked_at_although_the_settings_cannot_be(self, run: RunLedger, clusters: Clusters) -> None:
        clusters.plan_fault = "the source has no table shop:orders"
        seen = clusters.seen(run)
        assert [one.text for one in seen.troubles] == [f"the settings cannot be looked at: {clusters.plan_fault}"]
        assert (len(seen.looks), state_of(run).name) == (1, "stuck")


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
