"""A pass over a pair: tables that something else keeps equal, verified without a migration.

A pass first looks up which servers have the regions. Then it reads both logs from the last pass's place to their ends,
and then the rows: all rows of a region, or those that the logs name and those that differed before (`pair_regions`). So
every edit before the new place was there when the rows were read. Each region is recorded as soon as it is read; an
interrupted pass continues with the other regions, from its own place. A second reader then reads some of the rows
(`pair_spot_check`). Nothing is changed on either cluster, but if a replication peer is named, the source's logs are
rolled before rows are said to differ (`pair_shipping`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import Ledger, PassDifference, PassPosition, PassRecord, PassRegion, RunRecord
from walferry.ledger.rows import ClusterSide
from walferry.migration.pairs.pair_findings import pass_facts, pass_line
from walferry.migration.pairs.pair_log import (
    FileNews,
    LogTask,
    PlaceInLog,
    UnreadFile,
    gaps_since,
    listing_since,
    place_after,
    read_span,
    sealed_by,
    spans_since,
)
from walferry.migration.pairs.pair_plan import (
    CROWDED,
    DAY_MS,
    Borders,
    NamedRows,
    SideNews,
    Sight,
    became_fragile,
    sights,
    why_whole,
)
from walferry.migration.pairs.pair_regions import Todo, read_regions, settle
from walferry.migration.pairs.pair_shipping import Shipping, peer_faults, proved_before
from walferry.migration.pairs.pair_spot_check import Drawn, spot_check_pair
from walferry.replay.keeping.retention import retention_of
from walferry.replay.rights import dirty
from walferry.replay.targets import target_faults
from walferry.run.heartbeat import alive
from walferry.run.log_folder import require_log_folder
from walferry.run.name_nodes import require_no_old_states
from walferry.run.notes.spot_check import sampled, why_none
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, log_at
from walferry.run.spec import ResolvedSpec
from walferry.spark.clients import workers
from walferry.spark.fan_out import fan_out
from walferry.spark.session import session_for
from walferry.wal.offsets import CertainListing

log = logging.getLogger(__name__)

OWNER = "pair"
"""owner of all pairs' runs, so that anybody who verifies a pair continues from its last pass"""
PHASE = "pass"
WHOLE_EVERY_DAYS = 7.0
AT_ONCE = 32
"""how many regions are read and then recorded together; more with more workers"""
FILES_AT_ONCE = 8
"""how many files of a log are read at a time"""
LEAST_LOG_BYTES = 1 << 30
"""so much log is always read"""
MUCH_LOG = "more log was written since it was last read than the tables of the pair hold"
MARKED_BEFORE_MS = 600_000
"""so long before a pass a row must have been marked as dirty for the pass to clear it: who receives HBase's replication
marks it a minute or two before the edit is written, by a clock of its own"""
SETTLE_SECONDS = 2.0
"""pause after both logs were read and before the rows are read: an edit is logged a moment before readers see it"""
_OPTIONS = "options of the pair"


def open_pair(ledger: Ledger, spec: ResolvedSpec, actor: str, whole_every_days: float) -> RunRecord:
    """Open the run of a pair. The run has no end, and its tables may change from pass to pass."""
    if whole_every_days <= 0:
        raise UsageError("each region must be read whole from time to time: give more than 0 days")
    run = ledger.open_run(spec.name, OWNER, spec.as_recorded(), actor, "pair")
    ledger.of(run.run_id).notes.keep(_OPTIONS, {"whole_every_days": whole_every_days})
    return run


def pair_in_memory(ledger: Ledger, spec: ResolvedSpec) -> RunRecord:
    """The run of a pair for a dry run: the existing one, or a record that is not in the ledger."""
    for run in ledger.runs()[::-1]:
        if (run.name, run.kind, run.state) == (spec.name, "pair", "running"):
            return replace(run, spec=spec.as_recorded())
    return RunRecord(spec.name, spec.name, OWNER, spec.as_recorded(), "running", False, "", now_ms(), None, "pair")


# ------------------------------------------------------------------ what is to be read


_News = tuple[SideNews, SideNews]
"""news of source and target"""
_NOTHING_READ: _News = (SideNews(), SideNews())


@dataclass(frozen=True)
class _SideLog:
    """The part of one side's log to read, and the gaps since each position that regions refer to."""

    listing: CertainListing
    at_ms: int
    spans: Sequence[UnreadFile]
    gaps: dict[int, dict[str, str]]

    @property
    def bytes(self) -> int:
        return sum(span.bytes for span in self.spans)


@dataclass(frozen=True)
class PassPlan:
    """A pass before anything is read: the regions, what is known about them, and both logs."""

    sights: Sequence[Sight]
    known_regions: Mapping[tuple[str, str], PassRegion]
    source: _SideLog
    target: _SideLog
    whole_every_ms: float

    def news(self, sight: Sight, read: _News) -> _News:
        """The logs' news about a region since it was last read: the news `read` from them, and the gaps."""
        known = self.known_regions.get(sight.name)
        position = known.position if known else 0
        source, target = (
            replace(of, gaps=side.gaps.get(position, {}))
            for side, of in zip((self.source, self.target), read, strict=True)
        )
        return source, target

    def why(self, sight: Sight, read: _News = _NOTHING_READ) -> str:
        """Why a region must be read whole; "" if it need not be."""
        return why_whole(
            sight, self.known_regions.get(sight.name), *self.news(sight, read), now_ms(), self.whole_every_ms
        )


def plan_pass(run: Run, whole_every_days: float | None = None) -> PassPlan:
    """Look up what a pass over the pair must read. Changes nothing and reads no log.

    Raises UsageError with the reasons if the pair cannot be compared.
    """
    require_comparable(run, "verified")
    seen = [
        sight for pair in run.tables
        for sight in sights(pair.source, pair.target, run.source.regions(pair.source), run.target.regions(pair.target))
    ]  # fmt: skip
    names = {sight.name for sight in seen}
    known_regions = {(known.table, known.region): known for known in run.ledger.passes.regions()}
    known_regions = {name: known for name, known in known_regions.items() if name in names}
    used = {known.position for known in known_regions.values()}
    positions = [position for number, position in run.ledger.passes.positions().items() if number in used]
    days = whole_every_days
    if days is None:
        days = (run.ledger.notes.get(_OPTIONS) or {}).get("whole_every_days", WHOLE_EVERY_DAYS)
    held_bytes = run.source.held_bytes()
    held = sum(held_bytes.get(pair.source, 0) for pair in run.tables)
    source, target = (look_into_log(run, side, positions, held) for side in SIDES)
    return PassPlan(seen, known_regions, source, target, days * DAY_MS)


def look_into_log(run: Run, side: ClusterSide, positions: Sequence[PassPosition], held: int) -> _SideLog:
    """Find the part of one side's log to read. `held`: bytes of the tables; reading more log than that takes longer
    than reading the tables. Raises TransientError if its servers' logs are elsewhere, UsageError if one of its name
    nodes answers with an old state."""
    client, (files, root) = client_at(run, side), log_at(run, side)
    require_log_folder(client, side, [getattr(pair, side) for pair in run.tables], files, planned=False)
    require_no_old_states(getattr(run.spec, side).address(), side)
    at_ms = now_ms()
    places = {one.position: PlaceInLog.from_json(one.at_ms, getattr(one, side)) for one in positions}
    listing = listing_since(files, root, list(places.values()))
    ttl_ms = retention_of(client).ttl_seconds * 1000
    gaps = {number: gaps_since(place, listing, at_ms, ttl_ms) for number, place in places.items()}

    def spans() -> list[UnreadFile]:
        without = set.intersection(*map(set, gaps.values())) if gaps else set()
        return spans_since(listing, list(places.values()), without, sealed_by(files, root))

    found = _SideLog(listing, at_ms, spans(), gaps)
    if found.bytes <= max(LEAST_LOG_BYTES, held):
        return found
    servers = {file.server for group in listing.groups.values() for file in group}
    for of_position in gaps.values():
        of_position.update(dict.fromkeys(servers, MUCH_LOG))
    return replace(found, spans=spans())


def require_comparable(run: Run, done: str) -> None:
    """Raise UsageError with all reasons why the tables of a pair cannot be compared, and so not be `done`."""
    faults = target_faults(run)
    if run.source.cluster_id() == run.target.cluster_id():
        faults.insert(0, "source and target are the same cluster")
    for pair in run.tables if not faults else ():
        for client, name in ((run.source, pair.source), (run.target, pair.target)):
            faults += [
                f"family {family.name} of {name} has {attribute}, and its cells cannot be compared"
                for family in client.describe(name).families.values()
                for attribute in ("IS_MOB", "NEW_VERSION_BEHAVIOR")
                if family.attributes.get(attribute, "FALSE").upper() not in ("FALSE", "")
            ]
    faults += peer_faults(run) if not faults else []
    if faults:
        raise UsageError(f"the pair cannot be {done}: {'; '.join(faults)}", faults=faults)


def describe_plan(run: Run, plan: PassPlan) -> dict[str, Any]:
    """What a pass would read, as plain values."""
    held = run.source.held_bytes()
    tables = []
    for table, group in groupby(plan.sights, key=lambda sight: sight.table):
        regions = list(group)
        reasons = [why for sight in regions if (why := plan.why(sight))]
        tables.append(
            {
                "table": table, "regions": len(regions), "whole": len(reasons),
                "whole_bytes": held.get(table, 0) * len(reasons) // max(1, len(regions)),
                "reasons": {why: reasons.count(why) for why in sorted(set(reasons))},
            }
        )  # fmt: skip
    return {
        "tables": tables, "log_bytes": plan.source.bytes + plan.target.bytes,
        "log_files": sum(span.for_rows for span in (*plan.source.spans, *plan.target.spans)),
        "second_reader": {"rows": 0 if (none := why_none(run)) else run.spec.spot_check, "why": none},
    }  # fmt: skip


# ------------------------------------------------------------------ the pass


def verify_pair(run: Run, spark: Callable[[], SparkSession]) -> dict[str, Any]:
    """Do one pass, or continue the unfinished one, as the phase `pass`. Returns the numbers of the pass.

    Raises UsageError while another process works on the pair.
    """
    if PHASE in alive(run.ledger):
        raise UsageError(
            f"another process is verifying the pair {run.record.name} ({run.run_id}) now. Wait until it has ended, "
            "or end it; the next pass continues from what it has recorded",
            run=run.run_id,
        )
    return run.once(PHASE, lambda: _pass(run, spark))


def _pass(run: Run, spark: Callable[[], SparkSession]) -> dict[str, Any]:
    phase = run.ledger.phases.find(PHASE)
    current = run.ledger.passes.begin(phase.attempts if phase else 1)
    marked = [rows for rows in dirty.marks_of(run) if rows.at_ms < current.started_ms - MARKED_BEFORE_MS]
    plan, drawn, differed = plan_pass(run), Drawn(run), run.ledger.passes.differences()
    shipping = Shipping(run, proved_before(run, current))
    session = session_for(spark, _size(run, plan), run.writing.here_bytes)
    news, written, position = read_logs(run, session, current, plan)
    time.sleep(SETTLE_SECONDS)
    todo = list(_work(plan, current, news, written, differed))
    whole = Counter(item.sight.table for item in todo if item.why)
    todo = [replace(item, sampled=sampled(run, whole[item.sight.table])) for item in todo]
    log.info(
        "%s: pass %d reads %d of %s whole, and %s of the others", run.run_id, current.number,
        whole.total(), amount(len(todo), "region"), amount(sum(len(item.rows) for item in todo), "row"),
    )  # fmt: skip
    todo.sort(key=lambda item: bool(item.why))  # the shortest work is recorded first
    at_once = max(AT_ONCE, 2 * workers(session))
    for first in range(0, len(todo), at_once):
        read_regions(run, session, current, position, todo[first : first + at_once], drawn)
    settle(run, session, current, shipping)
    spot_check_pair(run, current, Borders(plan.sights), drawn, differed, shipping)
    there = {sight.name for sight in plan.sights}
    facts = pass_facts(run.ledger.passes.finish(current, there, shipping.facts()))
    log.info("%s: %s", run.run_id, pass_line(facts))
    if not (facts["differing_rows"] or facts["under_way_rows"] or facts["not_judged"]):
        dirty.remove(run, marked)  # the pass has read these rows: the target's log names them, or they were read whole
    return facts


def _size(run: Run, plan: PassPlan) -> int:
    held = run.source.held_bytes()
    whole = [sight.table for sight in plan.sights if plan.why(sight)]
    of = Counter(sight.table for sight in plan.sights)
    return plan.source.bytes + plan.target.bytes + sum(held.get(table, 0) // of[table] for table in whole)


def read_logs(
    run: Run, session: SparkSession | None, current: PassRecord, plan: PassPlan
) -> tuple[_News, NamedRows, int]:
    """Read both logs: their news about regions, the rows that they name, and the number of the new place."""
    written = NamedRows(plan.sights)
    said, places, size = [], [], 0
    addresses = (run.source_address(workers(session)), run.target_address())
    for at, (side, address) in enumerate(zip((plan.source, plan.target), addresses, strict=True)):
        names = {(pair.target if at else pair.source): pair.source for pair in run.tables}
        tasks = [LogTask(address, span, tuple(names)) for span in side.spans]
        read: list[FileNews] = []
        at_once = max(FILES_AT_ONCE, 2 * workers(session))
        for first in range(0, len(tasks), at_once):
            for news in fan_out(session, read_span, tasks[first : first + at_once], what="read the logs"):
                for table, rows in news.rows.items():
                    written.add(names[table], rows)
                read.append(replace(news, rows={}))
        for news, task in zip(read, tasks, strict=True):
            if news.error and task.span.for_rows:
                for gaps in side.gaps.values():
                    gaps.setdefault(news.file.server, news.error)
        size += sum(news.size for news in read)
        said.append(
            SideNews(
                marks={name: why for news in read for name, why in news.marks.items()},
                compacted={name for news in read for name in news.compacted},
                fragile={name for news in read for name in news.fragile},
            )
        )
        places.append(place_after(side.at_ms, side.listing, read))
    at_ms = min(place.at_ms for place in places)
    position = run.ledger.passes.keep_position(
        current, places[0].as_json(), places[1].as_json(), at_ms, size, written.count
    )
    return (said[0], said[1]), written, position


def _work(
    plan: PassPlan,
    current: PassRecord,
    news: _News,
    written: NamedRows,
    differed: Sequence[PassDifference],
) -> Iterator[Todo]:
    """The work for every region that this pass has not read yet."""
    before: dict[tuple[str, str], set[bytes]] = {}
    for row in differed:
        before.setdefault((row.table, row.region), set()).add(row.row)
    for sight in plan.sights:
        known = plan.known_regions.get(sight.name)
        if known is not None and known.number == current.number:
            continue
        why = plan.why(sight, news) or (CROWDED if sight.name in written.let_go else "")
        rows = () if why else tuple(sorted(written.rows.get(sight.name, set()) | before.get(sight.name, set())))
        yield Todo(sight, known, why, rows, became_fragile(sight, *news))
