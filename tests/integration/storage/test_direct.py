"""Files at the data nodes of a real HDFS: that they really go there, and when WebHDFS takes over."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import hdfs_native
import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError
from walferry.storage import WebHdfs
from walferry.storage.direct import CHUNK_BYTES, DirectHdfs
from written import write_anew

pytestmark = pytest.mark.cluster

CONTENT = bytes(range(256)) * (6 * CHUNK_BYTES // 256) + b"end"


@pytest.fixture
def files(source: MiniCluster) -> DirectHdfs:
    return at(source, str(source.address.name_node))


@pytest.fixture
def folder(source: MiniCluster) -> Iterator[str]:
    files = WebHdfs(str(source.address.webhdfs), source.address.user)
    path = f"/tmp/{uuid4().hex}"
    files.mkdirs(path)
    yield path
    files.delete(path, recursive=True)


def at(cluster: MiniCluster, name_node: str, user: str | None = None, timeout_s: float = 60) -> DirectHdfs:
    address = cluster.address
    return DirectHdfs(str(address.webhdfs), user or address.user, name_node, timeout_s=timeout_s)


def never(*_: object, **__: object) -> None:
    raise AssertionError("through WebHDFS")


def test_bytes_pass_webhdfs_by_in_both_directions(
    files: DirectHdfs, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(files._client, "write", never)
        without.setattr(files._client, "_open", never)
        files.write(f"{folder}/a", [CONTENT[:1000], CONTENT[1000:]], block_size=1 << 20)
        assert b"".join(files.read(f"{folder}/a", 0, len(CONTENT))) == CONTENT
        assert b"".join(files.read(f"{folder}/a", 5, 2 * CHUNK_BYTES)) == CONTENT[5 : 5 + 2 * CHUNK_BYTES]
    status = files.status(f"{folder}/a")
    assert status is not None
    assert (status.length, status.block_size) == (len(CONTENT), 1 << 20)


def breaking(monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    """Make the first so many streams end with an error in their middle."""
    stream = hdfs_native.FileReader.read_range_stream
    left = [None] * streams

    def failing(reader: hdfs_native.FileReader, offset: int, length: int) -> Iterator[bytes]:
        if not left:
            yield from stream(reader, offset, length)
            return
        left.pop()
        yield from stream(reader, offset, length // 2)
        raise OSError("all data nodes failed")

    monkeypatch.setattr(hdfs_native.FileReader, "read_range_stream", failing)


def test_a_data_node_that_fails_in_the_middle_costs_no_byte(
    files: DirectHdfs, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(f"{folder}/a", [CONTENT])
    read_range = hdfs_native.FileReader.read_range

    def failing(reader: hdfs_native.FileReader, offset: int, length: int) -> bytes:
        if offset >= CHUNK_BYTES:
            raise OSError("all data nodes failed")
        return read_range(reader, offset, length)

    breaking(monkeypatch, 1)
    monkeypatch.setattr(hdfs_native.FileReader, "read_range", failing)
    with caplog.at_level(logging.WARNING, "walferry"):
        assert b"".join(files.read(f"{folder}/a")) == CONTENT
    (told,) = [record.getMessage() for record in caplog.records if record.name == "walferry.storage.direct"]
    assert f"cannot read {folder}/a directly (all data nodes failed); WebHDFS is used" in told


def test_a_connection_that_ends_in_the_middle_is_no_reason_to_leave_the_data_nodes(
    files: DirectHdfs, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A data node ends it if the reader pauses for minutes, as replay may."""
    files.write(f"{folder}/a", [CONTENT])
    breaking(monkeypatch, 2)
    monkeypatch.setattr(files._client, "_open", never)
    with caplog.at_level(logging.WARNING, "walferry"):
        assert b"".join(files.read(f"{folder}/a", 7, len(CONTENT) - 7)) == CONTENT[7:]
    assert not caplog.records


def test_a_reader_that_stops_in_the_middle_leaves_no_thread_behind(files: DirectHdfs, folder: str) -> None:
    files.write(f"{folder}/a", [CONTENT])
    reading = files.read(f"{folder}/a")
    for _ in range(3):
        next(reading)
    del reading
    deadline = time.monotonic() + 10
    while any(thread.name == "read HDFS" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failed_write_is_transient_and_the_next_one_takes_webhdfs(
    files: DirectHdfs, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError("no data node")

    with monkeypatch.context() as broken:
        broken.setattr(hdfs_native.FileWriter, "write", failing)
        with pytest.raises(TransientError, match=f"write of {folder}/a.*no data node"):
            files.write(f"{folder}/a", [CONTENT])
        write_anew(files, f"{folder}/a", [CONTENT])
    assert b"".join(files.read(f"{folder}/a")) == CONTENT


def test_what_the_caller_raises_leaves_no_open_file_behind(files: DirectHdfs, folder: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield CONTENT
        raise KeyError("the source is gone")

    with pytest.raises(KeyError, match="the source is gone"):
        files.write(f"{folder}/a", chunks())
    write_anew(files, f"{folder}/a", [b"anew"])
    assert b"".join(files.read(f"{folder}/a")) == b"anew"


def test_a_name_node_that_hangs_is_waited_for_once(
    source: MiniCluster, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hanging = at(source, f"hdfs://127.0.0.1:{listening.getsockname()[1]}", timeout_s=2)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "walferry"):
            for name in ("a", "b"):
                hanging.write(f"{folder}/{name}", [CONTENT])
                assert b"".join(hanging.read(f"{folder}/{name}")) == CONTENT
        assert time.monotonic() - began < 10
    assert len([record for record in caplog.records if "no answer in time" in record.getMessage()]) == 1


def test_another_hdfs_than_that_of_webhdfs_is_not_touched(
    source: MiniCluster, target: MiniCluster, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = at(source, str(target.address.name_node))
    with caplog.at_level(logging.WARNING, "walferry"):
        other.write(f"{folder}/a", [CONTENT])
    assert "its root folder differs" in caplog.text
    assert WebHdfs(str(source.address.webhdfs), source.address.user).status(f"{folder}/a") is not None


def test_a_second_user_of_a_process_goes_through_webhdfs_as_itself(
    files: DirectHdfs, source: MiniCluster, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.mkdirs(folder, 0o777)
    files.write(f"{folder}/a", [CONTENT])
    second = at(source, str(source.address.name_node), user="mallory")
    with caplog.at_level(logging.WARNING, "walferry"):
        second.write(f"{folder}/b", [CONTENT])
    assert f"already uses HDFS as {source.address.user}, so it cannot use HDFS as mallory too" in caplog.text
    assert second._client.status(f"{folder}/b")["owner"] == "mallory"
