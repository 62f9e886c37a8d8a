"""A real HttpFS in front of a cluster's HDFS: one HTTP address, and its clients see neither name nor data nodes.

with HttpFs.start(cluster) as gateway:
    files = WebHdfs(gateway.url, "kim")
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from walferry.embedded import jars, processes
from walferry.embedded.cluster import BOOT_DEADLINE_S, HOST, JVM_FLAGS, LOG4J, MiniCluster, more_jvm_flags, site
from walferry.embedded.processes import ServerProcess, Servers

_MAIN = "org.apache.hadoop.fs.http.server.HttpFSServerWebServer"
_FOLDERS = ("config", "log", "temp")


@dataclass
class HttpFs(Servers):
    """The server; its files are in the folder `httpfs` of the cluster, which has no Kerberos."""

    port: int
    server: ServerProcess

    @classmethod
    def start(cls, cluster: MiniCluster) -> HttpFs:
        """Start it and return when it serves, in a few seconds. Raises WalferryError if that fails."""
        home, (port,) = cluster.directory / "httpfs", processes.free_ports(1)
        for name in _FOLDERS:
            (home / name).mkdir(parents=True, exist_ok=True)
        config = home / "config"
        own = {"http.hostname": HOST, "http.port": str(port), "hadoop.config.dir": str(config)}
        (config / "core-site.xml").write_text(site({"fs.defaultFS": cluster.rootdir.rpartition("/")[0]}))
        (config / "hdfs-site.xml").write_text(site({"dfs.replication": "1"}))
        (config / "httpfs-site.xml").write_text(site({f"httpfs.{name}": value for name, value in own.items()}))
        (config / "httpfs-signature.secret").write_text("of its cookies")
        for name in ("log4j.properties", "httpfs-log4j.properties"):
            (config / name).write_text(LOG4J)
        folders = [f"-Dhttpfs.{name}.dir={home / name}" for name in _FOLDERS]
        flags = [*JVM_FLAGS, *more_jvm_flags(), "-Xmx256m", f"-Dhttpfs.home.dir={home}", *folders]
        command = [jars.java(), *flags, "-cp", f"{config}:{jars.httpfs_classpath()}", _MAIN]
        server = processes.start("httpfs", command, cluster.directory / "logs" / "httpfs.log", folder=home)
        started = cls(port, server)
        try:
            server.await_line(r"Started .*ServerConnector", time.monotonic() + BOOT_DEADLINE_S)
        except BaseException:
            started.stop()
            raise
        return started

    @property
    def url(self) -> str:
        """Its address, for `webhdfs`."""
        return f"http://{HOST}:{self.port}"

    def stop(self) -> None:
        processes.stop([self.server])
