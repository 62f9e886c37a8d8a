from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
from kazoo.exceptions import NoNodeError

from unit.migration.filled_ledger import GROUP, SPEC, compared, filled
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS, LOAD_COLUMNS
from walferry.checks.validation import GateResult, require, validate
from walferry.cutover import gates, readiness
from walferry.cutover.gates import check_drain
from walferry.errors import DecisionNeededError, GateShutError, SidesDifferError, UsageError, WalferryError
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


@pytest.fixture(autouse=True)
def data_docs_only_where_they_matter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing their pages takes as long as all else that a gate does, and reading the variables of a configuration
    that has none a fifth of the rest."""
    if "data_docs" not in request.node.name:
        context = "great_expectations.data_context.data_context.abstract_data_context.AbstractDataContext"
        monkeypatch.setattr(f"{context}.build_data_docs", lambda *_, **__: {})
        variables = "great_expectations.core.config_provider._ConfigurationVariablesConfigurationProvider"
        monkeypatch.setattr(f"{variables}.get_values", lambda _: {})


def copied(regions: int = 2) -> pd.DataFrame:
    """Regions r1, r2, … of a file each, copied well; what a kind of row lacks stays null."""
    rows: list[dict[str, Any]] = [{"kind": "schema", "region": "", "source_schema": "cf", "target_schema": "cf"}]
    for number in range(1, regions + 1):
        region, start, end = f"r{number}", f"{number:02x}", f"{number + 1:02x}"
        rows.append(
            {
                "kind": "region",
                "region": region,
                "source_start": start,
                "target_start": start,
                "source_end": end,
                "target_end": end,
            }
        )
        rows.append(
            {
                "kind": "file",
                "region": region,
                "name": f"{region}/hfile",
                "source_bytes": 10,
                "target_bytes": 10,
                "source_checksum": f"crc-{region}",
                "target_checksum": f"crc-{region}",
            }
        )
    frame = pd.DataFrame(rows, columns=list(COPY_COLUMNS))
    return frame.assign(table="shop:orders")


def loaded(regions: int = 2) -> pd.DataFrame:
    """Regions r1, r2, … loaded well, and a schema."""
    sides = {f"{side}_{what}": value for side in ("source", "target") for what, value in (("rows", 5), ("cells", 9))}
    rows: list[dict[str, Any]] = [{"kind": "schema", "region": "", "source_schema": "cf", "target_schema": "cf"}]
    for number in range(1, regions + 1):
        digests = {"source_digest": f"{number}ff", "target_digest": f"{number}ff", "uncompared": 0}
        rows.append({"kind": "region", "region": f"r{number}"} | sides | digests)
    return pd.DataFrame(rows, columns=list(LOAD_COLUMNS)).assign(table="shop:orders")


def drained(regions: int = 2) -> pd.DataFrame:
    names = [f"r{number}" for number in range(1, regions + 1)]
    rows = [("shop:orders", name, 5, 5, 9, 9, f"{name}ff", f"{name}ff", 0, 0, 0, 0, 0, None) for name in names]
    return pd.DataFrame(rows, columns=list(DRAIN_COLUMNS))


def changed(frame: pd.DataFrame, kind: str | None, column: str, value: object, region: str = "r2") -> pd.DataFrame:
    """`frame` with one value of a region (of the rows of `kind`) replaced."""
    rows = frame["region"] == region
    if kind is not None:
        rows &= frame["kind"] == kind
    assert rows.sum() == 1
    frame[column] = frame[column].astype(object)
    frame.loc[rows, column] = value  # type: ignore[call-overload]
    return frame


def gate(suite: str, frame: pd.DataFrame, docs: Path) -> GateResult:
    return validate(suite, frame, docs=docs, run_name="move-1")


@pytest.mark.parametrize(
    ("suite", "frame"), [("after_copy", copied()), ("after_load", loaded()), ("after_drain", drained())]
)
def test_equal_sides_open_the_gate_and_data_docs_name_the_run(suite: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    result = gate(suite, frame, tmp_path)
    require(result)
    assert result.passed
    assert result.failures == []
    assert tmp_path / "move-1" in result.docs_index.parents
    assert "move-1" in result.docs_index.read_text(encoding="utf-8")


WRONG_COPIES = [
    ("file", "target_bytes", 9),
    ("file", "target_bytes", None),
    ("file", "target_checksum", "crc-other"),
    ("file", "target_checksum", None),
    ("file", "source_checksum", None),
    ("region", "target_start", "6e"),
    ("region", "target_end", "ff"),
    ("region", "target_end", None),
]


def test_each_wrong_value_of_a_copied_region_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = copied(1 + len(WRONG_COPIES))
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_COPIES))}
    for number, (kind, column, value) in enumerate(WRONG_COPIES, 2):
        frame = changed(frame, kind, column, value, f"r{number}")
    result = gate("after_copy", frame, tmp_path)
    assert shut_for(result) == wrong
    with pytest.raises(WalferryError, match=r"failed at \d+ places of shop:orders, the first: .* r2: ") as caught:
        require(result)
    assert caught.value.regions == sorted(wrong)


def shut_for(result: GateResult) -> set[str]:
    """The regions of which each alone shuts the gate: an expectation whose failure is critical names it."""
    assert {failure.severity for failure in result.failures} == {"critical"}
    assert not result.passed
    return {region for failure in result.failures for region in failure.regions}


def test_files_without_any_checksum_shut_the_gate(tmp_path: Path) -> None:
    assert not gate("after_copy", copied().assign(source_checksum=None, target_checksum=None), tmp_path).passed


def test_another_schema_shuts_the_gate_and_names_the_table(tmp_path: Path) -> None:
    frame = copied()
    frame.loc[frame["kind"] == "schema", "target_schema"] = "other"
    with pytest.raises(WalferryError, match="shop:orders"):
        require(gate("after_copy", frame, tmp_path))


@pytest.mark.parametrize("kind", ["region", "schema"])
def test_a_copy_that_shows_no_region_or_no_schema_shuts_the_gate(kind: str, tmp_path: Path) -> None:
    frame = copied()
    assert not gate("after_copy", frame[frame["kind"] != kind].reset_index(drop=True), tmp_path).passed


WRONG_LOADS = [
    ("target_rows", 4),
    ("target_cells", 10),
    ("target_digest", "00"),
    ("target_digest", None),
    ("uncompared", 1),
    ("uncompared", None),
]


def test_each_wrong_value_of_a_loaded_region_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = loaded(1 + len(WRONG_LOADS))
    for number, (column, value) in enumerate(WRONG_LOADS, 2):
        frame = changed(frame, "region", column, value, f"r{number}")
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_LOADS))}
    assert shut_for(gate("after_load", frame, tmp_path)) == wrong


@pytest.mark.parametrize("kind", ["region", "schema"])
def test_a_load_that_shows_no_region_or_another_schema_shuts_the_gate(kind: str, tmp_path: Path) -> None:
    frame = loaded()
    assert not gate("after_load", frame[frame["kind"] != kind].reset_index(drop=True), tmp_path).passed
    frame.loc[frame["kind"] == "schema", "target_schema"] = "other"
    assert not gate("after_load", frame, tmp_path).passed


WRONG_SIDES = [
    ("target_rows", 4),
    ("target_cells", 10),
    ("target_digest", "00"),
    ("target_digest", None),
    ("unexplained", 1),
    ("undecided", 1),
    ("uncompared", 1),
]


def test_each_wrong_value_after_the_drain_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = drained(1 + len(WRONG_SIDES))
    for number, (column, value) in enumerate(WRONG_SIDES, 2):
        frame = changed(frame, None, column, value, f"r{number}")
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_SIDES))}
    assert shut_for(gate("after_drain", frame, tmp_path)) == wrong


def test_a_difference_of_a_named_class_is_a_warning_that_names_the_region(tmp_path: Path) -> None:
    frame = changed(changed(drained(), None, "target_digest", "00"), None, "explained", 1)
    result = gate("after_drain", frame, tmp_path)
    require(result)
    assert [(failure.severity, failure.regions) for failure in result.failures] == [("warning", ["shop:orders r2"])]


def test_an_explained_row_does_not_cover_an_unexplained_one(tmp_path: Path) -> None:
    frame = changed(changed(drained(), None, "explained", 1), None, "unexplained", 1)
    assert not gate("after_drain", frame, tmp_path).passed


def test_an_empty_comparison_shuts_the_gate(tmp_path: Path) -> None:
    assert not gate("after_drain", drained().iloc[:0], tmp_path).passed


@pytest.mark.parametrize(
    ("suite", "frame"), [("after_copy", copied()), ("after_load", loaded()), ("after_drain", drained())]
)
def test_a_frame_without_a_column_to_compare_shuts_the_gate(suite: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    missing = "target_checksum" if suite == "after_copy" else "target_digest"
    result = gate(suite, frame.drop(columns=missing), tmp_path)
    assert not result.passed


def test_a_repeated_gate_of_the_same_run_counts_anew(tmp_path: Path) -> None:
    assert not gate("after_drain", changed(drained(), None, "target_rows", 4), tmp_path).passed
    assert gate("after_drain", drained(), tmp_path).passed


def test_an_unknown_suite_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="after_copy, after_drain"):
        gate("before_lunch", drained(), tmp_path)


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
    monkeypatch.setattr(gates, "missing_tables", lambda run: [])
    monkeypatch.setattr(gates, "schema_differences", lambda run: [])
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
    for name in ("require_silence", "after_drain"):
        monkeypatch.setattr(gates, name, lambda run: None)
    monkeypatch.setattr(gates, "applying", lambda run: nullcontext())
    monkeypatch.setattr(applying, "fence_of", lambda run, route: in_one())
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
        patch.setattr(applying, "fence_of", lambda run, route: lost)
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
    with pytest.raises(GateShutError, match="no comparison of shop:orders was made by this run's phase"):
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
        monkeypatch.setattr(gates, name, lambda run: [])
    monkeypatch.setattr(readiness, "caught_up", lambda ledger: True)
    gates.before_cutover(run)
    run.ledger.phases.start("replay")
    spoil(zookeeper, "one")
    seen = dirty.marks_of(run)
    spoil(zookeeper, "two")
    named = r"rows 'k' to 'm' of target table shop:orders .*compared as a whole until both sides are equal"
    with pytest.raises(GateShutError, match=named) as shut:
        gates.before_cutover(run)
    assert len(shut.value.reasons) == 2
    with beating(run.ledger, "replay", "test"):
        state = state_of(run.ledger)
    assert (state.name, state.phase) == ("gate shut", "replay")
    assert "rows 'k' to 'm'" in state.cause
    assert "it is compared as a whole until both sides are equal: wait for it" in state.cause
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
    with pytest.raises(GateShutError, match=r"rows 'k' to 'm' of target table shop:orders .* must be compared again"):
        check_drain(run, tmp_path)
    assert run.ledger.phases.facts("compare", TABLE) is None, "it is to be done again"
    verify(run, dirty.marks_of(run), equal=False)  # what somebody asked for does not count
    compare_again(run)
    with pytest.raises(GateShutError, match="must be compared again"):
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
    with pytest.raises(SidesDifferError, match="by rows that nobody has decided about") as shut:
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
    with pytest.raises(SidesDifferError, match="by rows that nobody has decided about"):
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
