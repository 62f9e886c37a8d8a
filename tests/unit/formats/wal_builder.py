"""Builds WAL files as ProtobufLogWriter lays them out, with protobuf's own serializer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.internal.encoder import _VarintBytes

from walferry.formats.proto import hbase_pb2

REGION = b"0123456789abcdef0123456789abcdef"
TRAILER = b"\0\0\0\0LAWP"
CODEC = "org.apache.hadoop.hbase.regionserver.wal.WALCellCodec"


def header(**fields: Any) -> bytes:
    """Magic and header as HBase 2.6 writes them; `fields` replace those of WALHeader, None leaves one out."""
    known: dict[str, Any] = {
        "has_compression": False,
        "has_tag_compression": False,
        "writer_cls_name": "ProtobufLogWriter",
        "cell_codec_cls_name": CODEC,
        "has_value_compression": False,
    }
    chosen = {name: value for name, value in (known | fields).items() if value is not None}
    message = hbase_pb2.WALHeader(**chosen).SerializeToString()
    return b"PWAL" + bytes(_VarintBytes(len(message))) + bytes(message)


def entry(cells: Sequence[bytes], sequence_number: int = 1, **fields: Any) -> bytes:
    """One entry; `fields` are those of WALKey."""
    known: dict[str, Any] = {
        "encoded_region_name": REGION,
        "table_name": b"t1",
        "log_sequence_number": sequence_number,
        "write_time": 1700000000000,
        "following_kv_count": len(cells),
    }
    message = hbase_pb2.WALKey(**(known | fields)).SerializePartialToString()
    return bytes(_VarintBytes(len(message))) + bytes(message) + b"".join(cells)
