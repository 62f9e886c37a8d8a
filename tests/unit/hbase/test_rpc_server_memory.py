"""How much memory the frames of received calls take."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from rpc_serving import MEMORY, answer_of, await_true, echo, ended, serving
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.errors import CallQueueFullError, RemoteTransientError
from walferry.hbase.rpc import RpcConnection, encode_request
from walferry.hbase.rpc_server import CallRefusedError, ReceivedCall

METHOD = "ReplicateWALEntry"
PARAMETER = pb.ClusterId(cluster_id="what the client asks")


class TestMemory:
    def test_frames_that_do_not_fit_are_not_read_until_others_are_answered(self) -> None:
        gate = asyncio.Event()
        most: list[int] = []

        async def handle(call: ReceivedCall) -> bytes:
            most.append(served.server.held_bytes)
            await gate.wait()
            return await echo(call)

        def call(_: int) -> int:
            with closing(served.connection()) as connection:
                return connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"c" * (3 << 20))[0].length

        with serving(handle) as served, ThreadPoolExecutor(6) as threads:
            answers = threads.map(call, range(6))
            await_true(lambda: len(most) == 2)
            time.sleep(0.2)
            assert len(most) == 2
            assert 6 << 20 < served.server.held_bytes < MEMORY
            served.loop.call_soon_threadsafe(gate.set)
            assert list(answers) == [3 << 20] * 6
            served.await_held(lambda held: held == 0)
        assert max(most) < MEMORY

    def test_the_frame_of_a_refused_call_counts_as_held_while_work_goes_on_with_it(self) -> None:
        futures: list[asyncio.Future[None]] = []

        async def handle(call: ReceivedCall) -> bytes:
            futures.append(asyncio.get_running_loop().create_future())
            raise CallRefusedError("not in time", until=futures[0])

        with serving(handle) as served, closing(served.connection()) as connection:
            with pytest.raises(RemoteTransientError, match="not in time"):
                connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"c" * 1000)
            assert served.server.held_bytes > 1000
            served.loop.call_soon_threadsafe(futures[0].set_result, None)
            served.await_held(lambda held: held == 0)

    def test_a_service_with_memory_of_its_own_passes_while_the_others_wait(self) -> None:
        gate = asyncio.Event()

        async def handle(call: ReceivedCall) -> bytes:
            if call.service != "apart":
                await gate.wait()
            return await echo(call)

        with serving(handle, apart={"apart": 1 << 20}) as served, served.greeted() as others:
            others.sendall(encode_request(1, METHOD, PARAMETER, [b"c" * (MEMORY - 1000)], 1000))
            served.await_held(lambda held: held > MEMORY - 1000)
            with closing(RpcConnection(f"127.0.0.1:{served.port}", "apart")) as connection:
                assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"c" * 5000)[0].length == 5000
            served.loop.call_soon_threadsafe(gate.set)

    def test_a_handler_knows_how_long_its_client_waits(self) -> None:
        seconds: list[float | None] = []

        async def handle(call: ReceivedCall) -> bytes:
            seconds.append(call.timeout_s)
            return await echo(call)

        with serving(handle) as served, closing(served.connection()) as connection:
            connection.call(METHOD, PARAMETER, pb.CellBlockMeta, timeout_s=7)
        assert 6 < (seconds[0] or 0) <= 7

    def test_a_frame_that_is_larger_than_the_memory_passes_alone(self) -> None:
        gate = asyncio.Event()

        async def handle(call: ReceivedCall) -> bytes:
            if len(call.cells) < 100:
                await gate.wait()
            else:
                assert served.server.held_bytes < 2 * MEMORY + 200
            return await echo(call)

        with serving(handle) as served, ThreadPoolExecutor(1) as thread, served.greeted() as small:
            small.sendall(encode_request(1, METHOD, PARAMETER, [b"c"], 1000))
            served.await_held(lambda held: held > 0)
            with closing(served.connection()) as connection:
                large = thread.submit(connection.call, METHOD, PARAMETER, pb.CellBlockMeta, b"c" * 2 * MEMORY)
                time.sleep(0.2)
                assert served.server.held_bytes < 200
                served.loop.call_soon_threadsafe(gate.set)
                assert large.result(20)[0].length == 2 * MEMORY

    def test_a_call_without_room_is_refused_as_hbase_does_and_the_connection_goes_on(self) -> None:
        gate = asyncio.Event()

        async def handle(call: ReceivedCall) -> bytes:
            await gate.wait()
            return await echo(call)

        with (
            serving(handle, read_seconds=0.5) as served,
            served.greeted() as first,
            closing(served.connection()) as connection,
        ):
            first.sendall(encode_request(1, METHOD, PARAMETER, [b"c" * (5 << 20)], 1000))
            served.await_held(lambda held: held > 5 << 20)
            with pytest.raises(CallQueueFullError, match="no room for these"):
                connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"c" * (5 << 20))
            assert served.server.held_bytes < 6 << 20
            served.loop.call_soon_threadsafe(gate.set)
            assert answer_of(first)[0].call_id == 1
            channel = connection._channel
            assert connection.call(METHOD, PARAMETER, pb.CellBlockMeta, b"c" * (5 << 20))[0].length == 5 << 20
            assert connection._channel is channel

    def test_small_frames_pass_when_a_large_one_in_front_of_them_is_refused(self) -> None:
        gate = asyncio.Event()

        async def handle(call: ReceivedCall) -> bytes:
            if len(call.cells) > 1 << 20:
                await gate.wait()
            return await echo(call)

        with (
            serving(handle, read_seconds=1) as served,
            served.greeted() as held,
            served.greeted() as large,
            served.greeted() as small,
        ):
            held.sendall(encode_request(1, METHOD, PARAMETER, [b"c" * (5 << 20)], 1000))
            served.await_held(lambda held: held > 5 << 20)
            threading.Thread(
                target=large.sendall,
                args=(encode_request(2, METHOD, PARAMETER, [b"c" * (5 << 20)], 1000),),
                daemon=True,
            ).start()
            await_true(lambda: bool(served.server.room_of("AdminService")._waiting))
            small.sendall(encode_request(3, METHOD, PARAMETER, [b"c"], 1000))
            header, _ = answer_of(small)
            assert not header.HasField("exception")
            header, _ = answer_of(large)
            assert header.exception.exception_class_name.endswith("CallQueueTooBigException")

    def test_the_memory_of_a_sender_that_closes_within_a_frame_is_free_again(self) -> None:
        with serving(echo) as served:
            with served.greeted() as sock:
                sock.sendall((4 << 20).to_bytes(4, "big") + b"begin")
                served.await_held(lambda held: held == 4 << 20)
            served.await_held(lambda held: held == 0)

    def test_a_sender_that_stops_within_a_frame_is_closed_and_its_memory_is_free_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving(echo, read_seconds=0.4) as served, served.greeted() as sock:
            sock.sendall((4 << 20).to_bytes(4, "big") + b"begin")
            served.await_held(lambda held: held == 4 << 20)
            assert ended(sock)
            served.await_held(lambda held: held == 0)
        assert "closed: it sent nothing for 0.4 s where more was due" in caplog.text

    def test_a_slow_sender_and_an_idle_one_are_not_closed(self) -> None:
        with serving(echo, read_seconds=0.4) as served, served.greeted() as idle, served.greeted() as slow:
            request = encode_request(1, METHOD, PARAMETER, [b"cells"], 1000)
            for byte in request:
                slow.sendall(bytes([byte]))
                time.sleep(0.03)  # in all, several times `read_seconds`
            assert answer_of(slow)[0].call_id == 1
            idle.sendall(request)
            assert answer_of(idle)[0].call_id == 1

    def test_what_came_while_the_process_was_suspended_is_read_before_anybody_is_closed(self) -> None:
        """A blocked loop is what a suspended process looks like: the clock went on, timers are due, bytes are there."""
        with serving(echo, read_seconds=0.4) as served, served.greeted() as sock:
            request = encode_request(1, METHOD, PARAMETER, [b"cells"], 1000)
            sock.sendall(request[:10])
            served.await_held(lambda held: held > 0)
            served.loop.call_soon_threadsafe(time.sleep, 2)
            time.sleep(0.5)
            sock.sendall(request[10:])
            header, _ = answer_of(sock)
            assert not header.HasField("exception")
