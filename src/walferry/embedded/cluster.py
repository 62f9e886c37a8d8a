"""A real HBase on a real HDFS, with ZooKeeper and a Thrift server, on free ports of 127.0.0.1.

    with MiniCluster.start(Path("somewhere")) as source:
        client = HBaseClient(source.address)

One JVM runs HDFS (name node and data node), another HBase (ZooKeeper, master and the first region server). Every
further region server and the Thrift server have a JVM of their own, so that a test can crash them one by one.

With `security`, all of them want Kerberos (kerberized.py).

HBase may be any of `jars.VERSIONS`. HDFS and the Thrift server are always of the newest version: an older HBase brings
its own HDFS client, and the newest HBase client reads and writes an older HBase's tables.
"""

from __future__ import annotations

import contextlib
import getpass
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

import requests

from walferry.embedded import jars, kdc, processes
from walferry.embedded.kerberized import Secured
from walferry.embedded.processes import ServerProcess, Servers
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.security import Security, Tls
from walferry.settings import EmbeddedServers, ZooKeeperSession

HOST = "127.0.0.1"
STORAGE = ("hdfs", "nn1", "nn2", "datanode")
"""the servers of HDFS, which start first and stop last: only `hdfs` here, others where they are processes of their own
"""
BOOT_DEADLINE_S = 180.0

# Hadoop 3 and HBase 2 access the JDK's internals by reflection, which Java 17 allows only with these flags.
_OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.security.util",
)
_EXPORTED = (
    "java.base/jdk.internal.misc",
    "java.base/sun.net.dns",
    "java.base/sun.net.util",
    "java.security.jgss/sun.security.krb5",
)
JVM_FLAGS = (
    "-XX:-UsePerfData",  # otherwise every JVM leaves a file in /tmp/hsperfdata_*
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
    "--add-modules=jdk.unsupported",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED),
)

# 1.x needs it to use the configured ports.
_SITE_OF = {"1.7.2": {"hbase.localcluster.assign.random.ports": "false"}}
"""settings that only some versions need"""
_HOST_NAMES = {"1.7.2": "hbase.regionserver.hostname", "2.2.3": "hbase.regionserver.hostname"}
"""the old name of `hbase.unsafe.regionserver.hostname`"""


def more_jvm_flags() -> list[str]:
    """The flags in WALFERRY_JVM_FLAGS, for all embedded servers; the tests set flags that suit short-lived JVMs."""
    return shlex.split(EmbeddedServers.read().jvm_flags)


LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
log4j.logger.BlockStateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.StateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=WARN
log4j.logger.org.apache.hadoop.hdfs.server.datanode.DataNode.clienttrace=WARN
log4j.logger.org.apache.zookeeper=WARN
"""


@dataclass(frozen=True)
class Ports:
    """The ports that a cluster listens on. The system always assigns the data node's ports."""

    namenode: int
    webhdfs: int
    zookeeper: int
    master: int
    thrift: int
    region_servers: tuple[int, ...]

    @classmethod
    def free(cls, region_servers: int = 1) -> Ports:
        """Choose ports that are free now."""
        return cls.of(processes.free_ports(5 + region_servers))

    @classmethod
    def fixed(cls, base: int, region_servers: int = 1) -> Ports:
        """Use the ports from `base` on, in the order of the fields."""
        return cls.of(range(base, base + 5 + region_servers))

    @classmethod
    def of(cls, ports: Sequence[int]) -> Ports:
        """Use the given ports, in the order of the fields."""
        namenode, webhdfs, zookeeper, master, thrift, *region_servers = ports
        return cls(namenode, webhdfs, zookeeper, master, thrift, tuple(region_servers))


@dataclass
class MiniCluster(Servers):
    """One cluster in `directory`: its configuration, data, logs and running servers.

    A cluster started in a directory with data uses that data. `hbase_site` and `hdfs_site` override the properties set
    here. `hbase_heap`, in the format of Java's -Xmx, is for ZooKeeper, master and first region server. With `security`,
    its KDC must have been booted. `tls` is how clients reach servers that `hbase_site` and `hdfs_site` let speak TLS
    as `localhost`. `wal_webhdfs`: of another HDFS, which runs, if that has its `hbase.wal.dir`.
    """

    directory: Path
    ports: Ports
    with_thrift: bool = True
    hbase_site: Mapping[str, str] = field(default_factory=dict)
    hdfs_site: Mapping[str, str] = field(default_factory=dict)
    version: str = jars.NEWEST
    hbase_heap: str = "1g"
    security: Secured | None = None
    tls: Tls | None = None
    wal_webhdfs: str | None = None
    servers: dict[str, ServerProcess] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        version: str = jars.NEWEST,
        region_servers: int = 1,
        thrift: bool = True,
        ports: Ports | None = None,
        hbase_site: Mapping[str, str] | None = None,
        hdfs_site: Mapping[str, str] | None = None,
        security: Secured | None = None,
        tls: Tls | None = None,
    ) -> Self:
        """Boot a cluster and return when it is ready, in about half a minute. Raises WalferryError if that fails."""
        ports = ports or Ports.free(region_servers)
        cluster = cls(
            directory.absolute(), ports, thrift, hbase_site or {}, hdfs_site or {}, version, security=security, tls=tls
        )
        boot(cluster)
        return cluster

    @property
    def host(self) -> str:
        """The host of all addresses."""
        return HOST if self.security is None and self.tls is None else kdc.HOST

    @property
    def address(self) -> ClusterAddress:
        """The address for clients of this cluster."""
        secure = self.hdfs_site.get("dfs.namenode.https-address")
        return ClusterAddress(
            zookeeper=f"{self.host}:{self.ports.zookeeper}",
            znode="/hbase",
            webhdfs=f"https://{secure}" if secure else f"http://{self.host}:{self.ports.webhdfs}",
            rootdir=self.rootdir,
            waldir=self.hbase_site.get("hbase.wal.dir"),
            wal_webhdfs=self.wal_webhdfs,
            thrift=f"{self.host}:{self.ports.thrift}" if self.with_thrift else None,
            session_seconds=ZooKeeperSession.read().zookeeper_session_seconds,
            security=Security(None if self.security is None else self.security.identity(), self.tls),
        )

    @property
    def rootdir(self) -> str:
        """HBase's root folder as a Hadoop URL."""
        return f"hdfs://{self.host}:{self.ports.namenode}/hbase"

    @property
    def master(self) -> str:
        """The HBase master's "host:port"."""
        return f"{self.host}:{self.ports.master}"

    @property
    def active_master(self) -> str:
        """The name of the server that is the active master."""
        return "hbase"

    @property
    def pids(self) -> dict[str, int]:
        """Pids by name: `hdfs`, `hbase`, `thrift`, and `regionserver-1`… for region servers with their own process."""
        return {name: server.pid for name, server in self.servers.items()}

    @property
    def names(self) -> list[str]:
        """The names of all servers for `start_server`, in the order in which they start."""
        others = [f"regionserver-{index}" for index in range(1, len(self.ports.region_servers))]
        return ["hdfs", "hbase", *others, *(["thrift"] if self.with_thrift else [])]

    def start_server(self, name: str) -> None:
        """Start the server `name` without waiting for it."""
        if name.startswith("regionserver-"):
            self.start_region_server(int(name.rpartition("-")[2]))
        else:
            {"hdfs": self.start_hdfs, "hbase": self.start_master, "thrift": self.start_thrift}[name]()

    @property
    def classpath(self) -> str:
        """Class path of HBase's own programs for this cluster: configuration folder and jars."""
        return self.classpath_of(self.version)

    def classpath_of(self, version: str) -> str:
        """The same with the programs of another version of HBase."""
        return f"{self._conf}:{jars.classpath(version)}"

    @property
    def mapreduce_classpath(self) -> str:
        """Class path of HBase's MapReduce jobs for this cluster."""
        return f"{self._conf}:{jars.mapreduce_classpath()}"

    def start_hdfs(self) -> None:
        """Start the name node and the data node without waiting for them."""
        self._write_configuration()
        arguments = ["-datanodes", "1", "-nnport", str(self.ports.namenode), "-httpport", str(self.ports.webhdfs)]
        if not (self.directory / "hdfs").exists():
            arguments.append("-format")
        main = "org.apache.hadoop.test.MiniDFSClusterManager"
        self._launch("hdfs", main, arguments, heap="512m")

    def start_hbase(self) -> None:
        """Start ZooKeeper, master and region servers without waiting for them; HDFS must be ready."""
        if self.security is not None:
            self.security.make_folders(self.address.webhdfs)
        for name in self.names:
            if name not in (*STORAGE, "thrift"):
                self.start_server(name)

    def start_master(self) -> None:
        """Start the process of ZooKeeper, master and first region server without waiting for it."""
        main = "org.apache.hadoop.hbase.master.HMaster"
        self._launch("hbase", main, ["start"], heap=self.hbase_heap, version=self.version)

    def start_region_server(self, index: int, site: Mapping[str, str] | None = None) -> None:
        """Start region server `index` (1 or more) in a process of its own without waiting for it. `site`: properties of
        this one."""
        port = str(self.ports.region_servers[index])
        own = {"hbase.regionserver.port": port, "hbase.cluster.distributed": "true", **(site or {})}
        arguments = [*(f"-D{name}={value}" for name, value in own.items()), "start"]
        main = "org.apache.hadoop.hbase.regionserver.HRegionServer"
        self._launch(f"regionserver-{index}", main, arguments, heap="768m", version=self.version)

    def start_thrift(self) -> None:
        """Start the Thrift server (the old interface, which happybase uses) without waiting for it."""
        main = "org.apache.hadoop.hbase.thrift.ThriftServer"
        arguments = ["start", "--bind", self.host, "--port", str(self.ports.thrift), "--infoport", "-1"]
        self._launch("thrift", main, arguments, heap="512m")

    def await_ready(self, name: str, deadline: float | None = None) -> None:
        """Wait until the server `name` serves. At `deadline`, raises WalferryError with the server's last log lines.

        `deadline` is a time.monotonic() time.
        """
        deadline = deadline or time.monotonic() + BOOT_DEADLINE_S
        self.await_started(name, deadline)
        if name == "hdfs":
            self._await_webhdfs(self.ports.webhdfs, deadline)

    def await_started(self, name: str, deadline: float) -> None:
        """Wait until the log of the server `name` says that it started. HBase can use `hdfs` then, but WebHDFS may not
        serve yet."""
        self.servers[name].await_line(self.started_line(name), deadline)

    def await_hdfs(self, deadline: float) -> None:
        """Wait until HBase can use HDFS."""
        self.await_started("hdfs", deadline)

    def started_line(self, name: str) -> str:
        """A regular expression for the line that the server `name` logs once it has started."""
        return {
            "hdfs": r"Started MiniDFSCluster",
            "hbase": r"Master has completed initialization",
            "thrift": r"(?i)starting .*server.* on .*:\d+|Starting HBase ThreadPool Thrift server",
        }.get(name, r"Serving as ")

    def _await_webhdfs(self, port: int, deadline: float) -> None:
        """Wait until WebHDFS serves on `port`. On the first request the name node loads its REST classes: seconds, or
        half a minute on a busy machine."""
        patience = max(1.0, deadline - time.monotonic())
        url = f"http://{self.host}:{port}/webhdfs/v1/?op=LISTSTATUS"
        try:
            answer = requests.get(url, timeout=patience)
            if self.security is None or answer.status_code != 401:  # `make_folders` has logged in already
                answer.raise_for_status()
        except requests.RequestException as error:
            logs = self.directory / "logs"
            raise WalferryError(f"WebHDFS at {url} is not ready ({error}); see {logs}") from error

    def kill(self, name: str) -> None:
        """kill -9 the server `name` (see `pids`)."""
        processes.kill(self.servers.pop(name))

    def kill_region_server(self, index: int = 1) -> None:
        """kill -9 region server `index`, which must have a process of its own."""
        if f"regionserver-{index}" not in self.servers:
            raise WalferryError(f"region server {index} of {self.directory} has no process of its own")
        self.kill(f"regionserver-{index}")

    def stop(self) -> None:
        """End all servers and wait until they have exited; their data stays. A second call does nothing."""
        shut_down(self)

    @property
    def _conf(self) -> Path:
        return self.directory / "conf"

    def _launch(self, name: str, main: str, arguments: Sequence[str], *, heap: str, version: str = jars.NEWEST) -> None:
        temporary = self.directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        flags = [*JVM_FLAGS, *more_jvm_flags(), f"-Xmx{heap}", f"-Djava.io.tmpdir={temporary}"]
        if self.security is not None:
            flags += self.security.server_flags(self._conf)
        command = [jars.java(), *flags, "-cp", self.classpath_of(version), main]
        log = self.directory / "logs" / f"{name}.log"
        self.servers[name] = processes.start(name, [*command, *arguments], log, folder=self.directory)

    def _httpfs_may_act(self) -> dict[str, str]:
        """Lets HttpFS, which this process's user starts, act for its clients (httpfs.py)."""
        return {f"hadoop.proxyuser.{getpass.getuser()}.{whom}": "*" for whom in ("hosts", "groups")}

    def _write_configuration(self) -> None:
        self._conf.mkdir(parents=True, exist_ok=True)
        hdfs = {
            "hdfs.minidfs.basedir": str(self.directory / "hdfs"),
            "dfs.replication": "1",
            "dfs.datanode.hostname": self.host,
            "dfs.namenode.fs-limits.min-block-size": "1024",
            **(self._httpfs_may_act() if self.security is None else self.security.hdfs_site()),
            **self.hdfs_site,
        }
        hbase = {
            "hbase.rootdir": self.rootdir,
            "hbase.cluster.distributed": "false",
            "hbase.tmp.dir": str(self.directory / "tmp"),
            "hbase.zookeeper.quorum": self.host,
            "hbase.zookeeper.property.clientPort": str(self.ports.zookeeper),
            "hbase.zookeeper.property.dataDir": str(self.directory / "zookeeper"),
            "hbase.master.port": str(self.ports.master),
            "hbase.master.info.port": "-1",
            "hbase.master.hostname": self.host,
            "hbase.regionserver.port": str(self.ports.region_servers[0]),
            # The plan phase reads settings from HBase's web pages.
            "hbase.regionserver.info.port": "0",
            "hbase.regionserver.info.bindAddress": self.host,
            _HOST_NAMES.get(self.version, "hbase.unsafe.regionserver.hostname"): self.host,
            # Once all of this cluster's region servers have registered, do not wait 4.5 s for more.
            "hbase.master.wait.on.regionservers.mintostart": str(len(self.ports.region_servers)),
            "hbase.master.wait.on.regionservers.maxtostart": str(len(self.ports.region_servers)),
            "hbase.regionserver.msginterval": "1000",  # ms; also the pause between attempts to register at boot
            # ms until a crashed region server is detected.
            "zookeeper.session.timeout": "20000",
            "hbase.regionserver.handler.count": "10",
            "hbase.balancer.period": "86400000",  # ms; no region moves unless somebody moves it
            "replication.source.maxretriesmultiplier": "5",  # s: a peer reads an idle server's log so often (300)
            **_SITE_OF.get(self.version, {}),
            **({} if self.security is None else self.security.hbase_site(self.version)),
            **self.hbase_site,
        }
        if self.security is not None:
            self.security.write_keys(self._conf)
            (self._conf / "core-site.xml").write_text(site(self.security.core_site()))
        (self._conf / "hdfs-site.xml").write_text(site(hdfs))
        (self._conf / "hbase-site.xml").write_text(site({**hdfs, **hbase}))
        (self._conf / "log4j.properties").write_text(LOG4J)


def boot(*clusters: MiniCluster, deadline_s: float = BOOT_DEADLINE_S) -> None:
    """Boot the clusters in parallel and return when all are ready. If one fails, stop all and raise its error."""
    deadline = time.monotonic() + deadline_s
    with contextlib.ExitStack() as undo:
        undo.callback(shut_down, *clusters)
        for cluster in clusters:
            cluster.start_hdfs()
        for cluster in clusters:
            cluster.await_hdfs(deadline)
            cluster.start_hbase()
            if cluster.with_thrift:
                cluster.start_thrift()
        for cluster in clusters:
            for name in cluster.servers:
                cluster.await_ready(name, deadline)
        undo.pop_all()


def shut_down(*clusters: MiniCluster) -> None:
    """Stop the clusters in parallel; HDFS stops last, since HBase closes its files while stopping."""
    running = [(cluster, name) for cluster in clusters for name in cluster.servers]
    processes.stop(cluster.servers[name] for cluster, name in running if name not in STORAGE)
    processes.stop(cluster.servers[name] for cluster, name in running if name in STORAGE)
    for cluster in clusters:
        cluster.servers.clear()


def site(properties: Mapping[str, str]) -> str:
    """Hadoop's XML for properties."""
    lines = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"
