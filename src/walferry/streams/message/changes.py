"""Entries of HBase's log as messages for Kafka: one for each row that a client wrote, in JSON (docs/streams.md).

An entry is what one batch of a client wrote to one region at once. Each run of consecutive cells of one row in it
becomes a message; a row that is named twice apart in a batch becomes two. A row of a snapshot is written as an entry,
too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Bytes, CellIndex, CellType, Int32s, Int64s
from walferry.formats.changes import (
    FIRST_SNAPSHOT_INDEX,
    INCARNATION_BITS,
    INDEX_BITS,
    SEQUENCE_NUMBER_BITS,
    version_of,
)
from walferry.formats.entries import index_entry_cells
from walferry.formats.kernels import CELL_FIELDS
from walferry.formats.wal import EntryBatch, cluster_ids
from walferry.streams.message import _change_kernels as kernels
from walferry.streams.message import _json_kernels as forms
from walferry.streams.message.images import Images

DECODER_FAILED = "the decoder failed"
"""how a refusal begins that may quote a value"""
SCHEMA = 1
"""rises when a field is removed or renamed, or gets another meaning"""

Decode = Callable[[str, str, bytes, bytes], Any]
"""(table, family, qualifier, value) -> what `json.dumps` takes; the family's bytes are decoded with surrogateescape"""


class BytesAs(StrEnum):
    """How rows, qualifiers, values and contents of tags are given in JSON. Families are always text."""

    BASE64 = "base64"
    HEX = "hex"
    UTF8 = "utf8"  # and {"base64": …} for bytes that are not UTF-8


@dataclass(frozen=True)
class Selection:
    """Which cells messages have: those of the families and the columns, in the row ranges. Each empty tuple: all; but
    none of the families in `without`.

    A column is (family, qualifier). A range is [start, stop); an empty stop is the end of the table. Markers that
    delete a family, or a version of it, pass if one of its columns is selected, since they delete that column.
    """

    families: tuple[bytes, ...] = ()
    columns: tuple[tuple[bytes, bytes], ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    without: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class SnapshotMark:
    """What marks the rows of a snapshot. `count`: how many snapshots of the table were begun before."""

    name: str
    count: int = 0

    @property
    def index(self) -> int:
        """The index in the positions of its rows: above that of every change, and of the rows of earlier snapshots."""
        return min(FIRST_SNAPSHOT_INDEX + self.count, (1 << INDEX_BITS) - 1)


@dataclass(frozen=True)
class Form:
    """What messages look like: the source's name in them, the epoch of their positions, the form of bytes.

    `decode` replaces the values of puts. It is called for each of them, so it costs more than all the rest. `snapshot`:
    the messages are the rows of one.
    """

    cluster: str
    epoch: int
    bytes_as: BytesAs = BytesAs.BASE64
    selection: Selection = Selection()
    decode: Decode | None = None
    snapshot: SnapshotMark | None = None


def headers_of(epoch: int, incarnation: int, sequence_number: int, index: int) -> list[tuple[str, bytes]]:
    """The headers of a message at a position: position, epoch and version."""
    return [
        ("position", b"%d.%d.%d" % (incarnation, sequence_number, index)),
        ("epoch", b"%d" % epoch),
        ("version", b"%d" % version_of(incarnation, sequence_number, index)),
    ]


@dataclass(frozen=True)
class Runs:
    """The runs of cells of one row in entries, of which at least one cell is selected."""

    entries: EntryBatch
    """the picked ones"""
    fields: Int64s
    """int64[runs, RUN_FIELDS]"""
    chosen: npt.NDArray[np.uint8]
    """by number of the cell among all of the entries' cells: whether it is selected"""
    refused: dict[int, str]
    """number of the run -> why it is refused"""
    key_bytes: int
    value_bytes: int
    """at most so many bytes have keys and values as messages, without what entries have in common"""


def find_runs(form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> Runs:
    """The runs of the edits with these numbers in the batch; `incarnation` has one number for each of them.

    A run is refused, and the others are not, if a cell has an unknown type, or if its position does not fit into a
    version.
    """
    if len(incarnation) != len(picked):
        raise ValueError(f"{len(incarnation)} incarnations for {len(picked)} entries")
    entries = batch.take(picked)
    chosen = np.zeros(int(entries.cell_count.sum()), np.uint8)
    fields = np.empty((int(entries.mutation_count.sum()), kernels.RUN_FIELDS), np.int64)
    numbers = (np.ascontiguousarray(incarnation, np.int32), entries.sequence_number)
    count, key_bytes, value_bytes = kernels.find_runs(
        entries.buffer, entries.cells_start, entries.cell_count, numbers, selected(form.selection),
        FORMS[form.bytes_as], form.decode is not None, _one_cell(), fields, chosen,
    )  # fmt: skip
    fields = fields[:count]
    if form.snapshot is not None:
        fields[:, kernels.INDEX] = form.snapshot.index
    return Runs(entries, fields, chosen, _refusals(fields), key_bytes, value_bytes)


@dataclass(frozen=True)
class Messages:
    """n messages, in the order of their entries and of the rows in them.

    Key i is `keys[key_ends[i]:key_ends[i + 1]]`, and its value is in `values` in the same way.
    """

    keys: Bytes
    key_ends: Int64s  # n + 1
    values: Bytes
    value_ends: Int64s  # n + 1
    entry: Int64s  # in the batch
    index: Int32s  # of the run in its entry; runs without a selected cell count, too
    incarnation: Int32s
    sequence_number: Int64s
    hash: Int64s  # murmur2 of the key, without its sign
    epoch: int
    refused: dict[int, str]  # number of the message -> why; its value is empty
    images: Images | None = None
    image: Int64s | None = None  # number of each message's image

    def __len__(self) -> int:
        return len(self.entry)

    def key(self, number: int) -> bytes:
        """The key of a message: JSON."""
        ends, data = self._keys
        return data[ends[number] : ends[number + 1]].tobytes()

    def value(self, number: int) -> bytes:
        """The value of a message: JSON; b"" if the message is refused."""
        ends, data = self._values
        return data[ends[number] : ends[number + 1]].tobytes()

    def headers(self, number: int) -> list[tuple[str, bytes]]:
        """The headers of a message: position, epoch and version. Raises ValueError for a refused message."""
        if number in self.refused:
            raise ValueError(f"message {number} is refused: {self.refused[number]}")
        return headers_of(self.epoch, *self._positions[number])

    def partitions(self, count: int) -> Int32s:
        """int32[n]: the partition of each message in a topic with so many, as Java's default partitioner has it."""
        return (self.hash % count).astype(np.int32)

    @property
    def size(self) -> int:
        """The bytes of all values."""
        return int(self.value_ends[-1])

    def name(self, number: int) -> str:
        """What a person is told of the message: its key."""
        return self.key(number).decode()

    @cached_property
    def _keys(self) -> tuple[list[int], memoryview]:
        return self.key_ends.tolist(), self.keys.data

    @cached_property
    def _values(self) -> tuple[list[int], memoryview]:
        return self.value_ends.tolist(), self.values.data

    @cached_property
    def _positions(self) -> list[tuple[int, int, int]]:
        columns = (self.incarnation.tolist(), self.sequence_number.tolist(), self.index.tolist())
        return list(zip(*columns, strict=True))


def messages(
    form: Form,
    batch: EntryBatch,
    picked: npt.NDArray[np.intp],
    incarnation: Int32s,
    images: Images | None = None,
) -> Messages:
    """The messages of the edits with these numbers in the batch; `incarnation` has one number for each of them.

    `images`: of all changed rows of these entries. Takes a few times the memory of the picked entries and their images.
    A message is refused, and the others are not, if a cell has an unknown type, if its position does not fit into a
    version, or if the decoder failed for one of its values.
    """
    found = find_runs(form, batch, picked, incarnation)
    entries, runs, refused, count = found.entries, found.fields, found.refused, len(found.fields)
    image, image_bytes = _images_of(images, found)
    decoded = _decoded(form.decode, found) if form.decode else _NOT_DECODED
    fixed = _fixed(form, entries)
    keys = np.empty(found.key_bytes + _sizes(fixed[:1], runs), np.uint8)
    values = np.empty(found.value_bytes + _sizes(fixed[1:], runs) + len(decoded[0]) + image_bytes, np.uint8)
    key_ends, value_ends = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    hashes = np.empty(count, np.int64)
    numbers = (np.ascontiguousarray(incarnation, np.int32), entries.sequence_number, entries.write_time)
    shown = _NO_IMAGES if images is None else (images.texts, images.ends, images.exact, images.unread)
    key_end, value_end = kernels.write_messages(
        entries.buffer, runs, found.chosen, fixed, numbers, FORMS[form.bytes_as], decoded, (shown, image), _one_cell(),
        (keys, key_ends), (values, value_ends), hashes,
    )  # fmt: skip
    picks = runs[:, kernels.PICK]
    return Messages(
        keys=keys[:key_end],
        key_ends=key_ends,
        values=values[:value_end],
        value_ends=value_ends,
        entry=picked[picks].astype(np.int64),
        index=runs[:, kernels.INDEX].astype(np.int32),
        incarnation=incarnation[picks],
        sequence_number=entries.sequence_number[picks],
        hash=hashes,
        epoch=form.epoch,
        refused=refused,
        images=images,
        image=None if images is None else image,
    )


def _images_of(images: Images | None, found: Runs) -> tuple[Int64s, int]:
    """The numbers of the images of runs, and the bytes of their texts. Refuses the runs whose image no message can
    have."""
    if images is None:
        return np.empty(0, np.int64), 0
    numbers = images.numbers(found.fields[:, kernels.START])
    for run in np.flatnonzero(np.isin(numbers, list(images.refused))).tolist() if images.refused else ():
        found.refused.setdefault(run, images.refused[int(numbers[run])])
        found.fields[run, kernels.REASON] = kernels.NOT_DECODED
    return numbers, int((images.ends[numbers + 1] - images.ends[numbers]).sum())


def _one_cell() -> Int64s:
    return np.empty((CELL_FIELDS, 1), np.int64)


FORMS = {BytesAs.BASE64: forms.BASE64, BytesAs.HEX: forms.HEX, BytesAs.UTF8: forms.TEXT}
"""by what the kernels call them"""
_Texts = tuple[Bytes, Int64s, Int64s]
"""texts one after the other, the n + 1 ends of them, and the number of the text of each picked entry"""
_NOT_DECODED = (np.empty(0, np.uint8), np.empty(0, np.int64))
_NO_IMAGES = (np.empty(0, np.uint8), np.zeros(1, np.int64), np.empty(0, np.bool_), np.empty(0, np.bool_))


def selected(selection: Selection) -> tuple[Bytes, Int64s, Int64s, Int64s, Int64s]:
    """The names one after the other; where each family, column (two names), row range (two rows) and family to leave
    out is in them."""
    pairs = [*selection.columns, *selection.rows]
    single = [*selection.families, *selection.without]
    names = [*single, *(name for pair in pairs for name in pair)]
    ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
    families, columns = len(selection.families), len(selection.columns)
    spans = np.stack([ends[:-1], ends[1:]], axis=1)[: len(single)] if names else np.empty((0, 2), np.int64)
    of_pairs = [[ends[at], ends[at + 1], ends[at + 2]] for at in range(len(single), len(names), 2)]
    triples = np.array(of_pairs, np.int64).reshape(len(pairs), 3)
    joined = np.frombuffer(b"".join(names), np.uint8)
    return joined, spans[:families], triples[:columns], triples[columns:], spans[families:]


def _fixed(form: Form, entries: EntryBatch) -> tuple[_Texts, _Texts, _Texts, _Texts]:
    """What all messages of a table, a region, or a list of clusters have in common, as the kernel takes it."""

    def of_table(name: bytes) -> bytes:
        return b'{"table":%s,"row":' % _json(name.decode())

    start = b'{"schema":%d,"cluster":%s,' % (SCHEMA, _json(form.cluster))
    mark = b"" if form.snapshot is None else b'"snapshot":%s,' % _json(form.snapshot.name)
    return (
        _texts(entries.table, entries.tables, of_table),
        _texts(entries.table, entries.tables, lambda name: start + of_table(name)[1:]),
        _texts(
            entries.region,
            entries.regions,
            lambda name: b',"region":%s,%b"sequence_number":' % (_json(name.decode()), mark),
        ),
        _texts(
            entries.clusters,
            entries.cluster_lists,
            lambda raw: (
                b',"cluster_ids":%s,"epoch":%d,"position":['
                % (_json([str(known) for known in cluster_ids(raw)]), form.epoch)
            ),
        ),
    )


def _texts(codes: Int32s, names: Sequence[bytes], text: Callable[[bytes], bytes]) -> _Texts:
    """The text of each name that occurs."""
    used = np.zeros(len(names), np.bool_)
    used[codes] = True
    found = [text(names[code]) for code in np.flatnonzero(used).tolist()]
    data, ends = _joined(found)
    return data, ends, (np.cumsum(used) - 1)[codes]


def _joined(texts: Iterable[bytes]) -> tuple[Bytes, Int64s]:
    listed = list(texts)
    ends = np.cumsum([0, *map(len, listed)], dtype=np.int64)
    return np.frombuffer(b"".join(listed), np.uint8), ends


def _sizes(fixed: Sequence[_Texts], runs: Int64s) -> int:
    """The bytes of these texts in all messages."""
    picks = runs[:, kernels.PICK]
    return sum(int(np.diff(ends)[of_entry[picks]].sum()) for _, ends, of_entry in fixed)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _refusals(runs: Int64s) -> dict[int, str]:
    found = np.flatnonzero(runs[:, kernels.REASON] != kernels.FINE)
    return {
        number: _REASONS[reason].format(detail)
        for number, (reason, detail) in zip(
            found.tolist(), runs[found][:, [kernels.REASON, kernels.DETAIL]].tolist(), strict=True
        )
    }


_REASONS = {
    kernels.UNKNOWN_TYPE: "a cell has the type {}, which this version of walferry does not know",
    kernels.WIDE_INCARNATION: "incarnation {} does not fit into the "
    f"{INCARNATION_BITS} bits that a version has for it",
    kernels.WIDE_SEQUENCE_NUMBER: "sequence number {} does not fit into the "
    f"{SEQUENCE_NUMBER_BITS} bits that a version has for it",
    kernels.WIDE_INDEX: "number {} of the row in its entry does not fit into the "
    f"{INDEX_BITS} bits that a version has for it",
}


def _decoded(decode: Decode, found: Runs) -> tuple[Bytes, Int64s]:
    """What the decoder makes of the selected puts: JSON, and int64[cells + 1] ends of it by number of the cell. Refuses
    the runs for which it fails."""
    entries, runs, refused = found.entries, found.fields, found.refused
    cells, entry, _ = index_entry_cells(entries)
    puts = np.flatnonzero((found.chosen != 0) & (cells.type == CellType.PUT))
    run_of = np.searchsorted(runs[:, kernels.FIRST], puts, side="right") - 1
    tables = entries.table[entry[puts]]
    known = len(refused)
    decoded = decoded_values(decode, cells, puts, tables, entries.tables, run_of, refused)
    if len(refused) > known:
        wrong = [run for run in refused if runs[run, kernels.REASON] == kernels.FINE]
        runs[wrong, kernels.REASON] = kernels.NOT_DECODED
    return decoded


def decoded_values(
    decode: Decode,
    cells: CellIndex,
    puts: npt.NDArray[np.intp],
    tables: Int32s,
    names: Sequence[bytes],
    owners: npt.NDArray[np.intp],
    refused: dict[int, str],
) -> tuple[Bytes, Int64s]:
    """What the decoder makes of these puts, each of the table with this number in `names`: JSON, and int64[cells + 1]
    ends of it by number of the cell. Owners for which it fails are added to `refused`, and called for no more."""
    data = cells.buffer.data

    def part(start: Int64s, length: Int64s, cell: int) -> bytes:
        return data[start[cell] : start[cell] + length[cell]].tobytes()

    sizes = np.zeros(len(cells), np.int64)
    texts = list[bytes]()
    for cell, table, owner in zip(puts.tolist(), tables.tolist(), owners.tolist(), strict=True):
        if owner in refused:
            continue
        family = part(cells.family_start, cells.family_length, cell).decode(errors="surrogateescape")
        qualifier = part(cells.qualifier_start, cells.qualifier_length, cell)
        value = part(cells.value_start, cells.value_length, cell)
        try:
            text = _json(decode(names[table].decode(), family, qualifier, value))
        except Exception as error:  # it is the user's code
            where = f"column {family!r}, {qualifier!r}"
            refused[owner] = f"{DECODER_FAILED} for {where}: {type(error).__name__}: {error}"
            continue
        texts.append(text)
        sizes[cell] = len(text)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return np.frombuffer(b"".join(texts), np.uint8), ends
