"""Decodes a WAL's bytes to plain entries: passes plain ones on, expands compressed ones, decrypts encrypted ones.

A position in the file and a position in the buffer of yielded entries are different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from walferry.formats import _dictionary_kernels as dictionaries
from walferry.formats import _encrypted_kernels as encrypted
from walferry.formats import _expand_kernels as expansion
from walferry.formats import _wal_kernels as kernels
from walferry.formats._cell_kernels import INCOMPLETE, OK
from walferry.formats._file_bytes import FileBytes
from walferry.formats._find_kernels import COMPRESSED, ENCRYPTED, PLAIN, find_entry
from walferry.formats.cells import Bytes, Int64s
from walferry.formats.value_codecs import ValueCodec
from walferry.formats.wal_key import aes_blocks

ENTRIES_PER_BATCH = 1 << 16
MANY_NAMES = 32767
"""the capacity of a dictionary (HBase: Short.MAX_VALUE)"""
COLUMN_NAMES = 127
"""the capacity of the family and qualifier dictionaries (HBase: Byte.MAX_VALUE)"""
MAX_ENTRY_BYTES = 1 << 29
"""of an entry after expansion: twice what a server accepts in one request by default"""
VALUES_AT_ONCE = 1 << 12
"""how many compressed values are collected before they are decompressed together"""
_LEAST_ARENA_BYTES = 1 << 16
_RAW_BYTES = 1 << 20
"""of a compressed file in memory, besides the expanded entries"""

REASONS = kernels.REASONS | expansion.REASONS | encrypted.REASONS


@dataclass(frozen=True)
class Entries:
    """Whole plain entries in `buffer`, their fields (int64[ENTRY_FIELDS, n], see `_wal_kernels`) and file offsets."""

    buffer: Bytes
    fields: Int64s
    offset: Int64s
    offset_end: Int64s


class Decoder(Protocol):
    """Reads the entries of one file."""

    raw: FileBytes
    at: int
    """position in `raw` of the first unread byte"""
    status: int
    """after `read`: OK or INCOMPLETE if more bytes are needed, otherwise the reason why no entry follows"""
    wrong: int
    """after `read`: the file offset of the error"""

    @property
    def inside(self) -> bool:
        """Whether `at` is inside an entry whose beginning is already read."""
        ...

    def read(self, limit: int) -> Iterator[Entries]:
        """Yield the entries in `raw.data[:limit]`, at the latest once `raw` is finished."""
        ...

    def find_later(self) -> int:
        """File offset of the first whole entry in `raw`, even behind damaged bytes; -1 if there is none."""
        ...

    def ahead(self) -> Decoder:
        """A copy that reads on from here and leaves this decoder unchanged."""
        ...

    def resume(self, chunks: Iterable[bytes]) -> None:
        """Go on with a file's bytes from `raw.base + at` on."""
        ...


class PlainEntries:
    """Entries that are plain in the file; yielded without a copy."""

    inside = False

    def __init__(self, raw: FileBytes, at: int, batch_bytes: int) -> None:
        self.raw = raw
        self.at = at
        self.status = OK
        self.wrong = 0
        self._batch_bytes = batch_bytes
        self._fields = np.empty((kernels.ENTRY_FIELDS, ENTRIES_PER_BATCH), np.int64)

    def read(self, limit: int) -> Iterator[Entries]:
        """See `Decoder`."""
        while True:
            data = self.raw.data
            self.status, count, self.at, wrong = kernels.scan_entries(data, self.at, limit, self._fields)
            self.wrong = self.raw.base + wrong
            if count:
                fields = self._fields[:, :count]
                base = self.raw.base
                yield Entries(data[: self.raw.filled], fields, base + fields[kernels.START], base + fields[kernels.END])
            if self.status != kernels.FULL:
                return

    def find_later(self) -> int:
        """See `Decoder`."""
        found = int(find_entry(self.raw.data, self.at, self.raw.filled, PLAIN))
        return found if found < 0 else self.raw.base + found

    def ahead(self) -> Decoder:
        """See `Decoder`."""
        return copy(self)

    def resume(self, chunks: Iterable[bytes]) -> None:
        """See `Decoder`."""
        self.raw = FileBytes(chunks, self.raw.base + self.at, self._batch_bytes)
        self.at = 0


class DictionaryEntries:
    """Entries of a dictionary-compressed file, expanded. The file can only be read from its first entry on.

    `values`: the codec of compressed values; None if values are not compressed. `recovered`: the file is one of a
    region's recovered.edits, for which HBase's dictionaries hold one region name and one table name.

    Memory: a MiB of the file (at first as much as was read with its header), plain entries of `batch_bytes` (if one
    does not fit, up to one and a half times that entry), and at most twice the names in the dictionaries.
    """

    def __init__(
        self,
        raw: FileBytes,
        at: int,
        batch_bytes: int,
        *,
        compressed_tags: bool,
        values: ValueCodec | None = None,
        recovered: bool = False,
    ) -> None:
        self.raw = raw
        self.raw.size = min(self.raw.size, _RAW_BYTES)
        self.at = at
        self.status = OK
        self.wrong = 0
        self._batch_bytes = max(batch_bytes, 64)
        self._fields = np.empty((kernels.ENTRY_FIELDS, ENTRIES_PER_BATCH), np.int64)
        self._values = values
        self._broken = -1  # where in `out` the value that cannot be decompressed belongs
        ratio = values.max_ratio if values else 0
        self._work = _new(self._batch_bytes, compressed_tags=compressed_tags, max_ratio=ratio, recovered=recovered)

    @property
    def inside(self) -> bool:
        """See `Decoder`."""
        return bool(self._work.state[expansion.PHASE] != expansion.AT_KEY)

    def read(self, limit: int) -> Iterator[Entries]:
        """See `Decoder`."""
        while True:
            status, self.at, wrong = expansion.expand_entries(self.raw.data, self.at, limit, self.raw.base, self._work)
            if self._work.state[expansion.VALUES] and (bad := self._decompress_values()) >= 0:
                status, wrong = expansion.BAD_VALUE, bad
            if status == expansion.VALUES_FULL:
                continue
            if status == expansion.ARENA_FULL:
                self._renew_arena()
                continue
            self.status, self.wrong = status, self.raw.base + wrong
            more = status in (expansion.OUT_FULL, kernels.FULL)
            if more or status not in (OK, INCOMPLETE) or self.raw.finished:
                yield from self._take()
                self._renew_out()
            if not more or self.status != status:
                return

    def _take(self) -> Iterator[Entries]:
        """Yield the whole entries in `out`, which then belongs to the caller.

        Sets `status` if one of them is not a valid entry.
        """
        state, out = self._work.state, self._work.out
        entries, whole = int(state[expansion.ENTRIES]), int(state[expansion.WHOLE])
        status, count, _, _ = kernels.scan_entries(out, 0, whole, self._fields)
        spans = self._work.spans[:, :entries].copy()
        state[expansion.ENTRIES] = 0
        if self._broken >= 0:
            before = int(np.searchsorted(self._fields[kernels.END, :count], self._broken, side="right"))
            if before < count:
                status, count = expansion.BAD_VALUE, before
        if count:
            yield Entries(out[:whole], self._fields[:, :count], spans[0, :count], spans[1, :count])
        if count < entries:
            self.status, self.wrong = status, int(spans[0, count])

    def _decompress_values(self) -> int:
        """Decompress the collected values into `out`; return where in `raw` the first bad one is, or -1."""
        assert self._values is not None
        state = self._work.state
        values = self._work.values[:, : state[expansion.VALUES]]
        state[expansion.VALUES] = 0
        bad = self._values.decompress_all(self.raw.data, values, self._work.out)
        if bad < 0:
            return -1
        self._broken = int(values[expansion.VALUE_AT, bad])
        return int(values[expansion.COMPRESSED_AT, bad])

    def _renew_out(self) -> None:
        """Replace `out` by a new array that holds the unfinished entry."""
        state, out = self._work.state, self._work.out
        begun = out[state[expansion.WHOLE] : state[expansion.FILLED]]
        # If a cell's tags are being read, `out` has room for them: the new array must have it too.
        size = len(begun) + max(int(state[expansion.NEEDED]), int(state[expansion.TAGS_LEFT]))
        new = np.empty(self._batch_bytes if size <= self._batch_bytes else size + size // 2, np.uint8)
        new[: len(begun)] = begun
        state[expansion.FILLED] = len(begun)
        state[expansion.WHOLE] = 0
        state[expansion.NEEDED] = 0
        self._work = self._work._replace(out=new)

    def _renew_arena(self) -> None:
        """Replace the arena by a new one that holds only the names still in a dictionary."""
        work = self._work
        size = int(dictionaries.live_bytes(work.slots, work.uses) + work.state[expansion.NEEDED])
        arena = np.empty(max(2 * size, _LEAST_ARENA_BYTES), np.uint8)
        work.state[expansion.ARENA_USED] = dictionaries.compact(work.slots, work.uses, work.arena, arena)
        self._work = work._replace(arena=arena)

    def find_later(self) -> int:
        """See `Decoder`."""
        found = int(find_entry(self.raw.data, self.at, self.raw.filled, COMPRESSED))
        return found if found < 0 else self.raw.base + found

    def ahead(self) -> Decoder:
        """See `Decoder`."""
        other = copy(self)
        other._work = deepcopy(self._work)
        return other

    def resume(self, chunks: Iterable[bytes]) -> None:
        """See `Decoder`."""
        self.raw = FileBytes(chunks, self.raw.base + self.at, min(self._batch_bytes, _RAW_BYTES))
        self.at = 0


def _new(batch_bytes: int, *, compressed_tags: bool, max_ratio: int, recovered: bool) -> expansion.Expansion:
    """The initial state, before a file's first entry."""
    capacities = np.full(dictionaries.DICTIONARIES, MANY_NAMES, np.int64)
    capacities[[dictionaries.REGIONS, dictionaries.TABLES]] = 1 if recovered else MANY_NAMES
    capacities[[dictionaries.FAMILIES, dictionaries.QUALIFIERS]] = COLUMN_NAMES
    uses = np.full((dictionaries.DICTIONARIES, dictionaries.USE_FIELDS), -1, np.int64)
    uses[:, dictionaries.FIRST] = np.cumsum(capacities) - capacities
    uses[:, dictionaries.CAPACITY] = capacities
    uses[:, dictionaries.SIZE] = 0
    state = np.zeros(expansion.STATE_FIELDS, np.int64)
    state[expansion.MAX_ENTRY] = MAX_ENTRY_BYTES
    state[expansion.MAX_RATIO] = max_ratio
    return expansion.Expansion(
        slots=np.empty((int(capacities.sum()), dictionaries.SLOT_FIELDS), np.int64),
        uses=uses,
        arena=np.empty(_LEAST_ARENA_BYTES, np.uint8),
        key=np.empty(kernels.MAX_KEY_BYTES, np.uint8),
        out=np.empty(batch_bytes, np.uint8),
        spans=np.empty((2, ENTRIES_PER_BATCH), np.int64),
        values=np.empty((4, VALUES_AT_ONCE), np.int64),
        state=state,
        compressed_tags=compressed_tags,
    )


class EncryptedEntries:
    """Entries whose cells are encrypted with their file's key.

    Memory: `batch_bytes` of the file (one and a half times an entry that does not fit), and three times its cells.
    """

    inside = False

    def __init__(self, raw: FileBytes, at: int, batch_bytes: int, *, key: bytes) -> None:
        self.raw = raw
        self.at = at
        self.status = OK
        self.wrong = 0
        self._key = key
        self._batch_bytes = batch_bytes
        self._fields = np.empty((kernels.ENTRY_FIELDS, ENTRIES_PER_BATCH), np.int64)
        self._entries = np.empty((3, ENTRIES_PER_BATCH), np.int64)
        self._cells = np.empty((3, ENTRIES_PER_BATCH), np.int64)

    def read(self, limit: int) -> Iterator[Entries]:
        """See `Decoder`."""
        while True:
            status, count, cells, end, wrong = encrypted.find_cells(
                self.raw.data, self.at, limit, self._batch_bytes, self._fields, self._entries, self._cells
            )
            if status == encrypted.CELLS_FULL:
                self._cells = np.empty((3, 2 * self._cells.shape[1]), np.int64)
                continue
            self.status, self.wrong = status, self.raw.base + wrong
            if count:
                opened = self._open(count, cells, end)
                self.at = end
                if opened is not None:
                    yield opened
            if self.status != kernels.FULL:
                return

    def _open(self, count: int, cells: int, end: int) -> Entries | None:
        """Decrypt entries. Sets `status` if one of them is not a valid entry; returns None if the first is not."""
        found, places = self._entries[:, :count], self._cells[:, :cells]
        starts = self.raw.base + found[encrypted.START]
        counters = encrypted.counter_blocks(self.raw.data, places).astype(">u8")
        stream = np.frombuffer(bytearray(aes_blocks(self._key, counters.view(np.uint8).data)), np.uint8)
        out = np.empty(end - self.at + cells * encrypted.MORE_BYTES, np.uint8)
        status, opened, filled = encrypted.open_entries(self.raw.data, found, places, stream, out)
        scanned, whole, _, _ = kernels.scan_entries(out, 0, filled, self._fields)
        if whole < count:
            self.status, self.wrong = (scanned if whole < opened else status), int(starts[whole])
        if whole == 0:
            return None
        ends = np.append(starts[1:], self.raw.base + end)
        return Entries(out[:filled], self._fields[:, :whole], starts[:whole], ends[:whole])

    def find_later(self) -> int:
        """See `Decoder`."""
        found = int(find_entry(self.raw.data, self.at, self.raw.filled, ENCRYPTED))
        return found if found < 0 else self.raw.base + found

    def ahead(self) -> Decoder:
        """See `Decoder`."""
        return copy(self)

    def resume(self, chunks: Iterable[bytes]) -> None:
        """See `Decoder`."""
        self.raw = FileBytes(chunks, self.raw.base + self.at, self._batch_bytes)
        self.at = 0
