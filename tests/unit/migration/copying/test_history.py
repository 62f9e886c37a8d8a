"""Which cells of a snapshot's store files are loaded, and which target tables they may be loaded into."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from unit.migration.filled_ledger import SPEC
from walferry.apply.route import Route
from walferry.errors import TransientError, UnreadableInputError, UsageError
from walferry.formats.cells import CellType, cell_starts, cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.resolve import Digest
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import new_table
from walferry.hbase.errors import TableExistsError
from walferry.ledger import Ledger
from walferry.migration.copying import history
from walferry.migration.copying.history import RegionTask
from walferry.migration.planning.tables import existing_findings, unreadable_findings
from walferry.migration.sides.digest import NOTHING, Outcome
from walferry.run.run import Run
from walferry.run.spec import TablePair
from walferry.snapshots.manifest import SnapshotRegion, StoreFile
from walferry.storage import Local

TTL_TAG = 8
Put = tuple[bytes, bytes, int, CellType, bytes]


def store_file(folder: Path, number: int, *cells: Put, ttl: int | None = None) -> StoreFile:
    """A bulk-loaded file of family f: (row, qualifier, timestamp, type, value), in order."""
    tags = [(TTL_TAG, ttl.to_bytes(8, "big"))] if ttl else []
    run = b"".join(encode_cell(row, b"f", q, at, kind, value, tags) for row, q, at, kind, value in cells)
    buffer = np.frombuffer(run, np.uint8)
    path = folder / f"aa_SeqId_{number}_"
    path.write_bytes(b"".join(hfile_chunks([(buffer, cell_starts(buffer))], StoreFormat(), 1, WrittenFile())))
    return StoreFile(b"f", path.name, (str(path),), path.stat().st_size)


def loaded(monkeypatch: pytest.MonkeyPatch, *files: StoreFile, keeps: bool = False) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(history, "shared_files", lambda address: Local())
    region = SnapshotRegion("r", b"b", b"d", files)
    route = cast(Route, SimpleNamespace(source=None))
    task = RegionTask(route, "t", "/staging", region, {b"f": StoreFormat()}, frozenset([b"f"] if keeps else []))
    found = []
    for buffer, positions in history._cells(task, b"f", files, 1_000_000):
        whole = index_cells(buffer)
        kept = whole.pick(np.searchsorted(whole.position, positions))
        found += [tuple(cell.values()) for cell in cells_to_arrow(kept).to_pylist()]
    return [(c[0], c[2], c[3], c[5]) for c in found]


def test_of_equal_keys_the_later_one_is_loaded_of_the_regions_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = store_file(tmp_path, 7, (b"b", b"q", 1, CellType.PUT, b"late"), (b"d", b"q", 1, CellType.PUT, b"next"))
    early = store_file(
        tmp_path, 5, (b"a", b"q", 1, CellType.PUT, b"before"), (b"b", b"q", 1, CellType.PUT, b"early"),
        (b"c", b"q", 2, CellType.DELETE_COLUMN, b""), (b"c", b"q", 1, CellType.PUT, b"deleted"),
    )  # fmt: skip
    assert loaded(monkeypatch, late, early) == [
        (b"b", b"q", 1, b"late"), (b"c", b"q", 2, b""), (b"c", b"q", 1, b"deleted"),
    ]  # fmt: skip


def test_an_expired_put_does_not_hide_what_it_had_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = store_file(tmp_path, 5, (b"b", b"q", 1, CellType.PUT, b"below"))
    over = store_file(tmp_path, 7, (b"b", b"q", 1, CellType.PUT, b"expired"), ttl=10)
    assert loaded(monkeypatch, below, over) == [(b"b", b"q", 1, b"below")]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_put_that_a_reader_would_show_despite_its_marker_is_loaded_only_if_deleted_cells_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    file = store_file(
        tmp_path, 5, (b"b", b"", 4, CellType.PUT, b"shown"), (b"b", b"", 3, CellType.DELETE_FAMILY, b""),
        (b"b", b"q", 2, CellType.PUT, b"deleted"),
    )  # fmt: skip
    values = [cell[3] for cell in loaded(monkeypatch, file, keeps=keeps)]
    assert values == [b"shown", b"", *([b"deleted"] if keeps else [])]


def test_a_snapshots_file_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableInputError, match="store file /nowhere/aa no longer exists"):
        loaded(monkeypatch, StoreFile(b"f", "aa", ("/nowhere/aa",), 9))


def outcome(uncompared: int) -> Outcome:
    return replace(NOTHING, source=Digest(1, 2, 3), target=Digest(1, 2, 4), uncompared=uncompared)


def test_a_comparison_in_which_cells_expired_is_done_again_and_one_that_differs_is_for_the_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, found = TablePair(source="t", target="o"), [outcome(0), outcome(2)]
    monkeypatch.setattr(history, "compare_stored", lambda *_: found)
    run = SimpleNamespace(pair=lambda table: pair, source_address=lambda workers: None, target_address=lambda: None)
    regions = [SnapshotRegion(name, b"", b"", ()) for name in ("r", "s")]
    compared = partial(history._compared, cast(Run, run), None, "t", pb.SnapshotDataManifest(), regions)
    with pytest.raises(TransientError, match="2 cells of o expired while they were compared"):
        compared()
    found[1] = outcome(0)
    assert [(row["region"], row["source_digest"][-1], row["target_digest"][-1]) for row in compared()] == [
        ("r", "3", "4"), ("s", "3", "4"),
    ]  # fmt: skip


SOURCE = new_table("t", {"f": {"VERSIONS": "3"}})


def refusals(families: dict[str, dict[str, str]], cells: list[bytes], *, enabled: bool = True) -> list[str]:
    client = SimpleNamespace(
        table_enabled=lambda table: enabled, scan_raw=lambda table: iter(cells),
        describe=lambda table: new_table(table, families),
    )  # fmt: skip
    found = list(existing_findings(cast(HBaseClient, client), TablePair(source="t", target="o"), SOURCE))
    assert {finding.level for finding in found} <= {"refuse"}
    return [finding.message for finding in found]


def test_an_empty_table_with_the_sources_families_is_taken_and_no_other() -> None:
    assert refusals({"f": {"VERSIONS": "3"}}, []) == []
    (filled,) = refusals({"f": {"VERSIONS": "3"}}, [b"cell"])
    assert "o is not empty" in filled
    (disabled,) = refusals({"f": {"VERSIONS": "3"}}, [], enabled=False)
    assert "is disabled" in disabled
    missing, more = refusals({"g": {}}, [])
    assert "family f of t is only at the source" in missing
    assert "family g of t is only at the target" in more
    (fewer,) = refusals({"f": {"VERSIONS": "1"}}, [])
    assert "VERSIONS of t family f is 3 at the source, 1 at the target" in fewer


@pytest.mark.parametrize(
    ("there", "cells", "left"), [(False, [], []), (True, [], []), (True, [b"cell"], ["t r"])],
    ids=["dropped", "truncated", "as it was"],
)  # fmt: skip
def test_of_a_table_that_was_emptied_meanwhile_no_region_counts_as_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, cells: list[bytes], left: list[str]
) -> None:
    monkeypatch.setattr(history, "left_out", lambda run, table: [])
    monkeypatch.setattr(history, "plan_own", lambda *_, **__: None)
    monkeypatch.setattr(history, "made", lambda *_: None)
    client = SimpleNamespace(
        table_exists=lambda table: there, scan_raw=lambda table: iter(cells), describe=lambda table: SOURCE,
        create_table_of=lambda descriptor, borders: None,
    )  # fmt: skip
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        record = ledger.open_run("move", "test", SPEC, "test")
        mine = ledger.of(record.run_id)
        run = SimpleNamespace(target=client, ledger=mine, pair=lambda table: TablePair(source="t", target="o"))
        mine.notes.keep(history._EXISTED, {}, "t")
        for subject in ("t r", "other r"):
            mine.notes.keep(history._LOADED, {}, subject)
        manifest = pb.SnapshotDataManifest(table_schema=SOURCE.schema)
        history._prepare_table(cast(Run, run), "t", manifest, [SnapshotRegion("r", b"", b"", ())])
        assert sorted(mine.notes.named(history._LOADED)) == ["other r", *left]


def test_a_table_that_somebody_creates_at_this_moment_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(descriptor: Any, borders: Any) -> None:
        raise TableExistsError("table o already exists")

    monkeypatch.setattr(history, "left_out", lambda run, table: [])
    for name in ("plan_own", "make_namespace"):
        monkeypatch.setattr(history, name, lambda *_, **__: None)
    run = SimpleNamespace(
        target=SimpleNamespace(table_exists=lambda table: False, create_table_of=create),
        ledger=SimpleNamespace(notes=SimpleNamespace(named=lambda name: {}), objects=SimpleNamespace(all=list)),
        pair=lambda table: TablePair(source="t", target="o"),
    )
    manifest = pb.SnapshotDataManifest(table_schema=SOURCE.schema)
    with pytest.raises(TransientError, match="somebody else has just created target table o"):
        history._prepare_table(cast(Run, run), "t", manifest, [])


def test_a_family_that_the_target_has_lost_is_named() -> None:
    run = SimpleNamespace(target=SimpleNamespace(describe=lambda table: new_table(table, {"g": {}})))
    route = cast(Route, SimpleNamespace(tables={"t": "o"}))
    regions = [SnapshotRegion("r", b"", b"", (StoreFile(b"f", "aa", ("/aa",), 9),))]
    with pytest.raises(UsageError, match="target table o has lost family f, but the snapshot of t has files of it"):
        history._load(cast(Run, run), None, route, "t", "/staging", regions)


def test_a_table_with_files_that_only_hbase_can_read_is_refused() -> None:
    families = {
        "a": {"ENCRYPTION": "AES"}, "b": {"COMPRESSION": "lzo"}, "c": {"COMPRESSION_COMPACT": "BZIP2"},
        "d": {"COMPRESSION": "zstd"}, "e": {"DATA_BLOCK_ENCODING": "FAST_DIFF"},
    }  # fmt: skip
    found = list(unreadable_findings(TablePair(source="t", target="o"), new_table("t", families)))
    assert {finding.level for finding in found} == {"refuse"}
    assert [finding.message.partition(",")[0] for finding in found] == [
        "files of family a are encrypted", "files of family b are compressed by LZO",
        "files of family c are compressed by BZIP2",
    ]  # fmt: skip
