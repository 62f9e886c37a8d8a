"""One HBase cluster as the main process of a container: HDFS, ZooKeeper, HBase, Thrift, reachable from other hosts.

    cluster.py NAME --host HOST [--region-servers N] [--directory /data]

HOST is the name by which the other containers and this one find it. It boots what `walferry.embedded.cluster` boots,
with the same jars and settings, but for two things: servers listen on the container's address instead of 127.0.0.1,
and HDFS is a plain name node and data node, since MiniDFSCluster ties its data node to 127.0.0.1. Once all serve, the
addresses are in endpoints.json of the directory. It ends, with the reason, when one of its servers does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from walferry.embedded.cluster import Ports, boot
from walferry.embedded.plain_hdfs import PlainHdfs
from walferry.errors import WalferryError

EVERYWHERE = "0.0.0.0"  # within the container; compose.yaml says what is published
DATANODE = {"address": 9866, "http.address": 9864, "ipc.address": 9867}
BOOT_DEADLINE_S = 300.0


def ports(region_servers: int) -> Ports:
    """The usual ports of each server; further region servers count up from 16020."""
    return Ports(
        namenode=8020,
        webhdfs=9870,
        zookeeper=2181,
        master=16000,
        thrift=9090,
        region_servers=tuple(range(16020, 16020 + region_servers)),
    )


@dataclass
class HostCluster(PlainHdfs):
    """A cluster that the name `host` leads to."""

    host: str = "localhost"

    def start_thrift(self) -> None:
        main = "org.apache.hadoop.hbase.thrift.ThriftServer"
        arguments = ["start", "--bind", EVERYWHERE, "--port", str(self.ports.thrift), "--infoport", "-1"]
        self._launch("thrift", main, arguments, heap="512m")

    def endpoints(self) -> dict[str, object]:
        """All addresses, as `make up` has them in .run/endpoints.json, and the region servers'."""
        region_servers = [f"{self.host}:{port}" for port in self.ports.region_servers]
        return {**asdict(self.address), "master": self.master, "region_servers": region_servers}


def lay_out(directory: Path, host: str, region_servers: int) -> HostCluster:
    """The cluster with everything set that lets other hosts reach it; starts nothing."""
    taken = ports(region_servers)
    hdfs_site = {
        "fs.defaultFS": f"hdfs://{host}:{taken.namenode}",
        "dfs.namenode.name.dir": f"file://{directory / 'hdfs' / 'name'}",
        "dfs.datanode.data.dir": f"file://{directory / 'hdfs' / 'data'}",
        "dfs.namenode.rpc-address": f"{host}:{taken.namenode}",
        "dfs.namenode.rpc-bind-host": EVERYWHERE,
        "dfs.namenode.http-address": f"{host}:{taken.webhdfs}",
        "dfs.namenode.http-bind-host": EVERYWHERE,
        "dfs.namenode.safemode.extension": "0",
        # A container's address has no name that leads back to it everywhere.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        **{f"dfs.datanode.{name}": f"{EVERYWHERE}:{port}" for name, port in DATANODE.items()},
    }
    hbase_site = {
        "hbase.zookeeper.property.clientPortAddress": EVERYWHERE,
        "hbase.regionserver.info.bindAddress": EVERYWHERE,
    }
    return HostCluster(directory, taken, hbase_site=hbase_site, hdfs_site=hdfs_site, host=host)


def serve(cluster: HostCluster, name: str) -> NoReturn:
    """Boot, write endpoints.json, and watch until a server ends (WalferryError) or SIGTERM comes (SystemExit)."""
    endpoints = cluster.directory / "endpoints.json"
    endpoints.unlink(missing_ok=True)
    try:
        boot(cluster, deadline_s=BOOT_DEADLINE_S)
        endpoints.write_text(json.dumps({name: cluster.endpoints()}, indent=1), encoding="utf-8")
        print(f"{name} is up: {endpoints.read_text(encoding='utf-8')}", flush=True)
        while True:
            time.sleep(1)
            for server in cluster.servers.values():
                if not server.is_alive():
                    raise WalferryError(f"{server.name} ended; the end of {server.log}:\n{server.tail()}")
    finally:
        endpoints.unlink(missing_ok=True)
        cluster.stop()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("source", "target"))
    parser.add_argument("--host", required=True)
    parser.add_argument("--region-servers", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("/data"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(lay_out(arguments.directory.absolute(), arguments.host, arguments.region_servers), arguments.name)
    except WalferryError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
