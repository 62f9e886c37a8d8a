"""Builds encrypted WAL files from plain cells, one AES/CTR stream per cell as SecureWALCellCodec does."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.internal.encoder import _VarintBytes

from unit.formats.wal_builder import entry as plain_entry
from unit.formats.wal_builder import header
from walferry.formats.proto import hbase_pb2

SECURE_CODEC = "org.apache.hadoop.hbase.regionserver.wal.SecureWALCellCodec"
MASTER_KEY = bytes(range(16))
FILE_KEY = bytes(range(100, 116))


def varint(value: int) -> bytes:
    return bytes(_VarintBytes(value))


def ctr(key: bytes, iv: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor().update(data)


def encrypted_header(**fields: Any) -> bytes:
    """A header whose file key is wrapped by MASTER_KEY; `fields` replace those of WrappedKey, None leaves one out."""
    iv = bytes(range(16))
    known: dict[str, Any] = {
        "algorithm": "AES",
        "length": 16,
        "data": ctr(MASTER_KEY, iv, FILE_KEY),
        "iv": iv,
        "hash": hashlib.md5(FILE_KEY).digest(),
    }
    wrapped = hbase_pb2.WrappedKey(**{name: value for name, value in (known | fields).items() if value is not None})
    message = wrapped.SerializePartialToString()
    return header(
        writer_cls_name="SecureProtobufLogWriter",
        cell_codec_cls_name=SECURE_CODEC,
        has_compression=True,  # of which HBase makes no use in such a file
        encryption_key=varint(len(message)) + message,
    )


def encrypted_cell(cell: bytes, iv: bytes) -> bytes:
    """A plain cell (int32 length and KeyValue), encrypted."""
    total, key_length, value_length, row_length = struct.unpack_from(">iiih", cell)
    family_at = 15 + row_length
    family_end = family_at + cell[family_at - 1]
    value_at = 12 + key_length
    tags = cell[value_at + value_length + 2 : 4 + total]
    plain = varint(key_length) + varint(value_length) + varint(len(tags))
    for name in (cell[14 : 14 + row_length], cell[family_at:family_end], cell[family_end : value_at - 9]):
        plain += varint(len(name)) + name
    plain += cell[value_at - 9 : value_at + value_length] + tags
    return varint(16) + iv + varint(len(plain)) + ctr(FILE_KEY, iv, plain)


def encrypted_entry(cells: Sequence[bytes], sequence_number: int = 1, **fields: Any) -> bytes:
    """One entry; `fields` are those of WALKey, as in `wal_builder.entry`."""
    rng = random.Random(sequence_number)
    key = plain_entry([], sequence_number, **{"following_kv_count": len(cells)} | fields)
    ivs = [rng.choice([rng.randbytes(16), rng.randbytes(8) + b"\xff" * 8, b"\xff" * 16]) for _ in cells]
    return key + b"".join(encrypted_cell(cell, iv) for cell, iv in zip(cells, ivs, strict=True))
