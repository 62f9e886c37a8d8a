"""TLS before a PostgreSQL that was built without it: what a client asks for and checks is as with the real thing."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from walferry.embedded.certificates import Certificate

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)  # SSLRequest, PostgreSQL's frontend/backend protocol


@contextmanager
def tls_front(path: Path, certificate: Certificate | None) -> Iterator[int]:
    """The port of 127.0.0.1 where the server at the socket `path` is reached by TLS; without a certificate the front
    refuses TLS, as a server does that has none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, path, certificate), daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, path: Path, certificate: Certificate | None) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_front, args=(client, path, certificate), daemon=True).start()


def _front(client: socket.socket, path: Path, certificate: Certificate | None) -> None:
    with client, suppress(OSError):
        assert client.recv(len(_SSL_REQUEST), socket.MSG_WAITALL) == _SSL_REQUEST
        if certificate is None:
            client.sendall(b"N")
            return
        client.sendall(b"S")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate, certificate.key)
        context.set_alpn_protocols(["postgresql"])
        with context.wrap_socket(client, server_side=True) as sock, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(path))
            threading.Thread(target=_pass_on, args=(server, sock), daemon=True).start()
            _pass_on(sock, server)


def _pass_on(taken: socket.socket, given: socket.socket) -> None:
    with suppress(OSError):
        while piece := taken.recv(1 << 16):
            given.sendall(piece)
    with suppress(OSError):
        given.shutdown(socket.SHUT_RDWR)
