"""What follows from a cluster's address."""

from __future__ import annotations

import pytest

from walferry.hbase.address import ClusterAddress


@pytest.mark.parametrize(
    ("rootdir", "name_node"),
    [
        ("hdfs://nn.example:8020/hbase", "hdfs://nn.example:8020"),
        ("hdfs://nameservice/hbase", None),
        ("/hbase", None),
        ("s3a://bucket/hbase", None),
        (None, None),
    ],
)
def test_the_name_node_is_the_one_that_the_rootdir_names(
    rootdir: str | None, name_node: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert ClusterAddress("zk:2181", rootdir=rootdir).name_node == name_node


def test_a_name_without_a_port_counts_where_hadoops_files_can_explain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    assert ClusterAddress("zk:2181", rootdir="hdfs://nameservice/hbase").name_node == "hdfs://nameservice"
