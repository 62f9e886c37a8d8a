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
from walferry.storage import FileStatus, Local
from walferry.wal.files import list_wals

SERVER, GROUP = "rs,1,2", "rs%2C1%2C2"
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
    return Queue("1", SERVER, SERVER, {GROUP: logs}, {GROUP: shipped})


def found(
    root: Path, contents: Mapping[str, bytes], of: PeerConfig | None = None, shipped: int = 0, sink: UUID | None = None
) -> Unshipped:
    folder = root / "WALs" / SERVER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return read_queue(root, queue(*contents, shipped=shipped), of, sink)


def read_queue(
    root: Path, one: Queue, of: PeerConfig | None = None, sink: UUID | None = None, group: str = GROUP
) -> Unshipped:
    wals = {file.name: file for file in list_wals(Local(), str(root))}
    return unshipped(Local(), str(root), one, group, wals, of or peer(), sink)


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
        edit("hbase:acl"),
    ],
    ids=[
        "no scope",
        "local scope",
        "scope of another family",
        "came from the sink",
        "left out",
        "family left out",
        "system table",
    ],
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


@pytest.mark.parametrize("first", [FIRST, f"{FIRST}.meta"], ids=["lost", "of no user table"])
def test_a_log_that_is_not_listed_is_passed_over_and_the_next_is_read_from_its_beginning(
    tmp_path: Path, first: str
) -> None:
    (tmp_path / "oldWALs").mkdir()
    (tmp_path / "WALs" / SERVER).mkdir(parents=True)
    (tmp_path / "WALs" / SERVER / SECOND).write_bytes(header() + edit() + TRAILER)
    read = read_queue(tmp_path, queue(first, SECOND, shipped=10_000))
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
    assert found(tmp_path / "none", {FIRST: b"no log of HBase"}).read_to_ms is None
    read = found(tmp_path, {FIRST: header() + edit(scopes={}) + b"\xff" * 40 + TRAILER})
    assert (read.oldest, read.whole) == (None, False)
    assert f"{FIRST} cannot be read past byte" in (read.unreadable or "")


def test_each_group_is_read_by_itself_up_to_its_share_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = edit(scopes={}, write_time=3)
    monkeypatch.setattr(reading, "MOST_BYTES", 2 * 20 * len(local))
    monkeypatch.setattr(reading, "BATCH_BYTES", 200)
    contents = {"a": local * 10 + edit(row=b"a"), "b": local * 30 + edit(row=b"b")}
    folder = tmp_path / "WALs" / SERVER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{GROUP}.{name}.7").write_bytes(header() + content)
    logs = {f"{GROUP}.{name}": (f"{GROUP}.{name}.7",) for name in contents}
    both = Queue("1", SERVER, SERVER, logs, dict.fromkeys(logs, 0))
    near, far = (read_queue(tmp_path, both, group=group) for group in logs)
    assert near.oldest is not None
    assert (near.oldest.row, near.whole, list(near.ends)) == ("a", True, [f"{GROUP}.a.7"])
    assert (far.oldest, far.whole, far.read_to_ms) == (None, False, 3)


def test_an_edit_is_found_behind_many_that_are_not_shipped(tmp_path: Path) -> None:
    skipped = edit(scopes={}, row=b"long" * 5_000)
    content = header() + skipped * (12_000_000 // len(skipped)) + edit(row=b"stuck")
    oldest = found(tmp_path, {FIRST: content}).oldest
    assert oldest is not None
    assert oldest.row == "stuck"


def test_only_so_many_logs_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LOGS", 1)
    contents = {FIRST: header() + edit(scopes={}, write_time=3) + TRAILER, SECOND: header() + edit()}
    read = found(tmp_path, contents)
    assert (read.oldest, read.whole, read.read_to_ms) == (None, False, 3)


def test_a_log_that_ends_before_the_position_cannot_be_judged(tmp_path: Path) -> None:
    content = header() + edit()
    read = found(tmp_path, {FIRST: content}, shipped=len(content) + 1)
    assert (read.oldest, read.whole) == (None, False)
    assert f"{FIRST} ends before byte {len(content) + 1}" in (read.unreadable or "")
    assert found(tmp_path / "whole", {FIRST: content}, shipped=len(content)).whole


def test_a_log_without_a_complete_header_is_named_unless_it_has_just_begun(tmp_path: Path) -> None:
    whole = header() + edit(row=b"behind")
    read = found(tmp_path / "older", {FIRST: header()[:9], SECOND: whole})
    assert read.oldest is not None
    assert (read.oldest.row, read.headless) == ("behind", (FIRST,))
    begun = found(tmp_path / "newest", {FIRST: header() + edit(scopes={}) + TRAILER, SECOND: b""})
    assert (begun.read_to_end, begun.headless) == ({FIRST, SECOND}, ())
    (tmp_path / "one" / "WALs").mkdir(parents=True)
    archive = tmp_path / "one" / "oldWALs"
    archive.mkdir()
    (archive / FIRST).write_bytes(b"")
    assert read_queue(tmp_path / "one", queue(FIRST)).headless == (FIRST,)


def test_a_family_that_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    scope = pb.FamilyScope(family=b"\xff", scope_type=1)  # type: ignore[arg-type]
    content = entry([encode_cell(b"r", b"\xff", b"q", 1, 4)], table_name=b"t", scopes=[scope])
    config = pb.ReplicationPeer(
        replicate_all=False,
        table_cfs=[pb.TableCF(table_name=pb.TableName(namespace=b"default", qualifier=b"t"), families=[b"\xff"])],
    )
    oldest = found(tmp_path, {FIRST: header() + content}, peer(config)).oldest
    assert oldest is not None
    assert oldest.families == (r"\xff",)


def test_a_damaged_marker_of_a_bulk_load_is_told(tmp_path: Path) -> None:
    cell = encode_cell(b"METAROW", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, b"\xff")
    scope = pb.FamilyScope(family=b"d", scope_type=1)  # type: ignore[arg-type]
    read = found(tmp_path, {FIRST: header() + entry([cell], table_name=b"t", scopes=[scope])})
    assert (read.whole, FIRST in (read.unreadable or "")) == (False, True)


def test_logs_are_not_looked_for_where_they_were_just_listed(tmp_path: Path) -> None:
    asked: list[str] = []

    class Counted(Local):
        def status(self, path: str) -> FileStatus | None:
            asked.append(path)
            return super().status(path)

    found(tmp_path, {FIRST: header() + edit(scopes={}) + TRAILER})
    (tmp_path / "oldWALs").mkdir()
    wals = {file.name: file for file in list_wals(Local(), str(tmp_path))}
    files = Counted()
    assert unshipped(files, str(tmp_path), queue(FIRST), GROUP, wals, peer(), None).whole
    assert asked == []
    (tmp_path / "WALs" / SERVER / FIRST).rename(tmp_path / "oldWALs" / FIRST)  # it moves while it is looked at
    assert unshipped(files, str(tmp_path), queue(FIRST), GROUP, wals, peer(), None).whole
    assert asked
