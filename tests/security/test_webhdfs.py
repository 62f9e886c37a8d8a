"""Files on a secured HDFS: one login, then tokens, by WebHDFS and straight from data nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from walferry.background import begun, made_once
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.embedded.kdc import Kdc, krb5_conf
from walferry.embedded.kerberized import Secured
from walferry.embedded.two_name_nodes import TwoNameNodes
from walferry.security import AuthenticationError, Kerberos, KerberosUnavailableError, Security, held_token
from walferry.security.token import Token
from walferry.spark.handing_over import from_driver
from walferry.storage import PermissionDeniedError, WebHdfs, open_hdfs
from walferry.storage.tokens import TokenFile, Tokens
from walferry.storage.webhdfs import ATTEMPTS
from walferry.watch.listing import list_wals
from written import write_anew

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONTENT = os.urandom(3 << 20)
LIFE_SECONDS = 4
LIFE = {"dfs.namenode.delegation.token.renew-interval": str(LIFE_SECONDS * 1000)}


@contextmanager
def hdfs_in(folder: Path, kdc: Kdc, **site: str) -> Iterator[MiniCluster]:
    """A secured HDFS without HBase; `ferry` is nobody special on it."""
    security = Secured(kdc, hdfs_superusers=())
    cluster = MiniCluster(folder, Ports.free(), with_thrift=False, hdfs_site=site, security=security)
    try:
        cluster.start_hdfs()
        cluster.await_ready("hdfs")
        security.ask_webhdfs(str(cluster.address.webhdfs), ["PUT /user?op=MKDIRS&permission=755"])
        security.make_folders(cluster.address.webhdfs)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def hdfs(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    with hdfs_in(tmp_path_factory.mktemp("hdfs"), kdc) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def short_lived(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """Its tokens live for LIFE_SECONDS."""
    with hdfs_in(tmp_path_factory.mktemp("short"), kdc, **LIFE) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is as a process of its own: it has no tokens yet."""
    tokens_of = made_once(Tokens)
    for module in ("storage.webhdfs", "watch.listing"):
        monkeypatch.setattr(f"walferry.{module}.tokens_of", tokens_of)
    library = TokenFile()
    for module in ("tokens", "direct"):
        monkeypatch.setattr(f"walferry.storage.{module}.LIBRARY", library)


def files_on(cluster: MiniCluster, identity: Kerberos | None = None, *, direct: bool = False) -> WebHdfs:
    address = cluster.address
    name_node = address.name_node if direct else None
    security = address.security if identity is None else Security(identity)
    return open_hdfs(str(address.webhdfs), "nobody", name_node, security=security)


def with_ticket(kdc: Kdc, user: str = "ferry") -> Kerberos:
    return Kerberos(ccache=f"FILE:{kdc.ticket(user)}")


def with_keytab(kdc: Kdc, user: str = "ferry") -> Kerberos:
    return Kerberos(principal=kdc.principal(user), keytab=str(kdc.keytab([user])))


@pytest.fixture
def only_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data goes through WebHDFS."""

    def refuse(*_: object, **__: object) -> Iterator[bytes]:
        raise AssertionError("WebHDFS was used")

    monkeypatch.setattr(WebHdfs, "write", refuse)
    monkeypatch.setattr(WebHdfs, "_open", refuse)


@pytest.mark.parametrize("direct", [False, True], ids=["webhdfs", "direct"])
@pytest.mark.parametrize("login", [with_keytab, with_ticket])
def test_files_are_used_as_without_kerberos_and_no_log_has_a_token(
    login: Callable[[Kdc], Kerberos], direct: bool, hdfs: MiniCluster, kdc: Kdc, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    files, folder = files_on(hdfs, login(kdc), direct=direct), f"/user/ferry/{login.__name__}-{direct}"
    files.mkdirs(folder, 0o700)
    files.write(f"{folder}/a", [CONTENT[:5], CONTENT[5:]])
    with pytest.raises(FileExistsError):
        files.write(f"{folder}/a", [CONTENT])
    files.write(f"{folder}/copy", [CONTENT])
    assert b"".join(files.read(f"{folder}/a", 1, len(CONTENT) - 2)) == CONTENT[1:-1]
    assert b"".join(files.read(f"{folder}/a", len(CONTENT))) == b""
    assert files.checksum(f"{folder}/a") == files.checksum(f"{folder}/copy")
    files.rename(f"{folder}/a", f"{folder}/b")
    assert [(status.name, status.length) for status in files.list(folder)] == [
        ("b", len(CONTENT)),
        ("copy", len(CONTENT)),
    ]
    assert files.delete(f"{folder}/b")
    assert files.status(f"{folder}/b") is None
    assert files.allows(folder, "rwx") is True
    assert files.allows("/hbase", "rwx") is False
    assert files.quota_left(folder) is None
    assert (files.space_left() or 0) > 0
    assert files.user == "ferry"
    assert "cannot be used directly" not in caplog.text
    token = files._tokens.current()  # type: ignore[union-attr]
    assert token.encoded()[:-30] not in caplog.text


@pytest.mark.usefixtures("only_direct")
@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy"])
def test_bytes_go_straight_between_data_nodes_and_us_however_they_are_protected(
    protection: str, kdc: Kdc, tmp_path: Path
) -> None:
    with hdfs_in(tmp_path, kdc, **{"dfs.data.transfer.protection": protection}) as cluster:
        files = files_on(cluster, direct=True)
        files.write("/user/ferry/a", [CONTENT])
        assert b"".join(files.read("/user/ferry/a", 0, len(CONTENT))) == CONTENT


@pytest.mark.usefixtures("only_direct")
def test_two_clusters_with_other_realms_and_principals_are_read_directly_in_one_process(
    hdfs: MiniCluster, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file has the tokens of both."""
    with Kdc.start(tmp_path / "kdc", "OTHER.ORG") as there, hdfs_in(tmp_path / "hdfs", there) as other:
        (tmp_path / "krb5.conf").write_text(krb5_conf(kdc, there))
        monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
        home = f"/user/{there.principal('kim').partition('@')[0]}"
        assert other.security is not None
        other.security.ask_webhdfs(
            str(other.address.webhdfs), [f"PUT {home}?op=MKDIRS", f"PUT {home}?op=SETOWNER&owner=kim"]
        )
        kim = replace(with_keytab(there, "kim"), realms=(("localhost", "OTHER.ORG"),))
        for _ in range(2):
            sides = (files_on(hdfs, direct=True), "/user/ferry/x"), (files_on(other, kim, direct=True), "/user/kim/x")
            for files, path in sides:
                write_anew(files, path, [CONTENT])
            for files, path in sides:
                assert b"".join(files.read(path, 0, len(CONTENT))) == CONTENT
        assert [files.user for files, _ in sides] == ["ferry", "kim"]


def test_a_second_identity_at_the_same_name_node_goes_by_webhdfs(
    hdfs: MiniCluster, kdc: Kdc, caplog: pytest.LogCaptureFixture
) -> None:
    write_anew(files_on(hdfs, direct=True), "/tmp/shared", [CONTENT])
    other = files_on(hdfs, with_keytab(kdc, "kim"), direct=True)
    assert b"".join(other.read("/tmp/shared")) == CONTENT
    assert "this process already uses it as another user than kim" in caplog.text


@pytest.mark.parametrize("direct", [False, True], ids=["webhdfs", "direct"])
def test_a_token_that_ends_while_a_file_is_read_is_replaced(
    short_lived: MiniCluster, direct: bool, request: pytest.FixtureRequest
) -> None:
    if direct:
        request.getfixturevalue("only_direct")
    files = files_on(short_lived, direct=direct)
    write_anew(files, "/user/ferry/slow", [CONTENT])
    content = files.read("/user/ferry/slow", 0, len(CONTENT))
    read = next(content)
    time.sleep(LIFE_SECONDS + 1)
    assert read + b"".join(content) == CONTENT
    assert b"".join(files.read("/user/ferry/slow", 0, len(CONTENT))) == CONTENT


def test_a_folder_is_listed_for_longer_than_a_token_lives(short_lived: MiniCluster) -> None:
    files, used = files_on(short_lived), set()
    end = time.monotonic() + 2.5 * LIFE_SECONDS
    while time.monotonic() < end:
        assert [status.name for status in files.list("/user")] == ["ferry"]
        used.add(files._tokens.held)  # type: ignore[union-attr]
    assert len(used) > 2


OPERATIONS: dict[str, Callable[[WebHdfs], object]] = {
    "list": lambda files: files.list("/user/ferry"),
    "read": lambda files: b"".join(files.read("/user/ferry/kept")),
    "write": lambda files: write_anew(files, "/user/ferry/new", [CONTENT]),
    "rename": lambda files: files.rename("/user/ferry/kept", f"/user/ferry/renamed-{time.time_ns()}"),
    "delete": lambda files: files.delete("/user/ferry/kept"),
}


@pytest.mark.parametrize("direct", [False, True], ids=["webhdfs", "direct"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_token_that_hdfs_no_longer_knows_is_replaced_at_once(
    operation: str, direct: bool, hdfs: MiniCluster, caplog: pytest.LogCaptureFixture
) -> None:
    files = files_on(hdfs, direct=direct)
    write_anew(files, "/user/ferry/kept", [CONTENT])
    before = cancelled_token(hdfs, files)
    OPERATIONS[operation](files)
    files.status("/")  # a connection of hdfs-native may be older than the token's end
    assert files._tokens.held != before  # type: ignore[union-attr]
    assert "attempt" not in caplog.text


def cancelled_token(hdfs: MiniCluster, files: WebHdfs) -> Token:
    assert files._tokens is not None
    assert hdfs.security is not None
    token = files._tokens.current()
    cancel = f"PUT /?op=CANCELDELEGATIONTOKEN&token={token.encoded()}"
    hdfs.security.ask_webhdfs(str(hdfs.address.webhdfs), [cancel], user="ferry")
    return token


def test_who_may_not_do_something_is_told_as_without_kerberos(hdfs: MiniCluster, kdc: Kdc) -> None:
    files = files_on(hdfs, with_keytab(kdc, "mallory"))
    with pytest.raises(PermissionDeniedError, match="mkdirs of /hbase/x as user mallory") as raised:
        files.mkdirs("/hbase/x")
    assert raised.value.user == "mallory"


def test_a_keytab_with_an_old_key_is_told_in_one_line(hdfs: MiniCluster, kdc: Kdc) -> None:
    identity = with_keytab(kdc, "forgotten")
    kdc.admin("change_password", "-randkey", "forgotten")
    refused(files_on(hdfs, identity), AuthenticationError, "forgotten@EXAMPLE.COM", "HTTP/localhost", "keytab")


def test_a_service_that_the_kdc_does_not_know_is_named(hdfs: MiniCluster) -> None:
    address = f"http://127.0.0.1:{hdfs.ports.webhdfs}"  # no tickets are for addresses
    kerberos = replace(hdfs.address.security.kerberos or Kerberos(), realms=())
    files = WebHdfs(address, "nobody", security=Security(kerberos))
    refused(files, AuthenticationError, "HTTP/127.0.0.1", "ferry@EXAMPLE.COM")


def test_a_client_without_an_identity_is_told_to_name_one(hdfs: MiniCluster) -> None:
    files = WebHdfs(str(hdfs.address.webhdfs), "ferry")
    refused(files, AuthenticationError, "wants a login", "keytab or a ticket cache")


def test_a_name_node_without_kerberos_is_told_apart(tmp_path: Path, kdc: Kdc) -> None:
    """It would take the name of anyone; whoever names Kerberos expects more."""
    plain = MiniCluster(tmp_path, Ports.free(), with_thrift=False)
    try:
        plain.start_hdfs()
        plain.await_ready("hdfs")
        files = WebHdfs(f"http://localhost:{plain.ports.webhdfs}", "ferry", security=Security(with_keytab(kdc)))
        refused(files, AuthenticationError, "it has no tokens; if it is not secured, name no Kerberos identity for it")
    finally:
        plain.stop()


def refused(files: WebHdfs, kind: type[Exception], *said: str) -> None:
    with pytest.raises(kind) as raised:
        files.list("/")
    text = str(raised.value)
    assert "\n" not in text
    for part in said:
        assert part in text


def test_a_kdc_that_is_away_harms_only_who_has_no_token(hdfs: MiniCluster, kdc: Kdc) -> None:
    identity = with_keytab(kdc, "late")
    files = files_on(hdfs)
    files.list("/user")
    kdc.stop()
    try:
        files.list("/user")
        refused(files_on(hdfs, identity), KerberosUnavailableError, "late@EXAMPLE.COM", "HTTP/localhost")
    finally:
        kdc.boot()
    files_on(hdfs, identity).list("/user")


def test_the_watch_lists_with_a_token(hdfs: MiniCluster) -> None:
    address, files, name = hdfs.address, files_on(hdfs), "rs%2C1%2C2.10"
    files.write(f"/user/ferry/hbase/WALs/rs,1,2/{name}", [CONTENT])
    for _ in range(2):
        listing = asyncio.run(list_wals(str(address.webhdfs), "nobody", "/user/ferry/hbase", address.security))
        assert list(listing.files) == [name]
        cancelled_token(hdfs, files)


WORKER = """
import pickle, sys
from walferry.storage import WebHdfs, open_hdfs

found, address, length = pickle.loads(sys.stdin.buffer.read())
found.take()
WebHdfs._open = None
files = open_hdfs(address.webhdfs, "nobody", address.name_node, security=address.security)
sys.stdout.buffer.write(b"".join(files.read("/user/ferry/direct", 0, length)))
"""


def test_a_nameservice_is_used_directly_and_a_worker_learns_of_its_driver_where_it_is(
    two_name_nodes: TwoNameNodes, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_on(two_name_nodes, direct=True)
    assert files._tokens is not None
    monkeypatch.setattr(held_token, "_known", {})
    held_token.register(files._tokens.token)
    files.list("/user")  # waits, as a driver does, until a name node is active: a driver without a token hands out none
    assert "mini" in str(two_name_nodes.address.name_node)
    brief = pickle.dumps((from_driver(), two_name_nodes.address, len(CONTENT)))
    request.getfixturevalue("only_direct")
    write_anew(files, "/user/ferry/direct", [CONTENT])
    assert b"".join(files.read("/user/ferry/direct", 0, len(CONTENT))) == CONTENT
    without = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
    worker = subprocess.run(
        [sys.executable, "-c", WORKER], input=brief, env=without, capture_output=True, timeout=120, check=False
    )
    assert worker.stdout == CONTENT, worker.stderr.decode()[-2000:]


def test_a_failover_is_waited_out_and_the_token_stays_good(
    two_name_nodes: TwoNameNodes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = two_name_nodes
    cluster.activate("nn1")
    files = files_on(cluster)
    write_anew(files, "/user/ferry/a", [CONTENT])
    token = files._tokens.held  # type: ignore[union-attr]
    work: dict[str, Callable[[], object]] = {
        "list": lambda: [status.name for status in files.list("/user")],
        "read": lambda: b"".join(files.read("/user/ferry/a")) == CONTENT,
        "write": lambda: write_anew(files, "/user/ferry/new", [CONTENT]),
        "rename": lambda: files.rename("/user/ferry/a", "/user/ferry/b"),
    }
    for name, operation in work.items():
        before, after = ("nn1", "nn2") if cluster.active == "nn1" else ("nn2", "nn1")
        cluster.kill(before)
        caplog.clear()
        done = begun(operation, name)
        while caplog.text.count("; attempt") < ATTEMPTS and not done.done():
            time.sleep(0.01)
        cluster.activate(after)
        assert done.result(60) == {"list": ["ferry"], "read": True}.get(name)
        cluster.start_server(before)
        cluster.await_ready(before)
    assert files.status("/user/ferry/b") is not None
    assert files._tokens.held is token  # type: ignore[union-attr]
    assert files.status("/user/ferry/new") is not None
