"""What the pages show, as plain values from the ledger. Nothing here knows HTTP, nothing writes.

Lists that can grow long are paged: `{"total", "page", "size", "rows"}`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from walferry.airflow.board.hidden import hidden_inputs, hidden_rows, without_rows
from walferry.airflow.board.lanes import Hole, draw_lanes, find_holes
from walferry.airflow.board.paging import page_of
from walferry.airflow.board.passes import passes
from walferry.airflow.board.receiving import receiving
from walferry.airflow.board.replication import replication
from walferry.amounts import amount, rows_differ
from walferry.clock import now_ms
from walferry.cutover.readiness import readiness
from walferry.errors import UsageError, WalferryError, message_of
from walferry.hbase.rowkey import shown_row
from walferry.ledger import (
    AcceptedDifference,
    AuditLine,
    Coverage,
    Difference,
    Ledger,
    PhaseRecord,
    Quarantined,
    RangeComparison,
    Round,
    RunRecord,
)
from walferry.ledger.columns import to_json
from walferry.ledger.comparisons import Decision, needs_decision
from walferry.ledger.rows import RANGE_STATES
from walferry.migration.explaining.accept import difference_facts
from walferry.migration.explaining.difference_classes import WORST_FIRST
from walferry.migration.repairing.repairable import repairable
from walferry.migration.report import summary
from walferry.migration.report_model import Report
from walferry.refusals import ANY_REGION, GapKind
from walferry.run.phases import phases_of, subjects
from walferry.run.progress.lag import ages
from walferry.run.progress.missing_numbers import faults
from walferry.run.progress.state import PhaseShown, phase_shown, phases_and_signs
from walferry.run.progress.status import status
from walferry.run.progress.status_model import MomentsKept, Status
from walferry.run.recorded_spec import options_of, source_tables, target_tables

RUNS_PER_PAGE = 25
ROWS_PER_PAGE = 25
MOST_ROUNDS = 3_000
"""shown in a chart: the latest"""
MOST_POINTS = 300
"""of a chart; more rounds are combined"""
LATEST_ROUNDS = 12
MOST_TEXT = 2_000

Facts = dict[str, Any]
OldRun = Callable[[Any, Callable[[], Facts]], Facts]


@dataclass(frozen=True)
class Pages:
    """The requested page of each long list, from 0."""

    tables: int = 0
    lanes: int = 0
    gaps: int = 0
    comparison: int = 0
    differences: int = 0
    quarantine: int = 0
    audit: int = 0
    passes: int = 0
    queues: int = 0
    findings: int = 0
    processes: int = 0


# ------------------------------------------------------------------ the overview


def overview(ledger: Ledger, page: int = 0, old_run: OldRun = lambda _, work: work()) -> Facts:
    """The status of each run, newest first. `old_run` may cache the line of a run that has ended."""
    runs = ledger.runs()[::-1]
    rows = []
    for run in runs[page * RUNS_PER_PAGE : (page + 1) * RUNS_PER_PAGE]:
        if run.state == "running":
            rows.append(_line(ledger, run))
        else:
            rows.append(old_run((run.run_id, run.ended_ms), lambda run=run: _line(ledger, run)))  # type: ignore[misc]
    return {
        "now_ms": now_ms(),
        "ledger": ledger.url,
        "runs": {"total": len(runs), "page": page, "size": RUNS_PER_PAGE, "rows": rows},
    }


def _line(ledger: Ledger, run: RunRecord) -> Facts:
    holes = _holes(ledger, run)
    return _head(ledger, run, status(ledger.of(run.run_id))) | {
        "gaps": len({hole.gap.file for hole in holes if hole.kind == "gap"}),
        "held": len(ledger.of(run.run_id).quarantine.items("held")),
    }


def _head(ledger: Ledger, run: RunRecord, now: Status) -> Facts:
    return now.model_dump(exclude={"receiving"}) | {
        "name": run.name,
        "kind": run.kind,
        "owner": run.owner,
        "tables": len(source_tables(run)),
        "max_lag": options_of(run).max_lag,
        "outcome": run.outcome,
        "created_ms": run.created_ms,
        "ended_ms": run.ended_ms,
    }


# ------------------------------------------------------------------ one run


def run_page(ledger: Ledger, run: RunRecord, pages: Pages = Pages(), *, rows: bool = True) -> Facts:
    """Everything that the page of a run shows; without `rows`, nothing of the rows that differ but number and class."""
    holes = _holes(ledger, run)
    lost = [hole for hole in holes if hole.kind == "gap"]
    phases, signs = phases_and_signs(ledger.of(run.run_id))
    report = summary(ledger.of(run.run_id))
    report = report if rows else without_rows(report)
    coverage = ledger.of(run.run_id).log.coverage()
    known = ledger.of(run.run_id).comparisons
    differences = list({(d.table, d.row): d for d in [*known.differences(), *known.looked()]}.values())
    comparison = ledger.of(run.run_id).comparisons.ranges()
    decided = ledger.of(run.run_id).comparisons.accepted()
    to_repair = _to_repair(run, differences, decided)
    items = ledger.of(run.run_id).quarantine.items()
    now = status(ledger.of(run.run_id))
    rounds = ledger.of(run.run_id).rounds.latest(MOST_ROUNDS)
    total, lines = ledger.of(run.run_id).audit_page(ROWS_PER_PAGE, pages.audit * ROWS_PER_PAGE)
    shown = [_difference(d, decided) for d in sorted(differences, key=lambda d: WORST_FIRST.index(d.kind))]
    return {
        "now_ms": now_ms(),
        "run": _head(ledger, run, now)
        | report.model_dump(include={"log_bytes", "rounds", "data_docs", "ledger"}),
        "alarms": _alarms(
            run, now, lost, [i for i in items if i.state == "held"], report,
            faults(ledger.of(run.run_id), now.cause),
        ),
        "readiness": _readiness(ledger, run),
        "passes": passes(ledger.of(run.run_id), run, pages.passes, ROWS_PER_PAGE, rows=rows),
        "replication": replication(
            ledger.of(run.run_id), run, pages.queues, pages.findings, ROWS_PER_PAGE, rows=rows
        ),
        "receiving": receiving(now.receiving, pages.processes, pages.tables, ROWS_PER_PAGE),
        "phases": phase_rows(run, phases, signs),
        "tables": _tables(run, phases, signs, report, coverage, to_repair, now.moments, pages.tables),
        "lanes": draw_lanes(ledger, run.run_id, holes, pages.lanes),
        "gaps": _page([_hole(hole) for hole in _worst_first(holes)], pages.gaps)
        | {"files": len({hole.gap.file for hole in lost})},
        "charts": series(rounds),
        "latest_rounds": [vars(made) for made in rounds[-LATEST_ROUNDS:][::-1]],
        "comparison": _page(
            [_region(r) for r in sorted(comparison, key=lambda r: (r.equal, r.table, r.start))], pages.comparison
        )
        | {
            "differing": sum(not r.equal for r in comparison),
            "second_reader": [f"{table}: {found.second_reader}." for table, found in report.tables.items()
                              if found.second_reader],
        },
        "differences": _page(shown if rows else hidden_rows(shown), pages.differences)
        | {"kinds": dict(Counter(d.kind for d in differences))},
        "quarantine": _page(_items(ledger, run, items), pages.quarantine)
        | {"held": sum(item.state == "held" for item in items)},
        "audit": {
            "total": total, "page": pages.audit, "size": ROWS_PER_PAGE, "rows": [_audit(line, rows) for line in lines],
            "head": report.audit_head.model_dump(),
        },
    }  # fmt: skip


def _readiness(ledger: Ledger, run: RunRecord) -> Facts | None:
    """Whether a cutover may begin; None where there is none to come."""
    approved = ledger.of(run.run_id).phases.facts("approve") is not None
    if run.kind != "migration" or run.state != "running" or approved:
        return None
    return readiness(ledger.of(run.run_id)).model_dump()


def check_audit(ledger: Ledger) -> Facts:
    """Verify the audit chain; `broken` says in one line what is wrong with it, None when it is intact."""
    head = ledger.audit_head()
    try:
        ledger.verify_audit(head)
    except WalferryError as error:
        return {"lines": head.sequence, "hash": head.hash, "broken": str(error)}
    return {"lines": head.sequence, "hash": head.hash, "broken": None}


def _holes(ledger: Ledger, run: RunRecord) -> list[Hole]:
    if run.kind in ("keep", "receive"):
        return []  # they read no log to apply it, and a keep's own alarms name the logs that are lost
    done = ledger.of(run.run_id).phases.facts("drain") is not None
    try:
        return find_holes(ledger, run.run_id, done)
    except UsageError:
        return []  # a spec without tables: no file is required


def _worst_first(holes: Sequence[Hole]) -> list[Hole]:
    """Gaps, then held ranges with their items. What will be applied in a later round is left out."""
    shown = [h for h in holes if h.kind == "gap" or (h.kind == "held" and h.gap.kind is GapKind.HELD)]
    return sorted(shown, key=lambda hole: hole.kind != "gap")


def _hole(hole: Hole) -> Facts:
    gap = hole.gap
    return {
        "kind": hole.kind, "group": hole.group, "file": gap.file, "start": gap.start, "end": gap.end,
        "table": gap.table, "reason": gap.reason,
    }  # fmt: skip


def _alarms(
    run: RunRecord,
    now: Status,
    lost: Sequence[Hole],
    held: Sequence[Quarantined],
    report: Report,
    missing_numbers: Sequence[str],
) -> list[Facts]:
    """What a person must know besides the run's state, the worst first."""
    alarms, most_lag = [], options_of(run).max_lag
    if lost:
        files = sorted({hole.gap.file for hole in lost})
        more = f" and {amount(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        alarms.append({"kind": "gap", "text": f"Gap in the log, {files[0]}{more}: {lost[0].gap.reason}"})
    found = [row for row in report.tables.values() if not row.equal_since]
    if differing := sum(row.unexplained for row in found):
        alarms.append({"kind": "failed", "text": f"{rows_differ(differing)} without an explanation"})
    if uncompared := report.uncompared:
        text = f"{amount(uncompared, 'cell')} expired while being compared: compare again"
        alarms.append({"kind": "failed", "text": text})
    undecided = sum(row.undecided for row in found)
    if undecided and now.state != "waiting for a decision":
        text = f"{rows_differ(undecided)} for a known reason, and no decision has been made"
        alarms.append({"kind": "held", "text": text})
    if held and now.state != "held":
        items = amount(len(held), "item waits", "items wait")
        alarms.append({"kind": "held", "text": f"{items} in quarantine for a decision, the first: {held[0].reason}"})
    if now.log is not None and now.log.late:
        alarms.append({"kind": "gap", "text": f"The log is not being copied in time: {now.log.text}"})
    if now.moments is not None:
        if now.moments.too_much and now.state != "exposed":
            alarms.append({"kind": "gap", "text": f"{now.moments.text[0].upper()}{now.moments.text[1:]}"})
        alarms += [{"kind": "held", "text": f"No new base of {t}: {why}"} for t, why in now.moments.troubles.items()]
    for standstill in report.standstills:
        text = standstill.text
        alarms.append({"kind": "gap", "text": f"{text[0].upper()}{text[1:]}"})
    alarms += [{"kind": "failed", "text": text} for text in missing_numbers]
    if now.lag_seconds and now.lag_seconds > most_lag:
        limit = f"a cutover needs at most {most_lag} s" if run.kind == "migration" else f"max_lag is {most_lag} s"
        text = f"The lag is {now.lag_seconds:.0f} s; {limit}"
        alarms.append({"kind": "note", "text": text})
    alarms += [{"kind": "note", "text": row.text} for row in now.counted_numbers]
    alarms += [{"kind": "note", "text": f"{t} is read-only at the source, and stays so"} for t in report.read_only]
    return alarms


_WORST: tuple[PhaseShown, ...] = ("failed", "interrupted", "waiting", "running")


def phase_rows(run: RunRecord, phases: Sequence[PhaseRecord], signs: Collection[str]) -> list[Facts]:
    """One row per phase in the run's order, including those to come; a phase by table is one row over its tables.

    `signs`: the labels at which a live process works (`phases_and_signs`).
    """
    known = {(phase.phase, phase.subject): phase for phase in phases}
    rows = []
    for phase in phases_of(run.kind):
        whole = subjects(phase, source_tables(run))
        begun = [known[phase.name, subject] for subject in whole if (phase.name, subject) in known]
        counts = Counter(phase_shown(one, run, signs) for one in begun)
        ended = [one.finished_ms for one in begun if one.finished_ms]
        rows.append(
            {
                "phase": phase.name,
                "what": phase.what,
                "state": _summed(counts, len(whole)),
                "tables": len(whole) if phase.by_table else None,
                "done": counts["done"],
                "attempts": max((one.attempts for one in begun), default=0),
                "started_ms": min((one.started_ms for one in begun), default=None),
                "finished_ms": max(ended) if ended and len(ended) == len(begun) else None,
                "error": next((f"{one.subject} {one.message}".strip() for one in begun if one.state == "failed"), ""),
            }
        )
    return rows


def _summed(counts: Counter[PhaseShown], total: int) -> str:
    """The state of a phase over all of its tables: the worst of theirs."""
    worst = next((state for state in _WORST if counts[state]), None)
    if worst:
        return worst
    return "done" if counts["done"] == total > 0 else "partly done" if counts["done"] else "not begun"


def _to_repair(run: RunRecord, differences: Sequence[Difference], decided: Collection[Decision]) -> set[str]:
    """The tables with rows that somebody may want to repair."""
    if run.kind != "migration" or run.state != "running":
        return set()
    return {item.table for item in differences if repairable(item, decided)}


def _tables(
    run: RunRecord,
    phases: Sequence[PhaseRecord],
    signs: Collection[str],
    report: Report,
    coverage: Sequence[Coverage],
    to_repair: Collection[str],
    moments: MomentsKept | None,
    page: int,
) -> Facts:
    """A page with one row per table; those with a failed phase come first, then those that differ."""
    log: dict[str, Counter[str]] = defaultdict(Counter)
    for item in coverage:
        log[item.table].update({state: getattr(item, state) for state in RANGE_STATES})
    states = {(phase.phase, phase.subject): phase_shown(phase, run, signs) for phase in phases}
    since_ms = moments.since_ms if moments is not None else {}
    rows: list[Facts] = [
        {
            "source": source,
            "target": None if run.kind in ("stream", "keep") else target,
            "since_ms": since_ms.get(source),
            "topic": report.topics.get(source) or (run.spec.get("parquet") or {}).get("folder"),
            "steps": {p.name: states.get((p.name, source), "not begun") for p in phases_of(run.kind) if p.by_table},
            "errors": [
                f"{p.phase}: {_short(p.message)}" for p in phases if p.subject == source and p.state == "failed"
            ],
            "log": {state: log[source][state] for state in RANGE_STATES},
            "compared": report.tables.get(source),
            "repair": source in to_repair,
        }
        for source, target in target_tables(run).items()
    ]

    def troubles(row: Facts) -> tuple[bool, bool]:
        compared = row["compared"]
        return not row["errors"], compared is None or compared.equal_regions == compared.regions

    shown = _page(sorted(rows, key=troubles), page)
    for row in shown["rows"]:
        row["compared"] = (
            row["compared"] and row["compared"].model_dump()
        )  # only of the page: a table may have many rows
    return shown


# ------------------------------------------------------------------ lag and rate


def series(rounds: Sequence[Round]) -> Facts:
    """Lag, edits per second and bytes per second over time.

    The lag falls at the end of a round, so each round has two points: the lag just before, and just after. Rates are
    averages since the previous round. Many rounds are combined: their highest lag, their mean rates.
    """
    lag: list[tuple[int, float]] = []
    rates: list[tuple[int, float, float]] = []
    step = max(1, -(-len(rounds) // MOST_POINTS))
    old = ages(rounds)
    end: int | None = None
    for i in range(0, len(rounds), step):
        piece = rounds[i : i + step]
        highest = max(before for _, before, _ in old[i : i + step])
        last = piece[-1]
        since = end if end is not None else min(piece[0].started_ms, last.finished_ms)
        seconds = max(1, last.finished_ms - since) / 1000
        lag += [(last.finished_ms, highest / 1000), (last.finished_ms, last.lag_ms / 1000)]
        cells, size = sum(made.cells for made in piece), sum(made.bytes for made in piece)
        rates.append((last.finished_ms, round(cells / seconds, 1), round(size / seconds, 1)))
        end = last.finished_ms
    return {
        "from_ms": rounds[0].started_ms if rounds else None,
        "lag": {"at_ms": [at for at, _ in lag], "seconds": [seconds for _, seconds in lag]},
        "rate": {
            "at_ms": [at for at, _, _ in rates],
            "edits": [edits for _, edits, _ in rates],
            "bytes": [size for _, _, size in rates],
        },
    }


# ------------------------------------------------------------------ rows of the long lists


def _page(rows: list[Facts], page: int) -> Facts:
    return page_of(rows, page, ROWS_PER_PAGE)


def _region(item: RangeComparison) -> Facts:
    sides = ("source_rows", "source_cells", "source_digest", "target_rows", "target_cells", "target_digest")
    return {
        "table": item.table,
        "region": item.region,
        "start": shown_row(item.start) or "(first)",
        "stop": shown_row(item.stop) or "(last)",
        "equal": item.equal,
        **{key: getattr(item, key) for key in sides},
        "dropped": {
            f"{side} {what}": count
            for side in ("source", "target")
            for what, count in item.dropped.get(side, {}).items()
            if count
        },
    }


def _difference(item: Difference, decided: Mapping[Decision, AcceptedDifference]) -> Facts:
    facts = asdict(difference_facts(item, decided))
    if facts["accepted_by"]:
        facts["kind"] += f", accepted by {facts['accepted_by']}: {_short(facts['reason'])}"
    elif needs_decision(item, decided):
        facts["kind"] += ", waits for a decision"
    return facts | {"detail": _short(item.detail)}


def _items(ledger: Ledger, run: RunRecord, items: Sequence[Quarantined]) -> list[Facts]:
    behind: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for hold in ledger.of(run.run_id).quarantine.holds():
        behind[hold.quarantine_id].add((hold.table, hold.region))
    rows = [
        {
            "id": item.quarantine_id, "state": item.state, "table": item.table or "(unknown)",
            "region": item.region, "file": item.file, "start": item.start, "end": item.end,
            "bytes": len(item.data), "reason": _short(item.reason), "recorded_ms": item.recorded_ms,
            "resolution": item.resolution, "released_by": item.released_by,
            "release_reason": item.release_reason, "released_ms": item.released_ms,
            "holds": [
                f"all of {table}" if region == ANY_REGION else f"{region} of {table}"
                for table, region in sorted(behind[item.quarantine_id])
            ][:20],
        }
        for item in items
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["state"] != "held", row["id"]))


def _audit(line: AuditLine, rows: bool) -> Facts:
    inputs = line.inputs if rows else hidden_inputs(line.inputs)
    outcome = message_of(line.outcome) if line.action == "fail phase" else line.outcome
    return {
        "sequence": line.sequence, "at_ms": line.at_ms, "actor": line.actor, "action": line.action,
        "inputs": _short(to_json(inputs)), "outcome": _short(outcome), "hash": line.hash,
    }  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… ({len(text)} characters, all of it in the ledger)"
