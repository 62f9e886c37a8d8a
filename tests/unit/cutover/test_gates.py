from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from kazoo.exceptions import NoNodeError

from unit.migration.filled_ledger import GROUP, SPEC, compared, filled
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.cutover import cluster_answers, conditions, gates, ledger_answers
from walferry.cutover.gates import check_drain
from walferry.errors import DecisionNeededError, GateShutError, SidesDifferError, UsageError
from walferry.ledger import ComparedTable, Difference, Ledger, LogPosition, RangeComparison, Round
from walferry.ledger.batches import in_one
from walferry.ledger.rows import Purpose
from walferry.migration.comparing.compare import EXPLAINED_ROWS
from walferry.migration.explaining import accept
from walferry.replay.rights import applying, dirty
from walferry.replay.rights.dirty import DirtyRows
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import beating
from walferry.run.notes.last_comparison import comparisons_of_phase, end_fence_digest
from walferry.run.progress.state import state_of
from walferry.run.run import Run

pytestmark = pytest.mark.usefixtures("quick_data_docs")


@pytest.mark.parametrize("missing", ["drain", "compare"])
def test_the_last_gate_looks_at_nothing_while_the_drain_or_a_comparison_is_to_be_done(
    missing: str, tmp_path: Path
) -> None:
    """A comparison of before the drain, or one that was marked as done in Airflow only, proves nothing."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = filled(ledger)
        for phase, subject in (("drain", ""), ("compare", "shop:orders")):
            if phase != missing:
                ledger.of(run).phases.start(phase, subject)
                ledger.of(run).phases.finish(phase, {}, subject)
        with pytest.raises(UsageError, match=f"cannot start: {missing}"):
            check_drain(Run(ledger, run), tmp_path)


def test_a_paused_run_is_not_cut_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_answers, "missing_tables", lambda run: [])
    monkeypatch.setattr(cluster_answers, "schema_differences", lambda run: [])
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = at(MemoryZooKeeper(), Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id))
        now = time.time_ns() // 1_000_000
        run.ledger.rounds.record(Round(1, now - 10, now, 0, 0, 0, 0, 10, 0))
        gates.before_cutover(run)
        ledger.set_paused(run.run_id, True, "test")
        with pytest.raises(GateShutError, match="the run is paused"):
            gates.before_cutover(run)


# ---- which comparison the last gate goes by

TABLE = "shop:orders"
LOST = Difference(TABLE, b"k\x00", "not-in-log", "only the source shows f:71", "1f")


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """That of the target."""
    return MemoryZooKeeper()


def at(zookeeper: MemoryZooKeeper, run: Run) -> Run:
    """The run, with a target that has only a ZooKeeper."""
    run.__dict__["target"] = SimpleNamespace(zk=zookeeper.session())
    return run


@pytest.fixture
def drained_run(tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run whose drain is done; what the gate asks the clusters for is as it should be."""
    real = conditions.asked_at
    monkeypatch.setattr(
        gates, "asked_at", lambda *at: [one for one in real(*at) if at != ("release",) or one.repeats == "compare"]
    )
    monkeypatch.setattr(gates, "applying", lambda run: nullcontext())
    monkeypatch.setattr(applying, "lease_check_of", lambda run, route: in_one())
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = at(zookeeper, Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id))
        fence(run, 5)
        do(run, "drain")
        yield run


def do(run: Run, phase: str, subject: str = "") -> None:
    run.ledger.phases.start(phase, subject)
    run.ledger.phases.finish(phase, {}, subject)


def fence(run: Run, number: int) -> None:
    run.ledger.log.set_fence("end", [LogPosition(GROUP, f"{GROUP}.{number}", number, 0)])


def record(
    run: Run, *differences: Difference, purpose: Purpose = "phase", digest: str = "aa", uncompared: int = 0
) -> ComparedTable:
    """A comparison made now; of the phase, as `last_comparison` records it while the phase is at work."""
    phases = {phase.phase: phase.attempts for phase in run.ledger.phases.all() if phase.state != "failed"}
    made = compared(
        TABLE,
        len(differences),
        purpose=purpose,
        phase_attempt=phases["compare"] if purpose == "phase" else 0,
        drain_attempt=phases["drain"],
        end_fence=end_fence_digest(run.ledger),
    )
    region = RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, digest, {}, uncompared=uncompared)
    return run.ledger.comparisons.record(made, [region], differences)


def compare_again(run: Run, *differences: Difference) -> ComparedTable:
    run.ledger.phases.start("compare", TABLE)
    made = record(run, *differences, digest="bb" if differences else "aa")
    run.ledger.phases.finish("compare", {}, TABLE)
    return made


def test_the_last_gate_opens_the_target_under_the_leases_only(
    drained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a `walferry repair` in another shell could delete what a client had just written."""

    def lost(connection: object) -> None:
        raise LeaseLostError("the lease is no longer held", table=TABLE, number=3)

    compare_again(drained_run)
    with monkeypatch.context() as patch:
        patch.setattr(applying, "lease_check_of", lambda run, route: lost)
        with pytest.raises(LeaseLostError):
            check_drain(drained_run, tmp_path)
    assert opened_ms(drained_run.ledger) is None
    check_drain(drained_run, tmp_path)
    assert opened_ms(drained_run.ledger) is not None


def test_the_comparison_of_the_phase_opens_the_last_gate(drained_run: Run, tmp_path: Path) -> None:
    made = compare_again(drained_run)
    assert check_drain(drained_run, tmp_path)["comparisons"] == {TABLE: made.attempt}


def test_a_comparison_that_somebody_asked_for_opens_no_gate(drained_run: Run, tmp_path: Path) -> None:
    """Hole: `walferry verify`, begun before the drain and recorded last, was taken for the last comparison."""
    do(drained_run, "compare", TABLE)  # marked as done, and nothing recorded
    record(drained_run, purpose="verify")
    with pytest.raises(GateShutError, match="shop:orders was not compared by this run's phase"):
        check_drain(drained_run, tmp_path)
    with pytest.raises(UsageError, match="cannot start: compare shop:orders is not done"):
        check_drain(drained_run, tmp_path)  # it is to be done again
    compare_again(drained_run)
    check_drain(drained_run, tmp_path)


def test_a_newer_comparison_of_somebody_changes_nothing_for_the_gate(drained_run: Run, tmp_path: Path) -> None:
    compare_again(drained_run, Difference(TABLE, b"k", "unexplained", "lost", "2f"))
    record(drained_run, purpose="verify")
    assert drained_run.ledger.comparisons.differences() == []
    with pytest.raises(SidesDifferError, match="without an explanation in 1 row of shop:orders"):
        check_drain(drained_run, tmp_path)


def test_a_comparison_of_an_earlier_attempt_drain_or_end_fence_opens_no_gate(drained_run: Run) -> None:
    made = compare_again(drained_run)
    assert comparisons_of_phase(drained_run.ledger) == ([made], [])
    fence(drained_run, 6)
    assert comparisons_of_phase(drained_run.ledger) == ([], [TABLE])
    made = compare_again(drained_run)
    assert comparisons_of_phase(drained_run.ledger) == ([made], [])
    do(drained_run, "drain")
    assert comparisons_of_phase(drained_run.ledger) == ([], [TABLE])
    made = compare_again(drained_run)
    assert comparisons_of_phase(drained_run.ledger) == ([made], [])
    do(drained_run, "compare", TABLE)
    assert comparisons_of_phase(drained_run.ledger) == ([], [TABLE])


# ---- rows that a suspended process may have changed back


def spoil(zookeeper: MemoryZooKeeper, name: str) -> None:
    """Mark rows of the table as a process does that finds that it sent too late."""
    zookeeper.session().ensure_path(f"/walferry/dirty/{quote(TABLE, safe='')}")
    mark = {"first": "'k'", "last": "'m'", "run": "move-1", "number": 7, "at_ms": 1_700_000_000_000}
    zookeeper.session().create(f"/walferry/dirty/{quote(TABLE, safe='')}/{name}", json.dumps(mark).encode())


def verify(run: Run, marks: Sequence[DirtyRows], equal: bool) -> None:
    dirty.compared(run, record(run, purpose="verify"), marks, equal)


def test_rows_that_were_sent_too_late_shut_the_gate_before_the_cutover_until_a_comparison_finds_nothing(
    drained_run: Run, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = drained_run
    for name in ("missing_tables", "schema_differences"):
        monkeypatch.setattr(cluster_answers, name, lambda run: [])
    monkeypatch.setattr(ledger_answers, "caught_up", lambda ledger: True)
    gates.before_cutover(run)
    run.ledger.phases.start("replay")
    spoil(zookeeper, "one")
    seen = dirty.marks_of(run)
    spoil(zookeeper, "two")
    named = r"rows 'k' to 'm' of target table shop:orders .*the whole table is compared until both sides are equal"
    with pytest.raises(GateShutError, match=named) as shut:
        gates.before_cutover(run)
    assert len(shut.value.reasons) == 2
    with beating(run.ledger, "replay", "test"):
        state = state_of(run.ledger)
    assert (state.name, state.phase) == ("gate shut", "replay")
    assert "rows 'k' to 'm'" in state.cause
    assert "wait: the whole table is compared until both sides are equal" in state.cause
    assert state.cause.endswith("(and 1 more reason); replay goes on")
    assert "`walferry ready move`" in state.next_step
    verify(run, seen, equal=False)
    with pytest.raises(GateShutError) as shut:
        gates.before_cutover(run)
    assert len(shut.value.reasons) == 2
    verify(run, seen, equal=True)
    with pytest.raises(GateShutError) as shut:
        gates.before_cutover(run)
    assert len(shut.value.reasons) == 1, "it began before the second request"
    verify(run, dirty.marks_of(run), equal=True)
    gates.before_cutover(run)
    with beating(run.ledger, "replay", "test"):
        assert state_of(run.ledger).name != "gate shut"
    with pytest.raises(NoNodeError):
        zookeeper.session().get(f"/walferry/dirty/{quote(TABLE, safe='')}")
    cleared = [line.inputs for line in run.ledger.whole.audit_trail() if line.action == "clear dirty rows"]
    assert [(line["name"], line["first"]) for line in cleared] == [("one", "'k'"), ("two", "'k'")]


def test_the_last_gate_wants_a_comparison_that_began_after_the_rows_were_sent(
    drained_run: Run, zookeeper: MemoryZooKeeper, tmp_path: Path
) -> None:
    run = drained_run
    compare_again(run)
    spoil(zookeeper, "late")
    with pytest.raises(GateShutError, match=r"rows 'k' to 'm' of target table shop:orders .* compare them again"):
        check_drain(run, tmp_path)
    assert run.ledger.phases.facts("compare", TABLE) is None, "it is to be done again"
    verify(run, dirty.marks_of(run), equal=False)  # what somebody asked for does not count
    compare_again(run)
    with pytest.raises(GateShutError, match="compare them again"):
        check_drain(run, tmp_path)
    marks = dirty.marks_of(run)
    dirty.compared(run, compare_again(run, LOST), marks, equal=False)
    with pytest.raises(DecisionNeededError):
        check_drain(run, tmp_path)
    assert dirty.marks_of(run) == marks
    accept.accept(run.ledger, TABLE, None, "known", "alice")
    check_drain(run, tmp_path)
    assert dirty.marks_of(run) == []


# ---- rows that the log does not hold


def test_rows_that_are_not_in_the_log_wait_for_a_decision(drained_run: Run, tmp_path: Path) -> None:
    """Hole: up to 200 rows of a lost log passed as a warning."""
    compare_again(drained_run, LOST)
    with pytest.raises(SidesDifferError, match="in rows that wait for a decision") as shut:
        check_drain(drained_run, tmp_path)
    assert r"1 row of shop:orders, such as k\x00 of shop:orders" in str(shut.value)
    assert "walferry accept move --table shop:orders --all --reason" in str(shut.value)
    assert drained_run.ledger.phases.facts("compare", TABLE) is not None  # the comparison stays valid
    with pytest.raises(SidesDifferError):
        check_drain(drained_run, tmp_path)

    accept.accept(drained_run.ledger, TABLE, None, "a cache, written with SKIP_WAL", "alice", dry_run=True)
    with pytest.raises(SidesDifferError):
        check_drain(drained_run, tmp_path)
    accept.accept(drained_run.ledger, TABLE, [r"k\x00"], "a cache, written with SKIP_WAL", "alice")
    check_drain(drained_run, tmp_path)


def test_thousands_of_rows_that_are_not_in_the_log_are_accepted_as_they_are_named(
    drained_run: Run, tmp_path: Path
) -> None:
    """Hole: more than 200 such rows of a table had no way through."""
    lost = [Difference(TABLE, b"r%05d" % n, "not-in-log", "no WAL holds it", f"{n:x}") for n in range(3_000)]
    compare_again(drained_run, *lost)
    with pytest.raises(DecisionNeededError, match=r"3000 rows of shop:orders, such as r00000 of .* and r00001 of"):
        check_drain(drained_run, tmp_path)
    assert len(accept.accept(drained_run.ledger, TABLE, None, "a cache", "alice")) == 3_000
    (line,) = [line for line in drained_run.ledger.audit_trail() if line.action == "accept differences"]
    assert (line.inputs["rows"], len(line.inputs["differences"])) == (3_000, 200)
    compare_again(drained_run, *lost)
    check_drain(drained_run, tmp_path)


def test_more_rows_than_anybody_can_look_at_ask_for_a_new_copy(
    drained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "EXPLAINED_ROWS", 1)
    many = Difference(TABLE, b"k", "unexplained", "1 more rows from here on differ", "")
    compare_again(drained_run, LOST, many)
    with pytest.raises(SidesDifferError, match="walferry abort move --reason …`, drop shop:orders") as shut:
        check_drain(drained_run, tmp_path)
    assert not isinstance(shut.value, DecisionNeededError)


def test_who_reads_that_sides_differ_learns_how_many_rows_of_which_table_and_no_name_of_a_region(
    drained_run: Run, tmp_path: Path
) -> None:
    found = [Difference(TABLE, b"k%d" % n, "unexplained", "lost", f"{n}f") for n in range(3)]
    compare_again(drained_run, *found, LOST)
    with pytest.raises(SidesDifferError) as shut:
        check_drain(drained_run, tmp_path)
    text = str(shut.value)
    assert "without an explanation in 3 rows of shop:orders, such as k0 of shop:orders and k1 of shop:orders. " in text
    assert "Now do not let clients in; `walferry report move` shows the rows" in text
    assert "r1" not in text.replace(str(tmp_path), "")
    assert shut.value.regions == ["shop:orders r1"]


def test_once_clients_use_the_target_the_last_gate_gives_no_advice_that_is_too_late(
    drained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained_run.ledger.phases.start("open_target")
    drained_run.ledger.phases.finish("open_target", {"at_ms": 1_700_000_000_000})
    many = Difference(TABLE, b"k", "unexplained", "1 more rows from here on differ", "")
    for most in (EXPLAINED_ROWS, 1):
        monkeypatch.setattr(gates, "EXPLAINED_ROWS", most)
        for found, advice in (([LOST, many], "--row ROW --reason"), ([LOST], "--all --reason")):
            compare_again(drained_run, *found)
            with pytest.raises(SidesDifferError) as shut:
                check_drain(drained_run, tmp_path)
            text = str(shut.value)
            assert "the target has been open to clients since 22:13:20 UTC" in text
            assert advice in text
            for late in ("do not let clients in", "withdraw", "abort", "drop", "copy again"):
                assert late not in text


def test_cells_that_expired_while_they_were_read_are_counted_by_table(drained_run: Run, tmp_path: Path) -> None:
    drained_run.ledger.phases.start("compare", TABLE)
    record(drained_run, uncompared=3)
    drained_run.ledger.phases.finish("compare", {}, TABLE)
    with pytest.raises(SidesDifferError, match=r"3 cells of shop:orders expired .* compare again") as shut:
        check_drain(drained_run, tmp_path)
    assert "`walferry resume move`" in str(shut.value)


@pytest.mark.parametrize(
    "later",
    [
        Difference(TABLE, b"k\x00", "not-in-log", "another cell of the row", "3f"),
        Difference(TABLE, b"other", "not-in-log", "another row", "1f"),
    ],
)
def test_a_decision_covers_no_later_difference(drained_run: Run, tmp_path: Path, later: Difference) -> None:
    compare_again(drained_run, LOST)
    accept.accept(drained_run.ledger, TABLE, None, "known", "alice")
    compare_again(drained_run, LOST)
    assert not accept.waiting(drained_run.ledger, TABLE)
    compare_again(drained_run, LOST, later)
    assert accept.waiting(drained_run.ledger, TABLE) == [later]
    with pytest.raises(SidesDifferError, match="in rows that wait for a decision"):
        check_drain(drained_run, tmp_path)


def test_only_what_waits_for_a_decision_can_be_accepted(drained_run: Run) -> None:
    ledger = drained_run.ledger
    with pytest.raises(UsageError, match="has no comparison of 'shop:orders'; compared so far: none"):
        accept.accept(ledger, TABLE, None, "known", "alice")
    lost = Difference(TABLE, b"lost", "unexplained", "no explanation", "4f")
    compare_again(drained_run, LOST, lost)
    with pytest.raises(UsageError, match=r"no row other of shop:orders waits for a decision; waiting: k.x00, lost"):
        accept.accept(ledger, TABLE, ["other"], "known", "alice")
    with pytest.raises(UsageError, match="give a reason"):
        accept.accept(ledger, TABLE, None, "", "alice")
    assert accept.accept(ledger, TABLE, None, "known", "alice") == [LOST]
    with pytest.raises(UsageError, match="nothing in shop:orders waits"):
        accept.accept(ledger, TABLE, None, "known", "alice")
