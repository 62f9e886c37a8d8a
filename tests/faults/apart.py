"""A cluster each of whose servers has a process of its own: name node, data node, ZooKeeper, master, region servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from walferry.embedded import processes
from walferry.embedded.cluster import HOST
from walferry.embedded.plain_hdfs import PlainHdfs

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
