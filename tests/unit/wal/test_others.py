"""A cluster's log tells which rows were written by others than one cluster whose edits it receives."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from unit.wal.test_live_tail import Log
from walferry.errors import GapError
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.wal import others
from walferry.wal.offsets import Offset
from walferry.wal.others import LongLogError, cells_by_others, log_end, written_by_others

KNOWN = UUID("9ee4b7f6-e7b2-4a47-a6ee-4b0f1a2c3d4e")
OTHER = UUID("11111111-2222-3333-4444-555555555555")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def ids(*clusters: UUID) -> list[pb.UUID]:
    return [pb.UUID(least_sig_bits=c.int & (1 << 64) - 1, most_sig_bits=c.int >> 64) for c in clusters]


def edit(row: bytes, *clusters: UUID, table: bytes = b"t1") -> bytes:
    return entry([encode_cell(row, b"f", b"q", 1, 4)], table_name=table, cluster_ids=ids(*clusters))


def load(*clusters: UUID) -> bytes:
    marker = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"),
        encoded_region_name=b"r", bulkload_seq_num=7, cluster_ids=[str(c) for c in clusters],
    )  # fmt: skip
    cell = encode_cell(b"r", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, marker.SerializeToString())
    return entry([cell], cluster_ids=ids(*clusters))


def read(log: Log, start: Offset) -> others.WrittenByOthers:
    return written_by_others(log.files, str(log.root), start, ["t1", "t2"], KNOWN)


def test_rows_count_unless_their_edits_name_the_known_cluster(log: Log) -> None:
    log.append(1, header(), edit(b"before"))
    start = log_end(log.files, str(log.root))
    assert read(log, start).rows == {}
    log.append(1, edit(b"ours", KNOWN), edit(b"ours too", OTHER, KNOWN), edit(b"theirs"), edit(b"a third's", OTHER))
    log.append(1, edit(b"elsewhere", table=b"t9"), edit(b"in t2", table=b"t2"))
    found = read(log, start)
    assert found.rows == {"t1": {b"theirs", b"a third's"}, "t2": {b"in t2"}}
    assert not found.unnamed
    assert found.read_bytes > 0
    log.append(1, edit(b"later"), TRAILER)
    log.append(2, header(), edit(b"next"))
    assert read(log, found.end).rows == {"t1": {b"later", b"next"}}


def test_a_bulk_load_that_does_not_name_the_known_cluster_leaves_the_rows_unknown(log: Log) -> None:
    log.append(1, header())
    start = log_end(log.files, str(log.root))
    log.append(1, load(OTHER, KNOWN))
    found = read(log, start)
    assert not found.unnamed
    log.append(1, load(OTHER))
    assert read(log, found.end).unnamed == {
        "t1": "others loaded files into it at the target, according to log rs%2C1%2C2.1"
    }  # fmt: skip


def test_very_many_rows_are_not_named(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "MOST_ROWS", 3)
    log.append(1, header())
    start = log_end(log.files, str(log.root))
    log.append(1, *(edit(b"%d" % number) for number in range(5)))
    assert read(log, start).unnamed == {"t1": "others wrote more than 3 of its rows at the target"}


def test_a_log_that_is_gone_before_it_was_read_is_a_gap(log: Log) -> None:
    log.append(1, header())
    start = log_end(log.files, str(log.root))
    log.append(1, edit(b"unseen"))
    log.path(1).unlink()
    log.append(2, header())
    with pytest.raises(GapError):
        read(log, start)


def test_the_cells_of_others_are_told_by_row(log: Log) -> None:
    log.append(1, header(), edit(b"a"))
    start = log_end(log.files, str(log.root))
    log.append(1, edit(b"a", KNOWN), edit(b"b", OTHER), edit(b"c", table=b"t2"), edit(b"d"))

    def rows(*asked: bytes) -> list[bytes]:
        found = cells_by_others(log.files, str(log.root), start, "t1", asked, KNOWN)
        return [row for batch in found for row in batch["row"].to_pylist()]

    assert rows(b"a", b"b", b"c", b"x") == [b"b"]
    assert rows(b"d", b"b") == [b"b", b"d"]
    log.append(1, edit(b"a"), TRAILER)
    log.append(2, header(), edit(b"d"))
    assert sorted(rows(b"a", b"d")) == [b"a", b"d", b"d"]


def test_too_much_log_is_not_read_for_cells(log: Log) -> None:
    log.append(1, header())
    start = log_end(log.files, str(log.root))
    log.append(1, edit(b"a"))
    with pytest.raises(LongLogError, match="MB of log were written since then"):
        list(cells_by_others(log.files, str(log.root), start, "t1", [b"a"], KNOWN, most_bytes=10))
