"""The stream of `hbase_wal`: every entry of HBase's log once, moments after HBase wrote it.

    spark.readStream.format("hbase_wal").option("webhdfs", "http://namenode:9870").load("/hbase")

The path is HBase's root folder (or its hbase.wal.dir), which has the folders WALs and oldWALs. The stream follows files
as HBase rolls, moves and archives them, and reads open files as far as they are visible. Rows are those of
`spark.read`, but `file` has no folder, since a file's folder changes. Options besides those of both (`wal_source`):

    starting               earliest (default): with the oldest existing file. latest: with entries written from now on;
                           if a server is just rolling its log, its last files are read from their beginning. Only
                           applies to a new checkpoint.
    max_bytes_per_trigger  at most this many bytes of log per micro-batch, except for a single longer entry
    max_files_per_trigger  parts of at most this many files per micro-batch

Each task reads a part of one file, in order. If HBase deletes a file before the stream has read it, the query fails
with a GapError that names the file. If a file is damaged, the query fails with the errors of `spark.read`. Limits:
docs/fine-print.md, "The log as a stream".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from walferry.errors import GapError, WalferryError
from walferry.spark.handing_over import HandedOver
from walferry.spark.wal_query import BATCH_BYTES, WalQuery
from walferry.storage import FileSystem
from walferry.wal.files import live_file
from walferry.wal.live_tail import NO_LIMITS, LiveTail
from walferry.wal.offsets import BatchLimits, FileSpan, Offset, between, missing
from walferry.wal.open import Until, open_wal


@dataclass
class SpanPartition(InputPartition):
    """A part of one WAL file."""

    span: FileSpan
    handed: HandedOver
    """what its task logs in with"""


class HBaseWalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log on the driver, and reads each part of a file in a task of its own."""

    def __init__(self, query: WalQuery) -> None:
        self.query = query
        self._opened: LiveTail | None = None  # only on the driver: Spark pickles the reader before its first use

    @property
    def _tail(self) -> LiveTail:
        if self._opened is None:
            self._opened = LiveTail(*self._open())
        return self._opened

    def _open(self) -> tuple[FileSystem, str]:
        files, root = self.query.open(self.query.paths[0])
        return files, root.rstrip("/")

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream with a new checkpoint begins.

        If a query ends before its first batch does, Spark asks again. The first batch, even an empty one, is recorded
        at once with its spans, so the position that `latest` stood for does not change.
        """
        return (self._tail.at_end() if self.query.from_latest else Offset()).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limits. Spark has no limit by bytes and files together: `latestOffset` takes both from the
        options."""
        if self.query.max_bytes is not None:
            return ReadMaxBytes(self.query.max_bytes)
        return ReadAllAvailable() if self.query.max_files is None else ReadMaxFiles(self.query.max_files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` if there is nothing new."""
        limits = (
            NO_LIMITS
            if isinstance(limit, ReadAllAvailable)
            else BatchLimits(self.query.max_bytes, self.query.max_files)
        )
        return self._tail.next(Offset.from_json(start), limits).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the stream end where the log ends when Spark plans the first micro-batch."""
        self._tail.stop_growing()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[SpanPartition]:
        """One partition for each part of a file."""
        handed = self.query.handed()
        return [SpanPartition(span, handed) for span in between(Offset.from_json(start), Offset.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of a part of a file that match the query, wherever the file is now."""
        if not isinstance(partition, SpanPartition):
            return  # if `partitions` is empty, Spark adds a partition of its own
        partition.handed.take()
        span = partition.span
        files, root = self._open()
        file = live_file(root, span.file)
        if file is None:
            raise WalferryError(f"{self.query.source}: {span.file} is not the name of a WAL of user tables")
        stop = None if span.sealed else span.stop
        wal = open_wal(files, root, file, Until.SEALED, start=span.start, stop=stop, batch_bytes=BATCH_BYTES)
        try:
            for batch in wal:
                records = self.query.to_arrow(batch, span.file)
                if records is not None:
                    yield records
        except GapError:
            raise missing(span.file, span.start) from None
