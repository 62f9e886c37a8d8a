"""What the log holds of a few rows, in WAL files on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from unit.formats.wal_builder import TRAILER, entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.errors import TransientError
from walferry.formats.cells import CellType, encode_cell
from walferry.ledger import Ledger, LogPosition, SeenFile, WalRange
from walferry.migration.explaining import wal_lookup
from walferry.migration.explaining.difference_classes import RowLog
from walferry.migration.sides.row_sides import Bounds, Compressed, question
from walferry.run.run import Run
from walferry.storage.local import Local
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

SERVER = "rs,1,2"
GROUP = "rs%2C1%2C2"
UNTIL = 10**13
WIDE = Bounds(100, 100_000)
QUESTION = Compressed(question([(b"f", b"q", 100, CellType.PUT, b"", b"")]))


def cell(timestamp: int, value: bytes = b"v", row: bytes = b"row", qualifier: bytes = b"q") -> bytes:
    return encode_cell(row, b"f", qualifier, timestamp, CellType.PUT, value)


def name(number: int) -> str:
    return f"{GROUP}.{number}"


class Log:
    """A run of table `t1` and its WAL files."""

    def __init__(self, ledger: Ledger, root: Path) -> None:
        spec = SPEC | {"tables": [{"source": "t1", "target": "t1"}]}
        spec |= {side: CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{root}"} for side in ("source", "target")}
        self.run = Run(ledger, ledger.open_run("move", "tester", spec, "tester").run_id)
        self.run.__dict__["wal_files"] = Local()
        self.root = root
        for folder in (f"WALs/{SERVER}", "oldWALs"):
            (root / folder).mkdir(parents=True)
        self.run.ledger.phases.start("fence")
        self.run.ledger.log.set_fence("start", [LogPosition(GROUP, name(1), 1, 0)])
        self.run.ledger.phases.finish("fence", {"groups": 1, "before": {}, "at_ms": 50})
        self.applied: set[str] = set()

    def write(self, number: int, content: bytes, *, applied: bool = True, cells: int = 1, keep: bool = True) -> None:
        """A file; an applied one is archived, with that many cells of the table by the ledger's count."""
        path = self.root / ("oldWALs" if applied else f"WALs/{SERVER}") / name(number)
        if keep:
            path.write_bytes(content)
        if applied or not keep:
            seen = SeenFile(name(number), GROUP, SERVER, number, str(path), len(content), sealed=True)
            self.run.ledger.log.see_files([seen])
        if applied:
            size = max(1, len(content))
            self.run.ledger.log.set_ranges([WalRange(name(number), 0, size, "t1", cells, cells, 1, 2, "applied")])
            self.applied.add(name(number))

    def look(self, rows: Sequence[bytes] = (b"row",), bounds: Bounds = WIDE) -> dict[bytes, RowLog]:
        questions = dict.fromkeys(rows, QUESTION)
        logs = wal_lookup.look_up(self.run, no_spark, "t1", questions, self.applied, UNTIL, bounds)
        return {row: logs.of(row) for row in rows}


def no_spark() -> SparkSession:
    raise AssertionError("these files are small")


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[Log]:
    monkeypatch.setattr(wal_lookup, "shared_log_files", lambda address: Local())
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield Log(ledger, tmp_path / "hbase")


def test_what_is_applied_and_what_is_pending_are_told_apart(wal: Log) -> None:
    wal.write(1, header() + entry([cell(100), cell(100, row=b"other")], 7) + entry([cell(100)], 9) + TRAILER)
    wal.write(2, header() + entry([cell(200, b"later")], 10), applied=False)
    (found,) = wal.look().values()
    assert found.applied == {(b"f", b"q", 100, 4, b"v", b""): 9}
    assert found.pending == {(b"f", b"q", 200, 4, b"later", b"")}
    assert (found.since_ms, found.until_ms, found.unread, found.too_many) == (50, UNTIL, [], False)


def test_only_what_may_explain_the_difference_is_kept_and_no_large_value(wal: Log) -> None:
    edits = [cell(99), cell(100, b"x" * 10_000), cell(100, qualifier=b"r"), encode_cell(b"row", b"f", b"", 150, 14)]
    wal.write(1, header() + entry(edits) + TRAILER)
    (found,) = wal.look().values()
    assert {(c[1], c[2], c[3], len(c[4])) for c in found.applied} == {(b"q", 100, 4, 32), (b"", 150, 14, 0)}


@pytest.mark.parametrize(
    "content", [b"", b"PW", header(), header() + TRAILER], ids=["no bytes", "half a header", "no entry", "closed"]
)
@pytest.mark.parametrize("applied", [True, False])
def test_an_empty_log_holds_nothing(wal: Log, content: bytes, applied: bool) -> None:
    wal.write(1, content, applied=applied)
    (found,) = wal.look().values()
    assert (found.applied, found.pending, found.unread) == ({}, set(), [])


def test_no_log_at_all_holds_nothing(wal: Log) -> None:
    (found,) = wal.look().values()
    assert (found.applied, found.pending, found.unread) == ({}, set(), [])


def test_a_file_in_which_the_table_has_no_cell_is_not_read(wal: Log) -> None:
    wal.write(1, b"this is no WAL", cells=0)
    wal.write(2, header() + entry([cell(100)]) + TRAILER)
    (found,) = wal.look().values()
    assert (len(found.applied), found.unread) == (1, [])


def test_a_file_that_is_gone_or_damaged_is_named(wal: Log) -> None:
    wal.write(1, b"gone", keep=False, applied=False)
    wal.write(2, header() + entry([cell(100)]) + b"\xff" * 50)
    (found,) = wal.look().values()
    assert len(found.applied) == 1
    assert [f"{GROUP}.1 no longer exists" in found.unread[0], f"{GROUP}.2 is damaged" in found.unread[1]] == [
        True,
        True,
    ]
    assert not found.let_go


def test_an_applied_file_that_was_let_go_shows_in_every_row(wal: Log) -> None:
    wal.write(1, b"gone", keep=False)
    wal.write(2, header() + entry([cell(100)]) + TRAILER)
    rows = wal.look((b"row", b"other"))
    assert [(len(found.applied), found.let_go, found.unread) for found in rows.values()] == [
        (1, True, []),
        (0, True, []),
    ]


def test_an_error_that_may_pass_is_raised_and_not_taken_for_an_empty_log(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_closed(*arguments: object) -> object:
        raise TransientError("WAL file is not closed yet")

    wal.write(1, header() + entry([cell(100)]) + TRAILER)
    monkeypatch.setattr(wal_lookup, "open_wal", not_closed)
    with pytest.raises(TransientError, match="not closed yet"):
        wal.look()


@pytest.mark.parametrize("bounds", [Bounds(5, 100_000), Bounds(100, 5 * 20)], ids=["cells", "bytes"])
@pytest.mark.parametrize("files", [1, 3])
def test_a_row_with_more_edits_than_are_kept_is_given_up_and_others_are_not(
    wal: Log, bounds: Bounds, files: int
) -> None:
    for number in range(1, files + 1):
        edits = [cell(100 + 10 * number + n) for n in range(9 // files)] + [cell(100, row=b"calm")]
        wal.write(number, header() + entry(edits) + TRAILER)
    found = wal.look((b"row", b"calm"), bounds)
    assert (found[b"row"].too_many, found[b"row"].applied) == (True, {})
    assert (found[b"calm"].too_many, len(found[b"calm"].applied)) == (False, 1)


def test_an_edit_that_several_files_hold_counts_once(wal: Log) -> None:
    for number in range(1, 4):
        wal.write(number, header() + entry([cell(100), cell(101)], number) + TRAILER)
    (found,) = wal.look(bounds=Bounds(2, 100_000)).values()
    assert (found.too_many, set(found.applied.values())) == (False, {3})


def test_each_file_is_read_once_for_all_rows(wal: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: the log was read once for every 2,000 rows."""
    opened: list[str] = []

    def opening(files: Any, root: str, file: WalFile, until: Any) -> Any:
        opened.append(file.name)
        return open_wal(files, root, file, until)

    monkeypatch.setattr(wal_lookup, "open_wal", opening)
    rows = [b"row%d" % number for number in range(5_000)]
    for number in range(1, 4):
        wal.write(number, header() + entry([cell(100 + number, row=row) for row in rows]) + TRAILER)
    found = wal.look(rows)
    assert sorted(opened) == [name(number) for number in range(1, 4)]
    assert {len(log.applied) for log in found.values()} == {3}


def test_spark_is_asked_for_when_the_files_are_large(wal: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    wal.write(1, header() + entry([cell(100)], 7) + TRAILER)
    wal.look()
    monkeypatch.setenv("WALFERRY_HERE_BYTES", "10")
    with pytest.raises(AssertionError, match="these files are small"):
        wal.look()


def test_a_file_that_is_being_written_counts_as_a_large_one(wal: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    wal.write(1, header() + entry([cell(100)], 7), applied=False)
    wal.look()
    monkeypatch.setenv("WALFERRY_HERE_BYTES", str(100 << 20))
    with pytest.raises(AssertionError, match="these files are small"):
        wal.look()


def test_the_size_of_the_log_is_the_same_for_the_limit_and_for_where_it_is_read(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: an open file counted as nothing for the limit of the write stop, and as a whole file for Spark."""
    asked = []
    monkeypatch.setattr(wal_lookup, "session_for", lambda spark, size, here: asked.append(size))
    wal.write(1, header() + entry([cell(100)]) + TRAILER)
    wal.write(2, header() + entry([cell(200)]), applied=False)
    wal.look()
    assert asked == [wal_lookup.log_bytes(wal.run, "t1")]
    assert asked[0] > 128 << 20, "an open file is listed with length 0, whatever it holds"
