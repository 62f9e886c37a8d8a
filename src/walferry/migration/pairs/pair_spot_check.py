"""The second reader after a pass over a pair: HBase's own Java client reads rows that the pass found equal.

A pass randomly draws the same number of cells from every region that it reads whole, and some of the rows that the logs
named. These rows wait in the ledger until both Thrift servers have shown them. If a pass is killed or finds no Thrift
server, its rows are read after the next pass, and so are rows that differed only for the second reader last time.

Both sides are live, and the other tool may lag. So a row counts as differing only under three conditions. It differs
each time that the second reader reads it until `max_lag` has passed, with the same cell at the first and at the last
reading. Then walferry's own reader finds the row equal. And the cell still differs after that: a late edit would have
arrived before the row was found equal.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable, Sequence

from walferry.clock import now_ms, steady_s
from walferry.ledger import PassDifference, PassRecord
from walferry.migration.comparing.second_reader import (
    RowsToRead,
    SecondReading,
    depends_on_the_moment,
    read_both,
    still_differ,
)
from walferry.migration.comparing.spot_check import ONLY_SECOND, UNREAD
from walferry.migration.pairs.pair_plan import Borders
from walferry.migration.pairs.pair_rows import still_differing
from walferry.migration.pairs.pair_shipping import Shipping
from walferry.run.notes.spot_check import SpotCheck, last_spot_check, note_spot_check, why_none
from walferry.run.run import Run

log = logging.getLogger(__name__)

_NOTE = "rows for the second reader"
_KINDS = ("around", "exactly")


class Drawn:
    """Rows of a pair that wait for the second reader: for each table a random sample of each kind."""

    def __init__(self, run: Run) -> None:
        self._ledger = run.ledger
        self._most = 0 if why_none(run) else max(1, run.spec.spot_check // 3)
        kept = self._ledger.notes.get(_NOTE) or {}
        self._rows: dict[str, dict[str, dict[bytes, float]]] = {
            table: {kind: {bytes.fromhex(row): number for row, number in of[kind].items()} for kind in _KINDS}
            for table, of in kept.items()
        }

    def add(self, table: str, around: Iterable[bytes] = (), exactly: Iterable[bytes] = ()) -> None:
        """Offer rows. Each row has the same chance, whatever their order."""
        mine = self._rows.setdefault(table, {kind: {} for kind in _KINDS})
        for kind, rows in zip(_KINDS, (around, exactly), strict=True):
            for row in rows:
                mine[kind].setdefault(row, random.random())
            mine[kind] = dict(sorted(mine[kind].items(), key=lambda item: item[1])[: self._most])

    def asked(self, table: str) -> RowsToRead:
        """The waiting rows of a table."""
        around, exactly = (sorted(self._rows.get(table, {}).get(kind, ())) for kind in _KINDS)
        return RowsToRead(around, exactly)

    def forget(self, but: Collection[str]) -> None:
        """Drop the rows of all tables except some."""
        self._rows = {table: of for table, of in self._rows.items() if table in but}

    def keep(self) -> None:
        """Record the rows: before their regions are recorded as read, and again after the second reader has read the
        rows."""
        facts = {
            table: {kind: {row.hex(): number for row, number in of[kind].items()} for kind in _KINDS}
            for table, of in self._rows.items()
        }
        if facts or self._ledger.notes.get(_NOTE):
            self._ledger.notes.keep(_NOTE, facts)


def spot_check_pair(
    run: Run, current: PassRecord, borders: Borders, drawn: Drawn, before: Sequence[PassDifference], shipping: Shipping
) -> None:
    """Have the second reader read rows of a pass, after the pass's own differences have settled, and record the result.

    `before`: the rows that differed before the pass. Raises the errors of walferry's own reader; a failure of a Thrift
    server is only recorded.
    """
    began, tables, none = steady_s(), [pair.source for pair in run.tables], why_none(run)
    differed = {table: _differed(run, table) for table in tables}
    if none:
        readings = {table: SecondReading(why=none) for table in tables}
    else:
        asked = {table: drawn.asked(table) for table in tables}
        asked = {table: RowsToRead(of.around, sorted({*of.exactly, *differed[table]})) for table, of in asked.items()}
        readings = read_both(run, asked, run.spec.max_lag)
    known = {(item.table, item.row) for item in run.ledger.passes.differences()}
    since = {(item.table, item.row): item.found_ms for item in before}

    def new(table: str, rows: Iterable[bytes], detail: str) -> list[PassDifference]:
        """Differences for the rows that the pass does not know as differing yet."""
        return [
            PassDifference(
                table, row, borders.sight(table, row).region.encoded, "differs", detail,
                since.get((table, row), now_ms()),
            )
            for row in sorted(rows)
            if (table, row) not in known
        ]  # fmt: skip

    suspects = [item for table, one in readings.items() for item in new(table, one.differing, ONLY_SECOND)]
    late, rows_read = still_differing(run, suspects, shipping) if suspects else ([], 0)
    ours = known | {(item.table, item.row) for item in late}
    found: list[PassDifference] = []
    checks: list[SpotCheck] = []
    waiting = {table for table, one in readings.items() if one.why and not none}
    drawn.forget(but=waiting)
    for table, one in readings.items():
        if one.why:
            mine, excused = new(table, differed[table], UNREAD), 0
        else:
            equal = {row: sides for row, sides in one.differing.items() if (table, row) not in ours}
            still = still_differ(run, table, equal)
            mine = new(table, (row for row in still if not depends_on_the_moment(run, table, row)), ONLY_SECOND)
            excused = len(one.differing) + len(one.under_way) - len(mine)
            drawn.add(table, exactly={*one.under_way, *(one.differing.keys() - still)})
        found += mine
        checks.append(
            SpotCheck(
                comparison=current.number, rows=len(one.rows), seconds=round(steady_s() - began, 1),
                differing=tuple(item.row.hex() for item in mine), excused=excused, why=one.why,
            )
        )  # fmt: skip
    whole = _sum(checks)
    run.ledger.passes.add(current, [*late, *found], rows_read, whole.facts())
    for table, check in zip(readings, checks, strict=True):
        note_spot_check(run.ledger, table, check, "verify")
    drawn.keep()
    (log.warning if whole.differing else log.info)("%s: %s", run.run_id, whole.describe())


def _differed(run: Run, table: str) -> list[bytes]:
    """The rows that differed only for the second reader last time; none if the second reader has been switched off."""
    last = last_spot_check(run.ledger, table)
    return [bytes.fromhex(row) for row in last.differing] if last and run.spec.spot_check else []


def _sum(checks: Sequence[SpotCheck]) -> SpotCheck:
    """The results of all tables together."""
    rows, why = sum(check.rows for check in checks), next((check.why for check in checks if check.why), "")
    return SpotCheck(
        comparison=checks[0].comparison, rows=rows, seconds=max(check.seconds for check in checks),
        differing=tuple(row for check in checks for row in check.differing),
        excused=sum(check.excused for check in checks), why=why if rows or why else "the pass has read no rows",
    )  # fmt: skip
