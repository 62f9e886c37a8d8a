"""A listener from which no answer of Kafka's comes proves nothing; the others are asked on a real broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from walferry.streams.kafka.listeners import misfit
from walferry.streams.kafka.settings import KafkaSettings

PROTOCOLS = ["plaintext", "SASL_PLAINTEXT", "ssl", "sasl_ssl"]


def towards(port: int, protocol: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=f"127.0.0.1:{port}", client={"security.protocol": protocol})


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x01"]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_a_server_that_is_not_kafka_nothing_is_said(listener: socket.socket, protocol: str, answer: bytes) -> None:
    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    assert misfit(towards(listener.getsockname()[1], protocol)) is None
    listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_who_listens_is_nothing_to_tell(listener: socket.socket, protocol: str) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert misfit(towards(port, protocol)) is None


def test_a_broker_that_hangs_is_waited_for_only_shortly(listener: socket.socket) -> None:
    started = time.monotonic()
    assert misfit(towards(listener.getsockname()[1], "sasl_ssl")) is None
    assert time.monotonic() - started < 5
