"""Where a cluster's services are."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from walferry.errors import UsageError
from walferry.request_meter import Meter, RequestRates, meter_of
from walferry.security import OPEN, Kerberos, Security


@dataclass(frozen=True)
class ClusterAddress:
    """Everything needed to reach one HBase cluster; small and picklable, so it can be sent to Spark executors.

    `zookeeper` is "host:port,host:port"; `webhdfs` is the name node's "http://host:port"; `rootdir` is hbase.rootdir,
    "hdfs://host:8020/hbase"; `waldir` is hbase.wal.dir if it differs, and `wal_webhdfs` the name node's address
    if it is on another HDFS; `thrift` is "host:port"; `user` is the user name sent to the cluster.
    """

    zookeeper: str
    znode: str = "/hbase"
    webhdfs: str | None = None
    rootdir: str | None = None
    waldir: str | None = None
    wal_webhdfs: str | None = None
    thrift: str | None = None
    user: str = field(default_factory=getpass.getuser)
    rates: RequestRates = field(default_factory=RequestRates)
    """how many requests per second a process may send to the cluster's services"""
    copies: tuple[str, ...] = ()
    """folders (URLs) with copies of the cluster's WALs, read for WALs that the cluster has deleted"""
    root_copy: str | None = None
    """a folder (URL) that is read instead of the cluster's file system, with copies of what was below its rootdir"""
    session_seconds: float = 30.0
    """timeout of the ZooKeeper sessions: this long after a process was killed, its session's znodes are removed"""
    security: Security = OPEN
    """who the client is to services that ask for a login, which then get no `user`; and how TLS reaches some"""

    def shared_by(self, processes: int) -> ClusterAddress:
        """The address for each of several processes that share the rates."""
        return replace(self, rates=self.rates.shared_by(processes))

    def meter(self) -> Meter:
        """The meter that counts this process's requests to the cluster."""
        return meter_of(self.cluster, self.rates)

    @property
    def cluster(self) -> str:
        """What identifies the cluster: its quorum and parent znode, "host:port,host:port/hbase"."""
        return f"{self.zookeeper}{self.znode}"

    @property
    def cluster_key(self) -> str:
        """How a replication peer names the cluster: "host,host:port:/znode", or "host:port,host:port:port:/znode" if
        the ports differ."""
        servers = [server.rpartition(":") for server in self.zookeeper.split(",")]
        ports = {port for _, _, port in servers}
        hosts = ",".join(host for host, _, _ in servers) if len(ports) == 1 else self.zookeeper
        return f"{hosts}:{servers[0][2]}:{self.znode}"

    @property
    def hbase_kerberos(self) -> Kerberos | None:
        """Who the client is to the servers of HBase; None if they ask for no login, whatever HDFS does."""
        kerberos = self.security.kerberos
        return kerberos if kerberos is not None and kerberos.service is not None else None

    @property
    def zookeeper_login(self) -> bool:
        """Whether a process that logs in itself, so no worker of Spark's, logs in to ZooKeeper."""
        kerberos = self.security.kerberos
        return kerberos is not None and kerberos.zookeeper_service is not None

    def without_zookeeper_login(self) -> ClusterAddress:
        """The address, for reading in ZooKeeper what everybody may."""
        kerberos = self.security.kerberos
        if kerberos is None:
            return self
        return replace(self, security=replace(self.security, kerberos=replace(kerberos, zookeeper_service=None)))

    @property
    def root_path(self) -> str:
        """Path of hbase.rootdir within its file system, such as "/hbase". Raises UsageError if `rootdir` is not set."""
        if self.rootdir is None:
            raise UsageError(f"the rootdir of the cluster at {self.zookeeper} is not known; add it to its address")
        return urlsplit(self.rootdir).path.rstrip("/") or "/"

    @property
    def name_node(self) -> str | None:
        """The name node or nameservice in `rootdir`, "hdfs://host:8020" or "hdfs://name"; None if it names none."""
        root = urlsplit(self.rootdir or "")
        return f"hdfs://{root.netloc}" if root.scheme == "hdfs" and root.netloc else None

    @property
    def of_log(self) -> ClusterAddress:
        """The address whose file system is the one with the WALs; itself, if that of the root folder has them."""
        if self.wal_webhdfs is None:
            return self
        return replace(self, webhdfs=self.wal_webhdfs, rootdir=self.waldir, waldir=None, wal_webhdfs=None)

    @property
    def wal_path(self) -> str:
        """Path of the folder with WALs/ and oldWALs/: hbase.wal.dir, by default hbase.rootdir (CommonFSUtils)."""
        return self.root_path if self.waldir is None else urlsplit(self.waldir).path.rstrip("/")
