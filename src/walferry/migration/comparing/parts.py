"""A whole comparison in parts: each region is recorded as soon as it is compared, so that another process can continue
with the remaining regions.

While the log is followed, the regions' equality counts from the moment at which the first process started to read, so
the regions may be read at different times. Between two parts, rows written since are read again, so that few are left
at the end, however long the whole comparison takes. After the drain the source stands still, so every part read since
then counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np

from walferry.amounts import amount
from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, WalferryError, is_transient
from walferry.formats.resolve import Digest
from walferry.ledger import RunLedger
from walferry.migration.comparing.written_rows import differing, files_with, read_written, uncovered
from walferry.migration.sides.digest import Outcome, RangePair
from walferry.migration.sides.fragile_rows import NONE, RowSpans
from walferry.migration.touching.equality import Begun, begin_whole, why_outdated
from walferry.replay.rights import dirty
from walferry.run.notes.last_comparison import last_drain
from walferry.run.progress.comparing_ahead import end_so_far, note_so_far, told_so_far_ms
from walferry.run.run import Run

log = logging.getLogger(__name__)

AT_ONCE = 32
"""how many regions are compared and then recorded together; more with more workers"""
BETWEEN_SECONDS = 300.0
"""time from one reading of rows written meanwhile to the next reading"""
UNDER_WAY_SECONDS = 1.5
"""time from one reading of rows that differ to the next reading: the rows may be under way"""
REST_SECONDS = 3600.0
"""after this time without a new part, the last comparison of a table starts over: nothing notices when others write to
the table"""
_BEGUN, _PART = "begun comparison", "compared part of "


class ComparisonStoppedError(TransientError):
    """The comparison was stopped; the parts compared so far are kept for the process that continues."""


# ------------------------------------------------------------------ where a comparison begins


@dataclass(frozen=True)
class Start:
    """The facts recorded before a table is read."""

    key: str
    """distinguishes its parts from those of another comparison"""
    stage: str
    """stage of the run: parts compared at another stage do not count"""
    at_ms: int
    marks: frozenset[str]
    """names of the marks of dirty rows"""
    applied: frozenset[str]
    """logs whose edits of the table were at the target by then and that no comparison covers yet, and logs whose rows
    were read between two parts"""
    begun: Begun | None
    """the base of the equality to record; None if none is recorded"""
    fragile: RowSpans = NONE
    """fragile rows of the parts, and of the rows read between two parts"""

    @classmethod
    def now(cls, run: Run, table: str, *, keeps_equality: bool, stage: str = "") -> Start:
        """A start at this moment."""
        marks = _mark_names(run, table)
        begun = begin_whole(run, table) if keeps_equality else None
        at_ms = now_ms()
        return cls(uuid4().hex, stage, at_ms, marks, frozenset(uncovered(run, table)), begun)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "key": self.key, "stage": self.stage, "at_ms": self.at_ms, "marks": sorted(self.marks),
            "applied": sorted(self.applied), "begun": None if self.begun is None else self.begun.as_json(),
            "fragile": self.fragile.pack(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Start:
        """The inverse of `as_json`."""
        begun = None if kept["begun"] is None else Begun.from_json(kept["begun"])
        return cls(
            kept["key"], kept["stage"], kept["at_ms"], frozenset(kept["marks"]), frozenset(kept["applied"]), begun,
            RowSpans.unpack(kept["fragile"]),
        )  # fmt: skip


def _mark_names(run: Run, table: str) -> frozenset[str]:
    """Names of the marks of dirty rows that a table has now."""
    return frozenset(rows.name for rows in dirty.marks(run.target.zk, run.pair(table).target))


# ------------------------------------------------------------------ its parts


class Parts:
    """The parts of a whole comparison of one table, some of which an earlier process may have compared."""

    def __init__(
        self,
        run: Run,
        table: str,
        between: Callable[[], bool] = lambda: True,
        oldest_ms: float = 0,
        *,
        keeps_equality: bool,
    ) -> None:
        """`between` is called between two parts and may take long; if it returns False, the comparison stops. A
        comparison that started before `oldest_ms` is not continued. `keeps_equality`: the log is followed; if False,
        the log is applied to its end."""
        self._run = run
        self._table = table
        self._between = between
        self._keeps_equality = keeps_equality
        self._read_s = steady_s()
        self.seconds = 0.0
        """how long the reading of the parts took"""
        kept = run.ledger.notes.get(_BEGUN, table)
        if kept is None or not self._goes_on(Start.from_json(kept), oldest_ms):
            drop_parts(run.ledger, table)
            self._keep(Start.now(run, table, keeps_equality=keeps_equality, stage=self._stage()))

    def _stage(self) -> str:
        """The last drain and its end fence; "" while the log is followed."""
        if self._keeps_equality:
            return ""
        attempt, fence = last_drain(self._run.ledger)
        return f"drain {attempt} {fence}"

    def _goes_on(self, start: Start, oldest_ms: float) -> bool:
        self._start = start
        why = self._outdated()
        if not why and start.at_ms < oldest_ms:
            why = "it began too long ago"
        if not why and not _mark_names(self._run, self._table) <= start.marks:
            why = "rows have become dirty since"
        last_ms = told_so_far_ms(self._run.ledger, self._table) or start.at_ms
        if not why and not self._keeps_equality and now_ms() - last_ms > 1000 * REST_SECONDS:
            why = "it has rested for too long"
        if why := why or self._read_meanwhile():
            log.info("comparing %s again from its first region: %s", self._table, why)
        return not why

    def _keep(self, start: Start) -> None:
        self._start = start
        self._run.ledger.notes.keep(_BEGUN, start.as_json(), self._table)

    @property
    def start(self) -> Start:
        """The start of the comparison."""
        return self._start

    def compared(
        self, pairs: Sequence[RangePair], read: Callable[[Sequence[RangePair]], list[Outcome]], workers: int = 0
    ) -> list[Outcome]:
        """The outcome of each range, one for each region; `read` compares the remaining ones.

        Raises ComparisonStoppedError, and TransientError if the compared parts no longer count.
        """
        self.seconds = 0.0
        found = self._known(pairs)
        left = [pair for pair in pairs if pair.region not in found]
        if found:
            log.info(
                "%s: %d of %s compared before",
                self._table,
                len(found),
                amount(len(pairs), "region was", "regions were"),
            )
        at_once = max(AT_ONCE, 2 * workers)
        for first in range(0, len(left), at_once):
            if found:
                self._pause()
            some, began = left[first : first + at_once], steady_s()
            found |= self._recorded(some, read(some), began)
            self._tell(len(found), len(pairs))
        return [found[pair.region] for pair in pairs]

    def _known(self, pairs: Sequence[RangePair]) -> dict[str, Outcome]:
        """The recorded outcomes of ranges that still match a region."""
        kept = self._run.ledger.notes.named(_PART + self._table)
        found: dict[str, Outcome] = {}
        for pair in pairs:
            facts, _ = kept.get(pair.region, ({}, 0))
            same = facts.get("of") == self._start.key and facts["range"] == [pair.start.hex(), pair.stop.hex()]
            if same and not facts["uncompared"]:  # uncompared cells have expired on both sides by now
                found[pair.region] = _outcome(facts)
                self.seconds += facts["seconds"]
        return found

    def _recorded(self, pairs: Sequence[RangePair], outcomes: Sequence[Outcome], began: float) -> dict[str, Outcome]:
        """Record the outcomes and return them by region; their fragile rows are added to the earlier ones."""
        seconds = steady_s() - began
        self.seconds += seconds
        if self._start.begun is not None:
            fragile = sum((outcome.fragile for outcome in outcomes), self._start.fragile)
            self._keep(replace(self._start, fragile=fragile))
        found = {
            pair.region: replace(outcome, fragile=NONE) for pair, outcome in zip(pairs, outcomes, strict=True)
        }  # fmt: skip
        each = {"of": self._start.key, "seconds": round(seconds / len(pairs), 3)}
        facts = {
            pair.region: {**each, "range": [pair.start.hex(), pair.stop.hex()], **_facts(found[pair.region])}
            for pair in pairs
        }  # fmt: skip
        self._run.ledger.notes.keep_each(_PART + self._table, facts)
        return found

    def _tell(self, done: int, regions: int) -> None:
        note_so_far(self._run.ledger, self._table, done, regions, self._start.at_ms)
        if done < regions:
            log.info(
                "%s: %d of %s compared, about %.0f s are left", self._table, done,
                amount(regions, "region is", "regions are"),
                self.seconds / done * (regions - done),
            )  # fmt: skip

    def _pause(self) -> None:
        if not self._between():
            raise ComparisonStoppedError(f"the comparison of {self._table} stopped before its end", table=self._table)
        if why := self._outdated():
            drop_parts(self._run.ledger, self._table)
            raise TransientError(f"the compared parts of {self._table} no longer count: {why}", table=self._table)
        if steady_s() - self._read_s >= BETWEEN_SECONDS and (why := self._read_meanwhile()):
            log.warning("%s, and the comparison of %s has not ended", self._table, why)

    def _outdated(self) -> str:
        """Why compared regions would have to be read again; "" if they need not be."""
        start = self._start
        if start.stage != self._stage():
            return "the run is at another stage"
        return why_outdated(self._run, self._table, start.begun) if start.begun is not None else ""

    def _read_meanwhile(self) -> str:
        """Read again the rows written until now. If that is not possible, return why: these rows wait for the end of
        the comparison."""
        start = self._start
        self._read_s = steady_s()
        if start.begun is None:  # nobody writes
            return ""
        names = uncovered(self._run, self._table) - start.applied
        if not names:
            return ""
        try:
            read = read_written(self._run, self._table, names)
            if isinstance(read, str):
                return read
            shown, by_file = read
            rows: Collection[bytes] = shown.differing
            if rows:  # some rows are under way
                time.sleep(UNDER_WAY_SECONDS)
                rows = differing(self._run, self._table, sorted(rows))
        except (WalferryError, OSError) as error:  # for example, a log is gone
            if is_transient(error):
                raise
            return str(error)
        done = names - files_with(by_file, rows)
        self._keep(replace(start, applied=start.applied | done, fragile=start.fragile + shown.fragile))
        return ""


def drop_parts(ledger: RunLedger, table: str) -> None:
    """Forget the compared parts of a table: the comparison has ended, or starts again."""
    end_so_far(ledger, table)
    ledger.notes.drop(_BEGUN, table)
    ledger.notes.drop_named(_PART + table)


def _facts(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values, without its fragile rows."""
    facts = {
        name: getattr(outcome, name)
        for name in ("expiring", "uncompared", "first_ms", "last_ms", "differing", "newest")
    }
    sides = {name: list(vars(getattr(outcome, name)).values()) for name in ("source", "target")}
    return {
        **facts, **sides, "dropped": outcome.dropped.tolist(), "rows": [row.hex() for row in outcome.rows],
        "sample": [[drawn, row.hex()] for drawn, row in outcome.sample],
    }  # fmt: skip


def _outcome(facts: Mapping[str, Any]) -> Outcome:
    return Outcome(
        Digest(*facts["source"]), Digest(*facts["target"]), np.array(facts["dropped"], np.int64), facts["expiring"],
        facts["uncompared"], facts["first_ms"], facts["last_ms"], facts["differing"],
        tuple(map(bytes.fromhex, facts["rows"])), NONE, facts["newest"],
        tuple((drawn, bytes.fromhex(row)) for drawn, row in facts["sample"]),
    )  # fmt: skip
