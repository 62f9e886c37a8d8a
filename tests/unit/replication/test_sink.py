from __future__ import annotations

import pytest

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.replication.sink import keyed_address

SOURCE = ClusterAddress("src:2181", webhdfs="http://src:9870", user="hbase")


@pytest.mark.parametrize(
    ("key", "zookeeper", "znode"),
    [
        ("zk:2181:/hbase", "zk:2181", "/hbase"),
        ("a,b,c:2181:/hbase-secure", "a:2181,b:2181,c:2181", "/hbase-secure"),
        ("a:2181,b:2182:2181:/hbase/two", "a:2181,b:2182", "/hbase/two"),
    ],
)
def test_a_cluster_key_is_an_address_for_the_sources_user(key: str, zookeeper: str, znode: str) -> None:
    found = keyed_address(key, SOURCE)
    assert (found.zookeeper, found.znode, found.user, found.webhdfs) == (zookeeper, znode, "hbase", None)


@pytest.mark.parametrize("key", ["", "zk:2181", "zk:/hbase", "hbase+zk://zk:2181/hbase", "hbase+rpc://m:16000"])
def test_a_key_that_is_none_is_refused_by_its_text(key: str) -> None:
    with pytest.raises(UsageError, match="cannot read the cluster key") as refused:
        keyed_address(key, SOURCE)
    assert refused.value.facts["key"] == key
