"""Rows that were equal at the opening of the target and have changed by themselves since.

Both sides still flush and compact after the opening. Once a flush or compaction drops a delete marker, or once a TTL
ends, a fragile row (`fragile_rows`) may no longer show what it showed when it was last read before the opening. HBase
alone causes that: the source has no clients by then, and walferry sends nothing more to the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from walferry.clock import now_ms
from walferry.ledger import RunLedger
from walferry.ledger.rows import DifferenceKind
from walferry.migration.explaining.difference_classes import EXPIRED_OVERWRITE, HISTORY, SNAPSHOT_MARKER
from walferry.migration.sides.fragile_rows import NONE, RowSpans
from walferry.migration.sides.store_files import NO_STORES, Changed, Files, Stores, store_files_at
from walferry.run.facts import opened_ms
from walferry.run.run import Run
from walferry.run.sides import SIDES

_NOTE = "fragile when opened"


@dataclass(frozen=True)
class Fragile:
    """The rows that may change by themselves in a table that was found equal."""

    rows: RowSpans
    files: Stores
    """the store files of the regions, on both sides, that have fragile rows with markers"""
    differed: frozenset[bytes]
    """rows that were not equal, but that a person had decided about"""

    @classmethod
    def of(cls, rows: RowSpans, files: Files, differed: Iterable[bytes]) -> Fragile:
        """From the fragile rows, and the store files as they were after these rows were read."""
        return cls(rows, Stores.among(files, rows), frozenset(differed))

    def keep(self, ledger: RunLedger, table: str) -> None:
        """Record this in the ledger, just before the target is opened."""
        differed = sorted(row.hex() for row in self.differed)
        kept = {"rows": self.rows.pack(), "files": self.files.as_json(), "differed": differed}
        ledger.notes.keep(_NOTE, kept, table)

    @classmethod
    def at_opening(cls, ledger: RunLedger, table: str) -> Fragile | None:
        """The record of a table in the ledger; None while the target is not open, or if it was opened after a whole
        comparison."""
        kept = ledger.notes.get(_NOTE, table)
        if kept is None or opened_ms(ledger) is None:
            return None
        differed = frozenset(map(bytes.fromhex, kept["differed"]))
        return cls(RowSpans.unpack(kept["rows"]), Stores.from_json(kept["files"]), differed)


NOTHING = Fragile(NONE, NO_STORES, frozenset())


def changed_since(run: Run, table: str, rows: Sequence[bytes]) -> Mapping[bytes, Mapping[DifferenceKind, str]]:
    """What may have changed each row since the opening of the target, by the class of difference that it causes.

    Covers only rows that were fragile and equal at the opening; none while the target is not open, or after the run has
    ended.
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
