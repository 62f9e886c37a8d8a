"""Builds dictionary-compressed WAL files from plain cells. A dictionary is an OrderedDict, unlike the reader's."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.internal.encoder import _VarintBytes

from unit.formats.wal_builder import REGION, header
from walferry.formats.cells import decode_tags
from walferry.formats.proto import hbase_pb2

SHORT, BYTE = 32767, 127


def varint(value: int) -> bytes:
    return bytes(_VarintBytes(value))


class Dictionary:
    """Names in the order of their last use, each with its number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self.evicted = 0

    def encode(self, name: bytes) -> bytes:
        if name in self._numbers:
            self._numbers.move_to_end(name)
            return struct.pack(">h", self._numbers[name])
        if name:
            number = len(self._numbers)
            if number == self._capacity:
                _, number = self._numbers.popitem(last=False)
                self.evicted += 1
            self._numbers[name] = number
        return b"\xff" + varint(len(name)) + name


class Compressor:
    """Writes the entries of one file. `value` compresses a value; without it, values are not compressed."""

    def __init__(
        self,
        *,
        tags: bool = True,
        value: Callable[[bytes], bytes] | None = None,
        algorithm: int | None = None,
        names: int = SHORT,
        rows: int = SHORT,
        columns: int = BYTE,
    ) -> None:
        self._compress_tags = tags
        self._value = value
        self.header = header(
            has_compression=True,
            has_tag_compression=tags,
            has_value_compression=value is not None,
            value_compression_algorithm=algorithm,
        )
        self.regions = Dictionary(names)
        self.tables = Dictionary(names)
        self.rows = Dictionary(rows)
        self.families = Dictionary(columns)
        self.qualifiers = Dictionary(columns)
        self.tags = Dictionary(rows)

    def entry(self, cells: Sequence[bytes], sequence_number: int = 1, **fields: Any) -> bytes:
        """One entry of plain cells; `fields` are those of WALKey, as in `wal_builder.entry`."""
        known: dict[str, Any] = {
            "encoded_region_name": REGION,
            "table_name": b"t1",
            "log_sequence_number": sequence_number,
            "write_time": 1700000000000,
            "following_kv_count": len(cells),
        }
        key = hbase_pb2.WALKey(**(known | fields))
        key.encoded_region_name = self.regions.encode(key.encoded_region_name)
        key.table_name = self.tables.encode(key.table_name)
        for scope in key.scopes:
            scope.family = self.families.encode(scope.family)
        for attribute in key.extended_attributes:
            attribute.value = self.tables.encode(attribute.value)
        message = key.SerializeToString()
        return varint(len(message)) + bytes(message) + b"".join(self.cell(cell) for cell in cells)

    def cell(self, cell: bytes) -> bytes:
        """A plain cell (int32 length and KeyValue), compressed."""
        total, key_length, value_length, row_length = struct.unpack_from(">iiih", cell)
        row = cell[14 : 14 + row_length]
        family_at = 15 + row_length
        family = cell[family_at : family_at + cell[family_at - 1]]
        value_at = 12 + key_length
        qualifier = cell[family_at + len(family) : value_at - 9]
        value = cell[value_at : value_at + value_length]
        tags = cell[value_at + value_length + 2 : 4 + total]
        encoded = varint(key_length) + varint(value_length) + varint(len(tags))
        encoded += self.rows.encode(row) + self.families.encode(family) + self.qualifiers.encode(qualifier)
        encoded += cell[value_at - 9 : value_at]
        if self._value is None:
            encoded += value
        else:
            compressed = self._value(value)
            encoded += varint(len(compressed)) + compressed
        if not self._compress_tags:
            return encoded + tags
        return encoded + b"".join(self.tags.encode(bytes([kind]) + content) for kind, content in decode_tags(tags))


def in_blocks(compress: Callable[[bytes], bytes], size: int) -> Callable[[bytes], bytes]:
    """Hadoop's block stream over a codec, with blocks of two chunks of up to `size` plain bytes."""

    def compressed(value: bytes) -> bytes:
        blocks = b""
        for at in range(0, len(value), 2 * size):
            block = value[at : at + 2 * size]
            blocks += struct.pack(">i", len(block))
            for chunk in filter(None, (block[:size], block[size:])):
                data = compress(chunk)
                blocks += struct.pack(">i", len(data)) + data
        return blocks or bytes(4)

    return compressed
