"""Bulk loads of a call: which cells the target gets, in which order, and what a load that lasts does to other calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from unit.receive.call_builder import REGION
from unit.receive.loaded_table import FILE, OTHER, Table, cell, edit, load, running_for
from unit.receive.loaded_table import process as process
from unit.receive.loaded_table import table as table
from unit.receive.processes import SOURCE, TARGET, Process
from walferry.apply.writer_protocol import RefusedError
from walferry.errors import TransientError, WalferryError
from walferry.formats import hfile
from walferry.hbase.errors import RemoteTransientError
from walferry.storage import Local, PermissionDeniedError


def test_edits_before_a_load_come_first_then_its_cells_then_those_after_it(table: Table, process: Process) -> None:
    table.add(cell(b"a", b"r1"), cell(b"b", b"r2"))
    process.send(edit(1), edit(2, region="other"), load(3), edit(4), load(5, FILE), edit(6))
    assert table.values == [b"edit 1", b"edit 2", b"a", b"b", b"edit 4", b"a", b"b", b"edit 6"]
    assert table.sums() == (6, 8, 0, 0)
    assert table.guard.dirty == []


def test_all_kinds_of_cells_come_as_they_are_in_the_file(table: Table, process: Process) -> None:
    tagged, gone = cell(b"tagged", time=9, tags=[(8, b"\0" * 8)]), cell(b"", time=8, kind=14)
    table.add(gone, tagged, cell(b"old"))
    process.send(load(1))
    assert table.sent == [gone, tagged, cell(b"old")]


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_of_equal_keys_in_a_file_the_first_is_sent_which_a_reader_sees(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(hfile, "BATCH_BYTES", block_bytes)
    table.add(cell(b"seen"), cell(b"hidden"), cell(b"hidden too"), cell(b"older", time=6))
    process.send(load(1))
    assert table.values == [b"seen", b"older"]


def test_of_equal_keys_in_two_files_of_a_load_that_of_the_smaller_file_comes_last(
    table: Table, process: Process
) -> None:
    table.add(cell(b"seen"), name=FILE)
    table.add(cell(b"hidden"), cell(b"x" * 99, b"s"), name=OTHER)
    for names in ((FILE, OTHER), (OTHER, FILE)):
        table.values.clear()
        process.send(load(len(names[0]) + ord(names[0][1]), *names))
        assert table.values == [b"hidden", b"x" * 99, b"seen"]


def test_a_file_that_a_compaction_has_archived_is_found_there(table: Table, process: Process) -> None:
    table.add(cell(b"a"), folder="archive/data")
    process.send(load(1))
    assert table.values == [b"a"]


def test_a_file_that_comes_back_from_the_archive_between_two_looks_is_found(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def status(files: Local, path: str) -> Any:
        asked.append(path)
        if len(asked) == 3:
            table.add(cell(b"a"))
        return found(files, path)

    found = Local.status
    monkeypatch.setattr(Local, "status", status)
    process.send(load(1))
    assert table.values == [b"a"]
    assert asked[0] == asked[2] != asked[1]


def test_a_file_that_is_gone_is_refused_by_its_name_and_nothing_of_its_load_is_sent(
    table: Table, process: Process
) -> None:
    table.add(cell(b"a"))
    for _ in range(2):
        with pytest.raises(
            RemoteTransientError, match=f"{OTHER} is gone, and not in the archive.*copy what was loaded"
        ):
            process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1"]
    table.add(cell(b"b"), name=OTHER)
    process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1", b"a", b"b", b"edit 3"]


@pytest.mark.parametrize("name", ["0a.fedc", "t2=fedc-0a", "../../../0a", ""])
def test_what_is_no_file_of_the_region_is_refused_by_its_name(table: Table, process: Process, name: str) -> None:
    with pytest.raises(RemoteTransientError, match=f"d/{name} is no whole file of its region"):
        process.send(load(1, name))


def test_a_region_that_is_no_folder_is_refused(table: Table, process: Process) -> None:
    with pytest.raises(RemoteTransientError, match="is no whole file of its region"):
        process.send(load(1, region="../t2"))


def test_values_that_are_in_mob_files_are_refused(table: Table, process: Process) -> None:
    table.add(cell(b"\0\0\0\7a.mob", tags=[(5, b""), (8, b"t1")]))
    with pytest.raises(RemoteTransientError, match="refers to MOB files"):
        process.send(load(1))
    assert table.values == []


def test_a_damaged_file_is_named_with_what_to_do(table: Table, process: Process) -> None:
    path = table.add(cell(b"a"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(RemoteTransientError, match=r"is damaged at byte .*remove the peer and add it again"):
        process.send(load(1))


@pytest.mark.parametrize("kind", [TransientError, PermissionDeniedError])
def test_a_source_whose_files_are_not_reached_is_told_with_what_it_needs(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch, kind: type[WalferryError]
) -> None:
    error = kind("west does not let me in")

    def status(files: Local, path: str) -> Any:
        raise error

    monkeypatch.setattr(Local, "status", status)
    with pytest.raises(
        RemoteTransientError, match=r"west does not let me in\. Let this process read .*/archive by the webh"
    ):
        process.send(load(1))


def test_cells_that_the_target_refuses_are_named_by_their_load(table: Table, process: Process) -> None:
    def refuse(value: bytes) -> None:
        raise RefusedError("no family d", reason="no family d")

    table.add(cell(b"a"))
    table.before = refuse
    with pytest.raises(
        RemoteTransientError, match=f"bulk load 1 of region {REGION} of t1: the target refuses its cell"
    ):
        process.send(load(1))


def test_a_load_that_comes_after_newer_edits_of_its_region_marks_its_rows(table: Table, process: Process) -> None:
    table.add(cell(b"a", b"r1"), cell(b"b", b"r5"), name=FILE)
    table.add(cell(b"c", b"r3"), cell(b"d", b"r9"), name=OTHER)
    process.send(edit(9))
    process.send(load(5, FILE, OTHER))
    ((rows, why),) = table.guard.dirty
    assert rows == {"copy": (b"r1", b"r9")}
    assert why == f"old values: bulk load 5 of region {REGION} of t1 came after newer edits of the region"
    assert table.sums() == (2, 5, 0, 1)


def test_a_load_without_a_sequence_number_which_is_older_than_all_at_the_source_marks_its_rows(
    table: Table, process: Process
) -> None:
    table.add(cell(b"a", b"r1"), name="0a")
    process.send(load(1, "0a", sequence=-1))
    ((rows, why),) = table.guard.dirty
    assert rows == {"copy": (b"r1", b"r1")}
    assert why.endswith("has no sequence number at the source")


@pytest.mark.parametrize("fields", [{"cluster_ids": [str(UUID(int=9)), str(TARGET)]}, {"replicate": False}])
def test_a_load_that_the_target_had_first_or_that_stays_at_the_source_is_left_out(
    table: Table, process: Process, fields: dict[str, Any]
) -> None:
    process.send(edit(1), load(2, **fields), edit(3))
    assert table.values == [b"edit 1", b"edit 3"]


def test_the_clusters_that_have_had_a_load_go_along_with_its_cells(table: Table, process: Process) -> None:
    table.add(cell(b"a"))
    process.send(load(1, cluster_ids=[str(UUID(int=9)), "no UUID"]))
    assert table.clusters == [[SOURCE, UUID(int=9)]]


def test_a_load_is_passed_on_as_it_came_to_the_process_that_holds_its_table(table: Table, process: Process) -> None:
    other: Any = SimpleNamespace(
        held=[], trouble={}, holder=lambda table: process.name, require_prepared=lambda table: None
    )
    table.add(cell(b"a"))
    with running_for(table) as asked:
        asked.handler._tables = other
        asked.send(edit(1), load(2), edit(3))
    assert table.values == [b"edit 1", b"a", b"edit 3"]
