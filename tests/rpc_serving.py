"""An RpcServer in a thread of its own, for tests that call it or have a real HBase call it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from unit.hbase.rpc_server import receive
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import PREAMBLE, Authenticate, Simple
from walferry.hbase.rpc import CODEC_WITH_TAGS, RpcConnection, decode_delimited
from walferry.hbase.rpc_server import Handler, ReceivedCall, RpcServer
from walferry.security.accepting import Service
from walferry.security.accepting_tls import ServerTls
from walferry.security.tls import Tls

MEMORY = 8 << 20
ALICE = Simple("alice")


class Served:
    """A server in a thread of its own, as the tests see it."""

    def __init__(self, server: RpcServer, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.port = port
        self.loop = loop
        self.shut_out: list[str] = []

    def connection(
        self,
        codec: str | None = CODEC_WITH_TAGS,
        authenticate: Authenticate = ALICE,
        host: str = "127.0.0.1",
        tls: Tls | None = None,
    ) -> RpcConnection:
        return RpcConnection(f"{host}:{self.port}", "AdminService", codec, authenticate, tls)

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def greeted(self, compressor: str | None = None) -> socket.socket:
        """A connection that has said who it is."""
        sock = self.plain()
        sock.sendall(greeting(compressor))
        return sock

    def await_held(self, held: Callable[[int], bool]) -> None:
        await_true(lambda: held(self.server.held_bytes))


class Unanswered:
    """Takes calls, and never answers them."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def handle(self, call: ReceivedCall) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""


def greeting(compressor: str | None = None) -> bytes:
    """What a connection begins with that does not log in."""
    content = pb.ConnectionHeader(
        service_name="AdminService", cell_block_codec_class=CODEC_WITH_TAGS, cell_block_compressor_class=compressor
    )
    body: bytes = content.SerializeToString()
    return PREAMBLE + b"\x50" + len(body).to_bytes(4, "big") + body


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def serving(
    handle: Handler,
    memory_bytes: int = MEMORY,
    read_seconds: float = 20.0,
    apart: Mapping[str, int] | None = None,
    login: Service | None = None,
    tls: ServerTls | None = None,
) -> Iterator[Served]:
    shut_out: list[str] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[RpcServer, int]:
        server = RpcServer(
            handle, host="127.0.0.1", port=0, memory_bytes=memory_bytes, read_seconds=read_seconds, apart=apart,
            login=login, tls=tls, shut_out=shut_out.append,
        )  # fmt: skip
        return server, await server.start()

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    served = Served(server, port, loop)
    served.shut_out = shut_out
    try:
        yield served
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(20)
        left = asyncio.all_tasks(loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
        assert not [task for task in left if not task.done()]


async def echo(call: ReceivedCall) -> bytes:
    """Answers the bytes of cells that came."""
    return bytes(pb.CellBlockMeta(length=len(call.cells)).SerializeToString())


def answer_of(sock: socket.socket) -> tuple[pb.ResponseHeader, bytes]:
    frame = memoryview(receive(sock, int.from_bytes(receive(sock, 4), "big")))
    header, position = decode_delimited(frame, 0, pb.ResponseHeader)
    return header, bytes(frame[position:])


def ended(sock: socket.socket) -> bool:
    """Whether the server closes the connection, whatever it says before."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True
