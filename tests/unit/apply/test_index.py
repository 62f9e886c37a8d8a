"""What a log of a real HBase tells of its regions."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply.index import FileIndex, index_file
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.markers import Marker
from walferry.formats.proto import hbase_pb2 as pb
from walferry.refusals import RefusalKind
from walferry.storage import Local
from walferry.wal.files import Place, WalFile
from walferry.wal.open import open_wal_at

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wal" / "closed.wal"


def indexed(path: Path, *tables: str) -> FileIndex:
    file = WalFile(path.name, "g", "rs,1,2", 1, str(path), Place.ARCHIVED, path.stat().st_size)
    return index_file(open_wal_at(Local(), str(path)), file, tables)


def marker(qualifier: bytes, message: bytes) -> bytes:
    return encode_cell(b"\0", b"METAFAMILY", qualifier, 1, CellType.PUT, message)


def test_openings_and_flushes_of_a_real_log_name_their_store_files() -> None:
    events = indexed(FIXTURE, "plain").report.events
    assert [(e.kind, e.region[:8], e.sequence_number) for e in events] == [
        (Marker.REGION_OPEN, "2cad7ad3", 3), (Marker.REGION_OPEN, "ecbf8f38", 3),
        (Marker.FLUSH, "2cad7ad3", 19), (Marker.FLUSH, "2cad7ad3", 20),
        (Marker.FLUSH, "ecbf8f38", 28), (Marker.FLUSH, "ecbf8f38", 29),
    ]  # fmt: skip
    begun, ended = events[2:4]
    assert begun.files == frozenset()
    assert ended.files == {"f/7ed991023d7a462992adb1fc5f8ca76e", "g/8e6bb673e12140179aca3c8a086704c2"}
    assert {event.row for event in events} == {b"\0", b"@"}


def test_a_compaction_names_what_it_made_and_what_it_took_out(tmp_path: Path) -> None:
    message = pb.CompactionDescriptor(
        table_name=b"t1", encoded_region_name=b"r", family_name=b"my f", store_home_dir="my f",
        compaction_input=["f1", "f2"], compaction_output=["f3"],
    )  # fmt: skip
    cells = [marker(b"HBASE::COMPACTION", message.SerializeToString())]
    (tmp_path / "log").write_bytes(header() + entry(cells, 5) + TRAILER)
    (event,) = indexed(tmp_path / "log", "t1").report.events
    assert event.kind is Marker.COMPACTION
    assert event.files == {"my%20f/f3"}
    assert event.replaced == {"my%20f/f1", "my%20f/f2"}


@pytest.mark.parametrize("qualifier", [b"HBASE::FLUSH", b"HBASE::REGION_EVENT::REGION_OPEN"])
def test_a_marker_that_cannot_be_read_is_damage(tmp_path: Path, qualifier: bytes) -> None:
    (tmp_path / "log").write_bytes(header() + entry([marker(qualifier, b"\xff\xff\xff")], 5) + TRAILER)
    found = indexed(tmp_path / "log", "t1").report
    assert not found.complete
    assert [refusal.kind for refusal in found.refusals] == [RefusalKind.DAMAGE]
