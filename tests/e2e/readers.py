"""What the end-to-end tests look at from outside, by readers that are not walferry's."""

from __future__ import annotations

import time
from collections.abc import Callable

import happybase

from walferry.hbase.address import ClusterAddress
from walferry.hbase.thrift import connect


def content(address: ClusterAddress, table: str) -> dict[bytes, dict[bytes, tuple[bytes, int]]]:
    """Every visible cell with its timestamp, as Thrift's scanner gives it."""
    connection: happybase.Connection = connect(address)
    return dict(connection.table(table).scan(include_timestamp=True))


def wait_for(what: Callable[[], object], seconds: float, message: str) -> None:
    """Ask twice a second until it holds; AssertionError with the message when the time is over."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s: {message}"
        time.sleep(0.5)
