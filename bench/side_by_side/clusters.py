"""The two clusters that both contenders work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.spark.clients import shared_files
from walferry.storage import FileSystem

SOURCE_SERVERS = 2
HEAP = "2g"
"""of ZooKeeper, master and first region server in one"""
_KEEP = {"hbase.master.logcleaner.ttl": str(24 * 3600 * 1000)}


@dataclass(frozen=True)
class Clusters:
    """Source and target, running, with a client for each."""

    folder: Path
    source: MiniCluster
    target: MiniCluster
    source_client: HBaseClient
    target_client: HBaseClient

    def log(self, name: str) -> Path:
        """A new file for what a program says."""
        folder = self.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{len(list(folder.iterdir()))}-{name}.log"

    @property
    def servers(self) -> list[int]:
        """Pids of all servers."""
        return [*self.source.pids.values(), *self.target.pids.values()]

    @property
    def source_files(self) -> FileSystem:
        """The source's HDFS."""
        return shared_files(self.source.address)

    @property
    def target_files(self) -> FileSystem:
        """The target's HDFS."""
        return shared_files(self.target.address)

    @property
    def source_hdfs(self) -> str:
        """The source's HDFS as Hadoop's URL, without a path."""
        return self.source.rootdir.removesuffix("/hbase")

    @property
    def target_hdfs(self) -> str:
        """The target's, likewise."""
        return self.target.rootdir.removesuffix("/hbase")


def source_in(folder: Path) -> MiniCluster:
    """A source that keeps its logs, not started yet."""
    return MiniCluster(folder / "source", Ports.free(SOURCE_SERVERS), False, _KEEP, hbase_heap=HEAP)


@contextmanager
def booted(folder: Path) -> Iterator[Clusters]:
    """Two fresh clusters in `folder`, stopped at the end."""
    source = source_in(folder)
    target = MiniCluster(folder / "target", Ports.free(), False, hbase_heap=HEAP)
    boot(source, target)
    try:
        with HBaseClient(source.address) as source_client, HBaseClient(target.address) as target_client:
            yield Clusters(folder, source, target, source_client, target_client)
    finally:
        shut_down(source, target)


def in_spec(address: ClusterAddress) -> dict[str, object]:
    """As a spec names a cluster."""
    login, tls = address.security.kerberos, address.security.tls
    found = {key: getattr(address, key) for key in ("zookeeper", "znode", "webhdfs", "rootdir")} | {
        "user": None if login else address.user,
        "security": login and {key: getattr(login, key) for key in ("principal", "keytab", "service", "qop")},
        "tls": tls and asdict(tls),
    }
    return {key: value for key, value in found.items() if value is not None}
