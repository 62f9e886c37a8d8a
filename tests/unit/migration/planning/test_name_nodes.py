"""What a plan says of name nodes that answer with an old state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from walferry.hbase.address import ClusterAddress
from walferry.migration.planning.name_nodes import name_node_findings
from walferry.storage import WebHdfs


def test_each_hdfs_of_both_sides_is_refused_with_the_name_node_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def behind(files: WebHdfs) -> Iterator[tuple[str, str]]:
        yield from ((url, "is old") for url in files.url.split(";") if "observer" in url)

    monkeypatch.setattr(WebHdfs, "behind", behind)
    source = ClusterAddress(
        "zk:2181", webhdfs="http://nn:9870", rootdir="/hbase", waldir="/wal", user="kim",
        wal_webhdfs="http://wal-observer:9870;http://wal:9870",
    )  # fmt: skip
    target = ClusterAddress("zk:2181", webhdfs="http://nn:9870;http://observer:9870", rootdir="/hbase", user="kim")
    found = list(name_node_findings({"source": source, "target": target}))
    assert [(one.level, one.subject, one.message.partition(",")[0]) for one in found] == [
        ("refuse", "source.wal_webhdfs", "http://wal-observer:9870 is old"),
        ("refuse", "target.webhdfs", "http://observer:9870 is old"),
    ]
