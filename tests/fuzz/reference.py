"""A second reader of WALs, slow and in plain Python, to tell what a file's bytes say.

It shares nothing with `walferry.formats` but the protobuf messages, reads values one by one, and takes a file apart on
the way: `Taken.parts` names every number, name and value in it, for who wants to damage one of them.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.message import DecodeError

from fuzz.cursor import BadError, Cursor, Part, ShortError, varint
from fuzz.values import VALUES
from walferry.formats.proto import hbase_pb2

WRITERS = {f"{kind}ProtobufLogWriter" for kind in ("", "Async", "Secure", "SecureAsync")}
PLAIN_CODEC = "org.apache.hadoop.hbase.regionserver.wal.WALCellCodec"
SECURE_CODEC = "org.apache.hadoop.hbase.regionserver.wal.SecureWALCellCodec"
LONGEST_KEY = LONGEST_HEADER = 1 << 20
LONGEST_CELL = 1 << 30
EMPTY_TRAILER = b"\0\0\0\0LAWP"


class RefusedError(Exception):
    """The header is none, or that of a file that is not read."""


@dataclass(frozen=True)
class Entry:
    """One entry: where it is in the file, and as a plain one."""

    start: int
    end: int
    plain: bytes
    cells: tuple[bytes, ...]


@dataclass
class Taken:
    """What a file's bytes say."""

    parts: list[Part] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    """where entries begin"""
    stop: str = ""
    """why none follows: "end", "short" or "bad" """
    stopped: int = 0
    """position of what did not fit"""
    trailer: bool = False
    """whether the last 8 bytes are the end of one, true or not"""
    uses_codec: bool = False
    """whether values are compressed by something other than GZ"""

    @property
    def end(self) -> int:
        """After the last entry."""
        return self.entries[-1].end if self.entries else self.first


# ------------------------------------------------------------------ names in dictionaries


class Names:
    """A dictionary of names: numbers from 0 on; a full one gives the number of the name unused for the longest time."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._names: OrderedDict[int, bytes] = OrderedDict()

    def read(self, cursor: Cursor) -> bytes:
        if cursor.at >= cursor.limit:
            raise ShortError
        if cursor.data[cursor.at] == 0xFF:
            cursor.at += 1
            name = cursor.take(cursor.varint(), "literal")
            if name:
                number = len(self._names)
                if number == self._capacity:
                    number, _ = self._names.popitem(last=False)
                self._names[number] = name
            return name
        (number,) = struct.unpack(">H", cursor.take(2, "index"))
        if number not in self._names:
            raise BadError
        self._names.move_to_end(number)
        return self._names[number]


# ------------------------------------------------------------------ keys


@dataclass(frozen=True)
class Field:
    number: int
    wire: int
    value: int
    start: int
    content: int
    end: int


def fields_of(data: bytes, start: int, end: int, parts: list[Part]) -> Iterator[Field]:
    """The fields of a message that fills `data[start:end]`. Raises BadError for one that does not fit."""
    cursor = Cursor(data, start, end, parts)
    try:
        while cursor.at < end:
            begun = cursor.at
            tag = cursor.varint()
            number, wire, value = tag >> 3, tag & 7, 0
            if not 1 <= number <= 536870911 or wire not in (0, 1, 2, 5):
                raise BadError
            content = cursor.at
            if wire == 0:
                value = cursor.varint("count" if number == 7 else "varint")
            elif wire == 2:
                value = cursor.varint()
                content = cursor.at
                if not 0 <= value <= end - content:
                    raise BadError
                cursor.at += value
            else:
                cursor.take(8 if wire == 1 else 4)
            yield Field(number, wire, value, begun, content, cursor.at)
    except ShortError:
        raise BadError from None


def is_message(data: bytes, item: Field, wires: tuple[int, int]) -> bool:
    """Whether the field holds a message whose fields 1 and 2 have these wire types."""
    inside = [(one.number, one.wire) for one in fields_of(data, item.content, item.end, [])]
    return (1, wires[0]) in inside and (2, wires[1]) in inside


def check_names(key: bytes) -> None:
    """Raises BadError when the name of a region or table is no text."""
    names = {item.number: key[item.content : item.end] for item in fields_of(key, 0, len(key), []) if item.wire == 2}
    try:
        names[1].decode()
        names[2].decode()
    except UnicodeDecodeError:
        raise BadError from None


MESSAGES = {5: (0, 0), 6: (2, 0), 8: (0, 0), 12: (2, 2)}


def plain_key(data: bytes, start: int, end: int, parts: list[Part]) -> tuple[bytes, int]:
    """A key as it is, and the number of its cells."""
    seen, cells, clusters_end = set(), 0, -1
    for item in fields_of(data, start, end, parts):
        if item.wire == 2 and item.number in MESSAGES and not is_message(data, item, MESSAGES[item.number]):
            raise BadError
        if item.wire == 2 and item.number == 8:
            if clusters_end not in (-1, item.start):
                raise BadError
            clusters_end = item.end
        seen.add((item.number, item.wire))
        if (item.number, item.wire) == (7, 0):
            cells = item.value & 0xFFFFFFFF
    if not {(1, 2), (2, 2), (3, 0), (4, 0)} <= seen:
        raise BadError
    return data[start:end], cells


class CompressedKeys:
    """Keys whose names are in dictionaries."""

    def __init__(self, families: Names, names: int) -> None:
        self.regions, self.tables, self.families = Names(names), Names(names), families

    def plain(self, data: bytes, start: int, end: int, parts: list[Part]) -> tuple[bytes, int]:
        """A key with its names, and the number of its cells."""
        out, seen, last, cells = b"", set(), 0, 0
        for item in fields_of(data, start, end, parts):
            if item.wire == 2 and item.number in MESSAGES and not is_message(data, item, MESSAGES[item.number]):
                raise BadError
            seen.add((item.number, item.wire))
            if (item.number, item.wire) == (7, 0):
                cells = item.value & 0xFFFFFFFF
            if item.wire == 2 and item.number in (1, 2, 6, 12):
                if item.number < last or (item.number == last and last <= 2):
                    raise BadError
                last = item.number
                if last <= 2:
                    content = whole_name(self.regions if last == 1 else self.tables, data, item, parts)
                elif last == 6:
                    content = self._message(data, item, 1, self.families, parts)
                else:
                    content = self._message(data, item, 2, self.tables, parts)
                out += varint(item.number << 3 | 2) + varint(len(content)) + content
            else:
                out += data[item.start : item.end]
        if not {(1, 2), (2, 2), (3, 0), (4, 0)} <= seen or len(out) > LONGEST_KEY:
            raise BadError
        return out, cells

    def _message(self, data: bytes, item: Field, inner: int, names: Names, parts: list[Part]) -> bytes:
        out, found = b"", 0
        for one in fields_of(data, item.content, item.end, parts):
            if (one.number, one.wire) == (inner, 2):
                found += 1
                name = whole_name(names, data, one, parts)
                out += varint(inner << 3 | 2) + varint(len(name)) + name
            else:
                out += data[one.start : one.end]
        if found != 1:
            raise BadError
        return out


def whole_name(names: Names, data: bytes, item: Field, parts: list[Part]) -> bytes:
    """The name that is a field's whole content."""
    cursor = Cursor(data, item.content, item.end, parts)
    try:
        name = names.read(cursor)
    except ShortError:
        raise BadError from None
    if cursor.at != item.end or (item.number == 1 and len(name) > LONGEST_KEY):
        raise BadError
    return name


# ------------------------------------------------------------------ cells


def check_cell(cell: bytes) -> bytes:
    """The plain cell itself. Raises BadError for one that no HBase writes."""
    total, key_length, value_length = struct.unpack_from(">iii", cell)
    rest = total - 8 - key_length - value_length
    if total != len(cell) - 4 or key_length < 12 or value_length < 0 or rest < 0 or rest == 1:
        raise BadError
    (row_length,) = struct.unpack_from(">h", cell, 12)
    if row_length < 0 or row_length + 12 > key_length:
        raise BadError
    family_length = cell[14 + row_length]
    timestamp, kind = struct.unpack_from(">qB", cell, 12 + key_length - 9)
    if family_length > 127 or row_length + family_length + 12 > key_length or timestamp < 0:
        raise BadError
    if kind not in (4, 8, 10, 12, 14):
        raise BadError
    tags = cell[12 + key_length + value_length :]
    if tags:
        at = 2
        if int.from_bytes(tags[:2], "big") != len(tags) - 2:
            raise BadError
        while at < len(tags):
            size = int.from_bytes(tags[at : at + 2], "big")
            if at + 2 > len(tags) or size < 1 or at + 2 + size > len(tags):
                raise BadError
            at += 2 + size
    return cell


def plain_cell(cursor: Cursor) -> bytes:
    """A cell as it is."""
    start = cursor.at
    (total,) = struct.unpack(">i", cursor.take(4, "int32"))
    if not 20 <= total <= LONGEST_CELL:
        raise BadError
    key_length, value_length = struct.unpack(">ii", cursor.take(4, "int32") + cursor.take(4, "int32"))
    # Its own lengths are checked before those of what it holds.
    if key_length < 12 or value_length < 0 or not 0 <= total - 8 - key_length - value_length <= 65537:
        raise BadError
    cursor.take(total - 8)
    return check_cell(cursor.data[start : cursor.at])


def built(names: tuple[bytes, bytes, bytes], key_length: int, fixed: bytes, value: bytes, tags: bytes) -> bytes:
    """A plain cell, not checked yet; `fixed` is its timestamp and type."""
    row, family, qualifier = names
    if len(row) > 32767 or len(family) > 127 or key_length != 12 + len(row) + len(family) + len(qualifier):
        raise BadError
    key = struct.pack(">h", len(row)) + row + bytes([len(family)]) + family + qualifier + fixed
    tail = struct.pack(">H", len(tags)) + tags if tags else b""
    body = struct.pack(">ii", len(key), len(value)) + key + value + tail
    return struct.pack(">i", len(body)) + body


class CompressedCells:
    """Cells whose names, and maybe tags, are in dictionaries, and whose values may be compressed."""

    def __init__(self, families: Names, compressed_tags: bool, value: Callable[[bytes, int], bytes] | None) -> None:
        self.rows, self.families, self.qualifiers, self.tags = Names(32767), families, Names(127), Names(32767)
        self.compressed_tags, self.value = compressed_tags, value

    def read(self, cursor: Cursor) -> bytes:
        key_length, value_length, tags_length = cursor.varint(), cursor.varint(), cursor.varint()
        if not (12 <= key_length <= LONGEST_CELL and 0 <= value_length <= LONGEST_CELL and 0 <= tags_length <= 65535):
            raise BadError
        names = self.rows.read(cursor), self.families.read(cursor), self.qualifiers.read(cursor)
        fixed = cursor.take(8, "int64") + cursor.take(1)
        if self.value is None:
            value = cursor.take(value_length)
        else:
            compressed = cursor.take(cursor.varint())
            value = self.value(compressed, value_length) if value_length else b""
        tags = b""
        if not self.compressed_tags:
            tags = cursor.take(tags_length)
        while len(tags) < tags_length:
            tag = self.tags.read(cursor)
            tags += struct.pack(">H", len(tag) & 0xFFFF) + tag
        if len(tags) != tags_length:
            raise BadError
        return built(names, key_length, fixed, value, tags)


class EncryptedCells:
    """Cells that are encrypted one by one. They are opened when all of an entry are there."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def read(self, cursor: Cursor) -> bytes:
        if cursor.varint() != 16:
            raise BadError
        iv = cursor.take(16)
        size = cursor.varint()
        if not 15 <= size <= LONGEST_CELL:
            raise BadError
        return iv + cursor.take(size)

    def opened(self, cell: bytes) -> bytes:
        """The plain cell of an IV and the encrypted bytes."""
        plain = Cipher(algorithms.AES(self.key), modes.CTR(cell[:16])).decryptor().update(cell[16:])
        inside = Cursor(plain, 0, len(plain), [])
        try:
            key_length, value_length, tags_length = inside.varint(), inside.varint(), inside.varint()
            names = tuple(inside.take(inside.varint()) for _ in range(3))
            fixed, value, tags = inside.take(9), inside.take(value_length), inside.take(tags_length)
        except ShortError:
            raise BadError from None
        if inside.at != len(plain) or tags_length > 65535:
            raise BadError
        return check_cell(built((names[0], names[1], names[2]), key_length, fixed, value, tags))


# ------------------------------------------------------------------ files


def unwrapped(encryption_key: bytes, key: bytes) -> bytes:
    """The file's key."""
    cursor = Cursor(encryption_key, 0, len(encryption_key), [])
    try:
        wrapped = hbase_pb2.WrappedKey.FromString(cursor.take(cursor.varint()))
    except (DecodeError, ShortError, BadError):
        raise RefusedError from None
    if cursor.at != len(encryption_key) or wrapped.algorithm != "AES" or len(wrapped.iv) != 16:
        raise RefusedError
    found = Cipher(algorithms.AES(key), modes.CTR(wrapped.iv)).decryptor().update(wrapped.data[: wrapped.length])
    if wrapped.HasField("hash") and (
        wrapped.hash_algorithm != "MD5" or hashlib.md5(found, usedforsecurity=False).digest() != wrapped.hash
    ):
        raise RefusedError
    if len(found) not in (16, 24, 32):
        raise RefusedError
    return found


def header_of(data: bytes, parts: list[Part]) -> tuple[hbase_pb2.WALHeader, int]:
    """The header and where it ends."""
    cursor = Cursor(data, 0, len(data), parts)
    try:
        if cursor.take(4, "magic") != b"PWAL":
            raise RefusedError
        size = cursor.varint()
        if not 0 <= size <= LONGEST_HEADER:
            raise RefusedError
        header = hbase_pb2.WALHeader.FromString(cursor.take(size, "header"))
    except (ShortError, BadError, DecodeError):
        raise RefusedError from None
    if header.HasField("writer_cls_name") and header.writer_cls_name not in WRITERS:
        raise RefusedError
    if header.HasField("cell_codec_cls_name") and header.cell_codec_cls_name not in (PLAIN_CODEC, SECURE_CODEC):
        raise RefusedError
    secure = header.cell_codec_cls_name == SECURE_CODEC
    if header.HasField("encryption_key"):
        if not secure:
            raise RefusedError
    elif header.has_compression and (
        secure or (header.has_value_compression and header.value_compression_algorithm not in VALUES)
    ):
        raise RefusedError
    return header, cursor.at


def take_apart(data: bytes, key: bytes, *, recovered: bool = False) -> Taken:
    """Read a file to its end or to what is wrong. Raises RefusedError for one that is not read."""
    if not data.endswith(b"LAWP"):
        return take_until(len(data), data, key, recovered)
    taken = take_until(len(data) - 8, data, key, recovered)
    taken.trailer = taken.end < len(data)
    if taken.stop == "short" and taken.end != len(data) - 8 - int.from_bytes(data[-8:-4], "big", signed=True):
        # A value may end with these bytes, too.
        longer = take_until(len(data), data, key, recovered)
        if longer.stop == "end":
            return longer
    return taken


def take_until(limit: int, data: bytes, key: bytes, recovered: bool) -> Taken:
    """Read entries up to `limit`."""
    taken = Taken()
    header, taken.first = header_of(data, taken.parts)
    names = 1 if recovered else 32767
    read_key, read_cell = plain_key, plain_cell
    opened: Callable[[bytes], bytes] = bytes
    if header.HasField("encryption_key"):
        encrypted = EncryptedCells(unwrapped(header.encryption_key, key))
        read_cell, opened = encrypted.read, encrypted.opened
    elif header.has_compression:
        families = Names(127)
        algorithm = header.value_compression_algorithm if header.has_value_compression else None
        taken.uses_codec = algorithm in (3, 4, 6)
        value = None if algorithm is None else VALUES[algorithm]
        read_key = CompressedKeys(families, names).plain
        opened = check_cell  # when all of an entry are there
        read_cell = CompressedCells(families, header.has_tag_compression, value).read
    cursor = Cursor(data, taken.first, max(limit, taken.first), taken.parts)
    with _stopping(taken, cursor):
        while cursor.at < cursor.limit:
            start = cursor.at
            size = cursor.varint()
            if not 0 < size <= LONGEST_KEY:
                raise BadError
            if size > cursor.limit - cursor.at:
                raise ShortError
            key_start = cursor.at
            plain, count = read_key(data, key_start, key_start + size, taken.parts)
            cursor.at += size
            cells = []
            for _ in range(count):
                cells.append(read_cell(cursor))
            cells = [opened(cell) for cell in cells]
            check_names(plain)
            # The length of a key that is given out as it is may be written in more bytes than it needs.
            length = varint(len(plain)) if read_key is not plain_key else data[start:key_start]
            taken.entries.append(Entry(start, cursor.at, length + plain + b"".join(cells), tuple(cells)))
    return taken


@contextmanager
def _stopping(taken: Taken, cursor: Cursor) -> Iterator[None]:
    taken.stop = "end"
    try:
        yield
    except ShortError:
        taken.stop = "short"
    except BadError:
        taken.stop = "bad"
    taken.stopped = cursor.at
