"""Of the edits of all files exactly those that count are loaded: by piece, family and origin, in a store's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.apply.guards import Guard
from unit.formats.test_order import OF_FAMILY, covers
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply import bulk_merge, in_bulk
from walferry.apply.bulk_loader import StagedHFile
from walferry.apply.by_row import RowTask
from walferry.apply.in_bulk import BulkTask, InFile, place_here
from walferry.apply.route import Route
from walferry.apply.window_rows import SettledEdits, WindowRows, WriteTimes
from walferry.errors import DamagedInputError, WalferryError
from walferry.formats.cells import Bytes, CellType, Int64s, cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile_writer import StoreFormat
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import WalReader
from walferry.wal.files import Place, WalFile

INSIDE, OUTSIDE = 15, 25
WINDOW = WriteTimes(10, 20)


class Edit(NamedTuple):
    """A cell of the log; `settled`: of another time, and the target has it. `sequence` is set when all are known."""

    row: bytes
    family: bytes
    qualifier: bytes
    timestamp: int
    type: CellType
    settled: bool
    origin: int
    """0: the source; another number: a cluster that replicated it there"""
    file: int
    sequence: int = 0
    value: bytes = b""

    @property
    def key(self) -> tuple[object, ...]:
        return self.row, self.family, self.qualifier, -self.timestamp, -self.type


EDITS = st.builds(
    Edit, st.sampled_from([b"a", b"ab", b"m"]), st.sampled_from([b"f", b"g"]), st.sampled_from([b"", b"q"]),
    st.integers(1, 3), st.sampled_from([CellType.PUT] * 5 + list(CellType)), st.booleans(),
    st.sampled_from([0, 0, 0, 7]), st.integers(0, 2),
).map(lambda edit: edit._replace(qualifier=b"") if edit.type in OF_FAMILY else edit)  # fmt: skip


class Recorder:
    """In place of a Loader: keeps what it is given."""

    loaded: ClassVar[list[tuple[str, bytes, bytes, Any]]] = []

    def __init__(self, route: Route, table: str, folder: str) -> None:
        self._folder = folder

    def stage(
        self, family: bytes, clusters: bytes, format: StoreFormat, cells: Iterator[tuple[Bytes, Int64s]]
    ) -> list[StagedHFile]:
        found = [cell for buffer, positions in cells for cell in told(buffer, positions)]
        self.loaded.append((self._folder, family, clusters, found))
        return [StagedHFile("", family, clusters, format, "", b"", b"", len(found), 0)]

    def load(self, staged: Iterable[StagedHFile]) -> None: ...


def told(buffer: Bytes, positions: Int64s) -> list[tuple[Any, ...]]:
    found = []
    for at in positions.tolist():
        end = at + 4 + int.from_bytes(buffer[at : at + 4].tobytes(), "big")
        (cell,) = cells_to_arrow(index_cells(buffer, at, end)).to_pylist()
        found.append((cell["row"], cell["family"], cell["qualifier"], cell["timestamp"], cell["type"], cell["value"]))
    return found


def clusters_of(origin: int) -> bytes:
    key = pb.WALKey(cluster_ids=[pb.UUID(least_sig_bits=origin, most_sig_bits=0)]) if origin else pb.WALKey()
    return bytes(key.SerializePartialToString())


def task_of(edits: list[Edit], borders: list[bytes], families: tuple[bytes, ...] = (b"f", b"g")) -> BulkTask:
    """The edits in three files, each an entry."""
    contents = {}
    for number in range(3):
        entries = [
            entry(
                [encode_cell(*edit[:5], value=edit.value)], edit.sequence,
                write_time=OUTSIDE if edit.settled else INSIDE,
                cluster_ids=pb.WALKey.FromString(b"").cluster_ids if not edit.origin
                else [pb.UUID(least_sig_bits=edit.origin, most_sig_bits=0)],
            )
            for edit in edits if edit.file == number
        ]  # fmt: skip
        contents[f"file{number}"] = header() + b"".join(entries) + TRAILER
    files = tuple(WalFile(name, "g", "g", n, f"/{name}", Place.ARCHIVED, 1) for n, name in enumerate(contents))
    route = cast(
        Route,
        SimpleNamespace(
            tables={"t1": "there"}, guard=Guard(), open=lambda file: WalReader([contents[file.name]], file.name)
        ),
    )
    settled = {(file.name, "t1"): (SettledEdits(WriteTimes(20, 30)),) for file in files}
    rows = RowTask(route, files, window=WindowRows(WINDOW, settled), borders=tuple(("t1", row) for row in borders))
    return BulkTask(rows, {"t1": {family: StoreFormat() for family in families}}, frozenset(), "/hbase")


@given(
    st.lists(EDITS, min_size=20, max_size=60).map(
        lambda edits: [edit._replace(sequence=n, value=b"%d" % n) for n, edit in enumerate(edits, 1)]
    ),
    st.sets(st.sampled_from([b"ab", b"b", b"m"])),
)
def test_what_counts_of_the_log_is_loaded_once_and_nothing_else(edits: list[Edit], cuts: set[bytes]) -> None:
    borders = [b"", *sorted(cuts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_bulk, "Loader", Recorder)
        patch.setattr(in_bulk, "RUN_BYTES", 200)
        patch.setattr(in_bulk, "BLOCK_BYTES", 60)
        patch.setattr(bulk_merge, "MERGE_BYTES", 100)
        patch.setattr(Recorder, "loaded", [])
        with closing(place_here(task_of(edits, borders))) as placed:
            files = placed.read()
            done = [placed.apply(piece, "load") for piece in range(len(borders))]
        assert [piece.taken for piece in done] == [taken(files, piece) for piece in range(len(borders))]
        loaded = {
            (int(folder.rpartition("/")[2]), family, clusters): cells
            for folder, family, clusters, cells in Recorder.loaded
            if cells
        }
    settled = [edit for edit in edits if edit.settled]
    newest = {edit.key: edit.sequence for edit in edits}
    mine = [
        edit for edit in edits
        if not edit.settled and newest[edit.key] == edit.sequence
        and not any(later.sequence > edit.sequence and covers(later, edit) for later in settled)  # type: ignore[arg-type]
    ]  # fmt: skip
    nameless = {edit[:2] for edit in mine if edit.type == CellType.PUT and not edit.qualifier}
    markers = [edit for edit in mine if edit.type in OF_FAMILY]
    mine = [
        edit for edit in mine
        if not (edit[:2] in nameless and any(covers(marker, edit) for marker in markers))  # type: ignore[arg-type]
    ]  # fmt: skip
    expected: dict[tuple[int, bytes, bytes], list[tuple[Any, ...]]] = {}
    for edit in sorted(mine, key=lambda edit: edit.key):
        piece = sum(row <= edit.row for row in borders) - 1
        expected.setdefault((piece, edit.family, clusters_of(edit.origin)), []).append((*edit[:5], edit.value))
    assert loaded == expected


def taken(files: list[InFile], piece: int) -> int:
    return sum(file.placed.get(piece, 0) for file in files)


def test_cells_of_a_family_that_the_target_lacks_are_refused_by_entry() -> None:
    edits = [
        Edit(b"r", family, b"q", 1, CellType.PUT, False, 0, 0, sequence)
        for sequence, family in enumerate([b"f", b"lost", b"f"], 1)
    ]
    with closing(place_here(task_of(edits, [b""]))) as placed:
        (refusal,) = (refusal for file in placed.read() for refusal in file.index.report.refusals)
    assert refusal.reason == "target table there has no family b'lost'"
    assert refusal.sequence_number == 2


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_damage_before_the_one_that_was_accepted_is_an_error_and_loses_nothing(accepted: int) -> None:
    edits = [Edit(b"r%d" % n, b"f", b"q", 1, CellType.PUT, False, 0, 0, n) for n in range(1, 4)]
    task = task_of(edits, [b""])
    (batch,) = task.rows.route.open(task.rows.files[0])
    whole = bytes(batch.buffer[: batch.end[-1]])
    broken = bytearray(whole)
    broken[int(batch.end[1]) - 40] ^= 0xFF  # in the second entry
    damaged = WalReader
    offsets = [*batch.offset.tolist(), len(whole)]
    cut_off = {"file0": offsets[accepted + 1]}

    def read(file: WalFile) -> WalReader:
        return damaged([bytes(broken)] if file.name == "file0" else [header() + TRAILER], file.name)

    route = cast(Route, SimpleNamespace(tables={"t1": "there"}, guard=Guard(), open=read))
    task = replace(task, rows=replace(task.rows, route=route, cut_off=cut_off))
    with closing(place_here(task)) as placed:
        if accepted == 0:
            (file, *_) = placed.read()
            assert (file.cells, file.index.report.complete) == (1, False)
        else:
            with pytest.raises(DamagedInputError):
                placed.read()


def test_more_origins_than_numbers_are_an_error_and_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_bulk, "Loader", Recorder)
    monkeypatch.setattr(bulk_merge, "MOST_LISTS", 2)
    edits = [Edit(b"r%d" % n, b"f", b"q", 1, CellType.PUT, False, n, 0, n + 1) for n in range(3)]
    with closing(place_here(task_of(edits, [b""]))) as placed:
        placed.read()
        with pytest.raises(WalferryError, match="more than 2 different lists of clusters"):
            placed.apply(0, "load")
