"""A cluster whose HDFS is a plain name node and a plain data node, each in its own process, not one MiniDFSCluster."""

from __future__ import annotations

from dataclasses import dataclass

from walferry.embedded import jars, processes, tools
from walferry.embedded.cluster import STORAGE, MiniCluster

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "datanode"
_MAINS = {"hdfs": NAMENODE, DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode"}
_STARTED = {"hdfs": r"NameNode RPC up at", DATANODE: r"successfully registered with NN"}


@dataclass
class PlainHdfs(MiniCluster):
    """Has the servers of MiniCluster, where `hdfs` is the name node, and `datanode`.

    `hdfs_site` sets where both listen, and that they keep their data in the folder `hdfs` of the directory.
    """

    @property
    def names(self) -> list[str]:
        name_node, *others = super().names
        return [name_node, DATANODE, *others]

    def start_server(self, name: str) -> None:
        if name in _MAINS:
            self._launch(name, _MAINS[name], [], heap="512m")
        else:
            super().start_server(name)

    def start_hdfs(self) -> None:
        self._write_configuration()
        (self.directory / "tmp").mkdir(parents=True, exist_ok=True)
        if not (self.directory / "hdfs" / "name" / "current").exists():
            tools.run(self, NAMENODE, ["-format", "-nonInteractive"], version=jars.NEWEST)
        for name in _MAINS:
            self.start_server(name)

    def started_line(self, name: str) -> str:
        return _STARTED.get(name) or super().started_line(name)

    def await_started(self, name: str, deadline: float) -> None:
        super().await_started(name, deadline)
        if name == "hdfs":  # HBase writes at once
            self.await_started(DATANODE, deadline)

    def stop(self) -> None:
        storage = [self.servers.pop(name) for name in reversed(STORAGE) if name in self.servers]
        processes.stop(self.servers.values())
        self.servers.clear()
        for server in storage:
            processes.stop([server])
