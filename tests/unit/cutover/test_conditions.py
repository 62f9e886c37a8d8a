"""The table of conditions: each can fail, each failure says what to do, and each gate asks what it must."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import FILE, GROUP, SPEC, compared
from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.clock import now_ms
from walferry.cutover import late_edits
from walferry.cutover.answer import Answer, Reason
from walferry.cutover.conditions import (
    CONDITIONS,
    Condition,
    Moment,
    ask,
    asked_at,
    named,
    reasons,
    require,
    require_or_repeat,
)
from walferry.cutover.readiness import Readiness
from walferry.errors import GateShutError, TransientError
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger import (
    LateEdit,
    Ledger,
    LogPosition,
    QuarantineItem,
    RangeComparison,
    Round,
    SeenFile,
    WalRange,
)
from walferry.ledger.batches import in_one
from walferry.migration.repairing import repair
from walferry.run.notes.copying_again import Copying
from walferry.run.notes.failing import FEW, Attempts, Work
from walferry.run.notes.last_comparison import end_fence_digest
from walferry.run.notes.sent_early import SentEarly, note_sent
from walferry.run.run import Run

ROOT = Path(__file__).parents[3]
TABLE = "shop:orders"
UP_TO_COPY = ("plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy")


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """That of the target."""
    return MemoryZooKeeper()


def opened(ledger: Ledger, zookeeper: MemoryZooKeeper, moment: Moment) -> Run:
    """A run at this moment, of which everything holds."""
    run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
    family = SimpleNamespace(families={}, name=TABLE)
    run.__dict__["target"] = SimpleNamespace(zk=zookeeper.session(), describe=lambda name: family)
    run.__dict__["source"] = SimpleNamespace(describe=lambda name: family, close=lambda: None)
    book = run.ledger
    for phase in UP_TO_COPY:
        do(run, phase, TABLE if phase in ("snapshot", "copy", "clone") else "")
    book.phases.start("replay")
    now = now_ms()
    book.rounds.record(Round(1, now - 3_000, now, 1, 1_000, 3, 7, 3_000, 0))
    book.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    book.log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/hbase/WALs/{FILE}", 1_000, sealed=True)])
    book.log.set_ranges([WalRange(FILE, 0, 1_000, TABLE, 3, 7, 1, 2, "applied")])
    if moment != "approval":
        book.log.set_fence("end", [LogPosition(GROUP, FILE, 10, 1_000)])
        do(run, "drain")
        compare(run)
    return run


def do(run: Run, phase: str, subject: str = "") -> None:
    run.ledger.phases.start(phase, subject)
    run.ledger.phases.finish(phase, {}, subject)


def compare(run: Run) -> None:
    """The comparison of the phase after the drain, which finds both sides equal."""
    run.ledger.phases.start("compare", TABLE)
    attempts = {phase.phase: phase.attempts for phase in run.ledger.phases.all()}
    of = {"phase_attempt": attempts["compare"], "drain_attempt": attempts["drain"]}
    made = compared(TABLE, purpose="phase", end_fence=end_fence_digest(run.ledger), **of)
    run.ledger.comparisons.record(made, [RangeComparison(TABLE, "r1", b"", b"", 1, 1, "aa", 1, 1, "aa", {})], [])
    run.ledger.phases.finish("compare", {}, TABLE)


At = Callable[[Moment], Run]


@pytest.fixture
def at(tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[At]:
    """A run at a moment, of which every condition holds."""
    monkeypatch.setattr(late_edits, "look", lambda run: late_edits.undecided(run.ledger))
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield lambda moment: opened(ledger, zookeeper, moment)


@pytest.mark.parametrize("moment", ["approval", "opening", "release"])
def test_of_a_run_that_is_ready_every_condition_holds(moment: Moment, at: At) -> None:
    require(ask(at(moment), asked_at(moment)))


def mark_dirty(run: Run) -> None:
    path = "/walferry/dirty/shop%3Aorders"
    run.target.zk.ensure_path(path)
    mark = {"first": "'k'", "last": "'m'", "run": "move-1", "number": 7, "at_ms": 1_700_000_000_000}
    run.target.zk.create(f"{path}/one", json.dumps(mark).encode())


def lose_a_log(run: Run) -> None:
    other = f"{GROUP}.11"
    run.ledger.log.see_files([SeenFile(other, GROUP, "rs,1,2", 11, f"/hbase/WALs/{other}", 9, sealed=True)])
    run.ledger.log.mark_missing(other)


def fail_for_a_while(run: Run, work: Work) -> None:
    attempts = Attempts(run.ledger, work)
    for _ in range(FEW):
        attempts.failed(TransientError("it does not answer"))


def gone(name: str) -> Any:
    raise TableNotFoundError(name)


BROKEN: dict[str, Callable[[Run], object]] = {
    "pause": lambda run: run.ledger.whole.set_paused(run.run_id, True, "kim"),
    "lag": lambda run: run.ledger.rounds.record(Round(2, 1, now_ms(), 1, 1_000, 3, 7, 99_000, 0)),
    "log": lose_a_log,
    "keeping": lambda run: fail_for_a_while(run, "keeping"),
    "cut": lambda run: fail_for_a_while(run, "cut"),
    "comparison": lambda run: Copying("kim", "why", 1, (1, 1)).begin(run.ledger, TABLE),
    "late edits": lambda run: run.ledger.late.found([LateEdit(f"{GROUP}.11", 5, TABLE, "r1", 4, 9, 1, b"k", 10)]),
    "gaps": lambda run: run.ledger.log.set_fence("end", [LogPosition(GROUP, FILE, 10, 1_001)]),
    "quarantine": lambda run: run.ledger.quarantine.put([QuarantineItem(FILE, 5, 7, TABLE, "r1", 4, "damaged", b"x")]),
    "sent early": lambda run: note_sent(run.ledger, {FILE: SentEarly(shown=(), tables=(TABLE,))}, in_one()),
    "copy": lambda run: Copying("kim", "why", 1, (1, 1)).begin(run.ledger, TABLE),
    "repairs": lambda run: run.ledger.notes.keep(repair._OWED, {}, TABLE),
    "schema": lambda run: run.source.__dict__.update(describe=gone),
    "rows": mark_dirty,
    "compared": lambda run: do(run, "compare", TABLE),
    "rows compared": mark_dirty,
}
ELSEWHERE = {
    "phases": "test_readiness", "verified": "migration/touching/test_claims", "compare ahead": "test_open_target",
    "numbers": "integration/migration/test_lineage", "opening": "has no reasons: it only says when",
}  # fmt: skip
"""conditions that other tests break"""


def test_each_condition_is_broken_by_a_test() -> None:
    assert BROKEN.keys() | ELSEWHERE.keys() == {one.name for one in CONDITIONS}
    assert not BROKEN.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "moment"), [(name, moment) for name in BROKEN for moment in named(name).at])
def test_a_condition_that_does_not_hold_shuts_the_gate_and_says_what_to_do(name: str, moment: Moment, at: At) -> None:
    condition, run = named(name), at(moment)
    assert not condition.ask(run).reasons
    BROKEN[name](run)
    found = condition.ask(run)
    assert found.reasons
    for reason in found.reasons:
        assert reason.why
        assert reason.to_do
    with pytest.raises(GateShutError) as shut:
        require(ask(run, asked_at(moment)))
    assert set(map(str, found.reasons)) <= set(shut.value.reasons)


@pytest.mark.parametrize("name", [name for name in BROKEN if "release" in named(name).at])
def test_what_does_not_hold_at_the_release_has_the_phases_repeated_that_can_mend_it(name: str, at: At) -> None:
    run = at("release")
    BROKEN[name](run)
    with pytest.raises(GateShutError):
        require_or_repeat(run, asked_at("release"))
    done = {
        phase for phase, of in (("drain", ""), ("compare", TABLE)) if run.ledger.phases.facts(phase, of) is not None
    }
    assert done == {"": {"drain", "compare"}, "compare": {"drain"}, "drain": set()}[named(name).repeats]


def test_a_condition_has_one_name_and_one_way_to_be_asked() -> None:
    assert len({one.name for one in CONDITIONS}) == len(CONDITIONS)
    for one in CONDITIONS:
        assert (one.of_ledger is None) != (one.of_run is None), one.name
        assert (one.of_ledger is not None) == (one.origin == "ledger"), "the board asks no cluster"
        assert not one.repeats or "release" in one.at, one.name


def test_what_the_order_of_the_phases_makes_sure_of_is_asked_by_no_gate() -> None:
    assert [one.name for one in CONDITIONS if one.by_order] == ["phases"]
    assert "phases" not in {one.name for one in asked_at("approval")}


def test_each_reason_is_told_in_the_order_of_the_table() -> None:
    first, second = CONDITIONS[1:3]
    found = [(first, Answer("", (Reason("a", "do b"),))), (second, Answer("", (Reason("c", ""),)))]
    assert reasons(found) == ["a: do b", "c"]
    with pytest.raises(GateShutError, match="the gate is shut: a: do b; c"):
        require(found)


def _line(one: Condition) -> str:
    repeats = f"`{one.repeats}`" if one.repeats else ""
    return f"| *{one.name}* | {one.question} | {', '.join(one.at)} | {one.origin} | {repeats} |"


def test_the_docs_list_the_conditions() -> None:
    expected = "\n".join(_line(one) for one in CONDITIONS)
    assert expected in (ROOT / "docs" / "cutover.md").read_text(encoding="utf-8"), f"docs/cutover.md:\n{expected}"


def test_the_docs_have_the_schema_of_ready() -> None:
    expected = json.dumps(Readiness.model_json_schema(), indent=2) + "\n"
    path = ROOT / "docs" / "json" / "ready.schema.json"
    assert path.read_text(encoding="utf-8") == expected, f"{path} should be:\n{expected}"
