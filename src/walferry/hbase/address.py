"""Where a cluster's services are."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from walferry.errors import UsageError


@dataclass(frozen=True)
class ClusterAddress:
    """All that is needed to reach one HBase cluster; small and picklable, it is sent to Spark executors.

    `zookeeper` is "host:port,host:port"; `webhdfs` the name node's "http://host:port"; `rootdir` is
    hbase.rootdir, "hdfs://host:8020/hbase"; `thrift` is "host:port"; `user` is the user name sent to the cluster.
    """

    zookeeper: str
    znode: str = "/hbase"
    webhdfs: str | None = None
    rootdir: str | None = None
    thrift: str | None = None
    user: str = field(default_factory=getpass.getuser)

    @property
    def root_path(self) -> str:
        """Path of hbase.rootdir within its file system, such as "/hbase". Raises UsageError when unknown."""
        if self.rootdir is None:
            raise UsageError(f"the rootdir of the cluster at {self.zookeeper} is not known; add it to its address")
        return urlsplit(self.rootdir).path.rstrip("/") or "/"
