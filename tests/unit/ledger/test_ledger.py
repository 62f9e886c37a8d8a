"""What the ledger promises about runs: their names, owners and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.ledger.entries import SPEC
from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord


class TestRuns:
    def test_the_unfinished_run_goes_on_for_the_same_owner_and_spec(self, ledger: Ledger, run: RunRecord) -> None:
        assert ledger.open_run("move", "dag-run-1", dict(SPEC), "alice") == run
        assert run.run_id == "move-1"

    @pytest.mark.parametrize(("owner", "spec"), [("dag-run-2", SPEC), ("dag-run-1", {**SPEC, "apply": "bulk"})])
    def test_another_owner_or_spec_is_refused_and_told_what_to_do(
        self, ledger: Ledger, run: RunRecord, owner: str, spec: dict[str, object]
    ) -> None:
        with pytest.raises(UsageError, match=r"move-1.*dag-run-1.*walferry resume move.*walferry abort move"):
            ledger.open_run("move", owner, spec, "bob")
        assert ledger.runs() == [run]

    @pytest.mark.parametrize("limits", [{}, {"namenode": 40}])
    def test_what_may_be_asked_of_the_source_may_change_while_a_run_is_unfinished(
        self, ledger: Ledger, run: RunRecord, limits: dict[str, object]
    ) -> None:
        spec = {**SPEC, "source_requests": limits}
        assert ledger.open_run("move", "dag-run-1", spec, "alice") == replace(run, spec=spec)
        assert ledger.run("move-1").spec == spec
        assert ledger.audit_trail()[-1].action == "change run"
        ledger.verify_audit()

    def test_a_run_from_before_open_logs_could_be_left_alone_goes_on(self, ledger: Ledger, run: RunRecord) -> None:
        """Hole: after an upgrade the spec had one key more than the recorded spec."""
        assert ledger.open_run("move", "dag-run-1", {**SPEC, "follow": True}, "alice").run_id == run.run_id

    def test_after_its_end_a_name_gets_a_new_run(self, ledger: Ledger, run: RunRecord) -> None:
        ended = ledger.of(run.run_id).end("aborted", "alice", "wrong table")
        assert ledger.of(run.run_id).end("aborted", "alice", "wrong table") == ended
        newer = ledger.open_run("move", "dag-run-2", SPEC, "alice")
        assert newer.run_id == "move-2"
        assert ledger.find("move") == newer
        assert ledger.find("move-1") == ledger.run("move-1") == ended

    def test_a_run_that_ended_cannot_end_in_another_way_or_be_adopted(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).end("done", "alice")
        with pytest.raises(UsageError, match="is done"):
            ledger.of(run.run_id).end("failed", "alice")
        with pytest.raises(UsageError, match="has ended"):
            ledger.adopt_run(run.run_id, "dag-run-2", "alice")

    def test_another_owner_adopts_a_run(self, ledger: Ledger, run: RunRecord) -> None:
        adopted = ledger.adopt_run(run.run_id, "cli bob", "bob")
        assert ledger.open_run("move", "cli bob", SPEC, "bob") == adopted

    def test_a_paused_run_says_so_until_it_goes_on(self, ledger: Ledger, run: RunRecord) -> None:
        assert ledger.set_paused(run.run_id, True, "alice", "source is busy") == ledger.run(run.run_id)
        assert ledger.run(run.run_id).paused
        ledger.set_paused(run.run_id, False, "alice")
        assert not ledger.run(run.run_id).paused

    def test_an_unknown_run_is_a_usage_error(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match="nowhere"):
            ledger.find("nowhere")


def test_a_run_that_came_no_further_than_a_failed_plan_gives_way_to_another_of_its_name(
    ledger: Ledger, run: RunRecord
) -> None:
    def another() -> RunRecord:
        return ledger.open_run("move", "dag-run-2", SPEC, "bob")

    with pytest.raises(UsageError, match="is unfinished"):
        another()
    ledger.of(run.run_id).phases.start("plan")
    with pytest.raises(UsageError, match="is unfinished"):
        another()  # it may be at work
    ledger.of(run.run_id).phases.fail("plan", "ZooKeeperError: nobody answers")
    assert ledger.open_run("move", "dag-run-1", SPEC, "alice") == run  # its own owner goes on with it
    assert another().run_id == "move-2"
    assert ledger.run(run.run_id).state == "failed"
    ledger.of("move-2").phases.start("plan")
    ledger.of("move-2").phases.finish("plan", {})
    with pytest.raises(UsageError, match="is unfinished"):
        ledger.open_run("move", "dag-run-3", SPEC, "carol")


def test_who_asks_for_an_unknown_run_is_told_which_there_are(ledger: Ledger, run: RunRecord) -> None:
    with pytest.raises(UsageError, match="knows no run 'mov'; its newest are move-1"):
        ledger.find("mov")
