"""Entries for messages, and what a naive encoder in plain Python makes of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from hypothesis import strategies as st

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2
from walferry.formats.wal import EntryBatch, WalReader
from walferry.streams.message.changes import BytesAs, Form, Messages, Selection, messages
from walferry.streams.message.image_cells import changed_rows, images

KINDS = {4: "put", 8: "delete_version", 10: "delete_family_version", 12: "delete_column", 14: "delete_family"}
WRITTEN = 1700000000000


class Cell(NamedTuple):
    row: bytes = b"row"
    family: bytes = b"f"
    qualifier: bytes = b"q"
    timestamp: int = 1
    type: int = CellType.PUT
    value: bytes = b""
    tags: Sequence[tuple[int, bytes]] = ()


class Entry(NamedTuple):
    cells: Sequence[Cell]
    sequence_number: int = 1
    incarnation: int = 0
    table: str = "t1"
    region: str = REGION.decode()
    write_time: int = WRITTEN
    clusters: Sequence[UUID] = ()
    images: Sequence[Sequence[Cell]] | None = None
    """what a reader sees of the row after each run of cells; None: the messages have none"""


def batch_of(entries: Sequence[Entry]) -> EntryBatch:
    lines = [
        entry(
            [encode_cell(*cell) for cell in one.cells], one.sequence_number, table_name=one.table.encode(),
            encoded_region_name=one.region.encode(), write_time=one.write_time,
            cluster_ids=[
                hbase_pb2.UUID(most_sig_bits=known.int >> 64, least_sig_bits=known.int & (1 << 64) - 1)
                for known in one.clusters
            ],
        )
        for one in entries
    ]  # fmt: skip
    (batch,) = WalReader([header() + b"".join(lines) + TRAILER], "file")
    return batch


def made(form: Form, entries: Sequence[Entry]) -> Messages:
    incarnations, picked = np.array([one.incarnation for one in entries], np.int32), np.arange(len(entries))
    batch = batch_of(entries)
    if entries[0].images is None:
        return messages(form, batch, picked, incarnations)
    changed = changed_rows(form, batch, picked)
    runs = messages(replace(form, snapshot=None, decode=None), batch, picked, incarnations)
    seen = [shown_rows(entries[number])[run] for number, run in zip(runs.entry, runs.index, strict=True)]
    blocks = [b"".join(encode_cell(*cell) for cell in cells) for cells in seen]
    made_images = images(form, batch, changed, blocks, np.array([is_exact(cells) for cells in seen], np.bool_))
    return messages(form, batch, picked, incarnations, made_images)


def shown_rows(one: Entry) -> list[list[Cell]]:
    """The image of each run of cells, with the row of the run."""
    runs = [row for row, _ in groupby(one.cells, lambda cell: cell.row)]
    seen = one.images or [()]
    return [[cell._replace(row=row) for cell in seen[number % len(seen)]] for number, row in enumerate(runs)]


def is_exact(cells: Sequence[Cell]) -> bool:
    """Made up: images with an odd number of cells are."""
    return len(cells) % 2 == 1


def only(form: Form, *cells: Cell) -> dict[str, Any]:
    """The only message of an entry with these cells, as a consumer parses it."""
    found = made(form, [Entry(cells)])
    assert (len(found), found.refused) == (1, {})
    value: dict[str, Any] = json.loads(found.value(0))
    return value


class Expected(NamedTuple):
    """A message of the naive encoder."""

    entry: int
    run: int
    key: bytes
    value: bytes


def naive(form: Form, entries: Sequence[Entry]) -> Iterator[Expected]:
    """What the kernels should make of edits, in plain Python."""
    for number, one in enumerate(entries):
        for index, (row, run) in enumerate(groupby(one.cells, lambda cell: cell.row)):
            cells = [as_json(form, one.table, cell) for cell in run if is_selected(form.selection, cell)]
            key = {"table": one.table, "row": shown(form, row)}
            value: dict[str, Any] = {
                "schema": 1, "cluster": form.cluster, **key, "write_time": one.write_time, "region": one.region,
                "sequence_number": one.sequence_number, "cluster_ids": [str(known) for known in one.clusters],
                "epoch": form.epoch, "position": [one.incarnation, one.sequence_number, index], "cells": cells,
            }  # fmt: skip
            if one.images is not None:
                seen = shown_rows(one)[index]
                there = [as_json(form, one.table, cell) for cell in seen if is_selected(form.selection, cell)]
                value["image"] = {"exact": is_exact(seen), "cells": there}
            if cells:
                yield Expected(number, index, compact(key), compact(value))


def as_json(form: Form, table: str, cell: Cell) -> dict[str, Any]:
    family, qualifier = shown(Form("", 0, BytesAs.UTF8), cell.family), shown(form, cell.qualifier)
    found: dict[str, Any] = {"kind": KINDS[cell.type], "family": family, "qualifier": qualifier}
    found["timestamp"] = cell.timestamp
    if cell.type == CellType.PUT:
        decoded = form.decode and form.decode(table, cell.family.decode(), cell.qualifier, cell.value)
        found["value"] = decoded if form.decode else shown(form, cell.value)
    if cell.tags:
        found["tags"] = [{"type": kind, "value": shown(form, content)} for kind, content in cell.tags]
    return found


def shown(form: Form, raw: bytes) -> str | dict[str, str]:
    if form.bytes_as is BytesAs.HEX:
        return raw.hex()
    if form.bytes_as is BytesAs.BASE64:
        return base64.b64encode(raw).decode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def is_selected(selection: Selection, cell: Cell) -> bool:
    ranges = selection.rows or [(b"", b"")]
    if not any(start <= cell.row and (cell.row < stop or not stop) for start, stop in ranges):
        return False
    if cell.family in selection.without:
        return False
    if not selection.families and not selection.columns:
        return True
    of_family = cell.type in (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION)
    named = {(family, qualifier) for family, qualifier in selection.columns if not of_family}
    widened = {family for family, _ in selection.columns if of_family}
    return cell.family in {*selection.families, *widened} or (cell.family, cell.qualifier) in named


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def java_murmur2(data: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2 with Java's 32 bits, as an unsigned number."""
    found = 0x9747B28C ^ len(data)
    for at in range(0, len(data) - 3, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 % 2**32
        found = (found * 0x5BD1E995 ^ (word ^ word >> 24) * 0x5BD1E995) % 2**32
    if tail := data[len(data) // 4 * 4 :]:
        found = (found ^ int.from_bytes(tail, "little")) * 0x5BD1E995 % 2**32
    found = (found ^ found >> 13) * 0x5BD1E995 % 2**32
    return found ^ found >> 15


# Names of few values, so that rows repeat and filters take some; texts with all that JSON escapes; bytes of any kind.
ROWS = st.sampled_from([b"", b"a", b"a\0", b"ab", b"b", "zeile-ß".encode(), b"\xff\xfe", b'"\\\n'])
FAMILIES = st.sampled_from([b"f", b"g", "größe".encode()])
QUALIFIERS = st.sampled_from([b"", b"q", b"q1", b"\x80"])
TEXTS = st.text(max_size=70).map(lambda text: text.encode())
BYTES = st.one_of(st.binary(max_size=70), TEXTS, st.builds(lambda text, raw: text + raw, TEXTS, st.binary(max_size=3)))
TAGS = st.lists(st.tuples(st.integers(0, 255), BYTES), max_size=3)
CELLS = st.builds(
    Cell, ROWS, FAMILIES, QUALIFIERS, st.one_of(st.integers(0, 99), st.integers(0, 2**63 - 1)),
    st.sampled_from([*KINDS, 4, 4, 4]), BYTES, TAGS,
)  # fmt: skip
ENTRIES = st.builds(
    Entry, st.lists(CELLS, max_size=8), st.integers(0, 2**40 - 1), st.integers(0, 127),
    st.sampled_from(["t1", "ns:t2"]), st.sampled_from([REGION.decode(), "1588230740"]),
    st.one_of(st.just(WRITTEN), st.integers(0, 2**63 - 1)), st.lists(st.uuids(), max_size=2), images=st.none(),
)  # fmt: skip
SHOWN = st.lists(st.lists(CELLS.map(lambda cell: cell._replace(type=CellType.PUT)), max_size=4), max_size=3)
IMAGED = st.builds(lambda one, images: one._replace(images=images), ENTRIES, SHOWN)
RANGES = st.lists(st.tuples(ROWS, ROWS), max_size=2).map(tuple)
SELECTIONS = st.builds(
    Selection, st.lists(FAMILIES, max_size=2).map(tuple),
    st.lists(st.tuples(FAMILIES, QUALIFIERS), max_size=3).map(tuple), RANGES,
    st.lists(FAMILIES, max_size=1).map(tuple),
)  # fmt: skip
FORMS = st.builds(
    Form, st.sampled_from(["prod", 'a "b" ü']), st.integers(0, 2**40), st.sampled_from(BytesAs),
    st.one_of(st.just(Selection()), SELECTIONS),
)  # fmt: skip
