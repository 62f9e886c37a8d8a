"""A large source for `round_cost`: what its NameNode, its ZooKeeper and its HBase answer.

The NameNode is a process of its own (`serve`), so that its work is not counted.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import requests
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KeeperState

from unit.formats.wal_builder import entry as wal_entry
from unit.formats.wal_builder import header
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server, ZooKeeper
from walferry.ledger import SeenFile
from walferry.run.run import Run

ROOT = "/hbase"
KEPT_LIVE = 2
"""closed logs that a server still has in its own folder: regions have edits in them that are not flushed yet"""
LENGTH = 16 << 20
OPEN_LOG = header() + b"".join(wal_entry([encode_cell(b"r", b"f", b"q", 1, 4)], number) for number in range(1, 51))
"""of another table than those that are moved"""
FILE = (
    '{"accessTime":%d,"blockSize":268435456,"childrenNum":0,"fileId":16435,"group":"supergroup",'
    '"length":%d,"modificationTime":%d,"owner":"hbase","pathSuffix":"%s","permission":"644",'
    '"replication":3,"storagePolicy":0,"type":"FILE"}'
)
FOLDER = (
    '{"accessTime":0,"blockSize":0,"childrenNum":1,"fileId":16432,"group":"supergroup","length":0,'
    '"modificationTime":%d,"owner":"hbase","pathSuffix":"%s","permission":"755","replication":0,'
    '"storagePolicy":0,"type":"DIRECTORY"}'
)
MISSING = (
    '{"RemoteException":{"exception":"FileNotFoundException","javaClassName":"java.io.FileNotFoundException",'
    '"message":"File does not exist: %s"}}'
)


@dataclass(frozen=True)
class Size:
    """How large the source is."""

    servers: int
    regions: int
    wals: int
    """created in a day, and kept as long"""
    tables: int
    rounds: int
    """in a day"""


def group_of(server: Server) -> str:
    """The WAL group of a server."""
    return quote(server.name, safe="")


def servers_of(size: Size, start_ms: int) -> list[Server]:
    """The region servers, all started at once."""
    return [Server(f"rs{n:03}.example.org", 16020, start_ms) for n in range(size.servers)]


@dataclass
class Logs:
    """Which logs exist: for each server the numbers of those in its folder, the last one open, and in the archive."""

    servers: list[Server]
    live: dict[str, list[int]] = field(default_factory=dict)
    archived: dict[str, list[int]] = field(default_factory=dict)

    def roll(self, server: Server, number: int) -> None:
        """The server begins a new log; older ones move on."""
        mine = self.live.setdefault(server.name, [])
        mine.append(number)
        while len(mine) > KEPT_LIVE + 1:
            self.archived.setdefault(group_of(server), []).append(mine.pop(0))

    def is_open(self, path: str) -> bool:
        """Whether a server writes to that log."""
        folder, _, name = path.rpartition("/")
        numbers = self.live.get(folder.rpartition("/")[2], [])
        return bool(numbers) and name.endswith(f".{numbers[-1]}")

    def let_go(self, before: int) -> None:
        """The cleaner deletes archived logs that began before a moment."""
        for group, numbers in self.archived.items():
            self.archived[group] = [number for number in numbers if number >= before]

    def answer(self, path: str, operation: str) -> tuple[int, str]:
        """The NameNode's answer."""
        entries = None
        if path == f"{ROOT}/WALs":
            entries = [FOLDER % (server.start_code, server.name) for server in self.servers]
        elif path == f"{ROOT}/oldWALs":
            entries = [entry(group, n, LENGTH) for group, numbers in self.archived.items() for n in numbers]
        folder, _, name = path.rpartition("/")
        server = name if operation == "LISTSTATUS" else folder.rpartition("/")[2]
        numbers = self.live.get(server, [])
        if operation == "LISTSTATUS" and entries is None and numbers:
            group = quote(server, safe="")
            entries = [entry(group, n, 0 if n == numbers[-1] else LENGTH) for n in numbers]
        if entries is not None:
            return 200, '{"FileStatuses":{"FileStatus":[\n' + ",\n".join(entries) + "\n]}}"
        group, _, text = name.rpartition(".")
        number = int(text) if text.isdigit() else -1
        if folder == f"{ROOT}/oldWALs" and number in self.archived.get(group, []):
            return 200, f'{{"FileStatus":{entry(group, number, LENGTH, name="")}}}'
        if folder == f"{ROOT}/WALs/{server}" and number in numbers:
            return 200, f'{{"FileStatus":{entry(group, number, 0 if number == numbers[-1] else LENGTH, name="")}}}'
        return 404, MISSING % path


def entry(group: str, number: int, length: int, name: str | None = None) -> str:
    """One file as the NameNode lists it."""
    return FILE % (number, length, number, f"{group}.{number}" if name is None else name)


def serve(logs: Logs, orders: Connection) -> None:
    """Answer until told to stop; `orders` are calls of `Logs`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            operation = parse_qs(url.query)["op"][0]
            path = unquote(url.path.removeprefix("/webhdfs/v1"))
            if operation == "OPEN":  # a DataNode's answer: an open log, or the end of a closed one
                code, body = 200, b"....LAWP" if "length=4" not in url.query else b"LAWP"
                if logs.is_open(path):
                    body = OPEN_LOG[int(parse_qs(url.query).get("offset", ["0"])[0]) :]
            else:
                code, text = logs.answer(path, operation)
                body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    orders.send(server.server_port)
    while (order := orders.recv()) is not None:
        getattr(logs, order[0])(*order[1:])
        orders.send(None)


@dataclass
class Waits:
    """Time spent waiting for servers, and how often."""

    seconds: float = 0.0
    webhdfs: int = 0
    zookeeper: int = 0

    @contextmanager
    def wait(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun


class Znodes:
    """ZooKeeper's answers about the queues of one peer, as kazoo's client returns them."""

    client_state = KeeperState.CONNECTED

    def __init__(self, waits: Waits, servers: Sequence[Server], peer: str) -> None:
        self._waits = waits
        self._peer = peer
        self.queues: dict[str, set[str]] = {server.name: set() for server in servers}
        self._position = b"PBUF" + pb.ReplicationHLogPosition(position=0).SerializeToString()

    def retry(self, work: Callable[[str], Any], path: str) -> Any:
        self._waits.zookeeper += 1
        with self._waits.wait():
            return work(path)

    def get_children(self, path: str) -> list[str]:
        parts = path.removeprefix("/hbase/replication/rs").strip("/").split("/")
        if parts == [""]:
            return list(self.queues)
        if parts[0] not in self.queues:
            raise NoNodeError
        return [self._peer] if len(parts) == 1 else list(self.queues[parts[0]])

    def get(self, path: str) -> tuple[bytes, None]:
        return self._position, None


class Source:
    """What the driver asks a source's HBase for."""

    def __init__(self, size: Size, run: Run, orders: Connection, waits: Waits, servers: list[Server]) -> None:
        self._size, self._orders, self._waits, self._servers = size, orders, waits, servers
        self._peer = run.peer
        self.now = servers[0].start_code
        self.newest: dict[str, int] = {}
        self.znodes = Znodes(waits, servers, run.peer)
        self.zookeeper = ZooKeeper("127.0.0.1:1", "/hbase")
        self.zookeeper._client = self.znodes
        dice = random.Random(1)
        homes = [dice.randrange(len(servers)) for _ in range(size.regions)]
        names = [pair.source for pair in run.tables]
        self._regions: dict[str, list[Region]] = {name: [] for name in names}
        self.tables_on: dict[str, set[str]] = {server.name: set() for server in servers}
        for number, home in enumerate(homes):
            table = names[number % len(names)]
            row = b"%06d" % number
            name = b"%s,%s,%d" % (table.encode(), row, number)
            self._regions[table].append(Region(name, f"{number:032x}", table, row, b"", servers[home], number, 2))
            self.tables_on[servers[home].name].add(table)

    def servers(self) -> list[Server]:
        return self._servers

    def peers(self) -> dict[str, tuple[bool, str]]:
        return {self._peer: (False, "")}

    def peer_queues(self, peer: str) -> dict[str, set[str]]:
        return self.zookeeper.replication_queues(peer)

    def write_counts(self, server: Server, tables: object, attempts: int = 1) -> dict[str, int]:
        """Something new at every cut."""
        return {"any": self.now}

    def regions(self, table: str) -> list[Region]:
        return self._regions[table]

    def table_enabled(self, table: str) -> bool:
        return True

    def settings(self, server: Server) -> None:
        """No server tells its settings."""

    def roll_wal(self, server: Server, attempts: int = 1) -> None:
        with self._waits.wait():
            self.begin_log(server)

    def begin_log(self, server: Server) -> SeenFile | None:
        """Roll a server's log. Returns the closed one."""
        self.now += 1
        before = self.newest.get(server.name)
        self.newest[server.name] = self.now
        self.znodes.queues[server.name].add(f"{group_of(server)}.{self.now}")
        self._order("roll", server, self.now)
        return None if before is None else closed(server, before)

    def let_go(self, before: int) -> None:
        """The cleaner deletes what began before a moment, and the peer's queue no longer has it."""
        self._order("let_go", before)
        for name, queue in self.znodes.queues.items():
            self.znodes.queues[name] = {wal for wal in queue if int(wal.rpartition(".")[2]) >= before}

    def _order(self, *order: Any) -> None:
        self._orders.send(order)
        self._orders.recv()

    def close(self) -> None:
        """Nothing is open."""


def opened(server: Server, number: int) -> SeenFile:
    """A log that is being written, as it is listed."""
    name = f"{group_of(server)}.{number}"
    return SeenFile(name, group_of(server), server.name, number, f"{ROOT}/WALs/{server.name}/{name}", 1, False)


def closed(server: Server, number: int) -> SeenFile:
    """A log that is closed and archived, as it is listed."""
    name = f"{group_of(server)}.{number}"
    return SeenFile(name, group_of(server), server.name, number, f"{ROOT}/oldWALs/{name}", LENGTH, True)


@contextmanager
def timed_requests(waits: Waits) -> Iterator[None]:
    """Count requests, how long WebHDFS takes to answer, and how long the driver sleeps until it asks again."""
    send, receive, sleep = requests.Session.send, socket.SocketIO.readinto, time.sleep

    def counted(self: requests.Session, *args: Any, **more: Any) -> requests.Response:
        waits.webhdfs += 1
        return send(self, *args, **more)

    def timed_receive(self: socket.SocketIO, buffer: Any) -> int | None:
        with waits.wait():
            return receive(self, buffer)

    def timed_sleep(seconds: float) -> None:
        with waits.wait():
            sleep(seconds)

    requests.Session.send = counted  # type: ignore[method-assign]
    socket.SocketIO.readinto = timed_receive  # type: ignore[method-assign, assignment]
    time.sleep = timed_sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        requests.Session.send = send  # type: ignore[method-assign]
        socket.SocketIO.readinto = receive  # type: ignore[method-assign]
        time.sleep = sleep
