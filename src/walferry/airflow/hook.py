"""Connections of type `hbase`: host = ZooKeeper quorum, port; extras: the other fields of `Cluster`, and those of
`KerberosKeys` and `TlsKeys`."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect
from walferry.run.given_spec import cluster_from_connection
from walferry.run.run import file_system
from walferry.run.spec import Cluster
from walferry.settings import ZooKeeperSession

TEST_SECONDS = 14.0
"""how long the form's test button waits; ZooKeeper alone may take ten seconds"""


class HBaseHook(BaseHook):
    """Reads a connection of type `hbase` and opens clients with it."""

    conn_name_attr = "hbase_conn_id"
    default_conn_name = "hbase_source"
    conn_type = "hbase"
    hook_name = "HBase"

    def __init__(self, hbase_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.hbase_conn_id = hbase_conn_id

    def cluster(self) -> Cluster:
        """The cluster that the connection names. Raises UsageError when a field is missing."""
        connection = self.get_connection(self.hbase_conn_id)
        extra = connection.extra_dejson
        if extra.get("principal") and not any(extra.get(key) for key in ("keytab", "ccache")):
            # Airflow's CLI sets KRB5CCNAME to this; a task that runs as another user loses it.
            extra = {**extra, "ccache": os.environ.get("KRB5CCNAME") or conf.get("kerberos", "ccache")}
        return cluster_from_connection(self.hbase_conn_id, connection.host, connection.port, extra, connection.login)

    def get_conn(self) -> HBaseClient:
        """A client of the cluster; the caller closes it."""
        seconds = ZooKeeperSession.read().zookeeper_session_seconds
        return HBaseClient(replace(self.cluster().address(), session_seconds=seconds))

    def test_connection(self) -> tuple[bool, str]:
        """Contact every service that the connection names, for the form's test button. Returns one line either way."""
        try:
            return True, examine(self.cluster(), TEST_SECONDS)
        except WalferryError as error:
            # Airflow gives a connection under test a made-up id.
            return False, str(error).replace(f"connection {self.hbase_conn_id}", "the connection")


def airflow_connection(connection_id: str) -> Cluster:
    """The cluster of an Airflow connection, for `spec.resolve`."""
    return HBaseHook(connection_id).cluster()


def examine(cluster: Cluster, seconds: float) -> str:
    """Ask ZooKeeper, the master, WebHDFS and, if one is named, the Thrift server. Returns one line about the cluster.

    Raises the WalferryError of the first that fails, or TransientError if the answers take longer than `seconds`.
    """
    asked: list[str] = []
    answers: list[str | WalferryError] = []

    def ask() -> None:
        try:
            answers.append(_examine(cluster, asked))
        except WalferryError as error:
            answers.append(error)
        except Exception as error:  # an error raised here would be lost with the thread
            answers.append(WalferryError(f"{asked[-1]} sent an unexpected answer: {error}"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TransientError(f"{asked[-1]} did not answer within {seconds:.0f} s; is it up?")
    if isinstance(answers[0], WalferryError):
        raise answers[0]
    return answers[0]


def _examine(cluster: Cluster, asked: list[str]) -> str:
    address = cluster.address()
    asked.append(f"ZooKeeper at {cluster.zookeeper}")
    with HBaseClient(address, timeout_s=5) as client:
        cluster_id = client.cluster_id()
        asked.append(f"HBase's master at {client.master().address}")
        version = client.version()
    asked.append(f"WebHDFS at {cluster.webhdfs}")
    if file_system(cluster).status(f"{address.root_path}/hbase.id") is None:
        raise UsageError(f"{cluster.rootdir} is not HBase's root folder: WebHDFS finds no hbase.id in it")
    if cluster.waldir is not None:
        asked.append(f"WebHDFS at {address.of_log.webhdfs}")
        if file_system(cluster, address.of_log).status(f"{address.wal_path}/WALs") is None:
            raise UsageError(f"{cluster.waldir} is not HBase's WAL folder: WebHDFS finds no WALs in it")
    if cluster.thrift:
        asked.append(f"the Thrift server at {cluster.thrift}")
        connect(address).close()
    return f"HBase {version}, cluster {cluster_id}"
