"""What a source sees of a sink in ZooKeeper: a subtree that a peer's cluster key names, "host:port:/path".

    <path>               its value says that walferry made it
    <path>/hbaseid       the sink's cluster id. Each region server reads it when it starts the peer's source, and again
                         for its connection to the sink (1.7, 2.2, 2.6). The master of 2.6 reads it when the peer is
                         added, and refuses one whose cluster has no id, or the source's own
    <path>/rs            its names are read and watched by each region server, and read again after calls that failed
                         (1.7, 2.2, 2.6)
    <path>/rs/<server>   ephemeral, one of each receiving process: only the name matters, "host,port,startcode"

No version reads anything else: no master, no meta, no state of the cluster.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ZooKeeperError
from walferry.hbase.zookeeper import ZooKeeper, cluster_id_in, znode
from walferry.replay.rights import znodes

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""between two looks at the own node while the session goes on; when the session changes, it is looked at once"""
_MADE_BY = b"walferry receive"
"""the value of a path that Presence has made"""


class ForeignPathError(UsageError):
    """A path was not made by walferry; fact `path`."""


class StillShownError(TransientError):
    """Processes show themselves below a path; facts `path`, `servers`."""


class Presence:
    """The node of one receiving process, in a session of its own, which ends with the block."""

    def __init__(self, address: ClusterAddress, path: str, cluster_id: str, host: str, port: int) -> None:
        """`address`: whose ZooKeeper; `cluster_id`: the sink's; `host`: a name that the source's servers resolve."""
        self.server = f"{host},{port},{now_ms()}"
        self._address = address
        self._path = path
        self._cluster_id = cluster_id
        self._acl = znodes.own(address.zookeeper_login)
        self._zookeeper = _below(address, path)
        self._node = f"{path}/rs/{self.server}"
        self._shown = False
        self._changing = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._keeper = threading.Thread(target=self._keep, name=f"presence of {self.server}", daemon=True)

    def __enter__(self) -> Self:
        """Make what is missing of the subtree. Raises UsageError if it is another cluster's."""
        try:
            client = self._zookeeper.client
            with _translated(self._address, self._path), znodes.refusals_told(client, self._path):
                self._make(client)
        except BaseException:
            self._zookeeper.close()
            raise
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the session, and the node with it."""
        self._ended = True
        self._wake.set()
        self._keeper.join()
        with suppress(WalferryError):  # then the session ends by itself
            self.hide()
        self._zookeeper.close()

    def show(self) -> None:
        """Let sources find this process: from now on the node is there, also after the session has expired."""
        with self._changing:
            self._ensure()
            self._shown = True

    def hide(self) -> None:
        """Delete the node: sources send nothing more here, except what is under way."""
        with self._changing:
            self._shown = False
            with _translated(self._address, self._node), suppress(NoNodeError):
                client = self._zookeeper.client
                client.retry(client.delete, self._node)

    def others(self) -> list[str]:
        """The nodes of the other processes that show themselves."""
        return [name for name in self._zookeeper.children("rs") if name != self.server]

    def _make(self, client: KazooClient) -> None:
        znodes.ensure_folder(client, self._path.rpartition("/")[0] or "/", self._address.zookeeper_login)
        for node, value in (
            (self._path, _MADE_BY),
            (f"{self._path}/hbaseid", znode(pb.ClusterId(cluster_id=self._cluster_id))),
            (f"{self._path}/rs", b""),
        ):
            with suppress(NodeExistsError):
                client.retry(client.create, node, value, acl=self._acl)
            if node == self._path:
                _require_own(client, self._address, self._path)
        there = cluster_id_in(client.retry(client.get, f"{self._path}/hbaseid")[0])
        if there != self._cluster_id:
            raise UsageError(
                f"{self._path} in ZooKeeper at {self._address.zookeeper} presents the cluster {there}, and the sink is "
                f"{self._cluster_id}: name another path, or end the run that receives there and remove the path",
                path=self._path,
                there=there,
                sink=self._cluster_id,
            )

    def _keep(self) -> None:
        """Look at the node now and then, and whenever the session has changed."""
        while True:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            if self._ended:
                return
            try:
                self._keep_once()
            except WalferryError as error:
                log.warning("%s may not be seen by its sources: %s", self.server, error)

    def _keep_once(self) -> None:
        with self._changing:
            if self._shown:
                self._ensure()

    def _ensure(self) -> None:
        """Make the node unless this session has it."""
        with _translated(self._address, self._node), znodes.refusals_told(self._zookeeper.client, self._node):
            client = self._zookeeper.client
            client.add_listener(self._session_changed)  # kazoo keeps one copy, however often it is added
            found = client.retry(client.exists, self._node)
            if found is not None and found.ephemeralOwner == client.client_id[0]:
                return
            if found is not None:  # of a session that has ended for us, and soon for ZooKeeper
                with suppress(NoNodeError):
                    client.retry(client.delete, self._node)
            with suppress(NodeExistsError):  # made by a first attempt, whose answer was lost
                client.retry(client.create, self._node, b"", acl=self._acl, ephemeral=True)
            log.info("%s shows itself in %s", self.server, self._path)

    def _session_changed(self, _: object) -> None:
        self._wake.set()


def remove(address: ClusterAddress, path: str) -> None:
    """Delete a subtree that Presence has made; nothing if there is none. What others made in it, stays, and the path.

    Raises ForeignPathError if walferry did not make it, StillShownError while processes show themselves in it.
    """
    zookeeper = _below(address, path)
    try:
        with _translated(address, path):
            client = zookeeper.client
            if client.retry(client.exists, path) is None:
                return
            _require_own(client, address, path)
            if shown := zookeeper.children("rs"):
                raise StillShownError(
                    f"{', '.join(shown)} may still receive at {path} in ZooKeeper at {address.zookeeper}: end these "
                    f"processes; the node of a killed one goes within {address.session_seconds:g} s",
                    path=path,
                    servers=shown,
                )
            with znodes.refusals_told(client, path):
                for node in (f"{path}/rs", f"{path}/hbaseid", path):
                    with suppress(NoNodeError, NotEmptyError):
                        client.retry(client.delete, node)
    finally:
        zookeeper.close()


def _below(address: ClusterAddress, path: str) -> ZooKeeper:
    return ZooKeeper(address.zookeeper, path, address.meter(), address.session_seconds, address.security)


def _require_own(client: KazooClient, address: ClusterAddress, path: str) -> None:
    """Raise ForeignPathError unless Presence has made the path."""
    if client.retry(client.get, path)[0] != _MADE_BY:
        raise ForeignPathError(
            f"{path} in ZooKeeper at {address.zookeeper} was not made by walferry receive, and may be a cluster's: "
            "name a path that does not exist yet",
            path=path,
        )


@contextmanager
def _translated(address: ClusterAddress, path: str) -> Iterator[None]:
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        raise ZooKeeperError(
            f"ZooKeeper at {address.zookeeper} failed at {path}: {error!r}", zookeeper=address.zookeeper, znode=path
        ) from error
