"""`make up` and `make down`: source, target and Airflow of this checkout, all below `.run/`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walferry.amounts import amount
from walferry.embedded import jars, processes
from walferry.embedded.airflow import USERNAME, Airflow, write_private
from walferry.embedded.cluster import STORAGE, MiniCluster, Ports, boot, shut_down
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.embedded.spark import SparkCluster
from walferry.embedded.two_name_nodes import TwoNameNodes
from walferry.errors import UsageError
from walferry.settings import EmbeddedServers

CHECKOUT = Path(__file__).parents[3]
RUN = CHECKOUT / ".run"
SOURCE_SERVERS = 2  # two WAL groups, since real clusters have several
LOGS_KEPT_MS = 24 * 3600 * 1000
"""how long the source keeps logs without a peer: HBase's default of ten minutes is too short to try windows"""
_PORTS_EACH = 10


@dataclass
class Environment:
    """Two clusters, an Airflow with connections to them and, optionally, a KDC and a standalone Spark cluster."""

    source: MiniCluster
    target: MiniCluster
    airflow: Airflow
    ledger: str
    reports: Path
    spark: str
    spark_cluster: SparkCluster | None = None
    kdc: Kdc | None = None
    """where both clusters are secured"""

    @classmethod
    def lay_out(cls, directory: Path, settings: EmbeddedServers, *, dags: Path = CHECKOUT / "dags") -> Environment:
        """Choose folders and ports without starting anything. Raises UsageError for a version that cannot be booted."""
        source_version, target_version = (
            given or jars.NEWEST for given in (settings.source_version, settings.target_version)
        )
        for version in (source_version, target_version):
            jars.coordinates(version)
        base = settings.port_base
        if base is None:
            source_ports, target_ports = Ports.free(SOURCE_SERVERS), Ports.free(1)
            (port,) = processes.free_ports(1)
        else:
            source_ports, target_ports = Ports.fixed(base, SOURCE_SERVERS), Ports.fixed(base + _PORTS_EACH)
            port = base + 2 * _PORTS_EACH
        ledger = f"sqlite:///{directory / 'ledger.db'}"
        keep = {"hbase.master.logcleaner.ttl": str(LOGS_KEPT_MS)}
        source = MiniCluster(directory / "source", source_ports, hbase_site=keep, version=source_version)
        target = MiniCluster(directory / "target", target_ports, version=target_version)
        kdc, more = None, {}
        if settings.security is not None:
            kdc = Kdc.lay_out(directory / "kdc")
            more = {"KRB5_CONFIG": str(kdc.config)}
            security = Secured(kdc)
            source = TwoNameNodes(
                source.directory, source_ports, hbase_site=keep, version=source_version, security=security,
                nameservice="source",
            )  # fmt: skip
            target.security = security
        airflow = Airflow(
            directory / "airflow",
            config=CHECKOUT / "airflow.cfg",
            dags=dags,
            port=port,
            environment={"WALFERRY_LEDGER": ledger, "WALFERRY_REPORTS": str(directory / "reports"), **more},
        )
        workers = settings.spark_workers
        spark = SparkCluster.lay_out(directory / "spark", workers) if workers else None
        return cls(
            source,
            target,
            airflow=airflow,
            ledger=ledger,
            reports=directory / "reports",
            spark=spark.master if spark else settings.spark_master,
            spark_cluster=spark,
            kdc=kdc,
        )

    def start(self) -> None:
        """Boot the clusters, then Airflow. If a step fails, stop everything again."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self.start_clusters()
            if self.spark_cluster:
                self.spark_cluster.start()
            self.airflow.start(self.connections())
            undo.pop_all()

    def start_clusters(self) -> None:
        """Boot source and target, and before them the KDC, if there is one. If a step fails, stop all three."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop_clusters)
            if self.kdc:
                self.kdc.boot()
            boot(self.source, self.target)
            undo.pop_all()

    def stop_clusters(self) -> None:
        """Stop what `start_clusters` starts. A second call does nothing."""
        shut_down(self.source, self.target)
        if self.kdc:
            self.kdc.stop()

    def stop(self) -> None:
        """Stop everything. A second call does nothing."""
        self.airflow.stop()
        if self.spark_cluster:
            self.spark_cluster.stop()
        self.stop_clusters()

    @property
    def servers(self) -> list[processes.ServerProcess]:
        """All running servers, in the order in which to stop them."""
        clusters = [server for cluster in (self.source, self.target) for server in cluster.servers.values()]
        storage = [server for server in clusters if server.name in STORAGE]
        spark = self.spark_cluster.servers.values() if self.spark_cluster else ()
        others = (server for server in clusters if server not in storage)
        kdc = [self.kdc.server] if self.kdc and self.kdc.server else []
        return [*self.airflow.servers.values(), *spark, *others, *storage, *kdc]

    def connections(self) -> dict[str, dict[str, Any]]:
        """Airflow's connections: both clusters (type `hbase`) and Spark."""
        connections: dict[str, dict[str, Any]] = {
            "spark_default": {"conn_type": "spark", "host": self.spark, "extra": {"deploy-mode": "client"}}
        }
        if self.spark_cluster:
            connections["spark_default"] = self.spark_cluster.connection()
        for name, cluster in (("hbase_source", self.source), ("hbase_target", self.target)):
            address = cluster.address
            host, _, port = address.zookeeper.rpartition(":")
            extra = {
                "znode": address.znode,
                "webhdfs": address.webhdfs,
                "rootdir": address.rootdir,
                "waldir": address.waldir,
                "wal_webhdfs": address.wal_webhdfs,
                "thrift": address.thrift,
                **(_login(cluster) or {"user": address.user}),
            }
            connections[name] = {"conn_type": "hbase", "host": host, "port": int(port), "extra": extra}
        return connections

    def endpoints(self) -> dict[str, Any]:
        """The content of `.run/endpoints.json`."""
        clusters = {
            name: {
                "zookeeper": cluster.address.zookeeper,
                "znode": cluster.address.znode,
                "webhdfs": cluster.address.webhdfs,
                "rootdir": cluster.address.rootdir,
                "thrift": cluster.address.thrift,
                "master": cluster.master,
                **_login(cluster),
            }
            for name, cluster in (("source", self.source), ("target", self.target))
        }
        login = {"url": self.airflow.url, "username": USERNAME, "password": self.airflow.password}
        return {**clusters, "airflow": login, "spark": self.spark, "ledger": self.ledger}

    def shell(self) -> str:
        """The content of `.run/environment`: the variables with which a shell can use `airflow` and `walferry` here."""
        # Airflow has these connections in its database; the `walferry` command reads them from here.
        connections = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in self.connections().items()}
        variables = self.airflow.variables() | connections
        path = shlex.quote(str(Path(sys.executable).parent))
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if name != "PATH"]
        return "\n".join([*lines, f'export PATH={path}:"$PATH"', ""])


def _login(cluster: MiniCluster) -> dict[str, str | None]:
    """Who one is to a secured cluster, and the path of its keytab."""
    identity = cluster.address.security.kerberos
    return {} if identity is None else {"principal": identity.principal, "keytab": identity.keytab}


def up(directory: Path = RUN) -> None:
    """Boot everything with empty clusters, leave it running and print the addresses. Raises UsageError if it already
    runs."""
    running = [server for server in processes.read_pid_file(directory / "pids.json") if server.is_alive()]
    if running:
        raise UsageError(f"{amount(len(running), 'server')} of {directory} still running: `make down` first")
    for name in ("source", "target", "airflow", "spark", "kdc"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "ledger.db").unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    environment = Environment.lay_out(directory, EmbeddedServers.read())
    print("booting source, target and Airflow: about a minute", file=sys.stderr)
    environment.start()
    with contextlib.ExitStack() as undo:
        undo.callback(environment.stop)
        environment.airflow.unpause("hbase_migrate")
        processes.write_pid_file(directory / "pids.json", environment.servers)
        write_private(directory / "endpoints.json", json.dumps(environment.endpoints(), indent=1))
        write_private(directory / "environment", environment.shell())
        undo.pop_all()
    for server in environment.servers:
        processes.leash.release(server.pid)
    _print_addresses(environment, directory)


def down(directory: Path = RUN) -> None:
    """Stop the servers that `up` recorded, and print how many; their data and logs stay until the next `up`."""
    servers = processes.read_pid_file(directory / "pids.json")
    last = [server for server in servers if server.name in (*STORAGE, "kdc")]
    processes.stop(server for server in servers if server not in last)
    processes.stop(last)
    for name in ("pids.json", "endpoints.json", "environment"):
        (directory / name).unlink(missing_ok=True)
    print(f"stopped {amount(len(servers), 'server')}" if servers else "nothing to stop: `make up` starts the servers")


def _print_addresses(environment: Environment, directory: Path) -> None:
    for name, cluster in (("source", environment.source), ("target", environment.target)):
        address = cluster.address
        where = f"ZooKeeper {address.zookeeper}  Thrift {address.thrift}  WebHDFS {address.webhdfs}"
        print(f"{name:8} HBase {cluster.version}  {where}")
    if environment.kdc:
        print(f"{'KDC':8} realm {environment.kdc.realm}  principal {_login(environment.source)['principal']}")
    print(f"{'Airflow':8} {environment.airflow.url}  user {USERNAME}")
    print(f"for `airflow` and `walferry` in a shell: . {os.path.relpath(directory / 'environment')}")
    print(f"the password and all addresses: {os.path.relpath(directory / 'endpoints.json')}; to stop: make down")
