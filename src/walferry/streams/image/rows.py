"""Reads the rows that a pass has changed: as they were right after each change where that can be proved, or as now."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walferry.clock import steady_s
from walferry.errors import TransientError
from walferry.formats.cells import Int64s
from walferry.formats.wal import EntryBatch
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import RemoteError, TableNotFoundError
from walferry.hbase.past_rows import PastRow, rows_at
from walferry.hbase.retry import REGION_ATTEMPTS
from walferry.hbase.scan import scan_rows, split_rows
from walferry.streams.image.holds import Hold, Holds, Place
from walferry.streams.image.proof import expiring_entries, expiring_runs, may_be_exact
from walferry.streams.message.changes import Form
from walferry.streams.message.image_cells import ChangedRows, changed_rows, images
from walferry.streams.message.images import Images
from walferry.streams.ordering.stays import Opened, Taken

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 128
"""rows that one request asks for"""
READERS = 4
LEAST_PASS_BYTES, MOST_PASS_BYTES = 64 << 10, 8 << 20
PASS_BYTES = 1 << 20
"""bytes of log of the first pass; later ones have as many as their images allow"""
MOST_BYTES = 64 << 20
"""of cells that are in memory for images at once; a pass with more is sent in parts, and followed by a smaller one"""
MUCH_SECONDS = 4.0
"""a pass whose images take longer is followed by a smaller one"""
DESCRIBE_SECONDS = 30.0
REACHED_SECONDS = 10.0
"""so long a server may take to acknowledge what its sealed log has"""


_TOO_LARGE = f"the rows of its entry have more than {MOST_BYTES >> 20} MB, which is the most for images"


class NoRoomError(Exception):
    """Rows have more cells than may be in memory at once."""


class Room:
    """Room for so many bytes of cells. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take so many bytes of it. Raises NoRoomError."""
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise NoRoomError


@dataclass
class Wanted:
    """One changed row."""

    row: bytes
    number: int
    """of the entry"""
    last: int = -1
    """up to this number nothing changes the row, in the log or beside it"""
    cells: bytes | None = None
    """what a reader sees; None: it was not read"""
    is_exact: bool = False
    """it is proved that a reader saw these cells right after the change"""
    unread: str = _TOO_LARGE
    """why it was not read"""


_Picked = tuple[EntryBatch, npt.NDArray[np.intp], str]
Part = tuple[Sequence[Taken | Opened], Mapping[int, Images]]


class RowImages:
    """The images of the rows that passes change. Not thread-safe; `close` lets its holds go."""

    def __init__(
        self,
        source: HBaseClient,
        form: Form,
        tables: Sequence[str],
        describe: Callable[[str], TableDescriptor | None],
        *,
        in_memory: str = "NONE",
        are_required: bool = False,
    ) -> None:
        """`describe`: the present descriptor of a table, None if it does not exist. `in_memory`: the source's default
        of IN_MEMORY_COMPACTION. `are_required`: the message of a row that cannot be read is refused."""
        self._source = source
        self._form = form
        self._tables = tables
        self._describe = describe
        self._in_memory = in_memory
        self._are_required = are_required
        self._described: dict[str, tuple[float, TableDescriptor | None]] = {}
        self._inexact: set[str] = set()
        """tables of which nothing can be proved"""
        self._holds = Holds(source, self._families)
        self.pass_bytes = PASS_BYTES
        """most bytes of log that the next pass should read"""

    def begin(self) -> None:
        """Hold what is not held, and renew holds, before the log is read."""
        self._holds.tend([table for table in self._tables if self._may_be_exact(table)])

    def note(self, taken: Sequence[Taken], read_points: Mapping[tuple[str, str], int]) -> None:
        """The log was read, and servers were asked for read points: hold the regions that were written to."""
        busy = {place for one in taken for place in _places(one) if self._may_be_exact(place[0])}
        self._holds.learn(read_points)
        self._holds.take(sorted(busy))

    def parts(self, passed: Sequence[Taken | Opened]) -> Iterator[Part]:
        """These entries in parts, in their order, each with the images of all rows that it changes, by id of the batch.

        The cells of a part have MOST_BYTES at most; the rows of one entry that have more are not read. Never waits for
        exactness. Raises TransientError if rows cannot be read.
        """
        size, seconds = 0, 0.0
        rest = [list(passed)]
        while rest:
            some = rest.pop()
            began = steady_s()
            try:
                found = self._read(some)
            except NoRoomError:
                if halves := _halves(some):
                    rest += halves[::-1]
                    continue
                found = self._read_large(some)
            finally:
                seconds += steady_s() - began
            size += sum(len(one.texts) for one in found.values())
            yield some, found
        self._adapt(size, seconds)

    def settle(self, sent: Mapping[str, int], covered_ms: int | None) -> None:
        """Let go what is no longer needed: regions were sent up to these numbers, and all that was written before a
        moment (None: unknown)."""
        self._holds.settle(sent, covered_ms)

    def close(self) -> None:
        """Let go all read points."""
        self._holds.close()

    def _read_large(self, passed: Sequence[Taken | Opened]) -> dict[int, Images]:
        """The images of an entry whose rows have no room, perhaps with their other versions."""
        with suppress(NoRoomError):
            return self._read(passed, past=False)
        log.warning("a change is sent without the row after it, or held: %s", _TOO_LARGE)
        return self._read(passed, past=False, present=False)

    def _read(self, passed: Sequence[Taken | Opened], *, past: bool = True, present: bool = True) -> dict[int, Images]:
        """The images of these entries, read as of the past, and what is left as of now, or not at all. Raises
        NoRoomError."""
        picked = _picked(passed)
        changed = {key: changed_rows(self._form, batch, numbers) for key, (batch, numbers, _) in picked.items()}
        wanted = {
            key: [Wanted(*each) for each in zip(one.row, _numbers(picked[key][0], one), strict=True)]
            for key, one in changed.items()
        }
        by_place = _by_place(picked, changed, wanted)
        self._ask_points(by_place)
        if past:
            self._read_past(by_place, Room(MOST_BYTES))
        if present:
            self._read_present(by_place, Room(MOST_BYTES - _size(wanted)))
        Room(MOST_BYTES).take(_size(wanted))  # a row that changed often has an image for each change
        self._note_expiring(picked, changed, wanted)
        return {key: self._images(picked[key][0], changed[key], wanted[key]) for key in picked}

    def _images(self, batch: EntryBatch, changed: ChangedRows, wanted: Sequence[Wanted]) -> Images:
        tables = _tables_of(batch, changed)
        exact = [one.is_exact and table not in self._inexact for table, one in zip(tables, wanted, strict=True)]
        refused = {
            number: f"it is to have row {one.row!r} after the change, and that cannot be read: {one.unread}"
            for number, one in enumerate(wanted) if self._are_required and one.cells is None
        }  # fmt: skip
        cells = [one.cells for one in wanted]
        return images(self._form, batch, changed, cells, np.array(exact, np.bool_), refused)

    def _note_expiring(
        self,
        picked: Mapping[int, _Picked],
        changed: Mapping[int, ChangedRows],
        wanted: Mapping[int, Sequence[Wanted]],
    ) -> None:
        """Note tables with cells that have a TTL of their own: one that has expired is in no answer, not even raw."""
        found = set[str]()
        for key, (batch, numbers, _) in picked.items():
            entries = expiring_entries(batch, numbers)
            found |= {batch.tables[code].decode() for code in np.unique(batch.table[entries]).tolist()}
            tables = _tables_of(batch, changed[key])
            runs = expiring_runs([one.cells or b"" for one in wanted[key]])
            found |= {tables[number] for number in np.flatnonzero(runs).tolist()}
        for table in found:
            self._never_exact(table, "cells have a TTL of their own")

    def _never_exact(self, table: str, reason: str) -> None:
        if table not in self._inexact:
            self._inexact.add(table)
            log.info("images of %s are not exact from now on: %s", table, reason)

    def _adapt(self, size: int, seconds: float) -> None:
        if size > MOST_BYTES or seconds > MUCH_SECONDS:
            self.pass_bytes = max(LEAST_PASS_BYTES, self.pass_bytes // 2)
        elif size < MOST_BYTES // 4 and seconds < MUCH_SECONDS / 4:
            self.pass_bytes = min(MOST_PASS_BYTES, self.pass_bytes * 2)

    def _descriptor(self, table: str, since_s: float = 0.0) -> TableDescriptor | None:
        """A table's descriptor, asked for at or after a moment (and not long ago); None if it is not known."""
        known = self._described.get(table)
        now_s = steady_s()
        if known is None or known[0] < max(since_s, now_s - DESCRIBE_SECONDS):
            found = None
            try:
                found = self._describe(table)
            except (TransientError, RemoteError) as error:
                log.info("%s is not described now, so its images are not exact: %s", table, error)
            known = self._described[table] = now_s, found
        return known[1]

    def _families(self, table: str) -> list[bytes]:
        found = self._descriptor(table)
        return [] if found is None else [name.encode() for name in found.families]

    def _may_be_exact(self, table: str, since_s: float = 0.0) -> bool:
        """Whether rows of a table may be proved, by a hold that was taken at a moment: the table may have been altered
        since it was described, and a region that was opened anew is another one to its holds."""
        found = self._descriptor(table, since_s) if table not in self._inexact else None
        if found is None:
            return False
        if not may_be_exact(found, self._in_memory):
            self._never_exact(table, "it has a TTL, NEW_VERSION_BEHAVIOR or a compaction in memory that drops versions")
            return False
        return True

    def _read_past(self, by_place: Mapping[Place, Sequence[Wanted]], room: Room) -> None:
        """Fill in the cells of rows for which it can be proved what they were right after their change."""
        asked: dict[str, dict[Hold, list[Wanted]]] = defaultdict(lambda: defaultdict(list))
        for (table, region, server), rows in by_place.items():
            point = self._holds.read_point(server, region)
            for one in rows:
                hold = self._holds.before(server, region, one.number) if one.number <= point else None
                if hold is not None and self._may_be_exact(table, hold.taken_s):
                    one.last = min(one.last, point)
                    asked[server][hold].append(one)
        if not asked:
            return
        one_version = self._one_version({place[0] for place in by_place})

        def of(server: str) -> list[list[bytes | None] | None]:
            past = [
                (hold.point, [PastRow(one.row, one.number, one.last) for one in rows])
                for hold, rows in asked[server].items()
            ]  # fmt: skip
            try:
                return rows_at(self._source, past, attempts=2, one_version=one_version, count=room.take)
            except (TransientError, RemoteError) as error:
                log.info("%s does not tell rows of the past now: %s", server, error)
                return [None] * len(past)

        with ThreadPoolExecutor(READERS, thread_name_prefix="images") as readers:
            answers = [found for some in readers.map(of, asked) for found in some]
        every = [(hold, rows) for holds in asked.values() for hold, rows in holds.items()]
        proven = self._holds.proven([hold for hold, _ in every])
        for (hold, rows), cells, is_proven in zip(every, answers, proven, strict=True):
            if cells is None:
                self._holds.lose(hold)
            elif is_proven:
                for one, block in zip(rows, cells, strict=True):
                    one.cells, one.is_exact = block, block is not None

    def _one_version(self, tables: set[str]) -> dict[str, list[bytes]]:
        """The families of which increments and appends drop versions in memory."""
        if not self._source.release.drops_versions:
            return {}
        described = {table: found for table in tables if (found := self._descriptor(table)) is not None}
        return {
            table: [name.encode() for name, family in found.families.items() if family.max_versions == 1]
            for table, found in described.items()
        }  # fmt: skip

    def _ask_points(self, by_place: Mapping[Place, Sequence[Wanted]]) -> None:
        """Ask for read points until they have reached every change: a sealed log may have what its server has not
        acknowledged yet."""
        deadline = steady_s() + REACHED_SECONDS
        behind = {place: max(one.number for one in rows) for place, rows in by_place.items() if rows}
        while behind := {
            place: number for place, number in behind.items() if self._holds.read_point(place[2], place[1]) < number
        }:  # fmt: skip
            if steady_s() > deadline:
                raise TransientError(
                    f"{next(iter(behind))[2]} has not acknowledged what its log has for {REACHED_SECONDS:.0f} s"
                )
            for place in self._holds.ask(behind):
                del behind[place]
            if any(self._holds.read_point(place[2], place[1]) < number for place, number in behind.items()):
                time.sleep(0.05)

    def _read_present(self, by_place: Mapping[Place, Sequence[Wanted]], room: Room) -> None:
        """Fill in the other rows as a reader sees them now; those of a disabled table are not read."""
        lacking: dict[str, dict[bytes, list[Wanted]]] = defaultdict(lambda: defaultdict(list))
        for (table, _, _), rows in by_place.items():
            for one in rows:
                if one.cells is None:
                    lacking[table][one.row].append(one)
        asked = [
            (table, keys[at : at + ROWS_AT_ONCE])
            for table, of_table in lacking.items() for keys in [sorted(of_table)]
            for at in range(0, len(keys), ROWS_AT_ONCE)
        ]  # fmt: skip
        if not asked:
            return
        with ThreadPoolExecutor(READERS, thread_name_prefix="images") as readers:
            for (table, keys), found in zip(
                asked, readers.map(lambda one: self._now(one[0], one[1], room), asked), strict=True
            ):
                for one in (one for row in keys for one in lacking[table][row]):
                    if found is None:
                        one.unread = f"table {table} is not enabled"
                    else:
                        one.cells = found.get(one.row, b"")

    def _now(self, table: str, rows: Sequence[bytes], room: Room) -> dict[bytes, bytes] | None:
        """The rows that have a cell now; None if the table is not enabled."""
        try:
            try:
                return self._scanned(table, rows, room, attempts=2)
            except (TransientError, RemoteError):
                if not self._source.table_enabled(table):
                    return None
                return self._scanned(table, rows, room)
        except TableNotFoundError:
            return {}
        except RemoteError as error:
            raise TransientError(f"rows of {table} cannot be read for their images: {error}", table=table) from error

    def _scanned(
        self, table: str, rows: Sequence[bytes], room: Room, attempts: int = REGION_ATTEMPTS
    ) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for block in scan_rows(self._source, table, rows, attempts=attempts, count=room.take):
            found |= split_rows(block)
        return found


def _halves(passed: Sequence[Taken | Opened]) -> list[list[Taken | Opened]]:
    """Two halves of these entries; none of a single one."""
    if len(passed) > 1:
        middle = len(passed) // 2
        return [[*passed[:middle]], [*passed[middle:]]]
    one = passed[0]
    if not isinstance(one, Taken) or len(one.picked) < 2:
        return []
    return [[one.only(some)] for some in np.array_split(one.picked, 2)]


def _picked(passed: Sequence[Taken | Opened]) -> dict[int, _Picked]:
    """Of each batch its edits among these entries, in their order, and its server."""
    found: dict[int, _Picked] = {}
    for one in passed:
        if isinstance(one, Taken):
            edits = one.picked[one.batch.edits[one.picked]]
            if len(edits):
                before = found.get(id(one.batch))
                numbers = edits if before is None else np.concatenate([before[1], edits])
                found[id(one.batch)] = one.batch, np.unique(numbers), one.server
    return found


def _size(wanted: Mapping[int, Sequence[Wanted]]) -> int:
    return sum(len(one.cells or b"") for rows in wanted.values() for one in rows)


def _places(one: Taken) -> set[Place]:
    return set(_by_region(one.batch, one.picked[one.batch.edits[one.picked]], one.server))


def _by_region(batch: EntryBatch, entries: npt.NDArray[np.integer], server: str) -> dict[Place, npt.NDArray[np.intp]]:
    """Entries of each region: where they are among these, in their order."""
    if not len(entries):
        return {}
    pairs, which = np.unique(np.stack([batch.table[entries], batch.region[entries]]), axis=1, return_inverse=True)
    return {
        (batch.tables[table].decode(), batch.regions[region].decode(), server): np.flatnonzero(which.ravel() == number)
        for number, (table, region) in enumerate(pairs.T.tolist())
    }  # fmt: skip


def _numbers(batch: EntryBatch, changed: ChangedRows) -> list[int]:
    numbers: list[int] = batch.sequence_number[changed.entry].tolist()
    return numbers


def _tables_of(batch: EntryBatch, changed: ChangedRows) -> list[str]:
    names = [name.decode() for name in batch.tables]
    return [names[code] for code in batch.table[changed.entry].tolist()]


def _by_place(
    picked: Mapping[int, _Picked], changed: Mapping[int, ChangedRows], wanted: Mapping[int, Sequence[Wanted]]
) -> dict[Place, list[Wanted]]:
    """The rows of each region at each server, by number, with how long nothing changes them."""
    found: dict[Place, list[Wanted]] = defaultdict(list)
    numbers: dict[Place, list[Int64s]] = defaultdict(list)
    for key, (batch, edits, server) in picked.items():
        for place, which in _by_region(batch, edits, server).items():
            numbers[place].append(batch.sequence_number[edits[which]])
        for place, which in _by_region(batch, changed[key].entry, server).items():
            found[place] += [wanted[key][number] for number in which.tolist()]
    for place, rows in found.items():
        ends = _ends_of_runs(np.concatenate(numbers[place]))
        rows.sort(key=lambda one: one.number)
        later: dict[bytes, Wanted] = {}
        for one in reversed(rows):
            one.last = int(ends[np.searchsorted(ends, one.number)])
            follows = later.get(one.row)
            if follows is not None:
                one.last = min(one.last, follows.last if follows.number == one.number else follows.number - 1)
            later[one.row] = one
    return found


def _ends_of_runs(numbers: Int64s) -> Int64s:
    """The last number of each run without a gap. What takes a number and is not in the log, as a write with SKIP_WAL,
    may have changed any row, so up to the gap only it is certain what has not."""
    numbers = np.unique(numbers)
    ends: Int64s = numbers[np.append(np.flatnonzero(np.diff(numbers) != 1), len(numbers) - 1)]
    return ends
