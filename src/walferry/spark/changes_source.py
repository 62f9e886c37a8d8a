"""The data source `hbase_changes`: the rows of a change log straight from HBase's write-ahead logs, and as a stream.

    spark.read.format("hbase_changes").option("webhdfs", "http://namenode:9870").load("/hbase/WALs,/hbase/oldWALs")
    spark.readStream.format("hbase_changes").option("webhdfs", "http://namenode:9870").load("/hbase")

A row is a cell that a client wrote, CHANGE_SCHEMA, with the column names of Spark's change feeds. Paths, the options
`tables`, `webhdfs`, `user`, `from`, `to` and `on_unfinished`, and those of a stream are those of `hbase_wal`, with the
same promises and limits. One more:

    fields         the frame's columns to produce, separated by commas; omitted columns cost nothing

`_change_type` is put, delete_version, delete_column, delete_family or delete_family_version. `_commit_timestamp` is
when the entry was written, by the region server's clock; `from` and `to` select by it. `_commit_version` is incarnation
(7 bits), sequence number (40 bits) and `index` (16 bits), from high to low, as in the header `version` of a stream's
message; here the incarnation is always 0. It is comparable within a row only. `index` is the number of the run of
consecutive cells of one row in the entry, `cell` that of the cell in its run.

Markers give no rows, and neither do bulk-loaded cells, which are not in the log. A marker of an unknown kind fails the
query, since it may stand for changes. So does a version that does not fit into its bits, if the fields include
`_commit_version`. Limits: docs/fine-print.md, "The log as changes".
"""

from __future__ import annotations

from walferry.spark.wal_source import HBaseWalDataSource


class HBaseChangesDataSource(HBaseWalDataSource):
    """`spark.read.format("hbase_changes")`, and `spark.readStream`: see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "hbase_changes"
