"""`walferry wal cat` on real and on broken files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unit.formats.compressed_builder import Compressor
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.apply.outcomes import refuse
from walferry.errors import UsageError
from walferry.formats.cells import encode_cell
from walferry.formats.entries import WAL_CELL_SCHEMA
from walferry.formats.wal import WalReader
from walferry.storage import Local
from walferry.wal.cat import Columns, cat, cat_columns, cells_of_entry
from walferry.wal.open import open_wal_at

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CLOSED = FIXTURES / "closed.wal"
KILLED = FIXTURES / "killed.wal"


def run(*paths: Path | str) -> tuple[int, list[dict[str, Any]], list[str]]:
    """Exit code, cells and lines of errors."""
    out, err = io.StringIO(), io.StringIO()
    code = cat([str(path) for path in paths], out, err)
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue().splitlines()


def test_a_cell_is_one_line_of_json_with_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "one.wal"
    cell = encode_cell(b"r\0\xff", b"f", b"", 5, 12, b"v", [(8, bytes(8)), (70, b"")])
    path.write_bytes(header() + entry([cell], 7, table_name=b"ns:t") + TRAILER)
    out, err = io.StringIO(), io.StringIO()
    assert cat([str(path)], out, err) == 0
    assert out.getvalue() == (
        '{"region": "0123456789abcdef0123456789abcdef", "table": "ns:t", "seq": 7, "write_time": 1700000000000, '
        '"row": "7200ff", "family": "66", "qualifier": "", "timestamp": 5, "type": 12, "value": "76", '
        '"tags": [[8, "0000000000000000"], [70, ""]]}\n'
    )
    assert err.getvalue() == ""


def test_a_whole_file_of_a_real_server_prints_all_it_holds() -> None:
    code, cells, errors = run(CLOSED)
    assert (code, len(cells), errors) == (0, 177, [])
    assert {cell["type"] for cell in cells} == {4, 8, 10, 12, 14}
    assert {cell["table"] for cell in cells} == {"hbase:namespace", "shop:orders", "plain"}
    assert [[8, "0000000005265c00"]] in [cell["tags"] for cell in cells]
    markers = {bytes.fromhex(c["qualifier"]) for c in cells if bytes.fromhex(c["family"]) == b"METAFAMILY"}
    assert markers == {b"HBASE::FLUSH", b"HBASE::REGION_EVENT::REGION_OPEN"}
    counters = [
        bytes.fromhex(c["value"]) for c in cells if bytes.fromhex(c["qualifier"]) == b"counter" and c["type"] == 4
    ]
    assert counters[:2] == [(5).to_bytes(8, "big"), (7).to_bytes(8, "big")]


def test_the_file_of_a_killed_server_is_unfinished_but_printed() -> None:
    code, cells, errors = run(KILLED)
    assert (code, len(cells)) == (3, 200)
    assert len(errors) == 1
    assert str(KILLED) in errors[0]
    assert str(KILLED.stat().st_size) in errors[0]


def test_a_damaged_file_is_printed_up_to_the_damage_which_is_named(tmp_path: Path) -> None:
    data = CLOSED.read_bytes()
    (first,) = WalReader([data], "closed")
    offset = int(first.start[20])
    path = tmp_path / "bad.wal"
    path.write_bytes(data[:offset] + b"\0" + data[offset + 1 :])
    code, cells, errors = run(path)
    assert (code, len(cells)) == (4, int(first.cell_count[:20].sum()))
    assert errors == [f"error: {path} is damaged at byte {offset}: an empty WALKey (at byte {offset})"]


def test_the_worst_of_several_files_decides_the_exit_code(tmp_path: Path) -> None:
    no_wal = tmp_path / "no.wal"
    no_wal.write_bytes(b"something else")
    empty = tmp_path / "empty.wal"
    empty.write_bytes(b"")
    assert run(CLOSED, KILLED)[0] == 3
    assert run(empty)[0] == 3
    code, cells, errors = run(no_wal, CLOSED, KILLED)
    assert (code, len(cells), len(errors)) == (4, 377, 2)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/no/such/file.wal", "no such file"),
        (str(FIXTURES), "is a folder: name files in it"),
        ("ftp://host/file", ""),
    ],
)
def test_what_cannot_be_opened_is_one_line(path: str, reason: str) -> None:
    code, cells, errors = run(path)
    assert (code, cells, len(errors)) == (UsageError.exit_code, [], 1)
    assert path in errors[0]
    assert reason in errors[0].lower()


def test_a_reader_that_goes_away_early_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "long.wal"
    path.write_bytes(header() + entry([encode_cell(b"r", b"f", b"q", 1, 4, b"v")]) * 20_000 + TRAILER)
    program = "import sys; from walferry.wal.cat import cat; sys.exit(cat(sys.argv[1:], sys.stdout, sys.stderr))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def test_a_hundred_thousand_cells_take_seconds(tmp_path: Path) -> None:
    cells = [encode_cell(b"row%06d" % i, b"f", b"q", i, 4, b"v" * 50) for i in range(1000)]
    path = tmp_path / "long.wal"
    path.write_bytes(header() + entry(cells) * 100 + TRAILER)
    out = io.StringIO()
    begun = time.monotonic()
    assert cat([str(path)], out, io.StringIO()) == 0
    assert time.monotonic() - begun < 10
    assert out.getvalue().count("\n") == 100_000


@pytest.mark.parametrize("columns", list(Columns))
def test_columns_hold_the_same_cells_whatever_the_format(columns: Columns) -> None:
    out, err = io.BytesIO(), io.StringIO()
    assert cat_columns([str(CLOSED), str(KILLED)], out, err, columns) == 3
    assert "killed.wal is unfinished" in err.getvalue()
    source = pa.BufferReader(out.getvalue())
    table = pa.ipc.open_stream(source).read_all() if columns is Columns.ARROW else pq.read_table(source)
    _, lines, _ = run(CLOSED, KILLED)
    assert [
        (row["table"], row["sequence_number"], row["row"].hex(), row["timestamp"], row["type"], row["value"].hex())
        for row in table.to_pylist()
    ] == [tuple(line[key] for key in ("table", "seq", "row", "timestamp", "type", "value")) for line in lines]
    assert set(table["file"].to_pylist()) == {str(CLOSED), str(KILLED)}


@pytest.mark.parametrize("columns", list(Columns))
def test_columns_of_files_without_cells_are_a_whole_file_without_rows(columns: Columns, tmp_path: Path) -> None:
    empty = tmp_path / "empty.wal"
    empty.write_bytes(header() + TRAILER)
    out = io.BytesIO()
    assert cat_columns([str(empty)], out, io.StringIO(), columns) == 0
    source = pa.BufferReader(out.getvalue())
    table = pa.ipc.open_stream(source).read_all() if columns is Columns.ARROW else pq.read_table(source)
    assert (table.num_rows, table.schema.names) == (0, WAL_CELL_SCHEMA.names)


def test_a_reader_of_columns_may_leave_early() -> None:
    command = [sys.executable, "-m", "walferry.cli", "wal", "cat", "--format", "arrow", *[str(CLOSED)] * 300]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_an_entry_of_a_compressed_log_is_shown_by_itself(tmp_path: Path) -> None:
    """As the quarantine keeps it."""
    path = tmp_path / "some.wal"
    compressor = Compressor()
    cells = [encode_cell(b"r", b"f", b"q", number, 4, b"v", [(8, b"ttl")]) for number in range(2)]
    path.write_bytes(compressor.header + b"".join(compressor.entry(cells, number) for number in range(3)))
    (batch,) = open_wal_at(Local(), str(path))
    refusal = refuse("some.wal", batch, 2, "refused")
    assert (refusal.start, refusal.end) == (int(batch.offset[2]), path.stat().st_size)
    shown = cells_of_entry(refusal.data)
    assert [(cell["seq"], cell["row"], cell["timestamp"], cell["tags"]) for cell in shown] == [
        (2, b"r".hex(), 0, [[8, b"ttl".hex()]]),
        (2, b"r".hex(), 1, [[8, b"ttl".hex()]]),
    ]
    assert cells_of_entry(b"") == cells_of_entry(b"\x05nothing") == []


def test_an_entry_whose_last_value_ends_like_a_trailer_is_shown() -> None:
    (shown,) = cells_of_entry(entry([encode_cell(b"r", b"f", b"q", 1, 4, b"value-LAWP")]))
    assert bytes.fromhex(shown["value"]) == b"value-LAWP"
