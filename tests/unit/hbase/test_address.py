"""What follows from a cluster's address."""

from __future__ import annotations

import pytest

from walferry.hbase.address import ClusterAddress


@pytest.mark.parametrize(
    ("rootdir", "name_node"),
    [
        ("hdfs://nn.example:8020/hbase", "hdfs://nn.example:8020"),
        ("hdfs://nameservice/hbase", "hdfs://nameservice"),
        ("/hbase", None),
        ("s3a://bucket/hbase", None),
        (None, None),
    ],
)
def test_the_name_node_is_the_one_that_the_rootdir_names(rootdir: str | None, name_node: str | None) -> None:
    assert ClusterAddress("zk:2181", rootdir=rootdir).name_node == name_node
