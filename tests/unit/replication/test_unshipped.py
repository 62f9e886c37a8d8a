"""Which edit of a log a peer has still to ship: decided as HBase's own filters do, and read within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import Queue
from walferry.replication import unshipped as reading
from walferry.replication.unshipped import Unshipped, unshipped
from walferry.storage import Local

SERVER = "rs,1,2"
SINK = UUID(int=7 << 64 | 9)
FIRST, SECOND = "rs%2C1%2C2.7", "rs%2C1%2C2.8"
ALL = pb.ReplicationPeer(clusterkey="zk:2181:/hbase", replicate_all=True)


def peer(config: pb.ReplicationPeer = ALL) -> PeerConfig:
    return PeerConfig.of("1", True, config)


def edit(
    table: str = "t", row: bytes = b"r", *families: str, scopes: Mapping[str, int] | None = None, **key: Any
) -> bytes:
    """An entry with a cell for each family, which all have the scope 1 unless others are given."""
    of = families or ("d",)
    stated = dict.fromkeys(of, 1) if scopes is None else scopes
    cells = [encode_cell(row, family.encode(), b"q", 1, 4) for family in of]
    scoped = [pb.FamilyScope(family=family.encode(), scope_type=scope) for family, scope in stated.items()]  # type: ignore[arg-type]
    return entry(cells, table_name=table.encode(), scopes=scoped, **key)


def queue(*logs: str, shipped: int = 0) -> Queue:
    return Queue("1", SERVER, SERVER, {"rs%2C1%2C2": logs}, {"rs%2C1%2C2": shipped})


def found(
    root: Path, contents: Mapping[str, bytes], of: PeerConfig | None = None, shipped: int = 0, sink: UUID | None = None
) -> Unshipped:
    folder = root / "WALs" / SERVER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return unshipped(Local(), str(root), queue(*contents, shipped=shipped), of or peer(), sink)


def test_the_first_edit_past_the_position_is_named_with_its_place(tmp_path: Path) -> None:
    before = header() + edit(row=b"shipped")
    waits = edit("shop:orders", b"\0" * 100, "e", "d", write_time=5)
    oldest = found(tmp_path, {FIRST: before + waits + edit() + TRAILER}, shipped=len(before)).oldest
    assert oldest == reading.Edit(FIRST, len(before), "shop:orders", r"\x00" * 60, ("d", "e"), 5)


@pytest.mark.parametrize(
    "beside",
    [
        edit(scopes={}),
        edit(scopes={"d": 0}),
        edit(scopes={"e": 1}),
        edit(cluster_ids=[pb.UUID(least_sig_bits=9, most_sig_bits=7)]),
        edit("left"),
        edit("left_in_part", b"r", "d"),
    ],
    ids=["no scope", "local scope", "scope of another family", "came from the sink", "left out", "family left out"],
)
def test_what_the_peer_does_not_ship_does_not_wait(tmp_path: Path, beside: bytes) -> None:
    config = pb.ReplicationPeer(
        replicate_all=True,
        exclude_table_cfs=[
            pb.TableCF(table_name=pb.TableName(namespace=b"default", qualifier=b"left")),
            pb.TableCF(table_name=pb.TableName(namespace=b"default", qualifier=b"left_in_part"), families=[b"d"]),
        ],
    )
    read = found(tmp_path, {FIRST: header() + beside + TRAILER}, peer(config), sink=SINK)
    assert (read.oldest, read.whole, read.read_to_end) == (None, True, {FIRST})


def test_the_families_that_are_shipped_with_the_first_edit_are_told_by_table(tmp_path: Path) -> None:
    content = header() + edit("a", b"r", "d") + edit("b", b"r", "d", "e", scopes={"e": 1}) + edit("a", b"r", "f")
    read = found(tmp_path, {FIRST: content + TRAILER})
    assert read.tables == {"a": {"d", "f"}, "b": {"e"}}


def test_a_bulk_load_waits_where_bulk_loads_are_replicated(tmp_path: Path) -> None:
    stores = [pb.StoreDescriptor(family_name=name, store_home_dir="d") for name in (b"d", b"e")]
    descriptor = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t"), encoded_region_name=b"r", bulkload_seq_num=1,
        stores=stores,
    )  # fmt: skip
    cell = encode_cell(b"METAROW", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, descriptor.SerializeToString())
    alone = entry([cell], table_name=b"t")
    scoped = entry([cell], table_name=b"t", scopes=[pb.FamilyScope(family=b"e", scope_type=1)])  # type: ignore[arg-type]
    content = header() + alone + scoped + edit("t") + TRAILER
    oldest = found(tmp_path, {FIRST: content}).oldest
    assert oldest is not None
    assert (oldest.offset, oldest.row, oldest.families) == (len(header()) + len(alone), None, ("e",))


def test_a_log_without_anything_to_ship_leads_on_to_the_next(tmp_path: Path) -> None:
    first = header() + edit(scopes={}, row=b"long" * 20)
    contents = {FIRST: first + TRAILER, SECOND: header() + edit(row=b"next")}
    oldest = found(tmp_path, contents, shipped=len(first)).oldest
    assert oldest is not None
    assert (oldest.file, oldest.row, oldest.offset) == (SECOND, "next", len(header()))


def test_a_log_without_a_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "oldWALs").mkdir()
    (tmp_path / "WALs" / SERVER).mkdir(parents=True)
    (tmp_path / "WALs" / SERVER / SECOND).write_bytes(header() + edit() + TRAILER)
    read = unshipped(Local(), str(tmp_path), queue(FIRST, SECOND), peer(), None)
    assert read.oldest is not None
    assert read.oldest.file == SECOND
    assert read.whole


def test_reading_ends_after_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    monkeypatch.setattr(reading, "BATCH_BYTES", 200)
    content = header() + edit(scopes={}, write_time=3) * 100 + edit()
    read = found(tmp_path, {FIRST: content})
    assert (read.oldest, read.whole, read.read_to_ms) == (None, False, 3)


def test_the_newest_log_is_read_on_to_its_end_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 200)
    content = header() + edit() * 100
    newest = found(tmp_path / "one", {FIRST: content})
    assert (newest.ends, newest.read_to_end) == ({FIRST: len(content)}, {FIRST})
    older = found(tmp_path / "two", {FIRST: content, SECOND: content})
    assert older.ends.keys() == {FIRST}
    assert older.ends[FIRST] < len(content)


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    read = found(tmp_path, {FIRST: header() + edit(scopes={}) + b"\xff" * 40 + TRAILER})
    assert (read.oldest, read.whole) == (None, False)
    assert f"{FIRST} cannot be read past byte" in (read.unreadable or "")


def test_of_two_groups_that_were_not_read_whole_the_older_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 900)
    monkeypatch.setattr(reading, "BATCH_BYTES", 200)
    groups = {"rs%2C1%2C2.a": 9, "rs%2C1%2C2.b": 3, "rs%2C1%2C2.c": 1}
    folder = tmp_path / "WALs" / SERVER
    folder.mkdir(parents=True)
    for group, ms in groups.items():
        entries = 1 if ms == 1 else 100
        (folder / f"{group}.7").write_bytes(header() + edit(scopes={}, write_time=ms) * entries)
    logs = {group: (f"{group}.7",) for group in groups}
    read = unshipped(Local(), str(tmp_path), Queue("1", SERVER, SERVER, logs, dict.fromkeys(groups, 0)), peer(), None)
    assert (read.whole, read.read_to_ms) == (False, 3)
