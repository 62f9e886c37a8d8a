"""The ends of open logs are copied; the files are real, on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.moments.keeping.a_source import CLOSED, OPEN, folder, set_up_again, source_of, write
from unit.replay.keeping.test_by_copies import GROUP, LIVE
from walferry.background import beside
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import Server
from walferry.moments.keeping import ends as ends_module
from walferry.moments.keeping.ends import Ends, kept_ends, tend_ends
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping import by_copies, protect
from walferry.run.notes.kept_moments import copied_ends, lost_ends
from walferry.storage import FileSystem, Local
from walferry.wal.fences import CLOCKS_APART_MS
from walferry.wal.pieces import list_pieces, names_with_pieces, read_pieces


def held(run: KeepRun, number: int) -> bytes:
    pieces = list_pieces(Local(), str(folder(run)), f"{GROUP}.{number}")
    return b"".join(read_pieces(Local(), pieces))


def test_what_becomes_visible_is_copied_piece_by_piece_from_the_file_that_was_open_at_the_start(run: KeepRun) -> None:
    ends = Ends(run)
    ends.copy()
    open_log = write(run, LIVE, 10, header() + b"more")
    ends.copy()
    ends.copy()
    assert held(run, 10) == open_log.read_bytes()
    assert [path.name for path in (folder(run) / "open").iterdir()] == [f"{GROUP}.10"]
    assert len(list((folder(run) / "open" / f"{GROUP}.10").iterdir())) == 2


def test_another_process_goes_on_where_the_last_one_was_killed(run: KeepRun) -> None:
    Ends(run).copy()
    (folder(run) / "open" / f"{GROUP}.10" / "left.copying").write_bytes(b"half")
    write(run, LIVE, 10, header() + b"more")
    both = Ends(run), Ends(run)
    for ends in both:
        ends.copy()
    assert held(run, 10) == header() + b"more"
    pieces = list_pieces(Local(), str(folder(run)), f"{GROUP}.10")
    assert [(piece.first, piece.end - piece.first) for piece in pieces] == [(0, len(header())), (len(header()), 4)]


def test_the_closed_copy_replaces_the_pieces_even_if_it_is_shorter(run: KeepRun) -> None:
    ends = Ends(run)
    write(run, LIVE, 10, header() + b"never acknowledged")
    ends.copy()
    (folder(run).parents[1] / "hbase" / LIVE / f"{GROUP}.10").unlink()
    write(run, "oldWALs", 10, header() + TRAILER)
    write(run, LIVE, 11, b"")
    by_copies.tend(run)
    ends.copy()
    assert held(run, 10) == b""
    assert (folder(run) / f"{GROUP}.10").read_bytes() == header() + TRAILER
    assert kept_ends(by_copies.stage_of(run)) == []


def test_what_a_place_lacks_at_which_no_server_logs_is_not_covered(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Ends(run).copy()
    source = source_of(run)
    address = ClusterAddress("none:1", rootdir=f"hdfs://none:1{run.source_root}")
    for name, value in {"servers": lambda: [Server("rs", 9, 9)], "settings": lambda _: {}, "address": address}.items():
        monkeypatch.setattr(source, name, value, raising=False)
    write(run, LIVE, 10, header() + b"more")
    with pytest.raises(TransientError, match="has no folder of a live region server"):
        Ends(run).copy()
    assert copied_ends(run.ledger) == first
    assert held(run, 10) == header() + b"more", "it is copied all the same"


def test_many_pieces_become_one(run: KeepRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_module, "MOST_PIECES", 3)
    ends, content = Ends(run), header()
    for number in range(8):
        content += bytes([number])
        write(run, LIVE, 10, content)
        ends.copy()
        assert held(run, 10) == content
    assert len(list((folder(run) / "open" / f"{GROUP}.10").iterdir())) <= 4


def test_the_loss_counts_from_the_last_moment_at_which_every_log_was_copied(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(run)
    first = ends.copy()
    assert copied_ends(run.ledger) == first
    write(run, LIVE, 10, header() + b"more")
    broken: set[str] = {str(ends._stage.path)}

    def read(self: Local, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if broken and GROUP in path:
            raise OSError("no answer")
        return real(self, path, offset, length)

    real = Local.read
    monkeypatch.setattr(Local, "read", read)
    time.sleep(0.01)
    assert ends.copy().covered_ms == first.covered_ms
    assert Ends(run).copy().covered_ms == first.covered_ms
    broken.clear()
    assert ends.copy().covered_ms > first.covered_ms
    assert held(run, 10) == header() + b"more"


def test_an_archived_log_that_was_never_seen_open_counts_as_lost_with_the_source_until_its_copy_is_there(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends_module, "WHOLE_SECONDS", 0.0)
    ends = Ends(run)
    first = ends.copy()
    write(run, "oldWALs", 11, header() + TRAILER)
    time.sleep(0.01)
    assert ends.copy().covered_ms == first.covered_ms
    monkeypatch.setattr(ends_module, "WHOLE_SECONDS", 60.0)
    assert ends.copy().covered_ms == first.covered_ms
    by_copies.tend(run)
    assert ends.copy().covered_ms > first.covered_ms


def test_a_log_that_is_gone_without_a_closed_copy_keeps_its_pieces_and_is_told_once(run: KeepRun) -> None:
    ends = Ends(run)
    ends.copy()
    (folder(run).parents[1] / "hbase" / LIVE / f"{GROUP}.10").unlink()
    ends.copy()
    ends.copy()
    assert held(run, 10) == header()
    assert [line.action for line in run.ledger.audit_trail()].count("end of a log lost") == 1
    (kept,) = kept_ends(by_copies.stage_of(run))
    assert lost_ends(run.ledger)[kept.name].kept_bytes == len(header())
    assert (kept.name, kept.number, kept.bytes) == (f"{GROUP}.10", 10, len(header()))
    assert now_ms() < kept.copied_ms <= now_ms() + CLOCKS_APART_MS  # the folder's clock may be behind


def test_a_log_that_is_gone_and_of_which_nothing_was_copied_is_lost_too(
    run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(run)
    covered_ms = ends.copy().covered_ms
    never_open = write(run, "oldWALs", 11, header() + TRAILER)
    refused = write(run, LIVE, 12, header())
    written = Local.write

    def write_none_of_12(self: Local, path: str, *more: Any, **options: Any) -> None:
        if f"{GROUP}.12" in path:
            raise OSError("the folder is full")
        written(self, path, *more, **options)

    monkeypatch.setattr(Local, "write", write_none_of_12)
    time.sleep(0.01)
    assert ends.copy().covered_ms == covered_ms
    for gone in (never_open, refused):
        gone.unlink()
    ends.copy()
    lost = lost_ends(run.ledger)
    assert {name: (end.kept_bytes, end.covered_ms) for name, end in lost.items()} == {
        f"{GROUP}.11": (0, covered_ms), f"{GROUP}.12": (0, covered_ms),
    }  # fmt: skip


def test_a_log_that_comes_and_goes_between_two_looks_does_not_count_as_copied(run: KeepRun) -> None:
    ends = Ends(run)
    first = ends.copy()
    write(run, LIVE, 10, CLOSED)
    write(run, "oldWALs", 11, CLOSED)
    write(run, LIVE, 12, OPEN)
    time.sleep(0.01)
    assert ends.copy().covered_ms == first.covered_ms


def test_of_a_cluster_that_was_set_up_in_place_of_the_source_nothing_is_copied_or_lost(run: KeepRun) -> None:
    ends = Ends(run)
    first = ends.copy()
    (source_of(run).root / LIVE / f"{GROUP}.10").unlink()
    write(run, LIVE, 20, CLOSED)
    write(run, LIVE, 21, OPEN)
    set_up_again(run)
    for look in (ends.copy, lambda: by_copies.tend(run)):
        with pytest.raises(by_copies.AnotherClusterError, match="its id is another id, not its id"):
            look()
    assert copied_ends(run.ledger) == first
    assert not lost_ends(run.ledger)
    assert held(run, 10) == header()
    assert not [path for path in folder(run).iterdir() if path.is_file()]


def test_closed_logs_from_the_start_on_are_copied_whole(run: KeepRun) -> None:
    write(run, LIVE, 10, header() + TRAILER)
    write(run, LIVE, 11, b"")
    protect.way_of(run).tend(run)
    assert sorted(path.name for path in folder(run).iterdir() if path.is_file()) == [f"{GROUP}.10"]


def test_a_folder_that_does_not_answer_at_first_is_asked_again(run: KeepRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def failing_once(files: FileSystem, folder: str) -> list[str]:
        asked.append(folder)
        if len(asked) == 1:
            raise TransientError("the folder does not answer")
        return names_with_pieces(files, folder)

    monkeypatch.setattr(ends_module, "names_with_pieces", failing_once)
    run.spec = run.spec.model_copy(update={"tail_seconds": 0.05})
    with beside(lambda ended: tend_ends(run, ended), "ends"):
        deadline = time.monotonic() + 20
        while held(run, 10) != header():
            assert time.monotonic() < deadline, "nothing is copied"
            time.sleep(0.02)
