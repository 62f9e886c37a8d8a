"""Clients of the RPC inside TLS, by Python's ssl alone."""

from __future__ import annotations

import ssl
from contextlib import closing, suppress

import pytest

from rpc_serving import Served
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.rpc import decode_delimited
from walferry.security import Tls

METHOD = "ReplicateWALEntry"
PARAMETER = pb.ClusterId(cluster_id="what the client asks")
ADDRESS = "127.0.0.1"
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])


def client_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def inside(served: Served, tls: Tls, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    """A connection that has shaken hands."""
    context = client_context(tls)
    context.minimum_version = context.maximum_version = version
    return context.wrap_socket(served.plain(), server_hostname=ADDRESS)


def length_of(served: Served, tls: Tls, cells: bytes = b"cells") -> int:
    with closing(served.connection(tls=tls)) as connection:
        return connection.call(METHOD, PARAMETER, pb.CellBlockMeta, cells)[0].length


class Client:
    """TLS of a client by hand: its bytes can be held back or changed."""

    def __init__(self, served: Served, tls: Tls) -> None:
        self.sock = served.plain()
        self._came, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context(tls).wrap_bio(self._came, self._to_send, server_hostname=ADDRESS)

    def hello(self) -> bytes:
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._to_send.read()

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(self._to_send.read())
                self._came.write(self.sock.recv(1 << 16))
        self.sock.sendall(self._to_send.read())

    def wrapped(self, content: bytes) -> bytes:
        """Records with this content."""
        self.tls.write(content)
        return self._to_send.read()

    def read(self, length: int) -> bytes:
        got = b""
        while len(got) < length:
            try:
                got += self.tls.read(length - len(got))
            except ssl.SSLWantReadError:
                content = self.sock.recv(1 << 16)
                assert content, "the server has closed"
                self._came.write(content)
        return got


def answer(client: Client) -> int:
    frame = memoryview(client.read(int.from_bytes(client.read(4), "big")))
    header, position = decode_delimited(frame, 0, pb.ResponseHeader)
    assert not header.HasField("exception"), header.exception.stack_trace
    return decode_delimited(frame, position, pb.CellBlockMeta)[0].length
