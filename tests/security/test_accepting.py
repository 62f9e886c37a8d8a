"""Clients that log in to walferry as to a region server: who may, how bytes are protected, what others are told."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rpc_serving import Served, await_true, echo, serving
from walferry.clock import steady_s
from walferry.embedded.certificates import Authority
from walferry.embedded.kdc import Kdc
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.authentication import PREAMBLE, Sasl, SaslChannel, Simple
from walferry.hbase.errors import AccessDeniedError, LoginRefusedError
from walferry.hbase.rpc import RpcConnection
from walferry.security import AuthenticationError, Kerberos, Qop, Security
from walferry.security.accepting import Service
from walferry.security.accepting_tls import ServerTls
from walferry.security.handed import Purpose

PARAMETER = pb.ClusterId(cluster_id="what the client asks")


@pytest.fixture(scope="module")
def service(kdc: Kdc) -> Service:
    keytab = kdc.keytab(["hbase/localhost"])
    kdc.keytab(["ferry"])
    kdc.keytab(["hbase/elsewhere"])
    return Service(f"hbase/localhost@{kdc.realm}", str(keytab), frozenset({f"ferry@{kdc.realm}"}))


@pytest.fixture
def served(service: Service) -> Iterator[Served]:
    with serving(echo, login=service) as made:
        yield made


def client(kdc: Kdc, name: str = "ferry", qop: Qop | None = None) -> Sasl:
    identity = Kerberos(
        f"{name}@{kdc.realm}", str(kdc.keytab_path([name])), qop=qop, realms=(("localhost", kdc.realm),)
    )
    return Sasl(Purpose("a receiver", Security(identity)))


def call(connection: RpcConnection, cells: bytes = b"the cells") -> int:
    answer, _ = connection.call("ReplicateWALEntry", PARAMETER, pb.CellBlockMeta, cells)
    return answer.length


@pytest.mark.parametrize("qop", ["auth", "auth-int", "auth-conf"])
def test_calls_arrive_with_every_protection_however_large_they_are(served: Served, kdc: Kdc, qop: Qop) -> None:
    with closing(served.connection(authenticate=client(kdc, qop=qop), host="localhost")) as connection:
        for size in (9, 70_000, 3_000_000, 0):
            assert call(connection, b"x" * size) == size
    served.await_held(lambda held: held == 0)


@pytest.mark.parametrize("qop", ["auth", "auth-conf"])
def test_a_login_inside_tls_is_as_any_other(service: Service, kdc: Kdc, qop: Qop, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.issue("server", host="localhost")
    tls = ServerTls(str(made.certificate), str(made.key), str(authority.bundle))
    kdc.keytab(["eve"])
    with serving(echo, login=service, tls=tls) as served:
        with closing(
            served.connection(authenticate=client(kdc, qop=qop), host="localhost", tls=tls.as_client())
        ) as connection:
            for size in (9, 70_000, 3_000_000, 0):
                assert call(connection, b"x" * size) == size
        served.await_held(lambda held: held == 0)
        for name in ("", "eve"):
            identity = client(kdc, name) if name else Simple("ferry")
            with (
                closing(served.connection(authenticate=identity, host="localhost", tls=tls.as_client())) as connection,
                pytest.raises(AccessDeniedError),
            ):
                call(connection)
        assert len(served.shut_out) == 2


def test_what_is_wrapped_waits_for_memory_and_gives_it_back_when_its_client_leaves(service: Service, kdc: Kdc) -> None:
    with serving(echo, memory_bytes=1 << 20, login=service) as served:
        ways = [closing(served.connection(authenticate=client(kdc, qop="auth-conf"), host="localhost")) for _ in "ab"]
        with ways[0] as first, ways[1] as second:
            assert (call(first, b"x" * 900_000), call(second, b"x" * 900_000)) == (900_000, 900_000)
            channel = first._channel
            assert isinstance(channel, SaslChannel)
            channel.sock.sendall(struct.pack(">i", 1 << 20) + b"x" * 1000)
            served.await_held(lambda held: held == 1 << 20)
        served.await_held(lambda held: held == 0)


def test_a_piece_for_which_there_is_no_room_ends_its_connection_in_time(service: Service, kdc: Kdc) -> None:
    with serving(echo, memory_bytes=1 << 20, read_seconds=2, login=service) as served:
        ways = [closing(served.connection(authenticate=client(kdc, qop="auth-conf"), host="localhost")) for _ in "ab"]
        with ways[0] as first, ways[1] as second:
            assert (call(first), call(second)) == (9, 9)
            channels = [one._channel for one in (first, second)]
            assert all(isinstance(channel, SaslChannel) for channel in channels)
            for channel in channels:
                assert channel is not None
                channel.sock.sendall(struct.pack(">i", 1 << 20) + b"x")
            served.await_held(lambda held: held == 0)


def test_pieces_without_content_and_frames_in_parts_are_read_as_one_stream(served: Served, kdc: Kdc) -> None:
    with closing(served.connection(authenticate=client(kdc, qop="auth-int"), host="localhost")) as connection:
        assert call(connection) == 9
        channel = connection._channel
        assert isinstance(channel, SaslChannel)
        _send = channel.send

        def in_parts(part: memoryview, deadline: float) -> int:
            for piece in (part[:0], part[:3], part[:0], part[3:]):
                _send(piece, deadline)
            return len(part)

        channel.send = in_parts  # type: ignore[method-assign]
        for size in (9, 70_000):
            assert call(connection, b"x" * size) == size


def test_only_processes_of_the_service_call_what_is_apart_for_them_unless_they_are_senders(
    service: Service, kdc: Kdc
) -> None:
    own = client(kdc, "hbase/elsewhere")
    with (
        serving(echo, apart={"AdminService": 1 << 20}, login=service) as served,
        closing(served.connection(authenticate=own, host="localhost")) as connection,
    ):
        assert call(connection) == 9
    with (
        serving(echo, apart={"Other": 1 << 20}, login=service) as served,
        closing(served.connection(authenticate=own, host="localhost")) as connection,
        pytest.raises(AccessDeniedError, match="may call AdminService for its own processes only"),
    ):
        call(connection)


def test_processes_encrypt_what_they_pass_on(service: Service, kdc: Kdc) -> None:
    both = replace(service, clients=frozenset({service.own}))
    identity = replace(both.as_client(), realms=(("localhost", kdc.realm),))
    with (
        serving(echo, login=both) as served,
        closing(
            served.connection(authenticate=Sasl(Purpose("a receiver", Security(identity))), host="localhost")
        ) as connection,
    ):
        assert call(connection) == 9
        assert connection._channel is not None
        assert connection._channel.qop == "auth-conf"


def test_a_keytab_that_is_gone_is_told_to_people_and_not_to_the_client(
    service: Service, kdc: Kdc, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(echo, login=replace(service, keytab="/nowhere")) as served,
        closing(served.connection(authenticate=client(kdc), host="localhost")) as connection,
        pytest.raises(LoginRefusedError, match="GSS initiate failed") as refused,
    ):
        call(connection)
    assert "/nowhere" not in str(refused.value)
    assert "the keytab /nowhere is of no use" in caplog.text


def test_a_stranger_is_not_let_in(served: Served, kdc: Kdc, caplog: pytest.LogCaptureFixture) -> None:
    kdc.keytab(["eve"])
    with (
        closing(served.connection(authenticate=client(kdc, "eve"), host="localhost")) as connection,
        pytest.raises(AccessDeniedError, match=r"eve@EXAMPLE\.COM may not send to this receiver"),
    ):
        call(connection)
    assert "refused: eve@EXAMPLE.COM may not send" in caplog.text


def test_who_does_not_log_in_or_wants_to_where_nobody_does_is_told(served: Served, kdc: Kdc) -> None:
    with (
        closing(served.connection()) as connection,
        pytest.raises(AccessDeniedError, match="takes connections with a login only"),
    ):
        call(connection)
    with (
        serving(echo) as other,
        closing(other.connection(authenticate=client(kdc), host="localhost")) as connection,
        pytest.raises(LoginRefusedError, match="this receiver knows no principal"),
    ):
        call(connection)


def test_tokens_of_hbase_are_refused(served: Served) -> None:
    with closing(served.plain()) as sock:
        sock.sendall(PREAMBLE + b"\x52")
        assert sock.recv(1 << 16).endswith(b"this receiver takes no tokens: log in by Kerberos")


@pytest.mark.parametrize("token", [b"", b"no token of Kerberos"])
def test_a_login_that_is_none_ends_with_its_reason(served: Served, token: bytes) -> None:
    with closing(served.plain()) as sock:
        sock.sendall(PREAMBLE + b"\x51" + struct.pack(">i", len(token)) + token)
        assert b"javax.security.sasl.SaslException" in sock.recv(1 << 16)


def test_a_keytab_with_another_key_refuses_the_client(service: Service, kdc: Kdc) -> None:
    keytab = kdc.keytab(["hbase/elsewhere"])
    other = replace(service, principal=f"hbase/elsewhere@{kdc.realm}", keytab=str(keytab))
    with (
        serving(echo, login=other) as served,
        closing(served.connection(authenticate=client(kdc), host="localhost")) as connection,
        pytest.raises(AuthenticationError),
    ):
        call(connection)


def test_a_piece_that_was_changed_on_the_way_ends_the_connection(served: Served, kdc: Kdc) -> None:
    with closing(served.connection(authenticate=client(kdc, qop="auth-int"), host="localhost")) as connection:
        assert call(connection) == 9
        channel = connection._channel
        assert isinstance(channel, SaslChannel)
        token = bytearray(channel._exchange.wrap(b"\0\0\0\x01x"))
        token[-1] ^= 1
        channel.sock.sendall(struct.pack(">i", len(token)) + token)
        answered = io.BytesIO()
        with suppress(OSError, AuthenticationError):
            answered.write(channel._piece(steady_s() + 20))
        assert b"changed on the way" in answered.getvalue()
    await_true(lambda: served.server.held_bytes == 0)


def test_a_keytab_that_is_of_no_use_is_told_before_anything_begins(service: Service, kdc: Kdc) -> None:
    service.check()
    with pytest.raises(UsageError, match=r"the keytab /nowhere is of no use for hbase/localhost@EXAMPLE.COM"):
        replace(service, keytab="/nowhere").check()
    with pytest.raises(UsageError, match="is of no use for hbase/other"):
        replace(service, principal=f"hbase/other@{kdc.realm}").check()
