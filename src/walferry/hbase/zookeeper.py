"""What HBase keeps in ZooKeeper: the layout of the znodes and of their values.

A value is "PBUF" and a protobuf message (ProtobufMagic); RecoverableZooKeeper may have put a wrapper in front (0xFF,
int32 big-endian length, identifier; ZKMetadata). Layout: ZNodePaths, ZKReplicationQueueStorage.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError, SessionClosedRequireSaslError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry, RetryFailedError

from walferry.clock import steady_s
from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import AccessDeniedError, LoginRefusedError, ServerGoneError, ZooKeeperError
from walferry.hbase.zookeeper_login import be_patient, sasl_options
from walferry.hbase.zookeeper_tls import TlsHandler, tell
from walferry.request_meter import Meter, Service
from walferry.security import OPEN, Security
from walferry.security.tickets import identity
from walferry.security.tls import TlsError, wants_tls

CONNECT_TIMEOUT_S = 10
_BEGINNING = struct.pack(">iiq", 44, 0, 0)
"""of a session's first request: a server waits for the rest"""
_WRAPPER = 0xFF
_MAGIC = b"PBUF"
_ENDED = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, order=True)
class Server:
    """One incarnation of a region server or master; `start_code` is its start time in ms."""

    host: str
    port: int
    start_code: int

    @property
    def name(self) -> str:
        """HBase's ServerName, "host,port,startcode": the name of its znode and WAL folder."""
        return f"{self.host},{self.port},{self.start_code}"

    @property
    def address(self) -> str:
        """ "host:port" """
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, name: str) -> Server:
        """From "host,port,startcode". Raises ValueError for anything else."""
        host, port, start_code = name.split(",")
        return cls(host, int(port), int(start_code))

    @classmethod
    def of(cls, message: pb.ServerName) -> Server:
        """From HBase's message."""
        return cls(message.host_name, message.port, message.start_code)


@dataclass(frozen=True)
class Children:
    """The names below a znode at one moment. The same twice means that none came or went in between."""

    names: tuple[str, ...]
    created: int
    """id of the transaction that created the znode: another one, once it was deleted and created again"""
    changes: tuple[int, int]
    """how many times a name came or went, and the id of the last such transaction (cversion, pzxid)"""


def unwrap(data: bytes) -> bytes:
    """The value without RecoverableZooKeeper's wrapper. Raises DamagedInputError if the wrapper is cut off."""
    if not data or data[0] != _WRAPPER:
        return data
    if len(data) < 5 or (end := 5 + struct.unpack_from(">I", data, 1)[0]) > len(data):
        raise DamagedInputError("the value of a znode ends inside its wrapper", reason="short wrapper")
    return data[end:]


def parse_znode(data: bytes, message_type: type[M]) -> M:
    """The message in a znode's (or a meta cell's) value. Raises DamagedInputError if there is none."""
    content = unwrap(data)
    try:
        if not content.startswith(_MAGIC):
            raise DecodeError("the value does not begin with PBUF")
        message: M = message_type.FromString(content[len(_MAGIC) :])
        return message
    except DecodeError as error:
        name = message_type.DESCRIPTOR.name
        raise DamagedInputError(f"a znode holds no {name}: {error}", reason=str(error)) from error


def znode(message: Message) -> bytes:
    """The value of a znode that holds a message."""
    content: bytes = message.SerializeToString()
    return _MAGIC + content


def cluster_id_in(data: bytes) -> str:
    """The cluster's id in its znode's value, or in the file `hbase.id`: a message, or bare text in old versions."""
    content = unwrap(data)
    if content.startswith(_MAGIC):
        return parse_znode(content, pb.ClusterId).cluster_id
    return content.decode()


class ZooKeeper:
    """HBase's znodes on one ensemble ("host:port,host:port"), below `znode`; connects at first use."""

    def __init__(
        self,
        hosts: str,
        znode: str,
        meter: Meter | None = None,
        session_seconds: float = 30.0,
        security: Security = OPEN,
    ) -> None:
        self.hosts = hosts
        self._tls = security.zookeeper_tls
        self._kerberos = security.kerberos
        self._refusal: WalferryError | None = None
        self._session_seconds = session_seconds
        self._meter = meter
        self._znode = znode.rstrip("/")
        self._lock = threading.Lock()
        self._client: KazooClient | None = None

    @classmethod
    def of(cls, address: ClusterAddress) -> ZooKeeper:
        """The ensemble of a cluster."""
        return cls(address.zookeeper, address.znode, address.meter(), address.session_seconds, address.security)

    @property
    def client(self) -> KazooClient:
        """The started kazoo client. Raises ZooKeeperError if no server answers."""
        with self._lock:
            if self._client is not None and self._client.client_state in _ENDED:
                # kazoo has stopped trying to connect for good: its session is lost, but a new one can start.
                self.close()
            if self._client is None:
                self._client = self._started()
            return self._client

    def _started(self) -> KazooClient:
        retry = {"max_tries": 3, "delay": 0.2, "max_delay": 2}
        login = self._kerberos and sasl_options(self._kerberos, self._refused)
        client = KazooClient(
            self.hosts,
            # After this time ZooKeeper drops the session of a killed process, which frees its leases.
            timeout=self._session_seconds,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(**retry),
            sasl_options=login,
            handler=None if self._tls is None else TlsHandler(self._tls),
        )
        if self._tls is not None:
            tell(client, self._refused)
        if login is not None:
            be_patient(client, self._logged_in, self._turned_away)
        before = self._refusal
        try:
            self._await_connected(client, before)
            if self._kerberos is not None and login is None:
                client.exists("/")
        except SessionClosedRequireSaslError as error:
            _end(client)
            raise LoginRefusedError(
                f"ZooKeeper at {self.hosts} lets nobody in without a login: name its `zookeeper_service`. Spark's "
                "executors cannot log in there, so it must also let in who does not, to read",
                server=self.hosts,
                principal=None,
                reason="it asks for a login",
            ) from error
        except (KazooTimeoutError, KazooException) as error:
            _end(client)
            if self._refusal is not None and self._refusal is not before:
                raise self._refusal from error
            self._require_plain()
            raise ZooKeeperError(
                f"ZooKeeper at {self.hosts} did not answer within {CONNECT_TIMEOUT_S} s; is it up"
                f"{'' if self._tls is None else ', and does that port speak TLS'}?",
                zookeeper=self.hosts,
            ) from error
        if isinstance(self._refusal, TlsError):
            self._refusal = None  # of another server
        return client

    def _await_connected(self, client: KazooClient, before: WalferryError | None) -> None:
        """As `KazooClient.start`, which waits on after kazoo has given up, for example since a server was refused."""
        connected, deadline = client.start_async(), steady_s() + CONNECT_TIMEOUT_S
        while not connected.wait(0.05):
            refused = self._refusal is not None and self._refusal is not before and client.client_state in _ENDED
            if refused or steady_s() > deadline:
                raise KazooTimeoutError("no connection")
        if not client.connected:
            raise KazooTimeoutError("the connection was lost at once")

    def _require_plain(self) -> None:
        """Raise TlsError if a server that did not answer speaks TLS only."""
        for one in self.hosts.split(",") if self._tls is None else ():
            host, _, port = one.rpartition(":")
            if port.isdigit() and wants_tls(host.strip("[]"), int(port), _BEGINNING):
                raise TlsError(
                    f"ZooKeeper at {one} speaks TLS only; set `zookeeper: true` in the cluster's `tls`, and `ca` to "
                    "its authority",
                    server=one,
                    reason="it speaks TLS only",
                    principal=None,
                )

    def _refused(self, error: WalferryError) -> None:
        self._refusal = error

    def _logged_in(self) -> None:
        self._refusal = None

    def _turned_away(self) -> None:
        assert self._kerberos is not None
        self._refusal = LoginRefusedError(
            f"ZooKeeper at {self.hosts} does not let {identity(self._kerberos)} log in; its log says why. "
            "If it asks for no login, set `zookeeper_service` to none",
            server=self.hosts,
            principal=self._kerberos.principal,
            reason="it closes the connection",
        )

    def close(self) -> None:
        """End the session."""
        if self._client is not None:
            _end(self._client)
            self._client = None

    def cluster_id(self) -> str:
        """The cluster's id from `hbaseid`."""
        return cluster_id_in(self._required("hbaseid"))

    def master(self) -> Server:
        """The active master. Raises ServerGoneError if there is none."""
        return Server.of(parse_znode(self._required("master"), pb.Master).master)

    def master_web_port(self) -> int | None:
        """The port of the active master's web pages; None if it has none. Raises ServerGoneError as `master` does."""
        port = parse_znode(self._required("master"), pb.Master).info_port
        return port if 0 < port < 1 << 16 else None

    def meta_server(self) -> Server:
        """The region server that holds hbase:meta. (HBase 3 asks its masters instead of this znode.)"""
        return Server.of(parse_znode(self._required("meta-region-server"), pb.MetaRegionServer).server)

    def servers(self) -> list[Server]:
        """The live region servers."""
        return sorted(Server.parse(name) for name in self.children("rs"))

    def replication_queues(self, peer_id: str) -> dict[str, set[str]]:
        """Names of the WALs in a peer's queues, by server: one request for each server and one for each queue.

        A dead server's queue that a live one has claimed (queue id "peer-deadserver...") is listed under the dead
        server.
        (HBase 3 keeps queues in hbase:replication instead.)
        """
        queues: dict[str, set[str]] = {}
        for holder in self.children("replication/rs"):
            for queue_id in self.children(f"replication/rs/{holder}"):
                peer, *dead = queue_id.split("-", 1)
                if peer != peer_id:
                    continue
                owner = first_server(dead[0]) if dead else holder
                wals = self.children(f"replication/rs/{holder}/{queue_id}")
                if wals:
                    queues.setdefault(owner, set()).update(wals)
        return queues

    def children(self, path: str) -> list[str]:
        """Names below a znode; none if the znode does not exist."""
        with self._translated(path):
            try:
                return sorted(self.client.retry(self.client.get_children, f"{self._znode}/{path}"))
            except NoNodeError:
                return []

    def children_at(self, path: str) -> Children | None:
        """Names below a znode, and what shows whether they have changed; None if the znode does not exist."""
        with self._translated(path):
            try:
                names, stat = self.client.retry(self.client.get_children, f"{self._znode}/{path}", include_data=True)
            except NoNodeError:
                return None
            return Children(tuple(sorted(names)), stat.czxid, (stat.cversion, stat.pzxid))

    def catch_up(self, path: str) -> None:
        """Have the server that answers this session catch up with the leader: what it shows may be some seconds old."""
        with self._translated(path):
            self.client.retry(self.client.sync, f"{self._znode}/{path}")

    def read(self, path: str) -> bytes | None:
        """The value of one of HBase's znodes; None if the znode does not exist."""
        with self._translated(path):
            try:
                data: bytes = self.client.retry(self.client.get, f"{self._znode}/{path}")[0]
            except NoNodeError:
                return None
            return data

    def create(self, values: Mapping[str, bytes]) -> None:
        """Create some of HBase's znodes, parents first, all or none; the parent of the first is created if needed.

        Raises ZooKeeperError if one of them exists.
        """
        first = next(iter(values))
        with self._translated(first):
            self.client.retry(self.client.ensure_path, f"{self._znode}/{first}".rpartition("/")[0])
            transaction = self.client.transaction()
            for path, value in values.items():
                transaction.create(f"{self._znode}/{path}", value)
            for outcome in transaction.commit():
                if isinstance(outcome, KazooException):
                    raise outcome

    def write(self, path: str, value: bytes) -> None:
        """Change the value of one of HBase's znodes. Raises ZooKeeperError if it does not exist."""
        with self._translated(path):
            self.client.retry(self.client.set, f"{self._znode}/{path}", value)

    def delete(self, path: str) -> None:
        """Delete one of HBase's znodes and everything below it, if it exists."""
        with self._translated(path), suppress(NoNodeError):
            self.client.retry(self.client.delete, f"{self._znode}/{path}", recursive=True)

    def _required(self, path: str) -> bytes:
        data = self.read(path)
        if data is None:
            raise ServerGoneError(
                f"ZooKeeper at {self.hosts} has no {self._znode}/{path}; is HBase up?",
                zookeeper=self.hosts,
                znode=f"{self._znode}/{path}",
            )
        return data

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        facts: dict[str, Any] = {"zookeeper": self.hosts, "znode": f"{self._znode}/{path}"}
        if self._meter is not None:
            self._meter.request(Service.ZOOKEEPER)
        try:
            yield
        except AuthFailedError as error:
            if self._refusal is not None:
                raise self._refusal from error
            raise ZooKeeperError(f"a login to ZooKeeper at {self.hosts} failed and then worked", **facts) from error
        except NoAuthError as error:
            message = f"ZooKeeper at {self.hosts} does not let this user read {self._znode}/{path}"
            raise AccessDeniedError(message, **facts) from error
        except (KazooException, KazooTimeoutError, RetryFailedError) as error:
            message = f"ZooKeeper at {self.hosts} failed at {self._znode}/{path}: {error!r}"
            raise ZooKeeperError(message, **facts) from error


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def first_server(dead_servers: str) -> str:
    """The first of "host,port,code-host,port,code": the server whose queue it was. Host names may contain dashes."""
    head = dead_servers.split(",", 2)
    return f"{head[0]},{head[1]},{head[2].split('-', 1)[0]}"
