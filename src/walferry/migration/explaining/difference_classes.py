"""Why a row differs: the class of its difference, from both sides' raw cells and from the log.

A class explains a cell only if the log or the source shows what hides the cell on the other side, and if the target has
everything that it must have. If the log does not show it, the difference is unexplained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from walferry.formats.cells import CellType, decode_tags
from walferry.formats.resolve import FamilyRules
from walferry.ledger.rows import DifferenceKind
from walferry.migration.sides.row_sides import Cell, RowSides, is_family_marker

IN_FLIGHT: Final = "in-flight"
"""the cell's edit is in a WAL file that is not applied yet, or the row was equal when it was read again"""
NOT_IN_LOG: Final = "not-in-log"
"""no existing WAL of the run shows why: the cell was written with SKIP_WAL, its log is lost, or its log was let go
after it was applied; a person must decide"""
HISTORY: Final = "history-dependent"
"""the sides dropped cells at different times, as flushes and compactions do"""
EXPIRED_OVERWRITE: Final = "expired-overwrite"
"""a put with its own TTL overwrote the cell at the same timestamp and has expired: the cell shows up again, unless a
flush dropped it"""
LEFT_OUT: Final = "left-out"
"""a person released the cell's entry from quarantine with `accept`, or rejected it as a late edit"""
SNAPSHOT_MARKER: Final = "snapshot-marker"
"""a marker at the target, older than the start fence, hides the cell, and neither the log nor the source has the
marker: it came with the snapshot, and the source has purged it since"""
WRITTEN_SINCE: Final = "written-at-target"
"""a client wrote, hid or overwrote the cell at the open target, perhaps before the comparison"""
CHANGED_SINCE: Final = "changed-since-opening"
"""history-dependent, snapshot-marker or expired-overwrite, but only since the opening of the target, when the row was
still equal (`since_opening`)"""
UNEXPLAINED: Final = "unexplained"

WORST_FIRST: tuple[DifferenceKind, ...] = (
    UNEXPLAINED, NOT_IN_LOG, IN_FLIGHT, LEFT_OUT, SNAPSHOT_MARKER, HISTORY, EXPIRED_OVERWRITE, CHANGED_SINCE,
    WRITTEN_SINCE,
)  # fmt: skip

SHOWN_CELLS = 3
_SHOWN_BYTES = 64
"""the most bytes of a qualifier that are shown"""
_TTL_TAG = 8


@dataclass
class RowLog:
    """The edits of one row in the log between the fences that may explain the difference."""

    since_ms: int
    """the start fence: a cell that the source's clock stamped earlier came with the snapshot"""
    until_ms: int
    """a later timestamp was set by the application itself, and does not show when the cell was written"""
    applied: dict[Cell, int] = field(default_factory=dict)
    """cells that the target must have, each with the sequence number of its newest edit"""
    pending: Set[Cell] = field(default_factory=set)
    """cells of files that are not applied yet"""
    left_out: Set[Cell] = field(default_factory=set)
    """cells of entries that an operator released from quarantine by `accept`, or rejected as late edits"""
    unread: list[str] = field(default_factory=list)
    """why some of the log could not be read"""
    let_go: bool = False
    """whether applied WAL files no longer exist"""
    late_load: bool = False
    """whether a person rejected files that were bulk-loaded into the table past the end fence: their cells may have any
    timestamp"""
    too_many: bool = False
    """whether there are more such cells than are kept: then nothing is explained"""

    def stamped_since_the_fence(self, cell: Cell) -> bool:
        """Whether the source's clock can have given the cell its timestamp since the start fence."""
        return self.since_ms <= _timestamp(cell) <= self.until_ms


@dataclass(frozen=True)
class Clients:
    """The known edits of clients to one row of the open target."""

    since_ms: int
    """when the target was opened"""
    first: int
    """no cell had this timestamp or a later one before the opening (`run.notes.newest`)"""
    wrote: Set[Cell] = frozenset()
    """cells that clients have written to the row since then, according to the target's log"""
    unread: str = ""
    """why the target's log cannot show it"""
    late: int = 1 << 62
    """if the log cannot show it, a cell with this timestamp or a later one may be a client's, written by a server whose
    clock is late"""

    def near(self, column: tuple[bytes, bytes], sides: RowSides, log: RowLog) -> frozenset[Cell]:
        """The clients' cells in a column, and their markers of its family.

        A cell that only the target holds is the clients' if the target's log says so, or if no earlier cell can have
        its timestamp. A server's clock may be late: 30 s are allowed for that, but only if the log cannot show it.
        """
        known = log.applied.keys() | log.pending | log.left_out | sides.source
        first = min(self.first, self.late) if self.unread and not (log.let_go or log.unread) else self.first
        found = {cell for cell in sides.target - known if _timestamp(cell) >= first}
        family, qualifier = column
        return frozenset(found) | {
            cell for cell in self.wrote if cell[0] == family and (cell[1] == qualifier or is_family_marker(cell))
        }


@dataclass(frozen=True)
class Explanation:
    """The class of one row's difference, the evidence, and a fingerprint of exactly the cells that differ."""

    kind: DifferenceKind
    detail: str
    fingerprint: str


def classify(
    sides: RowSides,
    log: RowLog,
    rules: Mapping[bytes, FamilyRules],
    clients: Clients | None = None,
    since: Mapping[DifferenceKind, str] = MappingProxyType({}),
) -> Explanation:
    """Determine the class of a row's difference: the worst class among its cells.

    `clients`: edits that clients may have written to the target; None while the target is not open. `since`: for each
    class, what may have caused the difference since the target was opened (the row was equal then). A row with more
    differing cells than are examined is unexplained, and its exact cells are unknown.
    """
    kinds: set[DifferenceKind] = set()
    details = []
    hashed = hashlib.sha256()
    near = _Near(sides, log, rules)
    for side, cells, why in (("source", sides.only_source, _why_missing), ("target", sides.only_target, _why_shown)):
        for cell in cells:
            kind: DifferenceKind = UNEXPLAINED
            if sides.too_many:
                because = "too many versions and markers to examine may explain it"
            elif log.too_many:
                because = "its column has too many edits in the log to examine"
            elif clients and (done := _by_clients(cell, *near.to(cell)[:2], rules, clients)):
                kind, because = WRITTEN_SINCE, done
            else:
                kind, because = why(cell, *near.to(cell), rules)
                if kind in since:
                    kind, because = CHANGED_SINCE, f"{because}; {since[kind]}"
                if clients and clients.unread and kind not in (IN_FLIGHT, CHANGED_SINCE):
                    because += f"; it is unknown whether a client did it: {clients.unread}"
            kinds.add(kind)
            details.append(f"only the {side} shows {_show(cell)}: {because}")
            hashed.update(repr((side, kind, cell)).encode())
    detail = "; ".join(details[:SHOWN_CELLS])
    if len(details) > SHOWN_CELLS:
        detail += f"; and {len(details) - SHOWN_CELLS} more cells"
    if sides.differing > len(details):
        cut = f"{sides.differing} cells differ, too many to examine each: only the first {len(details)} were examined"
        return Explanation(UNEXPLAINED, f"{cut}: {detail}" if detail else cut, "")
    return Explanation(next(kind for kind in WORST_FIRST if kind in kinds), detail, hashed.hexdigest())


class _Near:
    """The part of a row that can explain one of its cells: the cell's column, and markers of its whole family.

    Without it, the cost of explaining a wide row would grow with the square of its cells.
    """

    def __init__(self, sides: RowSides, log: RowLog, rules: Mapping[bytes, FamilyRules]) -> None:
        self._sides = sides
        self._log = log
        self._rules = rules
        self._last: tuple[tuple[bytes, bytes], tuple[RowSides, RowLog, Set[Cell]]] | None = None
        known = (sides.source, sides.target, log.applied, log.pending, log.left_out)
        self._columns = [_by_column(cells) for cells in known]

    def to(self, cell: Cell) -> tuple[RowSides, RowLog, Set[Cell]]:
        """The cells and log edits that concern the cell, and the lost puts of its column."""
        column = cell[:2]
        if self._last is None or self._last[0] != column:  # the cells of a column come one after the other
            self._last = column, self._of(*column)
        return self._last[1]

    def _of(self, family: bytes, qualifier: bytes) -> tuple[RowSides, RowLog, Set[Cell]]:
        source, target, applied, pending, left_out = (
            cells.get((family, qualifier), frozenset()) | cells.get((family, None), frozenset())
            for cells in self._columns
        )
        log = replace(
            self._log, applied={one: self._log.applied[one] for one in applied}, pending=pending, left_out=left_out
        )
        sides = replace(self._sides, source=source, target=target)
        return sides, log, _lost(sides, log, self._rules)


def _by_column(cells: Iterable[Cell]) -> dict[tuple[bytes, bytes | None], frozenset[Cell]]:
    """Cells by family and qualifier; markers of whole families by family and None."""
    found: dict[tuple[bytes, bytes | None], set[Cell]] = {}
    for cell in cells:
        family, qualifier, *_ = cell
        found.setdefault((family, None if is_family_marker(cell) else qualifier), set()).add(cell)
    return {column: frozenset(cells) for column, cells in found.items()}


def _why_missing(
    cell: Cell, sides: RowSides, log: RowLog, lost: Set[Cell], rules: Mapping[bytes, FamilyRules]
) -> tuple[DifferenceKind, str]:
    """Why the target does not show a cell that the source shows."""
    if cell in lost:
        return UNEXPLAINED, "it is in the log but not at the target"
    known = sides.source | log.applied.keys()
    markers = _markers_over(cell, sides.target)
    if any(_timestamp(marker) >= log.since_ms for marker in markers - known - log.pending - log.left_out):
        return _unknown("it is hidden by a marker that the source does not have", log)
    if cell in log.pending:
        return IN_FLIGHT, "its WAL file is not applied yet"
    if cell in log.left_out - log.applied.keys():
        return LEFT_OUT, "its entry was left out by a decision"
    if markers and cell not in log.applied and cell not in sides.target:
        # A source that shows the cell had purged the marker and all that it hid, so the cell was written later.
        return _not_logged("it", log)
    if markers & known:
        return HISTORY, "it is hidden by a marker from the source, which the source has since dropped"
    if markers - log.pending - log.left_out:
        return SNAPSHOT_MARKER, "it is hidden by a marker from before the start fence, which the source has dropped"
    displaced = _displaced(cell, sides.target & known, rules)
    may_be_new = log.stamped_since_the_fence(cell) or log.late_load
    if cell not in log.applied and may_be_new and not (displaced and cell in sides.target):
        return _not_logged("it", log)
    if displaced:
        return HISTORY, "it is displaced by newer versions from the source, which the source has since dropped"
    if over := _expired_overwrites(cell, log, sides.at_ms):
        return EXPIRED_OVERWRITE, f"at the target it was overwritten by {_logged(over[0], log)}"
    return _unknown("no explanation", log)


def _why_shown(
    cell: Cell, sides: RowSides, log: RowLog, lost: Set[Cell], rules: Mapping[bytes, FamilyRules]
) -> tuple[DifferenceKind, str]:
    """Why the target still shows a cell that the source does not show."""
    logged = cell in log.applied or cell in log.pending  # pending: a file is applied before it counts as such
    if cell not in sides.source and not logged and _timestamp(cell) >= log.since_ms:
        return _unknown("the source does not have it", log)
    if missing := _what_it_lacks(cell, sides, log, lost):
        return min(missing, key=lambda found: WORST_FIRST.index(found[0]))
    if _hidden_by(cell, log.pending, rules):
        return IN_FLIGHT, "the edit that hides it is in a WAL file that is not applied yet"
    if _hidden_by(cell, log.left_out - log.applied.keys(), rules):
        return LEFT_OUT, "the edit that hides it was left out by a decision"
    if _displaced(cell, sides.source | log.applied.keys(), rules):
        return HISTORY, "displaced by newer versions before those were deleted"
    if _markers_over(cell, log.applied.keys()):
        return HISTORY, "written again after the marker that hides it, which the target has since dropped"
    if over := _expired_overwrites(cell, log, sides.at_ms):
        return EXPIRED_OVERWRITE, f"at the source it was overwritten by {_logged(over[0], log)}"
    return _unknown("no explanation", log)


def _what_it_lacks(cell: Cell, sides: RowSides, log: RowLog, lost: Set[Cell]) -> list[tuple[DifferenceKind, str]]:
    """A class for each edit that the target must have but lacks, and that would hide a cell which the target shows; in
    the order of the edits.

    One lost edit is enough: no pending or left-out edit makes up for it.
    """
    found: list[tuple[DifferenceKind, str]] = []
    written = log.applied.get(cell, -1)  # with the snapshot, if no log holds it
    for marker in sorted(_markers_over(cell, sides.source | log.applied.keys()) - sides.target):
        if marker in log.applied:
            if written <= log.applied[marker]:  # of one entry: a marker hides its puts too
                found.append((UNEXPLAINED, "a marker that hides it is in the log but not at the target"))
        elif marker in log.pending or marker in log.left_out:
            continue
        elif log.stamped_since_the_fence(marker) or log.late_load:
            found.append(_not_logged("the marker that hides it", log))
        elif cell in log.applied and not (log.let_go or log.unread):
            # The whole log is known and has no such marker: the marker came with the snapshot, or past the log.
            found.append((HISTORY, "written after a marker that hides it, which neither the log nor the target has"))
        else:
            found.append(_unknown("a marker that hides it is not at the target", log))
    timestamp = _timestamp(cell)
    if any(put[2] > timestamp or (put[2] == timestamp and log.applied[put] > written) for put in lost):
        found.append((UNEXPLAINED, "a newer put is in the log but not at the target"))
    return found


def _lost(sides: RowSides, log: RowLog, rules: Mapping[bytes, FamilyRules]) -> frozenset[Cell]:
    """The puts of a column that were applied but are not at the target, although no known edit took them away."""
    there = log.applied.keys() | sides.target
    markers = [cell for cell in there if cell[3] != CellType.PUT]
    puts: dict[int, list[Cell]] = {}
    for cell in log.applied:
        if cell[3] == CellType.PUT:
            puts.setdefault(_timestamp(cell), []).append(cell)
    early = log.pending & sides.target
    lost = set()
    for alike in puts.values():
        for put in alike:
            over = [other for other in _overwrites(put, alike) if log.applied[other] >= log.applied[put]]
            taken = put in sides.target or over or _overwrites(put, early) or _markers_over(put, markers)
            if not (taken or _has_expired(put, sides.at_ms) or _displaced(put, there, rules)):
                lost.add(put)
    return frozenset(lost)


def _not_logged(what: str, log: RowLog) -> tuple[DifferenceKind, str]:
    """A difference caused by an edit that no log has. If logs were let go, one of them may have had the edit, so the
    edit may be lost."""
    unread = f"; not all of the log could be read: {'; '.join(log.unread[:2])}" if log.unread else ""
    kind: DifferenceKind = UNEXPLAINED if log.let_go else NOT_IN_LOG
    loaded = "; a late bulk load that was rejected may have brought it" if log.late_load else ""
    return kind, f"no WAL past the start fence holds {what}{loaded}{unread}{_let_go(log)}"


def _unknown(why: str, log: RowLog) -> tuple[DifferenceKind, str]:
    """A difference that nothing known explains."""
    return UNEXPLAINED, f"{why}{_let_go(log)}"


def _let_go(log: RowLog) -> str:
    if not log.let_go:
        return ""
    return "; WAL files that may have shown why were deleted after they were applied"


def _hidden_by(cell: Cell, cells: Collection[Cell], rules: Mapping[bytes, FamilyRules]) -> bool:
    return bool(_markers_over(cell, cells) or _displaced(cell, cells, rules) or _overwrites(cell, cells))


def _by_clients(cell: Cell, sides: RowSides, log: RowLog, rules: Mapping[bytes, FamilyRules], clients: Clients) -> str:
    """What clients did at the open target so that only one side shows a cell; "" if clients cannot be the cause."""
    theirs = clients.near(cell[:2], sides, log)
    if not theirs:
        return ""
    if cell in sides.only_target:
        if cell in theirs:
            return "a client wrote it at the open target"
        before = sides.source | log.applied.keys() | theirs
        hid = [c for c in before if c[:2] == cell[:2] and c[3] == CellType.PUT and c != cell and c[2] >= cell[2]]
        known = cell in sides.source or cell in log.applied or _timestamp(cell) < log.since_ms
        if known and any(_markers_over(newer, theirs) for newer in hid):
            return "at the open target, a client deleted the cell that had hidden it"
        return ""
    if _markers_over(cell, theirs):
        return "a client deleted it at the open target"
    newer = theirs | sides.target
    if _overwrites(cell, theirs) or (_displaced(cell, newer, rules) and not _displaced(cell, newer - theirs, rules)):
        return "a client overwrote it at the open target"
    return ""


def _markers_over(cell: Cell, cells: Collection[Cell]) -> set[Cell]:
    """The markers in `cells` that hide the cell."""
    family, qualifier, timestamp, *_ = cell
    found = set()
    for other in cells:
        other_family, other_qualifier, at, kind, *_ = other
        whole_family = (kind == CellType.DELETE_FAMILY and timestamp <= at) or (
            kind == CellType.DELETE_FAMILY_VERSION and timestamp == at
        )
        column = (kind == CellType.DELETE_COLUMN and timestamp <= at) or (kind == CellType.DELETE and timestamp == at)
        if other_family == family and (whole_family or (column and other_qualifier == qualifier)):
            found.add(other)
    return found


def _displaced(cell: Cell, cells: Collection[Cell], rules: Mapping[bytes, FamilyRules]) -> bool:
    """Whether `cells` hold as many newer versions of the column as the family keeps, so that a flush drops the cell."""
    family, qualifier, timestamp, *_ = cell
    newer = {c[2] for c in cells if c[:2] == (family, qualifier) and c[3] == CellType.PUT and c[2] > timestamp}
    return len(newer) >= rules[family].max_versions


def _overwrites(cell: Cell, cells: Collection[Cell]) -> list[Cell]:
    """The other puts in `cells` of the same column and timestamp."""
    return [other for other in cells if other[:4] == cell[:4] and other != cell and cell[3] == CellType.PUT]


def _expired_overwrites(cell: Cell, log: RowLog, at_ms: int) -> list[Cell]:
    """Applied edits, in the log's order, that overwrote this cell with a put whose own TTL has ended."""
    written = log.applied.get(cell, -1)  # with the snapshot, if no log holds it
    found = [
        other
        for other in _overwrites(cell, log.applied.keys())
        if log.applied[other] > written and _has_expired(other, at_ms)
    ]
    return sorted(found, key=lambda other: (log.applied[other], other))


def _has_expired(cell: Cell, at_ms: int) -> bool:
    """Whether the cell's own TTL has ended."""
    ttl = _own_ttl(cell)
    return ttl is not None and _timestamp(cell) + ttl < at_ms


def _own_ttl(cell: Cell) -> int | None:
    """The milliseconds of a cell's TTL tag; None without one."""
    for kind, content in decode_tags(cell[5]):
        if kind == _TTL_TAG and len(content) == 8:
            return int.from_bytes(content, "big", signed=True)
    return None


def _logged(cell: Cell, log: RowLog) -> str:
    return f"a put with a TTL of {_own_ttl(cell)} ms (sequence number {log.applied[cell]} in the log, expired)"


def _timestamp(cell: Cell) -> int:
    return cell[2]


def _show(cell: Cell) -> str:
    family, qualifier, timestamp, kind, *_ = cell
    shown = qualifier[:_SHOWN_BYTES].hex() + ("…" if len(qualifier) > _SHOWN_BYTES else "") or "(empty)"
    return f"{family.decode('latin-1')}:{shown} at {timestamp}, type {CellType(kind).name}"
