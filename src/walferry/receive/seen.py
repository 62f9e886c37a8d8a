"""Which entries of a table were applied before.

A source repeats calls: after a refusal, after a time-out, after its own crash. Within a region, numbers only rise,
across servers and moves, so that an entry above all that were applied is new. Any other entry is looked up among those
that are remembered one by one, by region, number, write time and cells: holes prove nothing, since a region that moved
to another server and back has entries of both in turn. A restored snapshot may set a region's numbers back; such
entries have other write times, and count as new ones that came after entries with higher numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from walferry.errors import WalferryError
from walferry.formats import _call_kernels as kernels
from walferry.formats.cells import Int64s
from walferry.formats.wal import EntryBatch
from walferry.ledger.received import Received

Mask = npt.NDArray[np.bool_]
Picked = npt.NDArray[np.intp]


class DamagedRecordError(WalferryError):
    """What the ledger has of applied entries is not what was recorded."""


@dataclass(frozen=True)
class Judged:
    """What is known of each of some entries: each one is fresh, repeated or late."""

    fresh: Mask  # its number is above all of its region that were applied
    repeated: Mask  # this entry was applied before, or precedes itself in the call
    late: Mask  # it comes after entries of its region with higher numbers, and is not known to be applied
    forgotten: Mask  # late, and so old that it may have been applied
    prints: Int64s  # for `Applied.of`


@dataclass(frozen=True, eq=False)
class Applied:
    """The entries of one table that a call applied, each once, by region, number and print."""

    regions: tuple[str, ...]
    starts: Int64s  # where a region's entries begin, and the number of all
    numbers: Int64s
    prints: Int64s  # 64 bits of each entry's write time and cells: with other families it is another entry

    def __len__(self) -> int:
        return len(self.numbers)

    @classmethod
    def of(cls, batch: EntryBatch, picked: Picked, prints: Int64s | None = None) -> Applied:
        """Some of a batch's entries; `prints`: theirs, if they are known (`Judged`)."""
        region, numbers = batch.region[picked], batch.sequence_number[picked]
        prints = _prints(batch, picked) if prints is None else prints
        once = np.unique(_first_equal(region, numbers, prints))
        once = once[np.lexsort((prints[once], numbers[once], region[once]))]
        codes, starts = np.unique(region[once], return_index=True)
        names = tuple(batch.regions[code].decode() for code in codes.tolist())
        return cls(names, np.append(starts, len(once)).astype(np.int64), numbers[once], prints[once])

    def highest(self) -> dict[str, int]:
        """The highest number of each region."""
        return dict(zip(self.regions, self.numbers[self.starts[1:] - 1].tolist(), strict=True))

    def encode(self) -> bytes:
        """The entries as bytes for `decode`: eight or nine for each entry, and some twenty for each region."""
        names = [name.encode() for name in self.regions]
        sizes = [len(names), *map(len, names), *np.diff(self.starts).tolist()]
        parts = [struct.pack(f"<{len(sizes)}I", *sizes), *names, _packed(self.numbers), _packed(self.prints)]
        frame = zstandard.ZstdCompressor().compress(b"".join(parts))
        return zlib.crc32(frame).to_bytes(4, "little") + frame

    @classmethod
    def decode(cls, data: bytes) -> Applied:
        """What `encode` gave. Raises DamagedRecordError for any other bytes."""
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
            raise DamagedRecordError(
                f"a record of applied entries in the ledger is damaged: its {len(data)} bytes do not match their "
                "checksum. Restore the ledger from its backup"
            )
        try:
            return cls._of_plain(zstandard.ZstdDecompressor().decompress(data[4:]))
        except (zstandard.ZstdError, struct.error, ValueError) as error:
            raise DamagedRecordError(
                "a record of applied entries in the ledger is not one of this version of walferry"
            ) from error

    @classmethod
    def _of_plain(cls, plain: bytes) -> Applied:
        (count,) = struct.unpack_from("<I", plain)
        sizes = struct.unpack_from(f"<{2 * count}I", plain, 4)
        at = 4 + 4 * len(sizes)
        names = []
        for size in sizes[:count]:
            names.append(plain[at : at + size].decode())
            at += size
        starts = np.cumsum((0, *sizes[count:]), dtype=np.int64)
        middle = at + 8 * int(starts[-1])
        return cls(tuple(names), starts, _unpacked(plain[at:middle]), _unpacked(plain[middle:]))


class _Span(NamedTuple):
    """The entries of one region that a call applied, by number and print."""

    first: int
    last: int
    numbers: Int64s
    prints: Int64s


class Seen:
    """The applied entries of one table. Not thread-safe.

    `floors`: by region, the highest number of what was applied and is no longer remembered entry by entry. `applied`:
    the rest, the oldest call first. Memory: sixteen bytes for each remembered entry, until `forget`.
    """

    def __init__(self, floors: Mapping[str, int], applied: Iterable[Applied]) -> None:
        self._floors = dict(floors)
        self._highest = dict(floors)
        self._calls: deque[Applied] = deque()
        self._spans: dict[str, deque[_Span]] = {}
        self._remembered = 0
        for one in applied:
            self.add(one)

    @property
    def remembered(self) -> int:
        """How many entries are remembered one by one."""
        return self._remembered

    @property
    def calls(self) -> int:
        """How many calls those are of."""
        return len(self._calls)

    @property
    def floors(self) -> dict[str, int]:
        """By region, the highest number of what is no longer remembered one by one."""
        return dict(self._floors)

    def add(self, applied: Applied) -> None:
        """Remember what a call applied."""
        self._calls.append(applied)
        self._remembered += len(applied)
        borders = applied.starts.tolist()
        for name, start, stop in zip(applied.regions, borders, borders[1:], strict=False):
            numbers, prints = applied.numbers[start:stop], applied.prints[start:stop]
            span = _Span(int(numbers[0]), int(numbers[-1]), numbers, prints)
            self._spans.setdefault(name, deque()).append(span)
        _raise_to(self._highest, applied.highest())

    def forget(self, count: int) -> None:
        """No longer remember the entries of the `count` oldest calls one by one: raises `floors`."""
        for _ in range(min(count, len(self._calls))):
            oldest = self._calls.popleft()
            self._remembered -= len(oldest)
            _raise_to(self._floors, oldest.highest())
            for name in oldest.regions:
                spans = self._spans[name]
                spans.popleft()
                if not spans:
                    del self._spans[name]

    def judge(self, batch: EntryBatch, picked: Picked) -> Judged:
        """Judge some of a batch's entries, all of the table, by what was applied before the batch.

        Entries of the batch are not compared with each other, except that a second equal one is a repetition.
        """
        region, numbers, prints = batch.region[picked], batch.sequence_number[picked], _prints(batch, picked)
        names = [name.decode() for name in batch.regions]
        fresh = ~_at_most(self._highest, names, region, numbers)
        repeated = _repeats(region, numbers, prints)
        fresh &= ~repeated
        asked = np.flatnonzero(~fresh & ~repeated)
        if len(asked):
            repeated[asked] = self._remember(names, region[asked], numbers[asked], prints[asked])
        late = ~fresh & ~repeated
        return Judged(fresh, repeated, late, late & _at_most(self._floors, names, region, numbers), prints)

    def _remember(self, names: list[str], region: npt.NDArray[np.int32], numbers: Int64s, prints: Int64s) -> Mask:
        """Which entries are remembered."""
        parts = []
        order = np.argsort(region, kind="stable")
        codes, starts = np.unique(region[order], return_index=True)
        firsts = np.minimum.reduceat(numbers[order], starts).tolist()
        lasts = np.maximum.reduceat(numbers[order], starts).tolist()
        for code, first, last in zip(codes.tolist(), firsts, lasts, strict=True):
            for span in self._spans.get(names[code], ()):
                if span.first <= last and span.last >= first:
                    some = slice(np.searchsorted(span.numbers, first), np.searchsorted(span.numbers, last, "right"))
                    known = span.numbers[some]
                    parts.append((np.full(len(known), code, np.int32), known, span.prints[some]))
        parts.append((region, numbers, prints))
        before = sum(len(known) for _, known, _ in parts[:-1])
        first_equal = _first_equal(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        found: Mask = first_equal[before:] < before
        return found


def seen_of(received: Received, table: str) -> Seen:
    """What the ledger has of the applied entries of a table."""
    return Seen(received.floors(table), map(Applied.decode, received.contents(table)))


def _prints(batch: EntryBatch, picked: Picked) -> Int64s:
    """What tells entries with one number apart: 64 bits of the write time and the cells."""
    prints = np.empty(len(picked), np.int64)
    starts, ends, times = batch.cells_start[picked], batch.end[picked], batch.write_time[picked]
    kernels.prints_of_entries(batch.buffer, starts, ends, times, prints)
    return prints


def _raise_to(highest: dict[str, int], others: Mapping[str, int]) -> None:
    for name, number in others.items():
        highest[name] = max(highest.get(name, number), number)


def _at_most(highest: Mapping[str, int], names: list[str], region: npt.NDArray[np.int32], numbers: Int64s) -> Mask:
    """Which numbers are not above the highest of their region; none of a region without a highest."""
    known = np.array([name in highest for name in names] or [False])
    borders = np.array([highest.get(name, 0) for name in names] or [0], np.int64)
    found: Mask = known[region] & (numbers <= borders[region])
    return found


def _repeats(region: npt.NDArray[np.int32], numbers: Int64s, prints: Int64s) -> Mask:
    """Which entries come a second time. Rising numbers, which nearly all calls have, are not sorted."""
    order = np.argsort(region, kind="stable")
    number, code = numbers[order], region[order]
    if ((number[1:] > number[:-1]) | (code[1:] != code[:-1])).all():
        return np.zeros(len(region), np.bool_)
    found: Mask = _first_equal(region, numbers, prints) != np.arange(len(region))
    return found


def _first_equal(region: npt.NDArray[np.int32], numbers: Int64s, prints: Int64s) -> Picked:
    """For each entry, the index of the first one that is equal to it, perhaps its own."""
    order = np.lexsort((prints, numbers, region))  # stable: equal ones stay in their order
    new = np.ones(len(order), np.bool_)
    new[1:] = False
    for column in (region, numbers, prints):
        new[1:] |= column[order[1:]] != column[order[:-1]]
    first = np.empty(len(order), np.intp)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def _packed(values: Int64s) -> bytes:
    """The differences of the values, their lowest bytes first: nearly all others are zero."""
    steps = np.diff(values, prepend=np.int64(0)).astype("<i8")
    return steps.view(np.uint8).reshape(-1, 8).T.tobytes()


def _unpacked(data: bytes) -> Int64s:
    planes = np.frombuffer(data, np.uint8).reshape(8, -1)
    steps = np.ascontiguousarray(planes.T).view("<i8")
    values: Int64s = np.cumsum(steps.ravel().astype(np.int64))
    return values
