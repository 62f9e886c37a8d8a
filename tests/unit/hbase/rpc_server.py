"""A server for tests of the RPC client, and the bytes of one: real sockets, recorded from HBase 2.6.3."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from walferry.formats.proto import hbase_pb2 as pb

VERSION_ANSWER = "00000019020811150a130a0f0a0d322e362e332d6861646f6f70335000"
VERSION = pb.GetClusterStatusRequest(options=[0])


def version_answer(call_id: int) -> bytes:
    """The recorded answer to VERSION, to the call of that id, below 128."""
    return bytes.fromhex(VERSION_ANSWER.replace("0811", f"08{call_id:02x}", 1))


def frame(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def delimited(message: pb.ResponseHeader | pb.GetClusterStatusResponse) -> bytes:
    content = bytes(message.SerializeToString())
    assert len(content) < 128
    return bytes([len(content)]) + content


def receive(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := peer.recv(length - len(data))):
        data += more
    return data


def read_request(peer: socket.socket) -> bytes:
    length = receive(peer, 4)
    return length + receive(peer, int.from_bytes(length, "big"))


def read_handshake(peer: socket.socket) -> tuple[bytes, pb.ConnectionHeader]:
    preamble = receive(peer, 6)
    return preamble, pb.ConnectionHeader.FromString(read_request(peer)[4:])


@contextmanager
def server(serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A socket that treats every connection as `serve` says, one after the other; with `tls` after a handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                # As HBase's. Otherwise an answer may wait until TLS's tickets are acknowledged, and is lost at close.
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with (
                    suppress(ConnectionResetError, ssl.SSLError),
                    peer if tls is None else tls.wrap_socket(peer, server_side=True) as ready,
                ):
                    serve(ready)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)
