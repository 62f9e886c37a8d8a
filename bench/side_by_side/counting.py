"""A snapshot as a DataFrame: count its cells and take the newest timestamp, in a process of its own."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from walferry.spark.session import open_session


def main(root: str, webhdfs: str, snapshot: str) -> None:
    """Print the number of cells that a scan of the snapshot would show."""
    session = open_session("bench")
    options = {"snapshot": snapshot, "fields": "timestamp", "webhdfs": webhdfs}
    frame = session.read.format("hbase_snapshot").options(**options).load(root)
    (found,) = frame.agg(F.count("*"), F.max("timestamp")).collect()
    assert found[1] > 0
    print(found[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
