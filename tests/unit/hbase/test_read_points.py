"""Which answers count as a server's own read point of a region."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Simple
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RemoteError, RequestTimeoutError, ServerBusyError, ServerGoneError
from walferry.hbase.read_points import AT_ONCE, read_points
from walferry.hbase.rpc import ConnectionPool

SERVER = "127.0.0.1,16020,17"
REGION = Region(b"t,,1.e.", "e", "t", b"", b"", None, 1)


class Pool:
    """Answers with these messages, or fails with these errors, by method; None: what the server SERVER answers."""

    def __init__(self, answers: dict[str, Any]) -> None:
        name = pb.ServerName(host_name="127.0.0.1", port=16020, start_code=17)
        info = pb.GetServerInfoResponse(server_info=pb.ServerInfo(server_name=name))
        self._answers = {"Scan": pb.ScanResponse(mvcc_read_point=8), "GetServerInfo": info} | answers
        self.methods: list[str] = []

    def call(self, _: str, __: str, method: str, *___: Any, **____: Any) -> tuple[Any, bytes]:
        self.methods.append(method)
        answer = self._answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer, b""


def told(pool: Pool | ConnectionPool, *servers: str) -> list[int | None]:
    client = cast(Calls, SimpleNamespace(pool=pool, timeout_s=5.0))
    return read_points(client, [(server, REGION) for server in servers], attempts=1)


def test_a_server_is_asked_for_its_name_once_after_all_its_answers() -> None:
    pool = Pool({})
    assert told(pool, SERVER, SERVER, SERVER) == [8, 8, 8]
    assert pool.methods == ["Scan", "Scan", "Scan", "GetServerInfo"]


def test_another_process_does_not_answer_for_the_one_that_was_asked() -> None:
    assert told(Pool({}), "127.0.0.1,16020,16", SERVER, "127.0.0.1,16020,18") == [None, 8, None]


@pytest.mark.parametrize("method", ["Scan", "GetServerInfo"])
def test_a_server_that_stops_is_gone_but_one_that_may_still_answer_is_not(method: str) -> None:
    assert told(Pool({method: ServerGoneError("it stops")}), SERVER) == [None]
    for error in (ServerBusyError("later"), RequestTimeoutError("no answer")):
        with pytest.raises(type(error)):
            told(Pool({method: error}), SERVER)


def test_an_address_where_nobody_listens_has_no_server() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert told(ConnectionPool(Simple("tests")), f"127.0.0.1,{bound.getsockname()[1]},17") == [None]


def test_a_server_too_old_to_tell_is_named() -> None:
    with pytest.raises(
        RemoteError, match=r"127.0.0.1,16020,17 does not tell .* region e of t; HBase does so since 1.4"
    ):
        told(Pool({"Scan": pb.ScanResponse(more_results=True)}), SERVER)


def test_after_an_error_nobody_is_asked_any_more() -> None:
    pool = Pool({"Scan": RequestTimeoutError("no answer")})
    with pytest.raises(RequestTimeoutError):
        told(pool, *[SERVER] * 10_000)
    assert AT_ONCE <= len(pool.methods) < 10_000
