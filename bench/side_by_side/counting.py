"""A snapshot as a DataFrame: count its rows and take the newest timestamp, in a process of its own."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from walferry.spark.session import open_session
from walferry.spark.snapshot_source import read_snapshot


def main(root: str, webhdfs: str, snapshot: str) -> None:
    """Print the number of rows that a scan of the snapshot would show."""
    session = open_session("bench")
    frame = read_snapshot(session, root, snapshot=snapshot, view="rows", fields="newest", webhdfs=webhdfs)
    (found,) = frame.agg(F.count("*"), F.max("newest")).collect()
    assert found[1] > 0
    print(found[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
