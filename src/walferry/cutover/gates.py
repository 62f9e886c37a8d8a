"""The gates of a run: after the copy, before the cutover, after the drain. New checks belong here or in `suites`."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walferry.amounts import amount_of_each
from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS, LOAD_COLUMNS
from walferry.checks.validation import require_passed, validate
from walferry.cutover.answer import Answer
from walferry.cutover.conditions import Condition, ask, asked_at, named, reasons, require, require_or_repeat
from walferry.cutover.readiness import Readiness, note_answers, readiness
from walferry.cutover.reopening import compare_again
from walferry.errors import DecisionNeededError, SidesDifferError, WalferryError
from walferry.ledger import ComparedTable, Difference, RunLedger
from walferry.ledger.comparisons import Decision, lacks_explanation, needs_decision
from walferry.migration.comparing.compare import EXPLAINED_ROWS
from walferry.migration.copying.copy import check_rows
from walferry.migration.copying.history import load_rows
from walferry.migration.explaining.accept import difference_facts
from walferry.migration.touching import touched
from walferry.replay.rights import dirty
from walferry.replay.rights.applying import UntilRecorded, applying
from walferry.run.facts import note_opened, opened_ms
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.notes.shut_gate import note_shut_gate
from walferry.run.notes.spot_check import spot_check_of
from walferry.run.progress.comparing_ahead import left_to_compare
from walferry.run.progress.next_step import way_on_if_rows_differ
from walferry.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

# ------------------------------------------------------------------ gates over the conditions


def before_cutover(run: Run) -> None:
    """Raise GateShutError with every reason against a cutover."""
    require(look_before_cutover(run))


def look_before_cutover(run: Run) -> list[tuple[Condition, Answer]]:
    """Check the conditions of the approval. Answers that the ledger alone cannot give are recorded in the ledger."""
    found = ask(run, asked_at("approval"))
    note_answers(run.ledger, found)
    silent = [(condition, answer) for condition, answer in found if not condition.state_shows]
    if left_to_compare(run.ledger):  # the state shows this already
        silent = [(condition, answer) for condition, answer in silent if condition.of_run is not None]
    note_shut_gate(run.ledger, reasons(silent))
    return found


def cutover_readiness(run: Run) -> Readiness:
    """Whether a cutover may start, as the gate sees it now. Until the copy is checked, the clusters are not asked."""
    checked = run.ledger.phases.facts("check_copy") is not None
    return readiness(run.ledger, look_before_cutover(run) if checked else ())


def after_drain(run: Run) -> None:
    """Raise GateShutError unless every condition from the drain to the release holds."""
    require(ask(run, asked_at("opening", "release")))


# ------------------------------------------------------------------ gates over data, by Great Expectations


def check_copy(run: Run, docs: Path) -> dict[str, Any]:
    """Gate after the copy: files, bytes, checksums, region borders, schema. With `history: bulk`: rows, cells, digests,
    schema. The facts say where the Data Docs are."""

    def work() -> dict[str, Any]:
        bulk = run.spec.history == "bulk"
        rows = [row for pair in run.tables for row in (load_rows if bulk else check_rows)(run, pair.source)]
        frame = _frame(rows, LOAD_COLUMNS if bulk else COPY_COLUMNS)
        result = validate("after_load" if bulk else "after_copy", frame, docs=docs, run_name=run.run_id)
        require_passed(result)
        return {"data_docs": str(result.docs_index), "rows": len(rows)}

    return run.once("check_copy", work)


def drain_rows(ledger: RunLedger, compared: Sequence[ComparedTable]) -> list[dict[str, Any]]:
    """The frame for the gate after the drain: one row per region, with both sides as these comparisons found them."""
    ranges = ledger.comparisons.ranges(compared)
    decided = ledger.comparisons.accepted().keys()
    counts: dict[tuple[str, bytes], Counter[str]] = defaultdict(Counter)
    starts: dict[str, list[bytes]] = defaultdict(list)  # in order
    for item in ranges:
        starts[item.table].append(item.start)
    checks = {made.table: check for made in compared if (check := spot_check_of(ledger, made)) and check.rows}
    only_second = {(table, row) for table, check in checks.items() for row in check.differing}
    for difference in ledger.comparisons.differences(compared):
        of_table = starts[difference.table]
        start = of_table[max(0, bisect_right(of_table, difference.row) - 1)]
        of_region = counts[difference.table, start]
        of_region[weight := _weight(difference, decided)] += 1
        if weight == "unexplained" and (difference.table, difference.row.hex()) in only_second:
            of_region["second_reader"] += 1
    weights = ("unexplained", "undecided", "explained")
    return [
        {name: getattr(item, name) for name in DRAIN_COLUMNS if hasattr(item, name)}
        | {weight: counts[item.table, item.start][weight] for weight in weights}
        | {"second_reader": counts[item.table, item.start]["second_reader"] if item.table in checks else None}
        for item in ranges
    ]


def _weight(difference: Difference, decided: Collection[Decision]) -> str:
    if lacks_explanation(difference, decided):
        return "unexplained"
    return "undecided" if needs_decision(difference, decided) else "explained"


def check_drain(run: Run, docs: Path) -> dict[str, Any]:
    """Gate after the drain: nothing written past the end fence, no gap, both sides equal, explained or accepted.

    Only the comparisons that the run's own phase made for this end fence count. A comparison covers dirty rows if it
    started after they were marked. If this gate opens the target, no other process writes to the target for this run
    until the opening is recorded.
    """
    until_recorded = UntilRecorded()

    def work() -> dict[str, Any]:
        if opened_ms(run.ledger) is None:
            until_recorded.under(run, applying(run))
        marks = dirty.marks_of(run)
        require_or_repeat(run, asked_at("release"))
        compared, _ = comparisons_of_phase(run.ledger)
        rows = drain_rows(run.ledger, compared)
        result = validate("after_drain", _frame(rows, DRAIN_COLUMNS), docs=docs, run_name=run.run_id)
        if not result.passed:
            if not _waits_only(rows):
                compare_again(run)
            _require_alike(run, compared, str(result.docs_index))
            require_passed(result)
        dirty.remove(run, marks)
        if opened_ms(run.ledger) is None:
            _see_target_log(run)
        return {"data_docs": str(result.docs_index), "comparisons": {c.table: c.attempt for c in compared}}

    with until_recorded:
        facts = run.once("check_drain", work, lease_check=until_recorded.lease_check)
        note_opened(run.ledger)
    return facts


def _see_target_log(run: Run) -> None:
    """Read the target's log up to now: writes from here on are its clients' (`migration.explaining.client_writes`)."""
    try:
        touched.look(run)
    except (WalferryError, OSError) as error:
        log.warning("the comparison cannot distinguish clients' writes at the target from other differences: %s", error)


def require_alike(run: Run) -> None:
    """Raise SidesDifferError (facts `regions`, `rows`) if the comparisons of the run's phase shut the gate."""
    require_or_repeat(run, [named("compared")])
    _require_alike(run, comparisons_of_phase(run.ledger)[0], "")


def _require_alike(run: Run, compared: Sequence[ComparedTable], docs: str) -> None:
    rows = drain_rows(run.ledger, compared)
    waiting = _undecided(run, compared)
    kinds: tuple[tuple[str, type[SidesDifferError]], ...] = (
        ("unexplained", SidesDifferError), ("uncompared", SidesDifferError), ("undecided", DecisionNeededError)
    )  # fmt: skip
    for column, kind in kinds:
        counts = Counter[str]()
        for row in rows:
            counts[row["table"]] += row[column]
        if not (counts := +counts):
            continue
        match column:
            case "unexplained":
                what = _unexplained(run, compared, counts)
            case "undecided":
                what = _asks(run, waiting, counts)
            case _:
                what = (
                    f"{amount_of_each(counts, 'cell')} expired while they were read, and only one side held them: "
                    "compare again, by clearing `compare` and everything after it, or `walferry resume "
                    f"{run.record.name}`"
                )
        raise kind(
            f"{what}; see `walferry report {run.run_id}`" + (f" and {docs}" if docs else ""),
            regions=sorted({f"{row['table']} {row['region']}".strip() for row in rows if row[column]}),
            rows=[item.row for item in waiting], docs_index=docs,
        )  # fmt: skip


def _unexplained(run: Run, compared: Sequence[ComparedTable], counts: Counter[str]) -> str:
    """Which rows differ without an explanation, and what to do about them."""
    decided = run.ledger.comparisons.accepted().keys()
    found = [item for item in run.ledger.comparisons.differences(compared) if lacks_explanation(item, decided)]
    many = {item.table: item.differing_rows for item in compared if item.differing_rows > EXPLAINED_ROWS}
    rows = f"{amount_of_each(counts | many, 'row')}{_such_as(found)}"
    what = f"source and target differ without an explanation in {rows}"
    if not many:
        return f"{what}. Now {way_on_if_rows_differ(run.ledger, [])}"
    what += f". At most {EXPLAINED_ROWS} rows per table are examined one by one"
    if opened_ms(run.ledger) is not None:
        return f"{what}: find out why so many differ. Then {way_on_if_rows_differ(run.ledger, [])}"
    targets = ", ".join(run.pair(table).target for table in many)
    return (
        f"{what}, so these rows cannot be accepted. Find out why they differ, then copy again: "
        f"`walferry abort {run.record.name} --reason …`, drop {targets} at the target, start a new run"
    )


def _asks(run: Run, waiting: Sequence[Difference], counts: Counter[str]) -> str:
    """Which rows wait for a person's decision, and how to decide."""
    return (
        "source and target differ for a known reason in rows that wait for a decision: "
        f"{amount_of_each(counts, 'row')}{_such_as(waiting)}. Now {way_on_if_rows_differ(run.ledger, sorted(counts))}; "
        "then repeat this check"
    )


def _such_as(found: Sequence[Difference]) -> str:
    """One or two rows as examples for people."""
    rows = [f"{difference_facts(item, {}).row} of {item.table}" for item in found[:2]]
    return f", such as {' and '.join(rows)}" if rows else ""


def _undecided(run: Run, compared: Sequence[ComparedTable]) -> list[Difference]:
    decided = run.ledger.comparisons.accepted().keys()
    return [item for item in run.ledger.comparisons.differences(compared) if needs_decision(item, decided)]


def _waits_only(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether only a person's decision is missing: then the comparisons stay valid."""
    return any(row["undecided"] for row in rows) and not any(row["unexplained"] or row["uncompared"] for row in rows)


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
