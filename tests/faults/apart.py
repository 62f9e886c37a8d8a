"""Clusters each of whose servers has a process of its own: name node, data node, ZooKeeper, masters, region servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from walferry.embedded import processes
from walferry.embedded.cluster import HOST
from walferry.embedded.plain_hdfs import PlainHdfs
from walferry.hbase.client import HBaseClient

MASTER = "org.apache.hadoop.hbase.master.HMaster"
MASTERS = ("hbase", "backup")
_ADDRESSES = ("address", "http.address", "ipc.address")
"""of a data node"""


@dataclass
class Apart(PlainHdfs):
    """Its servers are `hdfs` (the name node), `datanode`, `zookeeper`, `hbase` (the master) and `regionserver-0`…"""

    datanode_ports: list[int] = field(default_factory=lambda: processes.free_ports(len(_ADDRESSES)))

    @property
    def names(self) -> list[str]:
        name_node, data_node, master, *others = super().names
        return [name_node, data_node, "zookeeper", master, "regionserver-0", *others]

    def start_server(self, name: str) -> None:
        if name == "zookeeper":
            self._launch(name, "org.apache.hadoop.hbase.zookeeper.HQuorumPeer", [], heap="256m")
        else:
            super().start_server(name)

    def started_line(self, name: str) -> str:
        return r"binding to port" if name == "zookeeper" else super().started_line(name)

    def _write_configuration(self) -> None:
        folder = self.directory / "hdfs"
        ports = dict(zip(_ADDRESSES, self.datanode_ports, strict=True))
        self.hdfs_site = {
            "fs.defaultFS": f"hdfs://{HOST}:{self.ports.namenode}",
            "dfs.namenode.rpc-address": f"{HOST}:{self.ports.namenode}",
            "dfs.namenode.http-address": f"{HOST}:{self.ports.webhdfs}",
            "dfs.namenode.name.dir": f"file://{folder / 'name'}",
            "dfs.datanode.data.dir": f"file://{folder / 'data'}",
            **{f"dfs.datanode.{name}": f"{HOST}:{port}" for name, port in ports.items()},
            **self.hdfs_site,
        }
        self.hbase_site = {
            "hbase.cluster.distributed": "true",
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.admin.enableServer": "false",  # it listens on port 8080
            **self.hbase_site,
        }
        super()._write_configuration()


@dataclass
class TwoMasters(Apart):
    """Also has the master `backup`. Whichever of the two has become active stays so until it dies."""

    backup_port: int = field(default_factory=lambda: processes.free_ports(1)[0])

    @property
    def names(self) -> list[str]:
        return [*super().names, "backup"]

    def start_server(self, name: str) -> None:
        if name == "backup":
            arguments = [f"-Dhbase.master.port={self.backup_port}", "start"]
            self._launch(name, MASTER, arguments, heap=self.hbase_heap, version=self.version)
        else:
            super().start_server(name)

    def started_line(self, name: str) -> str:
        line = super().started_line("hbase" if name == "backup" else name)
        return rf"{line}|dding .*backup" if name in MASTERS else line

    @property
    def active_master(self) -> str:
        with HBaseClient(self.address, timeout_s=5) as client:
            return "backup" if client.master().port == self.backup_port else "hbase"
