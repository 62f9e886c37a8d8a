"""The data source `hbase_wal`: HBase's write-ahead logs as DataFrames, and as a stream (`wal_stream`).

    spark.read.format("hbase_wal").option("webhdfs", "http://namenode:9870").load("/hbase/oldWALs")

The path is a WAL file, a folder (read recursively), or several absolute paths separated by commas. A path is local
(without the option `webhdfs`), on HDFS (with that option), or webhdfs://host:port/path (HTTPS: swebhdfs://). With the
option `webhdfs`, hdfs://host:port/path reads files directly from the data nodes. In folders, the logs of hbase:meta, of
the master and of procedures are skipped. Options of both:

    view           cells (default): one row per cell, WAL_CELL_SCHEMA; markers are the cells of family METAFAMILY.
                   entries: one row per entry, ENTRY_SCHEMA; decodes no cells, so it is cheaper.
    tables         only these, "namespace:table" or "table", separated by commas
    webhdfs        the name node's HTTP or HTTPS address, for paths without a scheme, or with hdfs://
    user           the HDFS user; default: the operating system's user
    principal, keytab, ccache  who to be to a secured HDFS: a principal and the path of its keytab, or a ticket cache.
                   The driver logs in, and hands tokens to its workers.
    tls_ca, tls_certificate, tls_key  of HTTPS: paths of PEM files with the only authorities to trust (default: the
                   machine's), and with the client's certificate and its key, for servers that want one. The files are
                   read where the driver runs, and on each worker's machine.

Options of `spark.read` only:

    from, to       only entries with from <= write_time < to, in milliseconds since the epoch
    on_unfinished  keep (default): read a file without a trailer up to its end. fail: refuse such a file.

A damaged or unreadable file fails the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from walferry.errors import UsageError
from walferry.spark.handing_over import HandedOver
from walferry.spark.wal_query import BATCH_BYTES, WalQuery
from walferry.storage import FileStatus, FileSystem
from walferry.wal.open import open_wal_at


class HBaseWalDataSource(DataSource):
    """`spark.read.format("hbase_wal")`, and `spark.readStream`: see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "hbase_wal"

    def schema(self) -> StructType:
        return from_arrow_schema(WalQuery.parse(self.options, self.name()).schema)

    def reader(self, schema: StructType) -> HBaseWalReader:
        return HBaseWalReader(WalQuery.parse(self.options, self.name(), stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        query = WalQuery.parse(self.options, self.name(), stream=True)
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise UsageError(f"a stream of {self.name()} needs PySpark 4.2 or newer; this is {pyspark.__version__}")
        from walferry.spark.wal_stream import HBaseWalStream  # needs classes of 4.2

        return HBaseWalStream(query)


@dataclass
class WalPartition(InputPartition):
    """One WAL file, by a path that the query can open. A file cannot be split: entries have no sync markers."""

    path: str
    handed: HandedOver
    """what its task logs in with"""


class HBaseWalReader(DataSourceReader):
    """Lists the files on the driver, and reads each file in a task of its own."""

    def __init__(self, query: WalQuery) -> None:
        self.query = query

    def partitions(self) -> Sequence[WalPartition]:
        found: dict[str, None] = {}
        for path in self.query.paths:
            files, place = self.query.open(path)
            status = files.status(place)
            if status is None:
                raise UsageError(f"{self.query.source}: {path} does not exist", path=path)
            listed = _wals_below(files, place) if status.is_dir else [place]
            # Names listed files like the given path: with the URL's host, or without a host on a local disk.
            host = "" if path.startswith("file:") else path.removesuffix(place)
            found |= {host + name: None for name in listed}
        handed = self.query.handed()
        return [WalPartition(path, handed) for path in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, WalPartition):
            return  # if `partitions` is empty, Spark adds a partition of its own
        path = partition.path
        partition.handed.take()
        files, place = self.query.open(path)
        wal = open_wal_at(files, place, path, batch_bytes=BATCH_BYTES)
        for batch in wal:
            records = self.query.to_arrow(batch, path)
            if records is not None:
                yield records
        if self.query.fail_on_unfinished and wal.unfinished is not None:
            raise wal.unfinished


def _wals_below(files: FileSystem, folder: str) -> list[str]:
    found: list[str] = []
    for status in files.list(folder):
        if status.is_dir:
            try:
                found += _wals_below(files, status.path)
            except FileNotFoundError:
                continue  # a server's folder was renamed or deleted between the two listings
        elif _is_users(status):
            found.append(status.path)
    return found


def _is_users(status: FileStatus) -> bool:
    name = status.name
    return not (name.startswith((".", "pv2-")) or name.endswith((".meta", "$masterlocalwal$")))
