"""The equality of a table after a whole comparison: the table was equal, and so were the rows touched since.

Its fragile rows (`fragile_rows`) may still change by themselves. They are read again once a TTL ends, or once a change
of their region's store files on either side may change what they show (`store_files`). An equality is a note in the
ledger and belongs to one comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from walferry.clock import now_ms
from walferry.hbase.descriptors import Range
from walferry.ledger import ComparedTable, RunLedger
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.store_files import Changed, Files, RegionFiles, Stores, store_files
from walferry.migration.touching.touched import Known, Seen, look
from walferry.run.notes.last_comparison import whole_comparison
from walferry.run.recorded_spec import options_of, source_tables
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, name_at

_NOTE = "claimed"
_DIGITS = 16


@dataclass(frozen=True)
class Equality:
    """A table was equal as a whole, and so were the rows touched since; with the rows that may still change by
    themselves."""

    table: str
    of: int
    """the number of the whole comparison"""
    fragile: RowSpans
    files: Stores
    """the store files of the regions, on both sides, that have fragile rows with markers: as they were before the rows
    were read, or at a later look that found none of these rows due"""
    rules: str
    """a digest of the retention rules of both sides' families"""

    @classmethod
    def find(cls, ledger: RunLedger, of: ComparedTable) -> Equality | None:
        """The equality that belongs to a comparison; None if the ledger has none."""
        kept = ledger.notes.get(_NOTE, of.table)
        if kept is None or kept["of"] != of.attempt:
            return None
        return cls(
            of.table, kept["of"], RowSpans.unpack(kept["fragile"]), Stores.from_json(kept["files"]), kept["rules"]
        )

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "of": self.of, "fragile": self.fragile.pack(), "files": self.files.as_json(), "rules": self.rules,
            "rows": len(self.fragile.rows), "ranges": len(self.fragile.ranges),
        }  # fmt: skip


@dataclass(frozen=True)
class Begun:
    """The facts recorded before a table is read as a whole."""

    known: Known
    files: Files
    """the store files of all regions of both sides"""
    rules: str
    claimed: tuple[int, str] | None
    """the equality of an earlier comparison: that comparison's number, and the fragile rows, packed"""

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        files = [one.as_json() for one in self.files]
        return {"known": self.known.as_json(), "files": files, "rules": self.rules, "claimed": self.claimed}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Begun:
        """The inverse of `as_json`."""
        files = [RegionFiles.from_json(one) for one in kept["files"]]
        claimed = None if kept["claimed"] is None else (kept["claimed"][0], kept["claimed"][1])
        return cls(Known.from_json(kept["known"]), files, kept["rules"], claimed)


def begin_whole(run: Run, table: str) -> Begun:
    """Record the facts to compare with later; to be called before a table is read as a whole."""
    look(run)
    known, claimed = Seen.of(run.ledger).known(table), _claimed(run.ledger, table)
    return Begun(known, store_files(run, table), _rules(run, table), claimed)


def _claimed(ledger: RunLedger, table: str) -> tuple[int, str] | None:
    return _named(ledger.notes.get(_NOTE, table))


def _named(kept: Mapping[str, Any] | None) -> tuple[int, str] | None:
    return None if kept is None else (kept["of"], kept["fragile"])


def why_outdated(run: Run, table: str, begun: Begun) -> str:
    """Why the rows read since `begin_whole` no longer count; "" if they do."""
    if begun.rules != _rules(run, table):
        return f"what the families of {table} keep has changed since its comparison began"
    now = Seen.of(run.ledger).known(table)
    if now.voids != begun.known.voids:
        return now.void or "it was compared as a whole meanwhile"
    if _other_ended(begun, _claimed(run.ledger, table)):
        return "another comparison of it has ended meanwhile"
    return ""


def _other_ended(begun: Begun, claimed: tuple[int, str] | None) -> bool:
    return (claimed and claimed[0]) != (begun.claimed and begun.claimed[0])


def keep_whole(run: Run, begun: Begun, compared: ComparedTable, fragile: RowSpans) -> bool:
    """Record the equality of a whole comparison and its fragile rows; to be called once it has named all rows that
    differ. Records nothing and returns False if another comparison has ended meanwhile, since this comparison knows
    neither the differences nor the logs of the other one."""

    def after(kept: dict[str, Any] | None) -> dict[str, Any] | None:
        if _other_ended(begun, claimed := _named(kept)):
            return None
        rows = fragile
        if claimed is not None and claimed != begun.claimed:  # looks read logs that count as verified by this one
            rows += RowSpans.unpack(claimed[1])
        return Equality(compared.table, compared.attempt, rows, Stores.among(begun.files, rows), begun.rules).as_json()

    if not run.ledger.notes.change(_NOTE, after, compared.table):
        return False
    Seen.change(run.ledger, lambda seen: seen.without(compared.table, begun.known, whole=True))
    return True


def standing_comparison(ledger: RunLedger, table: str) -> ComparedTable | None:
    """The newest whole comparison of a table, if it names all rows that differed and its equality still counts."""
    newest = whole_comparison(ledger, table)
    return None if newest is None or why_void(ledger, newest) else newest


def why_void(ledger: RunLedger, of: ComparedTable) -> str:
    """Why a clean comparison no longer counts; "" if it does."""
    if why := Seen.of(ledger).void.get(of.table, ""):
        return why
    return "" if Equality.find(ledger, of) is not None else f"what touched {of.table} since then was not recorded"


def reread_after_flush(ledger: RunLedger) -> list[str]:
    """The tables whose rows with delete markers are read again in the write stop, because READONLY flushes their
    regions. These are the tables with a marker that hides a single version, or with a store in which each change
    counts."""
    if options_of(ledger.record).write_stop != "readonly":
        return []
    whole = [whole_comparison(ledger, table) for table in source_tables(ledger.record)]
    equal = [one for of in whole if of is not None and (one := Equality.find(ledger, of)) is not None]
    return [one.table for one in equal if one.files.each_change_counts or any(span.by_version for span in one.fragile)]


@dataclass(frozen=True)
class ToRead:
    """The rows of a table to read again, beside those that the source's log wrote."""

    equal: Equality
    known: Known
    fragile: RowSpans
    files: Files

    @property
    def pending(self) -> RowSpans:
        """The rows touched by something other than the log."""
        return self.known.pending

    @property
    def rows(self) -> list[bytes]:
        """Single rows."""
        return [*self.pending.rows, *self.fragile.rows]

    @property
    def ranges(self) -> list[Range]:
        """Ranges of rows, without overlaps."""
        both = RowSpans.of(RowSpan(*one) for one in (*self.pending.ranges, *self.fragile.ranges))
        return [(span.start, span.stop) for span in both]

    def has(self, row: bytes) -> bool:
        """Whether a row is among those to read again."""
        return any(spans.hold((row, row + b"\0")) for spans in (self.pending, self.fragile))

    def after(self, rows: Sequence[bytes], found: RowSpans) -> Equality:
        """The equality after all ranges and `rows` (in order) were found equal. `rows` must include all single rows of
        this; `found` are the fragile rows in what was read."""
        fragile = self.equal.fragile.after(rows, self.ranges, found)
        return replace(self.equal, fragile=fragile, files=Stores.among(self.files, fragile))


def to_read(run: Run, table: str, since: ComparedTable) -> ToRead | str:
    """The rows to read again; or the reason why they are unknown, so that the table must be compared as a whole."""
    equal = Equality.find(run.ledger, since)
    if (why := why_void(run.ledger, since)) or equal is None:
        return why
    if equal.rules != _rules(run, table):
        return f"what the families of {table} keep has changed since the table was compared"
    marked = equal.fragile.marked
    files = store_files(run, table, marked)
    due = equal.fragile.due(Changed.between(equal.files, files).may_show, now_ms())
    return ToRead(equal, Seen.of(run.ledger).known(table), due, files)


def keep_read(run: Run, checked: ToRead, equal: Equality) -> None:
    """Record `equal`; to be called once everything in `checked` was read and found equal."""
    same = False

    def newer(kept: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal same
        same = kept is not None and kept["of"] == equal.of  # otherwise the table was compared as a whole meanwhile
        return facts if same and kept != (facts := equal.as_json()) else None

    run.ledger.notes.change(_NOTE, newer, equal.table)
    if same:
        Seen.change(run.ledger, lambda seen: seen.without(equal.table, checked.known))


def _rules(run: Run, table: str) -> str:
    """A digest of the retention rules of both sides' families: after a change, rows may show versions that were
    surplus."""
    kept = [
        (side, family.name, family.max_versions, family.min_versions, family.ttl_ms,
         family.attributes.get("KEEP_DELETED_CELLS", "FALSE").upper())
        for side in SIDES
        for family in client_at(run, side).describe(name_at(run, side, table)).families.values()
    ]  # fmt: skip
    return hashlib.sha256(repr(sorted(kept)).encode()).hexdigest()[:_DIGITS]
