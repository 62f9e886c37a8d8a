"""A real HDFS, through WebHDFS alone, with its data nodes asked directly, or through HttpFS; HBase writes to it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from integration.storage.gateway import gateway_to
from walferry.background import begun
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.httpfs import HttpFs
from walferry.errors import TransientError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.request_meter import Meter, RequestRates, Service, counted
from walferry.storage import (
    PermissionDeniedError,
    QuotaExceededError,
    WebHdfs,
    open_file_system,
    open_hdfs,
    temporary,
)
from walferry.wal.files import list_wals
from walferry.watch.listing import list_wals as watched

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=["webhdfs", "direct", "httpfs", "gateway"])
def files(source: MiniCluster, request: pytest.FixtureRequest) -> Iterator[WebHdfs]:
    address = source.address
    if request.param == "httpfs":
        with HttpFs.start(source) as gateway:
            yield open_hdfs(gateway.url, address.user)
        return
    if request.param == "gateway":
        with gateway_to(str(address.webhdfs)) as url:
            yield open_hdfs(url, address.user)
        return
    yield open_hdfs(str(address.webhdfs), address.user, address.name_node if request.param == "direct" else None)


@pytest.fixture
def folder(files: WebHdfs) -> Iterator[str]:
    path = f"/tmp/{uuid4().hex}"
    files.mkdirs(path)
    yield path
    files.delete(path, recursive=True)


def test_a_written_file_reads_back_from_any_offset(files: WebHdfs, folder: str) -> None:
    path, content = f"{folder}/deep/h%2C1%2C2 with space.3", bytes(range(256)) * 20_000
    files.write(path, [content[:1000], b"", content[1000:]])
    status = files.status(path)
    assert status is not None
    assert (status.length, status.is_dir, status.name) == (len(content), False, "h%2C1%2C2 with space.3")
    assert b"".join(files.read(path)) == content
    assert b"".join(files.read(path, 4_000_000, 1234)) == content[4_000_000:4_001_234]
    assert b"".join(files.read(path, len(content) - 3)) == content[-3:]
    assert list(files.read(path, len(content))) == []
    assert list(files.read(path, len(content) + 5)) == []
    assert [one.path for one in files.list(f"{folder}/deep")] == [path]
    assert str(files.checksum(path)).startswith("MD5-of-0MD5-of-512CRC32C:")


def test_requests_to_the_name_node_are_counted_and_those_to_data_nodes_are_not(
    files: WebHdfs, folder: str, source: MiniCluster
) -> None:
    rates = RequestRates()
    metered = WebHdfs(files.url, files.user, meter=Meter(folder, rates))
    for name in ("a", "b"):
        metered.write(f"{folder}/{name}", [b"1", b"2"])  # redirected to a data node, as is reading
    assert b"".join(metered.read(f"{folder}/a")) == b"12"
    metered.list(folder)
    metered.status(f"{folder}/c")
    redirects = files.url == source.address.webhdfs  # HttpFS redirects to itself
    assert counted()[folder, Service.NAMENODE] == (5 if redirects else 7)


def test_a_name_node_tells_how_much_space_is_left_and_what_stands_before_it_says_that_it_is_none(
    files: WebHdfs, source: MiniCluster
) -> None:
    of_name_node = files.url == source.address.webhdfs
    assert (files.space_left() is not None) is of_name_node
    # A gateway has no page that would tell.
    assert files.is_gateway() is not (of_name_node or "/gateway/" in files.url)


def test_equal_files_have_equal_checksums_and_others_do_not(files: WebHdfs, folder: str) -> None:
    for name, content in (("a", b"same"), ("b", b"same"), ("c", b"else")):
        files.write(f"{folder}/{name}", [content])
    assert files.checksum(f"{folder}/a") == files.checksum(f"{folder}/b") != files.checksum(f"{folder}/c")


def test_the_open_wal_is_read_to_its_real_end_whatever_length_is_listed(files: WebHdfs, source: MiniCluster) -> None:
    name = f"t{uuid4().hex[:8]}"
    with HBaseClient(source.address) as client:
        client.create_table(name, {"f": {}})
        server = client.regions(name)[0].server
        assert server is not None
        client.roll_wal(server)
        time.sleep(1)
        wals = files.list(f"{source.address.root_path}/WALs/{server.name}")
        wal = max((one for one in wals if not one.name.endswith(".meta")), key=lambda one: one.name)
        seen = sum(len(chunk) for chunk in files.read(wal.path))
        for n in range(3):
            marker = uuid4().bytes
            client.put(name, [Cell(b"r%d" % n, b"f", b"q", marker)])
            tail = b"".join(files.read(wal.path, seen))
            assert marker in tail
            seen += len(tail)
        assert list(files.read(wal.path, seen)) == []
        status = files.status(wal.path)
        assert status is not None
        assert status.length < seen
        client.disable_table(name)
        client.delete_table(name)


def test_the_watch_lists_the_same_logs(files: WebHdfs, source: MiniCluster) -> None:
    root = source.address.wal_path
    listing = asyncio.run(watched(files.url, files.user, root))
    assert listing.files.keys() == {file.name for file in list_wals(files, root)} != set()


def test_an_open_file_is_read_behind_its_listed_blocks(files: WebHdfs, folder: str) -> None:
    """Behind a full block the name node lists a length, and refuses offsets behind that."""
    path, block = f"{folder}/open", 1 << 20

    def grow() -> Iterator[bytes]:
        yield b"a" * block
        yield b"b" * 700_000
        deadline = time.monotonic() + 30
        while True:  # the data node's pipeline is slower than our chunks
            status = files.status(path)
            if status is not None and status.length == block:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        listed.append(b"".join(files.read(path, block - 10, 10)))
        behind.append(b"".join(files.read(path, block + 5)))

    listed: list[bytes] = []
    behind: list[bytes] = []
    # Each chunk as it comes; those for the data nodes directly are gathered first.
    WebHdfs(files.url, files.user).write(path, grow(), block_size=block)
    assert listed == [b"a" * 10]
    assert set(behind[0]) <= {ord("b")}
    assert b"".join(files.read(path, block + 5)) == b"b" * (700_000 - 5)


def test_what_is_missing_is_none_or_an_error(files: WebHdfs, folder: str) -> None:
    missing = f"{folder}/missing"
    assert files.status(missing) is None
    assert files.delete(missing) is False
    assert files.list(folder) == []
    for ask in (
        lambda: files.list(missing),
        lambda: next(files.read(missing)),
        lambda: files.rename(missing, f"{folder}/x"),
        lambda: files.checksum(missing),
        lambda: files.write(f"{folder}/copy", files.read(missing)),
    ):
        with pytest.raises(FileNotFoundError, match=missing):
            ask()


def test_a_file_is_no_folder(files: WebHdfs, folder: str) -> None:
    files.write(f"{folder}/file", [b"x"])
    with pytest.raises(NotADirectoryError):
        files.list(f"{folder}/file")


def test_a_file_is_replaced_only_when_asked_and_then_at_once(files: WebHdfs, folder: str) -> None:
    path, other = f"{folder}/file", f"{folder}/other"
    files.write(path, [b"old"])
    files.write(other, [b"other"])
    with pytest.raises(FileExistsError):
        files.write(path, [b"new"])
    with pytest.raises(FileExistsError):
        files.rename(other, path)
    assert b"".join(files.read(path)) == b"old"
    for content in (b"new", b"newer"):
        with temporary(files, folder) as new:
            files.write(new, [content])
            files.replace(new, path)
    assert [status.name for status in files.list(folder)] == ["file", "other"]
    files.rename(path, f"{folder}/renamed")
    assert b"".join(files.read(f"{folder}/renamed")) == b"newer"
    assert files.status(path) is None
    files.replace(other, path)
    assert b"".join(files.read(path)) == b"other"
    with pytest.raises(FileNotFoundError, match="other is not on"):
        files.replace(other, path)
    with pytest.raises(FileExistsError):
        files.replace(path, folder)
    with pytest.raises(WalferryError, match="did not rename"):
        files.rename(path, f"{folder}/no/such/folder")
    with pytest.raises((WalferryError, FileNotFoundError)):
        files.replace(path, f"{folder}/no/such/folder")
    assert b"".join(files.read(path)) == b"other"


def test_an_attempt_to_write_that_comes_late_does_not_empty_what_the_next_one_has_written(
    files: WebHdfs, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one at a data node that waited for a name node, and then asks the next one."""
    path, request = f"{folder}/file", files._client._request
    placed, go_on = threading.Event(), threading.Event()

    def late(method: str, url: str, **options: Any) -> Any:
        if method == "PUT" and options.get("data") is not None:
            monkeypatch.setattr(files._client, "_request", request)
            placed.set()
            assert go_on.wait(60)
        return request(method, url, **options)

    monkeypatch.setattr(files._client, "_request", late)
    abandoned = begun(lambda: files.write(path, [b""]), "late")
    assert placed.wait(60)
    files.write(path, [b"finished"])
    go_on.set()
    assert isinstance(abandoned.exception(60), FileExistsError)
    assert b"".join(files.read(path)) == b"finished"


def test_a_folder_goes_with_all_it_holds_only_when_asked(files: WebHdfs, folder: str) -> None:
    files.write(f"{folder}/d/f", [b""])
    with pytest.raises(WalferryError, match="not empty"):
        files.delete(f"{folder}/d")
    assert files.delete(f"{folder}/d", recursive=True) is True


def test_a_refused_user_is_named_with_the_path(files: WebHdfs, folder: str, source: MiniCluster) -> None:
    files._client.set_permission(folder, "700")
    stranger, _ = open_file_system(f"webhdfs://mallory@{str(source.address.webhdfs).removeprefix('http://')}/")
    for ask in (
        lambda: stranger.list(folder),
        lambda: stranger.status(f"{folder}/x"),
        lambda: next(stranger.read(f"{folder}/x")),
        lambda: stranger.write(f"{folder}/x", [b""]),
    ):
        with pytest.raises(PermissionDeniedError, match=f"{folder}.* as user mallory"):
            ask()


def test_a_folder_gets_the_permission_that_is_asked_for_whatever_the_umask(files: WebHdfs, folder: str) -> None:
    for path, permission in ((f"{folder}/closed", 0o711), (f"{folder}/open", 0o777)):
        files.mkdirs(path)
        files.mkdirs(path, permission)
        assert files._client.status(path)["permission"] == f"{permission:o}"


def test_a_used_up_quota_is_told_with_the_path(files: WebHdfs, folder: str, source: MiniCluster) -> None:
    response = files._client._session.put(
        f"{source.address.webhdfs}/webhdfs/v1{folder}",
        params={"op": "SETQUOTA", "namespacequota": 2, "user.name": files.user},
        timeout=10,
    )
    response.raise_for_status()
    files.write(f"{folder}/1", [b""])
    with pytest.raises(QuotaExceededError, match=f"{folder}/2"):
        files.write(f"{folder}/2", [b""])


def test_a_read_that_a_gateway_cuts_off_goes_on_where_it_ended(source: MiniCluster, folder: str) -> None:
    content = bytes(range(256)) * 10_000
    WebHdfs(str(source.address.webhdfs), source.address.user).write(f"{folder}/cut", [content])
    with gateway_to(str(source.address.webhdfs), cut=2) as url:
        assert b"".join(WebHdfs(url, source.address.user).read(f"{folder}/cut")) == content


def test_a_dead_port_is_one_clear_transient_error_behind_bounded_attempts(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    dead = WebHdfs(url, "alice")
    with caplog.at_level(logging.WARNING, "walferry"), pytest.raises(TransientError) as raised:
        dead.status("/x")
    assert (
        str(raised.value)
        == f"WebHDFS at {url} does not answer (status of /x): [Errno 111] Connection refused; is it up?"
    )
    # The hdfs library may speak, too, once another test has set up logging.
    assert len([record for record in caplog.records if record.name == "walferry.storage.webhdfs"]) == 3


def test_a_name_node_that_hangs_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hanging = WebHdfs(f"http://127.0.0.1:{listening.getsockname()[1]}", "alice", timeout_s=0.2)
        began = time.monotonic()
        with pytest.raises(TransientError, match="timed out"):
            hanging.write("/x", [b""])
        assert time.monotonic() - began < 5
