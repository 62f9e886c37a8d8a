"""Rows that were equal when the target was opened, and have changed by themselves since.

Both sides go on flushing and compacting after the opening. Where that drops a delete marker, or a TTL ends, a fragile
row (`fragile_rows`) may show something else than at the last reading before it. That is HBase's own doing: the source's
clients are gone by then, and nothing is sent to the target any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from walferry.clock import now_ms
from walferry.ledger import RunLedger
from walferry.ledger.rows import DifferenceKind
from walferry.migration.explaining.explain import EXPIRED_OVERWRITE, HISTORY, SNAPSHOT_MARKER
from walferry.migration.sides.fragile_rows import NONE, RowSpans
from walferry.migration.sides.store_files import NO_STORES, Changed, Files, Stores, store_files_at
from walferry.run.facts import opened_ms
from walferry.run.run import Run
from walferry.run.sides import SIDES

_NOTE = "fragile when opened"


@dataclass(frozen=True)
class Fragile:
    """What may change by itself in a table that was found equal."""

    rows: RowSpans
    files: Stores
    """of the regions, on both sides, that have such rows with markers"""
    differed: frozenset[bytes]
    """rows that were not equal: a person had decided about them"""

    @classmethod
    def of(cls, rows: RowSpans, files: Files, differed: Iterable[bytes]) -> Fragile:
        """By the fragile rows and the store files as they were after these were read."""
        return cls(rows, Stores.among(files, rows), frozenset(differed))

    def keep(self, ledger: RunLedger, table: str) -> None:
        """Keep it in the ledger: the target is about to be opened."""
        differed = sorted(row.hex() for row in self.differed)
        kept = {"rows": self.rows.pack(), "files": self.files.as_json(), "differed": differed}
        ledger.notes.keep(_NOTE, kept, table)

    @classmethod
    def at_opening(cls, ledger: RunLedger, table: str) -> Fragile | None:
        """What was kept of a table; None while the target is not open, or if it was opened after a whole comparison."""
        kept = ledger.notes.get(_NOTE, table)
        if kept is None or opened_ms(ledger) is None:
            return None
        differed = frozenset(map(bytes.fromhex, kept["differed"]))
        return cls(RowSpans.unpack(kept["rows"]), Stores.from_json(kept["files"]), differed)


NOTHING = Fragile(NONE, NO_STORES, frozenset())


def changed_since(run: Run, table: str, rows: Sequence[bytes]) -> Mapping[bytes, Mapping[DifferenceKind, str]]:
    """What may have changed each of the rows since the target was opened, by the class of difference that it causes.

    Only of rows that were fragile and equal then; of none while the target is not open, or after the run has ended.
    """
    fragile = Fragile.at_opening(run.ledger, table)
    if fragile is None or run.ledger.record.state != "running":
        return {}
    equal = (row for row in rows if row not in fragile.differed)
    spans = {row: span for row in equal if (span := fragile.rows.over(row)) is not None}
    marked = RowSpans.of_rows(row for row, span in spans.items() if span.marked)
    changed: dict[str, Changed] = {}
    for side in SIDES if marked else ():
        known = [one for one in store_files_at(run, side, table, marked) if one.stores is not None]
        changed[side] = Changed.between(fragile.files, known)
    found: dict[bytes, dict[DifferenceKind, str]] = {}
    moment = now_ms()
    for row, span in spans.items():
        of_row = replace(span, start=row, stop=row + b"\0")
        sides = [side for side, at_side in changed.items() if at_side.may_show(of_row)]
        if sides:
            what = f"{_EQUAL}, and its region at the {' and the '.join(sides)} was flushed, compacted or split since"
            found[row] = dict.fromkeys(_BY_DROPPING, what)
        if span.due_ms is not None and span.due_ms <= moment:
            found.setdefault(row, {})[EXPIRED_OVERWRITE] = f"{_EQUAL}, and the TTL of one of its cells has ended since"
    return found


_EQUAL = "the row was equal when the target was opened"
_BY_DROPPING: tuple[DifferenceKind, ...] = (HISTORY, SNAPSHOT_MARKER)
