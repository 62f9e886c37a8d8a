"""A cluster each of whose servers has a process of its own: name node, data node, ZooKeeper, master, region servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from walferry.embedded import processes, tools
from walferry.embedded.cluster import HOST, Cluster

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
QUORUM_PEER = "org.apache.hadoop.hbase.zookeeper.HQuorumPeer"
_DATANODE = ("address", "http.address", "ipc.address")
STORAGE = ("datanode", "hdfs")
_STARTED = {
    "hdfs": r"NameNode RPC up at",
    "datanode": r"successfully registered with NN",
    "zookeeper": r"binding to port|Started AdminServer|PrepRequestProcessor",
}


@dataclass
class Apart(Cluster):
    """Its servers are `hdfs` (the name node), `datanode`, `zookeeper`, `hbase` (the master) and `regionserver-0`…"""

    datanode_ports: list[int] = field(default_factory=lambda: processes.free_ports(len(_DATANODE)))

    @property
    def names(self) -> list[str]:
        servers = [f"regionserver-{index}" for index in range(len(self.ports.region_servers))]
        return ["hdfs", "datanode", "zookeeper", "hbase", *servers, *(["thrift"] if self.with_thrift else [])]

    def start_server(self, name: str) -> None:
        start = {"hdfs": self._start_namenode, "datanode": self._start_datanode, "zookeeper": self._start_zookeeper}
        start[name]() if name in start else super().start_server(name)

    def start_hdfs(self) -> None:
        self._write_configuration()
        if not (self.directory / "hdfs").exists():
            tools.run(self, NAMENODE, ["-format", "-nonInteractive"])
        self._start_namenode()
        self._start_datanode()

    def start_hbase(self) -> None:
        for name in self.names:
            if name not in (*STORAGE, "thrift"):
                self.start_server(name)

    def started_line(self, name: str) -> str:
        return _STARTED.get(name) or super().started_line(name)

    def await_started(self, name: str, deadline: float) -> None:
        super().await_started(name, deadline)
        if name == "hdfs":  # HBase wants to write at once
            super().await_started("datanode", deadline)

    def stop(self) -> None:
        storage = [self.servers.pop(name) for name in STORAGE if name in self.servers]
        processes.stop(self.servers.values())
        self.servers.clear()
        processes.stop(storage)

    def _start_namenode(self) -> None:
        self._launch("hdfs", NAMENODE, [], heap="512m")

    def _start_datanode(self) -> None:
        self._launch("datanode", DATANODE, [], heap="512m")

    def _start_zookeeper(self) -> None:
        self._launch("zookeeper", QUORUM_PEER, [], heap="256m")

    def _write_configuration(self) -> None:
        folder = self.directory / "hdfs"
        self.hdfs_site = {
            "fs.defaultFS": f"hdfs://{HOST}:{self.ports.namenode}",
            "dfs.namenode.rpc-address": f"{HOST}:{self.ports.namenode}",
            "dfs.namenode.http-address": f"{HOST}:{self.ports.webhdfs}",
            "dfs.namenode.name.dir": f"file://{folder / 'name'}",
            "dfs.datanode.data.dir": f"file://{folder / 'data'}",
            **{
                f"dfs.datanode.{name}": f"{HOST}:{port}"
                for name, port in zip(_DATANODE, self.datanode_ports, strict=True)
            },
            **self.hdfs_site,
        }
        self.hbase_site = {
            "hbase.cluster.distributed": "true",
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.admin.enableServer": "false",  # it listens on port 8080
            **self.hbase_site,
        }
        super()._write_configuration()
