"""The header of a WAL: which writer wrote the file, and how its entries are encoded."""

from __future__ import annotations

from dataclasses import dataclass

from walferry.formats.value_codecs import ALGORITHMS, CODECS

WRITERS = {"ProtobufLogWriter", "AsyncProtobufLogWriter", "SecureProtobufLogWriter", "SecureAsyncProtobufLogWriter"}
CODEC = "org.apache.hadoop.hbase.regionserver.wal.WALCellCodec"
SECURE_CODEC = "org.apache.hadoop.hbase.regionserver.wal.SecureWALCellCodec"
PHOENIX_CODEC = "org.apache.hadoop.hbase.regionserver.wal.IndexedWALEditCodec"


@dataclass(frozen=True)
class WalHeader:
    """WALHeader: the file's writer and how its cells are encoded; `size` is the file offset of the first entry."""

    writer: str | None
    codec: str | None
    compressed: bool
    """names are in dictionaries (hbase.regionserver.wal.enablecompression)"""
    tag_compressed: bool
    value_codec: str | None
    """the compression algorithm of values (`value_codecs`); None: values are not compressed"""
    encryption_key: bytes | None
    """the file's wrapped key (`wal_key`); None: the file is not encrypted"""
    size: int


def algorithm_name(number: int) -> str:
    """The name of the algorithm with this number in `value_compression_algorithm`."""
    return ALGORITHMS[number] if number < len(ALGORITHMS) else f"algorithm {number}"


def why_unreadable(header: WalHeader) -> str | None:
    """Why a WAL with this header cannot be read; None if it can."""
    if header.writer not in {*WRITERS, None}:
        return f"WAL of an unknown writer, {header.writer}: only those of {', '.join(sorted(WRITERS))} are read"
    if header.codec not in {CODEC, SECURE_CODEC, None}:
        phoenix = " of Phoenix" if header.codec == PHOENIX_CODEC else ""
        return (
            f"WAL with cells of an unknown codec{phoenix}, {header.codec}: only logs without the setting "
            "hbase.regionserver.wal.codec are read; remove it at the source and start over once its old logs are gone"
        )
    if header.encryption_key is not None and header.codec != SECURE_CODEC:
        return f"encrypted WAL with cells of the codec {header.codec}, which does not encrypt"
    if header.encryption_key is None and header.codec == SECURE_CODEC and header.compressed:
        return "compressed WAL of SecureWALCellCodec without a key, which HBase itself does not read"
    if header.encryption_key is None and header.value_codec not in {*CODECS, None}:
        return (
            f"WAL with values compressed by {header.value_codec}: set hbase.regionserver.wal.value.compression.type at "
            f"the source to one of {', '.join(CODECS)}, and start over once its old logs are gone"
        )
    return None
