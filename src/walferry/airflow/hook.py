"""Connections of type `hbase`: host = ZooKeeper quorum, port, extras znode, webhdfs, rootdir, thrift, user."""

from __future__ import annotations

from airflow.sdk import BaseHook

from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.migration.spec import Cluster, cluster_from_connection


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
        """The cluster that the connection names; UsageError when a field is missing."""
        connection = self.get_connection(self.hbase_conn_id)
        return cluster_from_connection(
            self.hbase_conn_id, connection.host, connection.port, connection.extra_dejson, connection.login
        )

    def get_conn(self) -> HBaseClient:
        """A client of the cluster; the caller closes it."""
        return HBaseClient(self.cluster().address())

    def test_connection(self) -> tuple[bool, str]:
        """Reach the cluster's master, for the button in the connection form."""
        try:
            with self.get_conn() as client:
                return True, f"HBase {client.version()}, cluster {client.cluster_id()}"
        except WalferryError as error:
            return False, str(error)


def airflow_connection(connection_id: str) -> Cluster:
    """The cluster behind an Airflow connection id, as `spec.resolve` wants it."""
    return HBaseHook(connection_id).cluster()
