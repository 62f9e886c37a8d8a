"""What the ledger promises about phases and their attempts."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE
from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord


class TestPhases:
    def test_facts_are_there_when_the_phase_is_done_and_not_before(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.start("copy", TABLE)
        assert ledger.of(run.run_id).phases.facts("copy", TABLE) is None
        ledger.of(run.run_id).phases.fail("copy", "no space", TABLE)
        ledger.of(run.run_id).phases.start("copy", TABLE)
        ledger.of(run.run_id).phases.finish("copy", {"files": 3}, TABLE)
        assert ledger.of(run.run_id).phases.facts("copy", TABLE) == {"files": 3}
        assert ledger.of(run.run_id).phases.facts("copy", "shop:other") is None
        (phase,) = ledger.of(run.run_id).phases.all()
        assert (phase.state, phase.attempts, phase.error) == ("done", 2, "")
        assert phase.facts == {}, "those of copies are long: `facts` reads one phase's"

    def test_a_reopened_phase_has_to_run_again(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.reopen("drain")
        assert ledger.of(run.run_id).phases.all() == []
        ledger.of(run.run_id).phases.finish("drain", {"files": 3})
        ledger.of(run.run_id).phases.reopen("drain", reason="late edits")
        assert ledger.of(run.run_id).phases.facts("drain") is None
        assert [(phase.state, phase.error) for phase in ledger.of(run.run_id).phases.all()] == [
            ("failed", "late edits")
        ]

    def test_whether_another_attempt_may_succeed_is_kept_with_the_failure_only(
        self, ledger: Ledger, run: RunRecord
    ) -> None:
        phases = ledger.of(run.run_id).phases
        for transient in (True, False):
            phases.start("copy", TABLE)
            phases.fail("copy", "no space", TABLE, transient=transient)
            found = phases.find("copy", TABLE)
            assert found is not None
            assert (found.state, found.transient) == ("failed", transient)
        phases.start("copy", TABLE)
        phases.fail("copy", "no space", TABLE, transient=True)
        phases.start("copy", TABLE)
        assert [phase.transient for phase in phases.all()] == [False]
        assert phases.find("copy") is None

    def test_each_step_of_a_phase_is_in_the_audit_trail(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).phases.start("copy")
        ledger.of(run.run_id).phases.fail("copy", "no space")
        lines = ledger.of(run.run_id).audit_trail()
        assert [(line.action, line.outcome) for line in lines[1:]] == [("start phase", ""), ("fail phase", "no space")]


def test_an_attempt_that_fails_late_does_not_undo_what_a_newer_one_has_done(ledger: Ledger, run: RunRecord) -> None:
    first = ledger.of(run.run_id).phases.start("replay")
    second = ledger.of(run.run_id).phases.start("replay")
    assert (first, second) == (1, 2)
    ledger.of(run.run_id).phases.fail("replay", "taken over", attempt=first)
    assert [phase.state for phase in ledger.of(run.run_id).phases.all()] == ["running"]
    ledger.of(run.run_id).phases.finish("replay", {"rounds": 3})
    ledger.of(run.run_id).phases.fail("replay", "too late", attempt=second)
    assert ledger.of(run.run_id).phases.facts("replay") == {"rounds": 3}


def test_of_an_attempt_that_fails_twice_the_first_failure_is_kept(ledger: Ledger, run: RunRecord) -> None:
    """The error of an interrupted process while it ends does not count."""
    phases = ledger.of(run.run_id).phases
    attempt = phases.start("copy", "t")
    phases.fail("copy", "KeyboardInterrupt: ", "t", attempt)
    phases.fail("copy", "RuntimeError: shutdown", "t", attempt)
    assert [phase.error for phase in phases.all()] == ["KeyboardInterrupt: "]
    phases.fail("copy", "another", "t", phases.start("copy", "t"))
    assert [phase.error for phase in phases.all()] == ["another"]


def test_no_phase_begins_in_a_run_that_has_ended(ledger: Ledger, run: RunRecord) -> None:
    ledger.of(run.run_id).end("failed", "alice", "the plan was refused")
    with pytest.raises(UsageError, match="the plan was refused"):
        ledger.of(run.run_id).phases.start("protect")
    assert ledger.of(run.run_id).phases.all() == []
