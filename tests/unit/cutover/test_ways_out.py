"""A cutover whose checks did not pass has ways out until the target is open, and an open target is no dead end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from unit.migration.filled_ledger import SPEC, compared
from walferry.cutover import ways_out as ways_out_module
from walferry.cutover.reopening import drain_again
from walferry.cutover.ways_out import abort, take, withdraw
from walferry.errors import UsageError
from walferry.ledger import Difference, LateEdit, Ledger, RangeComparison
from walferry.ledger.rows import DifferenceKind
from walferry.run.facts import note_opened, opened_ms
from walferry.run.heartbeat import beating
from walferry.run.notes.answers import Word, keep_word, word_of
from walferry.run.notes.ways_out import Way, ways_out
from walferry.run.phases import steps
from walferry.run.progress.state import state_of
from walferry.run.progress.write_stop import write_stop_of
from walferry.run.run import Run

TABLE = "shop:orders"


class Source:
    """In place of the source: which tables were set READONLY."""

    def __init__(self) -> None:
        self.read_only = {TABLE: True}

    def table_exists(self, table: str) -> bool:
        return table in self.read_only

    def set_read_only(self, table: str, read_only: bool) -> None:
        self.read_only[table] = read_only


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """All is done but the last check."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__.update(source=Source())
        for phase, subject in steps("migration", [TABLE]):
            if phase.name == "check_drain":
                break
            done(run, phase.name, {"at_ms": None} if phase.name == "open_target" else {}, subject)
        yield run


def done(run: Run, phase: str, facts: dict[str, Any], subject: str = "") -> None:
    run.ledger.phases.start(phase, subject)
    run.ledger.phases.finish(phase, facts, subject)


def done_phases(run: Run) -> set[str]:
    return {phase.phase for phase in run.ledger.phases.all() if phase.state == "done"}


def test_the_run_replays_again_and_asks_again(run: Run) -> None:
    keep_word(run.ledger, "write_stop", Word("kim", 5))
    assert withdraw(run, "it takes too long", "kim", dry_run=True) == []
    assert "write_stop" in done_phases(run), "a dry run changes nothing"
    withdraw(run, "it takes too long", "kim")
    assert done_phases(run) == {"plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy"}
    assert word_of(run.ledger, "write_stop") is None


def test_readonly_is_lifted_where_the_run_has_set_it(run: Run) -> None:
    run.ledger.objects.plan("source", "read-only table", TABLE)
    run.ledger.objects.made("source", "read-only table", TABLE)
    assert withdraw(run, "", "kim") == [TABLE]
    assert run.source.read_only == {TABLE: False}  # type: ignore[attr-defined]
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]


def test_it_is_refused_once_the_target_is_open_to_clients(run: Run) -> None:
    done(run, "open_target", {"at_ms": 5})
    with pytest.raises(UsageError, match="is open, and clients may have written to it"):
        withdraw(run, "", "kim")


def test_it_is_refused_before_the_write_stop_and_while_a_process_works(run: Run) -> None:
    with beating(run.ledger, "compare shop:orders", "kim"), pytest.raises(UsageError, match="works on move-1"):
        withdraw(run, "", "kim")
    run.ledger.phases.reopen("write_stop")
    with pytest.raises(UsageError, match="have not been stopped"):
        withdraw(run, "", "kim")


def test_what_was_rejected_as_late_stays_left_out_and_is_no_reason_against_it(run: Run) -> None:
    late = [LateEdit(f"wal.{n}", 9, TABLE, "r", 3, 500, 1, b"row", 600) for n in (1, 2)]
    run.ledger.late.found(late)
    run.ledger.late.decide(late[:1], "reject", "nobody wants it", "kim")
    withdraw(run, "", "kim")
    assert [edit.decision for edit in run.ledger.late.all()] == ["reject", "apply"]
    assert run.ledger.late.rejected() == {("wal.1", 9)}


def test_the_last_check_opens_a_target_that_did_not_open_before_and_nothing_changes_that_moment(run: Run) -> None:
    assert opened_ms(run.ledger) is None
    done(run, "check_drain", {})
    opened = run.ledger.phases.find("check_drain").finished_ms  # type: ignore[union-attr]
    assert opened_ms(run.ledger) == opened
    with pytest.raises(UsageError, match="is open, and clients may have written to it"):
        withdraw(run, "", "kim")
    drain_again(run, "end_fence")  # as `walferry late --apply` does
    run.ledger.phases.reopen("check_drain")
    assert opened_ms(run.ledger) == opened
    done(run, "check_drain", {})
    note_opened(run.ledger)
    assert opened_ms(run.ledger) == opened
    done(run, "write_stop", {"at_ms": 1, "how": "confirm"})
    stop = write_stop_of(run.ledger)
    assert stop is not None
    assert stop.until_ms == opened


def test_an_abort_of_a_run_whose_target_is_open_is_refused_unless_that_is_known_and_leaves_the_source_readonly(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: ([], []))
    run.ledger.objects.plan("source", "read-only table", TABLE)
    run.ledger.objects.made("source", "read-only table", TABLE)
    done(run, "open_target", {"at_ms": 1_800_000_000_000})
    with pytest.raises(UsageError, match="open to clients since 2027-01-15 08:00:00 UTC: there is no way back"):
        abort(run, "enough")
    assert run.ledger.record.state == "running"
    abort(run, "enough", target_is_open=True)
    assert run.source.read_only == {TABLE: True}  # type: ignore[attr-defined]
    state = state_of(run.ledger)
    assert "the target has been open to clients since" in state.cause
    assert "start a new run" not in state.next_step


def test_an_abort_before_the_opening_lifts_readonly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: ([], []))
    run.ledger.objects.plan("source", "read-only table", TABLE)
    run.ledger.objects.made("source", "read-only table", TABLE)
    abort(run, "enough")
    assert run.source.read_only == {TABLE: False}  # type: ignore[attr-defined]


def test_a_failed_run_whose_target_is_open_says_since_when(run: Run) -> None:
    done(run, "open_target", {"at_ms": 1_800_000_000_000})
    attempt = run.ledger.phases.start("check_drain")
    run.ledger.phases.fail("check_drain", "GateShutError: a reason", attempt=attempt)
    assert "the target has been open to clients since 08:00:00 UTC" in state_of(run.ledger).cause


# ------------------------------------------------------------------ what a person chooses


def differ(run: Run, **kinds: DifferenceKind) -> None:
    """A comparison in which rows differ."""
    found = [Difference(TABLE, row.encode(), kind, "detail", f"cells of {row}") for row, kind in kinds.items()]
    part = RangeComparison(TABLE, "r1", b"", b"", 2, 4, "01", 2, 4, "02", {})
    run.ledger.comparisons.record(compared(TABLE, len(found)), [part], found)


def test_what_can_be_chosen_depends_on_the_write_stop_and_on_whether_the_target_is_open(run: Run) -> None:
    assert ways_out(run.ledger) == get_args(Way)
    done(run, "open_target", {"at_ms": 5})
    assert ways_out(run.ledger) == ("Check again", "Repair, check again", "Accept, check again")
    with pytest.raises(UsageError, match="Withdraw: this is not possible any more"):
        take(run, "Withdraw", (), "", "kim")
    run.ledger.phases.reopen("write_stop")
    assert ways_out(run.ledger) == ()
    run.ledger.end("aborted", "kim", "enough")
    assert ways_out(run.ledger) == ()


def test_rows_are_accepted_by_their_names_all_or_none(run: Run) -> None:
    differ(run, a="unexplained", b="unexplained")
    lost = f"{TABLE} a b"
    for rows, text in (
        ([f"{TABLE} a", lost], "no row a b"),
        ([TABLE], "names no row"),
        ([], "no row of move-1 differs"),
    ):
        with pytest.raises(UsageError, match=text):
            take(run, "Accept, check again", rows, "we know", "kim")
    with pytest.raises(UsageError, match="give a reason"):
        take(run, "Accept, check again", [f"{TABLE} a"], " ", "kim")
    assert not run.ledger.comparisons.accepted()
    take(run, "Accept, check again", [f"{TABLE} a"], "we know", "kim")
    assert [row for _, row, _ in run.ledger.comparisons.accepted()] == [b"a"]


def test_without_names_the_rows_with_a_known_reason_are_accepted(run: Run) -> None:
    differ(run, a="unexplained", b="not-in-log")
    take(run, "Accept, check again", [], "a cache", "kim")
    assert [row for _, row, _ in run.ledger.comparisons.accepted()] == [b"b"]


def test_rows_that_nobody_decided_about_are_repaired(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def repair(_: Run, wanted: Any) -> list[Any]:
        asked.append(wanted)
        return []

    monkeypatch.setattr(ways_out_module, "repair_now", repair)
    differ(run, a="unexplained")
    take(run, "Repair, check again", [], "", "kim")
    assert asked == [{TABLE: {b"a": "unexplained"}}]


@pytest.mark.parametrize("way", ["Check again", "Repair, check again"])
def test_rows_that_are_equal_by_now_are_compared_again(run: Run, monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    """Hole: the gate judged the same comparison for ever."""
    monkeypatch.setattr("walferry.migration.repairing.asked_repairs.repair", lambda *_, **__: [])
    take(run, "Check again", [], "", "kim")
    assert run.ledger.phases.facts("compare", TABLE) is not None, "nothing waits"
    differ(run, a="history-dependent")
    take(run, way, [], "", "kim")
    assert run.ledger.phases.facts("compare", TABLE) is None


def test_a_withdrawal_that_is_killed_can_be_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: the end fence of the cutover that was taken back could stay."""
    reopen = run.ledger.phases.reopen

    def killed(phase: str, *arguments: Any, **more: Any) -> None:
        if phase == "write_stop":
            raise KeyboardInterrupt
        reopen(phase, *arguments, **more)

    monkeypatch.setattr(run.ledger.phases, "reopen", killed)
    with pytest.raises(KeyboardInterrupt):
        withdraw(run, "", "kim")
    monkeypatch.undo()
    withdraw(run, "", "kim")
    assert done_phases(run) == {"plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy"}


def test_who_withdraws_or_aborts_is_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walferry.replay.keeping.objects.restore", lambda *_, **__: ([], []))
    take(run, "Withdraw", [], "too long", "airflow kim")
    assert "write_stop" not in done_phases(run)
    done(run, "write_stop", {"at_ms": 1})
    take(run, "Abort", [], "", "airflow kim")
    assert run.ledger.record.state == "aborted"
    actions = {entry.action: entry.actor for entry in run.ledger.audit_trail() if entry.actor == "airflow kim"}
    assert {"withdraw the cutover", "end run"} <= actions.keys()
