"""The server's side of the RPC, on real sockets: walferry's own client, and whatever else connects to a port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_serving import MEMORY, Served, Unanswered, answer_of, await_true, echo, ended, serving
from unit.hbase.rpc_server import receive
from walferry.clock import steady_s
from walferry.errors import TransientError, UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import PREAMBLE, PlainChannel, Simple
from walferry.hbase.errors import ConnectionFailedError, RemoteError, RemoteTransientError
from walferry.hbase.rpc import RpcConnection, decode_delimited, encode_request
from walferry.hbase.rpc_server import MOST_CALLS, CallRefusedError, ReceivedCall, RpcServer
from walferry.hbase.rpc_stream import MOST_FRAME_BYTES

METHOD = "ReplicateWALEntry"
PARAMETER = pb.ClusterId(cluster_id="what the client asks")


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One server for all examples."""
    with serving(echo) as served:
        yield served


def test_a_call_arrives_with_all_that_it_says_and_its_answer_comes_back() -> None:
    seen: list[tuple[str, str, bytes, bytes, str]] = []
    times: list[float] = []

    async def handle(call: ReceivedCall) -> bytes:
        seen.append((call.service, call.method, bytes(call.parameter), bytes(call.cells), call.sender))
        times.append(call.received_s)
        return bytes(pb.ClusterId(cluster_id="the answer").SerializeToString())

    before = steady_s()
    with serving(handle) as served, closing(served.connection()) as connection:
        answer, block = connection.call(METHOD, PARAMETER, pb.ClusterId, b"the cells")
        assert connection._channel is not None
        host, port = connection._channel.sock.getsockname()
        served.await_held(lambda held: held == 0)
    assert (answer.cluster_id, block) == ("the answer", b"")
    assert seen == [("AdminService", METHOD, PARAMETER.SerializeToString(), b"the cells", f"{host}:{port}")]
    assert before <= times[0] <= steady_s()


def test_an_empty_answer_is_a_message_without_fields() -> None:
    async def handle(call: ReceivedCall) -> bytes:
        return b""

    with serving(handle) as served, served.greeted() as sock:
        sock.sendall(encode_request(7, METHOD, PARAMETER, [], 1000))
        header, body = answer_of(sock)
        assert (header.call_id, header.HasField("exception"), body) == (7, False, b"\0")


def test_calls_of_one_connection_are_handled_at_once_and_answered_in_the_order_in_which_they_end() -> None:
    gates: dict[bytes, asyncio.Event] = {}

    async def handle(call: ReceivedCall) -> bytes:
        cells = bytes(call.cells)
        gates[cells] = asyncio.Event()
        await gates[cells].wait()
        return cells

    with serving(handle) as served, served.greeted() as sock:
        for call_id in (1, 2, 3):
            sock.sendall(encode_request(call_id, METHOD, PARAMETER, [b"%d" % call_id], 1000))
        await_true(lambda: len(gates) == 3)
        for call_id in (3, 1, 2):
            served.loop.call_soon_threadsafe(gates[b"%d" % call_id].set)
            header, body = answer_of(sock)
            assert (header.call_id, body) == (call_id, b"\x01%d" % call_id)


def test_many_connections_call_at_once_and_each_gets_its_own_answers() -> None:
    async def handle(call: ReceivedCall) -> bytes:
        await asyncio.sleep(0)
        return bytes(call.parameter)

    def calls(number: int) -> list[str]:
        with closing(served.connection()) as connection:
            wanted = [f"{number} {index}" for index in range(50)]
            return [
                connection.call(METHOD, pb.ClusterId(cluster_id=text), pb.ClusterId, b"c" * 5000)[0].cluster_id
                for text in wanted
            ]

    with serving(handle) as served, ThreadPoolExecutor(16) as threads:
        for number, texts in enumerate(threads.map(calls, range(16))):
            assert texts == [f"{number} {index}" for index in range(50)]
        served.await_held(lambda held: held == 0)


def test_a_connection_with_too_many_calls_is_read_on_when_one_is_answered() -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    async def handle(call: ReceivedCall) -> bytes:
        begun.append(len(begun))
        await gate.wait()
        return b""

    with serving(handle) as served, served.greeted() as sock:
        for call_id in range(MOST_CALLS + 10):
            sock.sendall(encode_request(call_id, METHOD, PARAMETER, [], 1000))
        await_true(lambda: len(begun) == MOST_CALLS)
        assert len(begun) == MOST_CALLS
        served.loop.call_soon_threadsafe(gate.set)
        assert {answer_of(sock)[0].call_id for _ in range(MOST_CALLS + 10)} == set(range(MOST_CALLS + 10))


@pytest.mark.parametrize("do_not_retry", [True, False])
def test_a_refused_call_is_answered_as_the_exception_that_it_names(do_not_retry: bool) -> None:
    async def handle(call: ReceivedCall) -> bytes:
        raise CallRefusedError("not this table", java_class="org.x.SomeException", do_not_retry=do_not_retry)

    with serving(handle) as served, served.greeted() as sock:
        sock.sendall(encode_request(5, METHOD, PARAMETER, [], 1000))
        header, rest = answer_of(sock)
    failure = header.exception
    assert (header.call_id, failure.exception_class_name, failure.stack_trace, failure.do_not_retry, rest) == (
        5, "org.x.SomeException", "not this table", do_not_retry, b"",
    )  # fmt: skip


def test_a_transient_error_is_an_io_exception_with_its_message_and_the_call_may_be_repeated() -> None:
    async def handle(call: ReceivedCall) -> bytes:
        raise TransientError("the ledger is away")

    with serving(handle) as served, closing(served.connection()) as connection:
        with pytest.raises(RemoteTransientError, match="the ledger is away") as raised:
            connection.call(METHOD, PARAMETER, pb.ClusterId)
        assert raised.value.exception_class == "java.io.IOException"
        served.await_held(lambda held: held == 0)


def test_a_bug_of_the_handler_is_logged_and_tells_the_client_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: ReceivedCall) -> bytes:
        raise KeyError("secret")

    with (
        serving(handle) as served,
        closing(served.connection()) as connection,
        pytest.raises(RemoteTransientError, match="internal error of the receiver") as raised,
    ):
        connection.call(METHOD, PARAMETER, pb.ClusterId)
    assert "secret" not in str(raised.value)
    assert "KeyError" in caplog.text


class TestCells:
    @pytest.mark.parametrize("codec", ["org.apache.hadoop.hbase.codec.KeyValueCodec", None])
    def test_cells_of_a_codec_that_loses_tags_are_refused_and_the_setting_is_named(self, codec: str | None) -> None:
        with serving(echo) as served, closing(served.connection(codec)) as connection:
            with pytest.raises(RemoteError, match=r"tags would be lost: set hbase\.replication\.rpc\.codec"):
                connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"cells")
            answer, _ = connection.call(METHOD, PARAMETER, pb.CellBlockMeta)  # a call without cells is fine
            assert answer.length == 0

    def test_compressed_cells_are_refused_and_the_setting_is_named(self) -> None:
        compressor = "org.apache.hadoop.io.compress.GzipCodec"
        with serving(echo) as served, served.greeted(compressor) as sock:
            sock.sendall(encode_request(1, METHOD, PARAMETER, [b"cells"], 1000))
            header, _ = answer_of(sock)
        assert "hbase.client.rpc.compressor" in header.exception.stack_trace
        assert compressor in header.exception.stack_trace


class TestBadInput:
    @pytest.mark.parametrize(
        "sent",
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,  # TLS
            b"HBas\x01\x50",
            b"HBas\x00\x07",
            PREAMBLE + b"\x50" + b"\xff\xff\xff\xff",
            PREAMBLE + b"\x50" + b"\x7f\xff\xff\xff" + b"x" * 100,
            PREAMBLE + b"\x50" + b"\x00\x00\x00\x03\xff\xff\xff",
        ],
    )
    def test_who_does_not_speak_the_protocol_is_told_and_closed_with_one_line_in_the_log(
        self, sent: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving(echo) as served, served.plain() as sock:
            sock.sendall(sent)
            header, _ = answer_of(sock)
            assert ended(sock)
            assert header.call_id == 0xFFFFFFFF
            assert header.exception.exception_class_name.endswith("FatalConnectionException")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize("length", [-1, -(1 << 31), 0, MOST_FRAME_BYTES + 1, (1 << 31) - 1])
    def test_a_length_that_no_request_has_closes_the_connection(
        self, length: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving(echo) as served, served.greeted() as sock:
            sock.sendall(length.to_bytes(4, "big", signed=True))
            assert ended(sock)
            assert served.server.held_bytes == 0
        assert f"announces a request of {length} bytes" in caplog.text

    @pytest.mark.parametrize("method", [81, 82])
    def test_who_wants_to_log_in_is_refused_as_by_sasl(self, method: int, caplog: pytest.LogCaptureFixture) -> None:
        with serving(echo) as served, served.plain() as sock:
            sock.sendall(PREAMBLE + bytes([method]) + b"\x00\x00\x00\x05token")
            assert receive(sock, 4) == b"\x00\x00\x00\x01"
            name = receive(sock, int.from_bytes(receive(sock, 4), "big"))
            message = receive(sock, int.from_bytes(receive(sock, 4), "big"))
            assert name == b"org.apache.hadoop.hbase.security.AccessDeniedException"
            assert b"knows no principal" in message
            assert ended(sock)
        assert len(caplog.records) == 1

    def test_connections_that_say_nothing_are_closed_in_time_and_those_that_close_at_once_leave_no_line(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        with serving(echo, read_seconds=0.4) as served:
            for _ in range(20):
                served.plain().close()
            silent = [served.plain() for _ in range(20)]
            for sock in silent:
                assert ended(sock)
                sock.close()
            await_true(lambda: not served.server._connections)
        assert {record.message.partition(" closed")[2] for record in caplog.records} == {
            ": it sent nothing for 0.4 s where more was due"
        }

    def test_the_client_understands_the_refusal_of_a_bad_preamble(self) -> None:
        class Unknown(Simple):
            def open(self, sock: socket.socket, server: str, deadline: float) -> PlainChannel:
                sock.sendall(PREAMBLE + b"\x07")
                return PlainChannel(sock, "alice")

        with serving(echo) as served:
            connection = RpcConnection(f"127.0.0.1:{served.port}", "AdminService", None, Unknown("alice"))
            with pytest.raises((RemoteError, ConnectionFailedError)):
                connection.call(METHOD, PARAMETER, pb.ClusterId)
            connection.close()

    @settings(max_examples=60)
    @given(data=st.data())
    def test_whatever_is_changed_in_a_request_the_next_connection_is_served(
        self, shared: Served, data: st.DataObject
    ) -> None:
        request = bytearray(encode_request(1, METHOD, PARAMETER, [b"the cells"], 1000))
        for _ in range(data.draw(st.integers(1, 3))):
            request[data.draw(st.integers(0, len(request) - 1))] = data.draw(st.integers(0, 255))
        with shared.greeted() as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            assert ended(sock)
        with closing(shared.connection()) as connection:
            assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"12345")[0].length == 5
        shared.await_held(lambda held: held == 0)


@settings(max_examples=40)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 0xFFFFFFFE), st.binary(max_size=300), st.binary(max_size=3000)), max_size=8
    ),
    cuts=st.lists(st.integers(1, 5000), max_size=20),
)
def test_requests_are_read_the_same_however_they_are_cut_on_their_way(
    shared: Served, requests: list[tuple[int, bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(
        encode_request(call_id, METHOD, parameter, [cells], 1000) for call_id, parameter, cells in requests
    )
    with shared.greeted() as sock:
        for cut in cuts:
            sock.sendall(stream[:cut])
            stream = stream[cut:]
        sock.sendall(stream)
        answers = [answer_of(sock) for _ in requests]
    wanted = [(call_id, len(cells)) for call_id, _, cells in requests]
    found = [
        (header.call_id, decode_delimited(memoryview(rest), 0, pb.CellBlockMeta)[0].length) for header, rest in answers
    ]
    assert sorted(found) == sorted(wanted)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = RpcServer(echo, host="127.0.0.1", port=port, memory_bytes=MEMORY, read_seconds=1)
        with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            asyncio.run(server.start())


def test_close_ends_calls_that_are_handled_and_connections_that_are_idle() -> None:
    never = Unanswered()
    with serving(never.handle) as served:
        busy, idle = served.greeted(), served.greeted()
        busy.sendall(encode_request(1, METHOD, PARAMETER, [], 1000))
        served.await_held(lambda held: held > 0)
    assert never.cancelled.is_set()
    for sock in (busy, idle):
        assert ended(sock)
        sock.close()
