"""Frames and connections, against bytes recorded from a real HBase 2.6.3 and real sockets."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
import time
from contextlib import closing, suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from unit.hbase.rpc_server import VERSION, delimited, frame, read_handshake, read_request, server, version_answer
from walferry.clock import steady_s
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import Simple
from walferry.hbase.errors import ConnectionFailedError, RequestTimeoutError, RequestTooBigError, TableNotFoundError
from walferry.hbase.rpc import PART_BYTES, ConnectionPool, RpcConnection, decode_delimited, encode_request

VERSION_REQUEST = "0000001e1a08111a10476574436c7573746572537461747573200138e0d403020800"
SCAN_ANSWER = (
    "000000400608011a02081e1a0801109c808080e08dfad00f180120e0d40330003800400058040000001a"
    "0000001000000002000272310166710000018bcfe56800047631"
)
NOT_FOUND = "org.apache.hadoop.hbase.TableNotFoundException"


def test_a_request_is_framed_as_hbase_accepted_it() -> None:
    assert encode_request(17, "GetClusterStatus", VERSION, [], 60_000).hex() == VERSION_REQUEST


def test_a_cell_block_follows_its_request_and_its_length_stands_in_the_header() -> None:
    plain = encode_request(1, "Scan", VERSION, [], 1000)
    cells = encode_request(1, "Scan", VERSION, [b"abc", memoryview(b"defg")], 1000)
    header, _ = decode_delimited(memoryview(cells), 4, pb.RequestHeader)
    assert cells.endswith(b"abcdefg")
    assert header.cell_block_meta.length == 7
    assert int.from_bytes(cells[:4], "big") == len(cells) - 4
    assert int.from_bytes(plain[:4], "big") == len(plain) - 4


def test_a_call_says_who_it_is_and_returns_what_the_server_recorded() -> None:
    seen: list[bytes | pb.ConnectionHeader] = []

    def serve(peer: socket.socket) -> None:
        seen.extend(read_handshake(peer))
        seen.append(read_request(peer))
        peer.sendall(version_answer(1))

    with server(serve) as address:
        connection = RpcConnection(address, "MasterService", None, Simple("alice"))
        answer, block = connection.call("GetClusterStatus", VERSION, pb.GetClusterStatusResponse)
        connection.close()
    preamble, header, _ = seen
    assert preamble == b"HBas\x00\x50"
    assert (header.user_info.effective_user, header.service_name) == ("alice", "MasterService")  # type: ignore[union-attr]
    assert answer.cluster_status.hbase_version.version == "2.6.3-hadoop3"
    assert block == b""


def test_an_answers_cell_block_is_returned_as_it_came() -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        peer.sendall(bytes.fromhex(SCAN_ANSWER))

    with server(serve) as address:
        connection = RpcConnection(address, "ClientService")
        answer, block = connection.call("Scan", pb.ScanRequest(), pb.ScanResponse)
        connection.close()
    assert list(answer.cells_per_result) == [1]
    assert block.hex() == "0000001a0000001000000002000272310166710000018bcfe56800047631"


def test_an_exception_of_the_server_is_raised_as_the_class_it_names() -> None:
    failure = pb.ExceptionResponse(exception_class_name=NOT_FOUND, stack_trace=f"{NOT_FOUND}: nope\n\tat x")

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        peer.sendall(frame(delimited(pb.ResponseHeader(call_id=1, exception=failure))))

    with (
        server(serve) as address,
        closing(RpcConnection(address, "MasterService")) as connection,
        pytest.raises(TableNotFoundError) as raised,
    ):
        connection.call("GetTableState", VERSION, pb.GetClusterStatusResponse)
    assert raised.value.exception_class == NOT_FOUND
    assert raised.value.server == address
    assert raised.value.method == "MasterService.GetTableState"
    assert raised.value.reason == f"{NOT_FOUND}: nope"


def test_a_server_that_hangs_is_left_at_the_deadline_and_named() -> None:
    done = threading.Event()

    def serve(peer: socket.socket) -> None:
        done.wait(10)

    with server(serve) as address:
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError) as raised:
            RpcConnection(address, "MasterService").call(
                "Snapshot", VERSION, pb.GetClusterStatusResponse, timeout_s=0.2
            )
        took = time.monotonic() - began
        done.set()
    assert 0.2 <= took < 2
    assert raised.value.sent
    assert all(part in str(raised.value) for part in (address, "MasterService.Snapshot", "0.2 s", "unknown"))


def test_a_trickle_of_bytes_does_not_move_the_deadline() -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        try:
            for _ in range(100):
                peer.sendall(b"\0")
                time.sleep(0.05)
        except OSError:
            pass

    with server(serve) as address, pytest.raises((RequestTimeoutError, ConnectionFailedError)):
        RpcConnection(address, "MasterService").call("Snapshot", VERSION, pb.GetClusterStatusResponse, timeout_s=0.15)


def test_a_late_answer_is_never_taken_for_the_next_calls() -> None:
    release = threading.Event()
    connections: list[int] = []

    def serve(peer: socket.socket) -> None:
        connections.append(1)
        read_handshake(peer)
        call, _ = decode_delimited(memoryview(read_request(peer)), 4, pb.RequestHeader)
        if len(connections) == 1:
            release.wait(5)
        version = f"call {call.call_id}"
        status = pb.ClusterStatus(hbase_version=pb.HBaseVersionFileContent(version=version))
        answer = pb.GetClusterStatusResponse(cluster_status=status)
        with suppress(OSError):
            peer.sendall(frame(delimited(pb.ResponseHeader(call_id=call.call_id)), delimited(answer)))

    with server(serve) as address:
        connection = RpcConnection(address, "MasterService")
        with pytest.raises(RequestTimeoutError):
            connection.call("First", VERSION, pb.GetClusterStatusResponse, timeout_s=0.1)
        release.set()
        answer, _ = connection.call("Second", VERSION, pb.GetClusterStatusResponse, timeout_s=5)
        connection.close()
    assert answer.cluster_status.hbase_version.version == "call 2"
    assert len(connections) == 2


def test_past_its_deadline_a_request_is_not_sent_and_the_server_is_told_what_is_left() -> None:
    requests: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        while request := read_request(peer):
            requests.append(request)
            peer.sendall(version_answer(len(requests)))

    with server(serve) as address, closing(RpcConnection(address, "MasterService")) as connection:

        def ask(seconds_ago: float) -> None:
            since = steady_s() - seconds_ago
            connection.call("X", VERSION, pb.GetClusterStatusResponse, timeout_s=60, since=since)

        ask(20)
        with pytest.raises(RequestTimeoutError) as raised:
            ask(60)
        assert raised.value.sent is False
    (request,) = requests
    header, _ = decode_delimited(memoryview(request), 4, pb.RequestHeader)
    assert 35_000 < header.timeout <= 40_000


def test_what_a_server_has_not_taken_at_the_deadline_is_never_delivered() -> None:
    """The kernel would go on sending for minutes, even for a process that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection = RpcConnection(f"127.0.0.1:{listening.getsockname()[1]}", "AdminService")
        with pytest.raises(RequestTimeoutError) as raised:
            connection.call("X", VERSION, pb.GetClusterStatusResponse, bytes(PART_BYTES), timeout_s=0.4)
        assert raised.value.sent is True, "the end of it was in the last part, of which the server took something"
        peer, _ = listening.accept()
        with peer:
            time.sleep(1)
            got = 0
            with suppress(ConnectionResetError):
                while data := peer.recv(1 << 16):
                    got += len(data)
    assert got < PART_BYTES


def test_may_send_is_asked_before_each_part_and_what_it_forbids_never_arrives() -> None:
    received = bytearray()
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        received.clear()
        with suppress(ConnectionResetError):
            while data := peer.recv(1 << 16):
                received.extend(data)
                if len(received) > 4 and len(received) == 4 + int.from_bytes(received[:4], "big"):
                    call, _ = decode_delimited(memoryview(bytes(received)), 4, pb.RequestHeader)
                    received.clear()
                    peer.sendall(version_answer(call.call_id))
        ended.set()

    def send(parts: int, allowed: int) -> int:
        asked = 0

        def may_send() -> None:
            nonlocal asked
            asked += 1
            if asked > allowed:
                raise ZeroDivisionError

        ended.clear()
        block = bytes((parts - 1) * PART_BYTES)
        try:
            connection.call("X", VERSION, pb.GetClusterStatusResponse, block, may_send=may_send)
        except ZeroDivisionError:
            assert ended.wait(5), "the connection is closed"
            assert len(received) < len(block)
            return -asked
        return asked

    with server(serve) as address, closing(RpcConnection(address, "AdminService")) as connection:
        assert send(1, 9) == 1
        assert send(5, 99) >= 5
        for allowed in (0, 2):
            assert send(5, allowed) == -allowed - 1
        assert send(2, 9) >= 2, "the next call connects again"


def test_a_request_whose_end_was_not_sent_is_known_not_to_have_been_carried_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection = RpcConnection(f"127.0.0.1:{listening.getsockname()[1]}", "AdminService")
        with pytest.raises(RequestTimeoutError, match="could not be sent") as raised:
            connection.call("X", VERSION, pb.GetClusterStatusResponse, bytes(64 << 20), timeout_s=0.4)
        assert raised.value.sent is False


def test_a_closed_port_tells_that_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(ConnectionFailedError) as raised:
        RpcConnection(address, "MasterService").call("Snapshot", VERSION, pb.GetClusterStatusResponse)
    assert raised.value.sent is False
    assert address in str(raised.value)


def test_a_connection_that_breaks_behind_the_request_leaves_the_outcome_open() -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)

    with server(serve) as address, pytest.raises(ConnectionFailedError) as raised:
        RpcConnection(address, "MasterService").call("Snapshot", VERSION, pb.GetClusterStatusResponse)
    assert raised.value.sent is True


def test_a_refusal_that_comes_before_the_request_was_read_is_not_lost() -> None:
    """A region server answers a request that is too big after its header, and closes (NettyRpcFrameDecoder)."""

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        peer.recv(1000)
        words = "RPC data length of 30000000 received from 127.0.0.1 is greater than max allowed 300000."
        refusal = pb.ExceptionResponse(exception_class_name="DoNotRetryIOException", stack_trace=words)
        peer.sendall(frame(delimited(pb.ResponseHeader(call_id=1, exception=refusal))))

    with server(serve) as address:
        connection = RpcConnection(address, "AdminService")
        with pytest.raises(RequestTooBigError, match="greater than max allowed"):
            connection.call("Multi", VERSION, pb.GetClusterStatusResponse, bytes(30_000_000), timeout_s=10)
        assert connection._channel is None  # so that the next call does not meet the server's closed end


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xff\xff\xff",
        frame(b"\xff\xff\xff\xff\xff\xff"),  # a length without end
        frame(b"\x7f\x08"),  # a header longer than its frame
        frame(delimited(pb.ResponseHeader(call_id=99))),  # another call's answer
        frame(delimited(pb.ResponseHeader(call_id=1))),  # no result behind the header
    ],
)
def test_an_answer_that_is_none_ends_the_connection_instead_of_the_program(answer: bytes) -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        peer.sendall(answer)

    with server(serve) as address, pytest.raises(ConnectionFailedError):
        RpcConnection(address, "MasterService").call("X", VERSION, pb.GetClusterStatusResponse, timeout_s=2)


def test_the_pool_replaces_a_connection_that_the_server_closed_while_idle() -> None:
    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        read_request(peer)
        peer.sendall(version_answer(1))

    with server(serve) as address:
        pool = ConnectionPool(Simple("alice"))
        for _ in range(2):
            connection_answer, _ = pool.call(
                address, "MasterService", "GetClusterStatus", VERSION, pb.GetClusterStatusResponse
            )
            assert connection_answer.cluster_status.hbase_version.version == "2.6.3-hadoop3"
            pool_idle = pool._idle[(address, "MasterService", None)][0]
            pool_idle._call_id = 0
            deadline = time.monotonic() + 5
            while pool_idle.usable() and time.monotonic() < deadline:
                time.sleep(0.01)
        pool.close()


def test_a_process_with_more_than_a_thousand_open_files_keeps_its_connections() -> None:
    """Descriptors above 1023 are more than select() takes: one long process of many clients came there."""

    def serve(peer: socket.socket) -> None:
        read_handshake(peer)
        for call in (b"\x01", b"\x02"):
            read_request(peer)
            peer.sendall(version_answer(call[0]))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this user may not have more than {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with server(serve) as address, closing(RpcConnection(address, "MasterService")) as connection:
            connection.call("GetClusterStatus", VERSION, pb.GetClusterStatusResponse)
            assert connection._channel is not None
            low = connection._channel.sock
            connection._channel.sock = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500))
            low.close()
            high = connection._channel.sock
            connection.call("GetClusterStatus", VERSION, pb.GetClusterStatusResponse)
            assert connection._channel.sock is high
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(st.binary(max_size=40))
def test_decoding_never_reads_beyond_the_frame(data: bytes) -> None:
    try:
        _, position = decode_delimited(memoryview(data), 0, pb.ResponseHeader)
    except DecodeError:
        return
    assert 0 < position <= len(data)
