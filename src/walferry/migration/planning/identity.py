"""Who walferry is at each secured cluster, as that cluster's services say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from walferry.hbase.address import ClusterAddress
from walferry.hbase.authentication import purpose_of
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.zookeeper import ZooKeeper
from walferry.security.handed import WorkerLoginError
from walferry.security.held_token import to_hand_over
from walferry.security.kerberos import AuthenticationError, KerberosUnavailableError, Qop
from walferry.security.renewal import ticket_of
from walferry.security.tickets import identity
from walferry.wal.copies import hdfs_of


@dataclass(frozen=True)
class Identity:
    """One side's; `hbase_user` is None if HBase does not tell, `protection` if it asks for no login."""

    side: str
    principal: str
    hbase_user: str | None
    hdfs_user: str
    zookeeper_login: bool
    protection: Qop | None
    """of HBase's RPC"""
    ticket_ends_ms: int | None

    def __str__(self) -> str:
        hbase = self.hbase_user or "one that HBase does not tell"
        login = "logged in to ZooKeeper" if self.zookeeper_login else "not logged in to ZooKeeper"
        rpc = "not logged in to HBase" if self.protection is None else f"RPC with {self.protection}"
        return f"{self.side}: {self.principal}: the user {hbase} of HBase and {self.hdfs_user} of HDFS; {login}; {rpc}"


def identities(clients: Mapping[str, HBaseClient]) -> Iterator[Identity]:
    """Of the sides that are secured. Each service of both sides has been asked something.

    Raises AuthenticationError or KerberosUnavailableError, which names the side, for a login that fails.
    """
    for side, client in clients.items():
        try:
            found = _identity(side, client)
        except (AuthenticationError, KerberosUnavailableError, WorkerLoginError) as error:
            raise type(error)(f"{side}: {error.message}", **error.facts) from error
        if found is not None:
            yield found


def _require_workers(address: ClusterAddress) -> None:
    """Raise AuthenticationError unless Spark's workers can log in: with a token, and to ZooKeeper not at all."""
    if (purpose := purpose_of(address)) is not None:
        to_hand_over().token(purpose)
    zookeeper = ZooKeeper.of(address.without_zookeeper_login())
    try:
        zookeeper.cluster_id()
        zookeeper.master()
    except AccessDeniedError as error:
        raise AuthenticationError(
            f"Spark's workers read ZooKeeper without a login, and {error.message}; HBase lets everybody read that",
            **error.facts,
        ) from error
    finally:
        zookeeper.close()


def _identity(side: str, client: HBaseClient) -> Identity | None:
    files = hdfs_of(client.address)
    files.status("/")
    if client.address.wal_webhdfs is not None:
        hdfs_of(client.address.of_log).status("/")
    client.cluster_id()  # before the master is looked for, whose absence would not tell a wrong znode
    client.version()
    kerberos = client.address.security.kerberos
    if kerberos is None:
        return None
    _require_workers(client.address)
    ticket = ticket_of(kerberos)
    return Identity(
        side,
        identity(kerberos),
        client.who_am_i() if client.address.hbase_kerberos is not None else client.address.user,
        files.user,
        client.address.zookeeper_login,
        client.pool.qop(),
        None if ticket is None else round(ticket.end * 1000),
    )
