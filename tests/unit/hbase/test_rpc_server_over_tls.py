"""The server's side of the RPC inside TLS: all that a client may send, and what is damaged on the way."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_serving import MEMORY, Served, Unanswered, answer_of, echo, ended, greeting, serving
from unit.hbase.tls_client import (
    ADDRESS,
    METHOD,
    PARAMETER,
    VERSIONS,
    Client,
    answer,
    client_context,
    inside,
    length_of,
)
from walferry.embedded.certificates import Authority
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.rpc import decode_delimited, encode_request
from walferry.hbase.rpc_server import ReceivedCall
from walferry.security import Tls
from walferry.security.accepting_tls import ServerTls


@VERSIONS
def test_frames_of_all_sizes_arrive_and_are_answered(shared: Served, mine: Tls, version: ssl.TLSVersion) -> None:
    sizes = (0, 1, 16_000, 16_384, 16_385, 65_536, 3_000_000, 9)
    with inside(shared, mine, version) as sock:
        assert sock.version() == ("TLSv1.2" if version == ssl.TLSVersion.TLSv1_2 else "TLSv1.3")
        sock.sendall(greeting())
        for number, size in enumerate(sizes):
            sock.sendall(encode_request(number, METHOD, PARAMETER, [b"x" * size] if size else [], 1000))
            header, rest = answer_of(sock)
            length = decode_delimited(memoryview(rest), 0, pb.CellBlockMeta)[0].length
            assert (header.call_id, length) == (number, size)
    shared.await_held(lambda held: held == 0)


def test_clients_need_no_certificate_if_none_is_demanded(ours: ServerTls, mine: Tls) -> None:
    with serving(echo, tls=replace(ours, ca=None)) as served:
        assert length_of(served, replace(mine, certificate=None, key=None)) == 5


def test_many_connections_call_at_once_and_each_gets_its_own_answers(ours: ServerTls, mine: Tls) -> None:
    async def handle(call: ReceivedCall) -> bytes:
        await asyncio.sleep(0)
        return bytes(call.parameter)

    def calls(number: int) -> list[str]:
        with closing(served.connection(tls=mine)) as connection:
            wanted = [f"{number} {index}" for index in range(20)]
            return [
                connection.call(METHOD, pb.ClusterId(cluster_id=text), pb.ClusterId, b"c" * 50_000)[0].cluster_id
                for text in wanted
            ]

    with serving(handle, tls=ours) as served, ThreadPoolExecutor(16) as threads:
        for number, texts in enumerate(threads.map(calls, range(16))):
            assert texts == [f"{number} {index}" for index in range(20)]
        served.await_held(lambda held: held == 0)


@VERSIONS
def test_both_directions_of_a_connection_are_busy_at_once(ours: ServerTls, mine: Tls, version: ssl.TLSVersion) -> None:
    """Answers as large as requests, on one connection, sent while others come."""
    count, size = 60, 700_000

    async def handle(call: ReceivedCall) -> bytes:
        return bytes(pb.ClusterId(cluster_id=bytes(call.cells).decode()).SerializeToString())

    async def exchange(port: int) -> dict[int, str]:
        context = client_context(mine)
        context.minimum_version = context.maximum_version = version
        reader, writer = await asyncio.open_connection(ADDRESS, port, ssl=context, limit=1 << 16)
        writer.write(greeting())
        answers = {}

        async def send() -> None:
            for number in range(count):
                writer.write(encode_request(number, METHOD, PARAMETER, [b"%03d" % number + b"x" * size], 1000))
                await writer.drain()

        sending = asyncio.ensure_future(send())
        for _ in range(count):
            length = int.from_bytes(await reader.readexactly(4), "big")
            frame = memoryview(await reader.readexactly(length))
            header, position = decode_delimited(frame, 0, pb.ResponseHeader)
            answers[header.call_id] = decode_delimited(frame, position, pb.ClusterId)[0].cluster_id
        await sending
        writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        return answers

    with serving(handle, tls=ours) as served:
        answers = asyncio.run(asyncio.wait_for(exchange(served.port), 60))
    assert answers == {number: f"{number:03d}" + "x" * size for number in range(count)}


def test_a_client_that_reads_no_answer_is_not_read_for_ever(ours: ServerTls, mine: Tls) -> None:
    """Its answers wait for it, and what it sends waits in the kernel once its calls fill the memory."""
    gate = asyncio.Event()

    async def handle(call: ReceivedCall) -> bytes:
        await gate.wait()
        return await echo(call)

    with serving(handle, tls=ours) as served, inside(served, mine) as sock:
        sock.sendall(greeting())
        sock.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 100 << 20:
                sock.sendall(encode_request(1, METHOD, PARAMETER, [b"x" * (1 << 20)], 1000))
                sent += 1 << 20
        assert MEMORY - (2 << 20) < served.server.held_bytes <= MEMORY
        assert sent < 40 << 20, "the kernel's buffers have the rest"
        served.loop.call_soon_threadsafe(gate.set)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 40_000), max_size=5), cuts=st.lists(st.integers(1, 30_000), max_size=20))
def test_requests_are_read_the_same_however_their_records_are_cut(
    shared: Served, mine: Tls, sizes: list[int], cuts: list[int]
) -> None:
    client = Client(shared, mine)
    with client.sock:
        client.shake_hands()
        requests = [encode_request(1, METHOD, PARAMETER, [b"x" * size], 1000) for size in sizes]
        stream = client.wrapped(greeting() + b"".join(requests))
        for cut in cuts:
            client.sock.sendall(stream[:cut])
            stream = stream[cut:]
        client.sock.sendall(stream)
        assert sorted(answer(client) for _ in sizes) == sorted(sizes)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), early=st.booleans())
def test_whatever_is_changed_on_the_way_nothing_of_it_is_handled_and_the_next_connection_is_served(
    shared: Served, mine: Tls, data: st.DataObject, early: bool
) -> None:
    """`early`: in the client's first words."""
    client = Client(shared, mine)
    with client.sock:
        if early:
            sent = bytearray(client.hello())
            where = data.draw(st.integers(1, len(sent) - 1))
        else:
            client.shake_hands()
            whole = client.wrapped(greeting())
            sent = bytearray(whole + client.wrapped(encode_request(1, METHOD, PARAMETER, [b"x" * 3000], 1000)))
            where = data.draw(st.integers(len(whole), len(sent) - 1))
        sent[where] ^= data.draw(st.integers(1, 255))
        with suppress(ConnectionError):
            client.sock.sendall(sent)
            client.sock.shutdown(socket.SHUT_WR)
            assert ended(client.sock)
    assert length_of(shared, mine) == 5
    shared.await_held(lambda held: held == 0)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (greeting(), "what it sent is no TLS, or was changed on the way"),
        (b"GET / HTTP/1.1\r\n\r\n", "so it is no client of HBase's RPC"),
    ],
)
def test_garbage_inside_a_connection_ends_it_with_one_line_in_the_log(
    ours: ServerTls, mine: Tls, before: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(echo, tls=ours) as served:
        client = Client(served, mine)
        with client.sock:
            client.shake_hands()
            client.sock.sendall(client.wrapped(before) + b"garbage" * 5000)
            assert ended(client.sock)
    gc.collect()  # then asyncio tells of errors that nobody has caught
    (line,) = [record.message for record in caplog.records]
    assert said in line


def test_what_is_wrong_inside_is_told_inside(shared: Served, mine: Tls) -> None:
    with inside(shared, mine) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        header, _ = answer_of(sock)
        assert "so it is no client of HBase's RPC" in header.exception.stack_trace
        assert sock.recv(1) == b""


def test_a_connection_that_owes_the_rest_of_a_record_is_closed(
    ours: ServerTls, mine: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(echo, tls=ours, read_seconds=0.4) as served:
        client = Client(served, mine)
        with client.sock:
            client.shake_hands()
            request = client.wrapped(greeting() + encode_request(1, METHOD, PARAMETER, [b"x" * 9000], 1000))
            client.sock.sendall(request[:-1])
            assert ended(client.sock)
    assert "closed: it sent nothing for 0.4 s where more was due" in caplog.text


def test_a_record_that_comes_slowly_is_waited_for(ours: ServerTls, mine: Tls) -> None:
    with serving(echo, tls=ours, read_seconds=0.8) as served:
        client = Client(served, mine)
        with client.sock:
            client.shake_hands()
            client.sock.sendall(client.wrapped(greeting()))
            request = encode_request(1, METHOD, PARAMETER, [b"x" * 9000], 1000)
            client.sock.sendall(client.wrapped(request[:100]))
            stream = client.wrapped(request[100:])
            for part in range(0, len(stream), len(stream) // 10):
                time.sleep(0.15)
                client.sock.sendall(stream[part : part + len(stream) // 10])
            assert answer(client) == 9000


def test_an_idle_connection_stays_open(ours: ServerTls, mine: Tls) -> None:
    with serving(echo, tls=ours, read_seconds=0.2) as served, closing(served.connection(tls=mine)) as connection:
        for _ in range(2):
            assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"cells")[0].length == 5
            assert connection._channel is not None
            sock = connection._channel.sock
            time.sleep(0.6)
        assert connection.usable()
        assert connection._channel is not None
        assert connection._channel.sock is sock


def test_a_client_that_ends_by_tls_has_ended(ours: ServerTls, mine: Tls, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(echo, tls=ours) as served:
        client = Client(served, mine)
        with client.sock:
            client.shake_hands()
            client.sock.sendall(client.wrapped(greeting()))
            with suppress(ssl.SSLWantReadError):
                client.tls.unwrap()
            client.sock.sendall(client._to_send.read())
            assert ended(client.sock)
    assert caplog.text == ""


def test_certificates_that_are_replaced_count_from_the_next_connection_on(
    authority: Authority, mine: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"

    def use(name: str) -> bytes:
        made = authority.issue(name, ADDRESS)
        for path, to in ((made.certificate, certificate), (made.key, key)):
            new = tmp_path / "new"
            new.write_bytes(path.read_bytes())
            new.replace(to)
        return ssl.PEM_cert_to_DER_cert(made.certificate.read_text())

    def seen() -> bytes | None:
        with inside(served, mine) as sock:
            return sock.getpeercert(binary_form=True)

    first = use("first")
    with serving(echo, tls=ServerTls(str(certificate), str(key), str(authority.bundle))) as served:
        with closing(served.connection(tls=mine)) as connection:
            assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta)[0].length == 0
            assert seen() == first
            second = use("second")
            assert seen() == second != first
            assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta)[0].length == 0
        key.write_text("half of a new")
        assert seen() == second
        assert "the files from before are used" in caplog.text
        key.unlink()
        assert seen() == second
        assert "k.pem, which is named for TLS, cannot be used: No such file or directory; name a PEM" in caplog.text
        third = use("third")
        assert seen() == third


def test_close_ends_connections_in_their_handshake_and_those_that_are_sent_to(ours: ServerTls, mine: Tls) -> None:
    never = Unanswered()
    with serving(never.handle, tls=ours) as served:
        half, busy = Client(served, mine), Client(served, mine)
        half.sock.sendall(half.hello()[:-1])
        busy.shake_hands()
        busy.sock.sendall(busy.wrapped(greeting() + encode_request(1, METHOD, PARAMETER, [], 1000)))
        served.await_held(lambda held: held > 0)
    assert never.cancelled.is_set()
    for client in (half, busy):
        assert ended(client.sock)
        client.sock.close()
