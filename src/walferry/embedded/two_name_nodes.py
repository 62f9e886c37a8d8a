"""A cluster whose HDFS has two name nodes, one of them active: `nn1`, `nn2` and `datanode`, each a process of its own.

Both share their edits in a local folder. Nothing fails over by itself: `activate` says which one is active.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from walferry.embedded import jars, processes, tools
from walferry.embedded.cluster import BOOT_DEADLINE_S
from walferry.embedded.kerberized import HDFS_SUPERUSER
from walferry.embedded.plain_hdfs import DATANODE, NAMENODE, PlainHdfs
from walferry.hbase.address import ClusterAddress

NAME_NODES = ("nn1", "nn2")
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
_PROXY = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


@dataclass
class TwoNameNodes(PlainHdfs):
    """Has the servers of PlainHdfs, but `nn1` and `nn2` instead of `hdfs`; `ports` has nn1's, `second` nn2's.

    `active` is the name node that `activate` made active, None if that one has been started again since.
    """

    nameservice: str = "mini"
    second: tuple[int, ...] = field(default_factory=lambda: tuple(processes.free_ports(2)))
    active: str | None = None

    @property
    def address(self) -> ClusterAddress:
        urls = ";".join(f"http://{self.host}:{web}" for _, web in self._name_node_ports.values())
        return replace(super().address, webhdfs=urls)

    @property
    def rootdir(self) -> str:
        return f"hdfs://{self.nameservice}/hbase"

    @property
    def names(self) -> list[str]:
        _, *others = super().names
        return [*NAME_NODES, *others]

    def activate(self, name: str) -> None:
        """Make `nn1` or `nn2` the active name node, which must run; one that is active and runs becomes standby.

        It takes the start of one JVM. Nothing happens if it is active.
        """
        if name == self.active:
            return
        before = self.servers.get(self.active or "")
        if self.active is not None and before is not None and before.is_alive():
            arguments = ["-failover", "--forceactive", self.active, name]
        else:
            arguments = ["-transitionToActive", "--forceactive", name]
        tools.run(self, _ADMIN, arguments, version=jars.NEWEST, user=HDFS_SUPERUSER)
        self.active = name

    def start_server(self, name: str) -> None:
        if name in NAME_NODES:
            self.active = None if self.active == name else self.active  # it starts as standby
            self._launch(name, NAMENODE, [f"-Ddfs.ha.namenode.id={name}"], heap="512m")
        else:
            super().start_server(name)

    def start_hdfs(self) -> None:
        self._write_configuration()
        (self.directory / "tmp").mkdir(parents=True, exist_ok=True)
        first, other = (self.directory / "hdfs" / name for name in NAME_NODES)
        if not other.exists():
            formatting = [f"-Ddfs.ha.namenode.id={NAME_NODES[0]}", "-format", "-nonInteractive"]
            tools.run(self, NAMENODE, formatting, version=jars.NEWEST)
            shutil.copytree(first, other)
        for name in (*NAME_NODES, DATANODE):
            self.start_server(name)

    def started_line(self, name: str) -> str:
        return super().started_line("hdfs" if name in NAME_NODES else name)

    def await_hdfs(self, deadline: float) -> None:
        """Wait until both name nodes have started; if neither has been made active, make it the first one."""
        for name in NAME_NODES:
            self.await_started(name, deadline)
        if self.active is None:
            self.activate(NAME_NODES[0])
        self.await_started(DATANODE, deadline)

    def await_ready(self, name: str, deadline: float | None = None) -> None:
        deadline = deadline or time.monotonic() + BOOT_DEADLINE_S
        super().await_ready(name, deadline)
        if name == self.active:  # the other one refuses
            self._await_webhdfs(self._name_node_ports[name][1], deadline)

    @property
    def _name_node_ports(self) -> Mapping[str, tuple[int, int]]:
        """The ports of RPC and of HTTP."""
        rpc, web = self.second
        return {NAME_NODES[0]: (self.ports.namenode, self.ports.webhdfs), NAME_NODES[1]: (rpc, web)}

    def _write_configuration(self) -> None:
        service, folder = self.nameservice, self.directory / "hdfs"
        self.hdfs_site = {
            "fs.defaultFS": f"hdfs://{service}",
            "dfs.nameservices": service,
            f"dfs.ha.namenodes.{service}": ",".join(NAME_NODES),
            f"dfs.client.failover.proxy.provider.{service}": _PROXY,
            "dfs.namenode.shared.edits.dir": f"file://{folder / 'edits'}",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.data.dir": f"file://{folder / 'data'}",
            **{f"dfs.datanode.{name}": f"{self.host}:0" for name in ("address", "http.address", "ipc.address")},
            **self.hdfs_site,
        }
        for name, (rpc, web) in self._name_node_ports.items():
            self.hdfs_site |= {
                f"dfs.namenode.rpc-address.{service}.{name}": f"{self.host}:{rpc}",
                f"dfs.namenode.http-address.{service}.{name}": f"{self.host}:{web}",
                f"dfs.namenode.name.dir.{service}.{name}": f"file://{folder / name}",
            }
        super()._write_configuration()
