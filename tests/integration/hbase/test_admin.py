"""Administration of a real cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.hbase import admin
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    NamespaceExistsError,
    NamespaceNotFoundError,
    ReadOnlyTableError,
    ServerGoneError,
    SnapshotExistsError,
    SnapshotNotFoundError,
    TableExistsError,
    TableNotFoundError,
    TableStateError,
)
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import PINNING_ENDPOINT
from walferry.storage import WebHdfs

pytestmark = pytest.mark.cluster

ReadCells = Callable[[Iterable[bytes]], list[tuple[Any, ...]]]
ONE = [Cell(b"r", b"f", b"q", b"v", 1)]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_namespace_is_created_once(client: HBaseClient, make_table: Callable[..., str]) -> None:
    name = f"n{uuid4().hex[:8]}"
    assert not client.namespace_exists(name)
    with pytest.raises(NamespaceNotFoundError):
        make_table(prefix=f"{name}:")
    client.create_namespace(name)
    assert client.namespace_exists(name)
    with pytest.raises(NamespaceExistsError):
        client.create_namespace(name)
    table = make_table(prefix=f"{name}:")
    assert client.tables(name) == [table]


def test_a_table_lives_from_creation_to_deletion(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table(split_keys=[b"m"])
    with pytest.raises(TableExistsError):
        client.create_table(name, {"f": {}})
    client.put(name, ONE)
    with pytest.raises(TableStateError):
        client.delete_table(name)
    client.disable_table(name)
    assert not client.table_enabled(name)
    with pytest.raises(TableStateError):
        client.disable_table(name)
    client.enable_table(name)
    assert len(cells(client.scan(name))) == 1
    client.disable_table(name)
    client.truncate_table(name)
    assert client.table_enabled(name)
    assert cells(client.scan_raw(name)) == []
    assert len(client.regions(name)) == 2
    client.disable_table(name)
    client.delete_table(name)
    with pytest.raises(TableNotFoundError):
        client.describe(name)


def test_a_disabled_table_is_told_apart_from_one_that_is_moving(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name = make_table()
    client.disable_table(name)
    with pytest.raises(TableStateError, match=name):
        client.put(name, ONE)
    with pytest.raises(TableStateError, match=name):
        list(client.scan(name))


def test_a_read_only_table_refuses_writes_until_it_is_opened_again(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name = make_table(split_keys=[b"m"])
    client.set_read_only(name, True)
    assert client.describe(name).read_only
    for row in (b"a", b"z"):
        with pytest.raises(ReadOnlyTableError):
            client.put(name, [Cell(row, b"f", b"q", b"v")])
    client.set_read_only(name, False)
    assert not client.describe(name).read_only
    client.put(name, ONE)


def test_a_read_only_table_is_snapshotted_with_all_that_was_written_before(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name, copy, snapshot = make_table(), f"c{uuid4().hex[:8]}", f"s{uuid4().hex[:8]}"
    client.put(name, [Cell(b"a", b"f", b"q", b"v", 1)])
    client.modify_table(client.describe(name).with_attribute("READONLY", "true"))
    client.snapshot(snapshot, name)
    client.clone_snapshot(snapshot, copy)
    assert b"".join(bytes(block) for block in client.scan(copy)) == b"".join(map(bytes, client.scan(name))) != b""
    client.delete_snapshot(snapshot)


def test_a_clone_of_a_snapshot_holds_what_was_there_when_it_was_taken(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name, copy, snapshot = make_table(split_keys=[b"m"]), f"c{uuid4().hex[:8]}", f"s{uuid4().hex[:8]}"
    client.put(name, ONE)
    before = time.time() * 1000
    taken = client.snapshot(snapshot, name)
    client.put(name, [Cell(b"later", b"f", b"q", b"v", 1)])
    assert (taken.name, taken.table) == (snapshot, name)
    assert before - 1000 <= taken.creation_time <= time.time() * 1000 + 1000
    assert client.snapshot(snapshot, name).creation_time == taken.creation_time
    client.clone_snapshot(snapshot, copy)
    assert [cell[0] for cell in cells(client.scan_raw(copy))] == [b"r"]
    assert client.describe(copy).families == client.describe(name).families
    client.put(copy, [Cell(b"mine", b"f", b"q", b"v", 1)])
    with pytest.raises(TableExistsError):
        client.clone_snapshot(snapshot, copy)
    assert [cell[0] for cell in cells(client.scan_raw(copy))] == [b"mine", b"r"]
    client.disable_table(copy)
    with pytest.raises(TableExistsError):
        client.clone_snapshot(snapshot, copy)  # the master would restore a disabled table
    client.delete_table(copy)
    assert client.delete_snapshot(snapshot) is True
    assert client.delete_snapshot(snapshot) is False
    with pytest.raises(SnapshotNotFoundError):
        client.clone_snapshot(snapshot, copy)


def test_a_snapshot_name_that_another_table_took_is_refused(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    one, other, snapshot = make_table(), make_table(), f"s{uuid4().hex[:8]}"
    client.snapshot(snapshot, one)
    with pytest.raises(SnapshotExistsError, match=one):
        client.snapshot(snapshot, other)
    with pytest.raises(TableNotFoundError):
        client.snapshot(f"{snapshot}-2", "no_such_table")
    client.delete_snapshot(snapshot)


def test_two_who_ask_for_the_same_snapshot_at_once_get_the_same(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    name, snapshot = make_table(), f"s{uuid4().hex[:8]}"
    times: list[int] = []
    threads = [
        threading.Thread(target=lambda: times.append(client.snapshot(snapshot, name).creation_time)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 2
    assert times[0] == times[1]
    client.delete_snapshot(snapshot)


def test_a_split_leaves_two_regions_and_a_move_changes_the_server(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table()
    client.put(name, [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"z")])
    (whole,) = client.regions(name)
    client.split_region(whole, b"m")
    assert [(region.start, region.end) for region in client.regions(name)] == [(b"", b"m"), (b"m", b"")]
    first = client.regions(name)[0]
    other = next(server for server in client.servers() if server != first.server)
    client.move_region(first, other)
    moved, stayed = client.regions(name)
    assert moved.server == other
    assert moved.changed_ms > first.changed_ms
    assert stayed.changed_ms < moved.changed_ms
    assert [cell[0] for cell in cells(client.scan_raw(name))] == [b"a", b"z"]


def test_a_move_to_a_server_that_is_gone_ends_by_its_name(
    client: HBaseClient, make_table: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its master opens the region elsewhere, as for the predecessor of a server that was killed and is back."""
    monkeypatch.setattr(admin, "MOVE_AGAIN_S", 1.0)
    (region,) = client.regions(make_table())
    assert region.server is not None
    gone = replace(region.server, start_code=region.server.start_code - 1)
    with pytest.raises(ServerGoneError, match=f"region {region.encoded} of .* cannot move to {gone.name}, which is"):
        client.move_region(region, gone)
    assert client.regions(region.table)[0].server in client.servers()


def test_flush_and_major_compaction_drop_what_no_reader_sees(
    client: HBaseClient, make_table: Callable[..., str], cells: ReadCells
) -> None:
    name = make_table({"f": {"VERSIONS": "1"}})
    for timestamp in (1, 2, 3):
        client.put(name, [Cell(b"r", b"f", b"q", b"v", timestamp)])
        client.flush_table(name)
    client.compact_table(name, major=True)
    wait_until(lambda: [cell[3] for cell in cells(client.scan_raw(name))] == [3])


def test_the_sizes_of_regions_take_one_request_to_each_server(
    client: HBaseClient, make_table: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_table(split_keys=[b"c", b"m", b"t"])
    client.put(name, [Cell(b"d%d" % number, b"f", b"q", bytes(1 << 20), 1) for number in range(3)])
    *regions, left_out = client.regions(name)
    asked: list[object] = []
    call = client.pool.call

    def counted(address: Any, service: str, method: str, *args: Any, **more: Any) -> Any:
        asked.append(address)
        return call(address, service, method, *args, **more)

    monkeypatch.setattr(client.pool, "call", counted)
    sizes = client.regions_bytes(regions)
    assert len(asked) == len(set(asked)) <= len(client.servers())
    assert sizes == {region.encoded: client.region_bytes(region) for region in regions}
    assert [region.start for region in regions if sizes[region.encoded]] == [b"c"]
    assert left_out.encoded not in sizes


def test_a_rolled_wal_shows_up_as_a_new_file(client: HBaseClient, source: MiniCluster) -> None:
    files = WebHdfs(str(source.address.webhdfs), source.address.user, security=source.address.security)
    server = client.servers()[0]
    folder = f"{source.address.root_path}/WALs/{server.name}"

    def newest() -> str:
        return max(file.name for file in files.list(folder) if not file.name.endswith(".meta"))

    before = newest()
    client.roll_wal(server)
    wait_until(lambda: newest() > before)


def test_a_disabled_peer_queues_the_wals_of_every_server_until_it_is_removed(client: HBaseClient) -> None:
    peer = f"p{uuid4().hex[:8]}"
    client.add_peer(peer)
    client.add_peer(peer)  # the same again is no error
    assert client.peers()[peer] == (False, PINNING_ENDPOINT)
    with pytest.raises(UsageError, match=peer):
        client.add_peer(peer, enabled=True)
    servers = {server.name for server in client.servers()}
    wait_until(lambda: set(client.peer_queues(peer)) == servers)
    queues = client.peer_queues(peer)
    assert all(len(wals) == 1 for wals in queues.values())
    for server in client.servers():
        client.roll_wal(server)
    wait_until(lambda: all(len(wals) == 2 for wals in client.peer_queues(peer).values()))
    assert client.remove_peer(peer) is True
    assert client.remove_peer(peer) is False
    assert peer not in client.peers()
    assert client.peer_queues(peer) == {}


def test_what_stands_in_memory_is_told_by_table(client: HBaseClient, make_table: Callable[..., str]) -> None:
    """A plan that asked the file system only said 0.0 MB."""
    name, empty = make_table(), make_table()
    for i in range(3):
        client.put(name, [Cell(b"r%d" % i, b"f", b"q", bytes(1 << 20), 1)])
    wait_until(lambda: client.memstore_bytes().get(name, 0) >= 3 << 20)  # servers report every three seconds
    assert client.memstore_bytes().get(empty, 0) == 0
