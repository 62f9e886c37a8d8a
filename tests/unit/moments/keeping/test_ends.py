"""The ends of open logs are copied; the files are real, on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.moments.keeping.a_source import folder, write
from unit.replay.keeping.test_by_copies import GROUP, LIVE
from walferry.background import beside
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.moments.keeping import ends as ends_module
from walferry.moments.keeping.ends import Ends, kept_ends, tend_ends
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping import by_copies, protect
from walferry.run.notes.kept_moments import copied_ends, lost_ends
from walferry.storage import FileSystem, Local
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
        if broken:
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
    assert kept.copied_ms <= now_ms()


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
