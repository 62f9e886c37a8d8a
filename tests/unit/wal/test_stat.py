"""`walferry wal stat` on real files and on built ones, against what `wal cat` prints of them."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.cli import app
from walferry.errors import UsageError
from walferry.formats.cells import encode_cell
from walferry.wal.cat import cat
from walferry.wal.stat import OLD_MS, RegionStat, stat

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
CLOSED = FIXTURES / "closed.wal"
KILLED = FIXTURES / "killed.wal"
AT = 1_700_000_000_000


def printed(path: Path) -> list[dict[str, Any]]:
    out = io.StringIO()
    cat([str(path)], out, io.StringIO())
    return [json.loads(line) for line in out.getvalue().splitlines()]


def by_hand(cells: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    """The counts of each region, from the cells that `wal cat` prints."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    seen = set()
    names = {4: "puts", 8: "deletes", 10: "delete_family_versions", 12: "delete_columns", 14: "delete_families"}
    for cell in cells:
        count = counts.setdefault((cell["table"], cell["region"]), Counter())
        if bytes.fromhex(cell["family"]) == b"METAFAMILY":
            continue
        count["cells"] += 1
        count[names[cell["type"]]] += 1
        count["old"] += cell["write_time"] - cell["timestamp"] > OLD_MS
        if cell["type"] == 4:
            place = tuple(cell[key] for key in ("table", "row", "family", "qualifier", "timestamp"))
            count["ties"] += place in seen
            seen.add(place)
    return counts


@pytest.mark.parametrize("path", [CLOSED, KILLED], ids=["closed", "killed"])
def test_a_real_file_holds_what_its_cells_say(path: Path) -> None:
    cells = printed(path)
    found = stat([str(path)])
    expected = by_hand(cells)
    assert {(r.table, r.region) for r in found.regions} == expected.keys()
    for region in found.regions:
        mine = [c for c in cells if (c["table"], c["region"]) == (region.table, region.region)]
        assert {name: getattr(region, name) for name in expected[region.table, region.region]} == dict(
            expected[region.table, region.region]
        )
        assert (region.first_write_ms, region.last_write_ms) == (
            min(c["write_time"] for c in mine), max(c["write_time"] for c in mine),
        )  # fmt: skip
        assert (region.first_sequence, region.last_sequence) == (
            min(c["seq"] for c in mine), max(c["seq"] for c in mine),
        )  # fmt: skip
    assert sum(region.ties for region in found.regions) > 0 or path == KILLED
    assert {kind for region in found.regions for kind in region.markers} <= {"flush", "region_open"}


def test_a_tables_counts_are_those_of_its_regions() -> None:
    found = stat([str(CLOSED), str(KILLED)])
    for table in found.tables:
        mine = [region for region in found.regions if region.table == table.table]
        for name in ("entries", "cells", "bytes", "puts", "deletes", "delete_families", "ties", "old"):
            assert getattr(table, name) == sum(getattr(region, name) for region in mine)
        assert table.last_sequence == max(region.last_sequence for region in mine)
        assert table.first_write_ms == min(region.first_write_ms for region in mine)
        assert table.markers["region_open"] == sum(region.markers["region_open"] for region in mine)
    assert len(found.tables) == 3


cells = st.lists(
    st.tuples(st.sampled_from([b"r", b"s", b""]), st.sampled_from([b"f", b"rf"]), st.sampled_from([b"", b"q", b"f"]),
              st.integers(0, 2), st.sampled_from([4, 8, 10, 12, 14])),
    min_size=1, max_size=8,
)  # fmt: skip


@given(entries=st.lists(st.tuples(cells, st.sampled_from([b"t1", b"t2"]), st.sampled_from([b"a" * 32, b"b" * 32])),
                        max_size=12))  # fmt: skip
def test_whatever_a_file_holds_is_counted(
    entries: list[tuple[list[tuple[bytes, bytes, bytes, int, int]], bytes, bytes]], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.wal"
    built = [
        entry([encode_cell(b"x" + row, family, qualifier, at, kind) for row, family, qualifier, at, kind in some],
              number + 1, table_name=table, encoded_region_name=region, write_time=AT + number)
        for number, (some, table, region) in enumerate(entries)
    ]  # fmt: skip
    path.write_bytes(header() + b"".join(built) + TRAILER)
    found = stat([str(path)])
    expected = by_hand(printed(path))
    names = ("cells", "puts", "deletes", "delete_family_versions", "delete_columns", "delete_families", "ties", "old")
    assert {(r.table, r.region): {name: getattr(r, name) for name in names} for r in found.regions} == {
        key: {name: count[name] for name in names} for key, count in expected.items()
    }
    assert sum(region.entries for region in found.regions) == len(entries)
    assert sum(region.bytes for region in found.regions) == sum(map(len, built))


def put(row: bytes, timestamp: int) -> bytes:
    return encode_cell(row, b"f", b"q", timestamp, 4)


def one(found: Sequence[RegionStat]) -> RegionStat:
    (row,) = found
    return row


def test_a_put_of_an_earlier_file_and_of_another_region_of_the_table_is_a_tie(tmp_path: Path) -> None:
    for name, region in (("a", b"a" * 32), ("b", b"b" * 32)):
        (tmp_path / name).write_bytes(header() + entry([put(b"r", 7)], encoded_region_name=region) + TRAILER)
    (tmp_path / "c").write_bytes(header() + entry([put(b"r", 7)], table_name=b"other") + TRAILER)
    found = stat([str(tmp_path / name) for name in "abc"])
    assert [(table.table, table.ties) for table in found.tables] == [("other", 0), ("t1", 1)]


@pytest.mark.parametrize(("puts", "ties"), [(4, 4), (5, 0)])
def test_the_latest_puts_are_remembered(puts: int, ties: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walferry.wal.stat._REMEMBERED", 4)
    path = tmp_path / "one.wal"
    path.write_bytes(header() + entry([put(b"%d" % number, 7) for number in range(puts)] * 2) + TRAILER)
    assert one(stat([str(path)]).tables).ties == ties


def test_a_table_may_have_any_number_of_regions(tmp_path: Path) -> None:
    path = tmp_path / "one.wal"
    some = [entry([put(b"r", n)], encoded_region_name=b"%032d" % n) for n in range(200)]
    path.write_bytes(header() + b"".join(some) + TRAILER)
    found = stat([str(path)])
    assert [(region.entries, region.puts) for region in found.regions] == [(1, 1)] * 200
    assert one(found.tables).puts == 200


def test_a_timestamp_that_a_client_gave_is_old_after_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "one.wal"
    some = [put(b"r", AT), put(b"s", AT - 60_000), put(b"t", AT - 60_001), put(b"u", AT + 90_000)]
    path.write_bytes(header() + entry(some, write_time=AT) + TRAILER)
    assert one(stat([str(path)]).tables).old == 1


def test_bulk_loads_are_counted_as_markers(tmp_path: Path) -> None:
    path = tmp_path / "one.wal"
    marker = encode_cell(b"r", b"METAFAMILY", b"HBASE::BULK_LOAD", 5, 4)
    path.write_bytes(header() + entry([marker]) + entry([put(b"r", 1)], 2) + TRAILER)
    table = one(stat([str(path)]).tables)
    assert (table.entries, table.cells, table.puts, table.markers) == (2, 1, 1, {"bulk_load": 1})


def test_what_precedes_damage_is_counted_and_the_other_files_too(tmp_path: Path) -> None:
    whole = header() + entry([put(b"r", 1)])
    (tmp_path / "damaged").write_bytes(whole + entry([put(b"s", 1)])[:-3] + TRAILER)
    (tmp_path / "unfinished").write_bytes(whole)
    (tmp_path / "whole").write_bytes(whole + TRAILER)
    found = stat([str(tmp_path / name) for name in ("damaged", "unfinished", "whole")])
    assert one(found.tables).puts == 3
    assert [file.exit_code for file in found.files] == [found.exit_code, 3, 0]
    assert found.exit_code == 4
    assert found.files[0].bytes == found.files[1].bytes == len(whole)


def test_a_folder_is_read_with_those_of_its_servers_and_meta_logs_are_left_out(tmp_path: Path) -> None:
    content = header() + entry([put(b"r", 1)]) + TRAILER
    server = "rs%2C16020%2C1700000000000"
    inside = tmp_path / "rs,16020,1700000000000"
    inside.mkdir()
    for place in (tmp_path / f"{server}.1700000000001", inside / f"{server}.1700000000002",
                  inside / f"{server}.meta.1700000000003.meta", tmp_path / "notes.txt"):  # fmt: skip
        place.write_bytes(content)
    found = stat([str(tmp_path)])
    assert [Path(file.path).name for file in found.files] == [f"{server}.1700000000001", f"{server}.1700000000002"]
    assert one(found.tables).ties == 1


def test_a_folder_without_logs_and_a_path_that_does_not_exist_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no WAL of user tables"):
        stat([str(tmp_path)])
    with pytest.raises(FileNotFoundError):
        stat([str(tmp_path / "nothing")])


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["wal", "stat", *arguments])


def test_the_command_prints_a_table_and_says_what_was_not_whole() -> None:
    done = command(str(CLOSED), str(KILLED))
    assert done.exit_code == 3
    assert "plain" in done.stdout
    assert "28/14/18/14" in done.stdout
    assert "without a trailer" in done.stderr
    as_json = json.loads(command(str(CLOSED), "--json").stdout)
    assert {row["table"] for row in as_json["tables"]} == {"hbase:namespace", "shop:orders", "plain"}
    assert len(as_json["regions"]) > len(as_json["tables"])
    assert [file["problem"] for file in as_json["files"]] == [""]


def test_a_path_that_does_not_exist_is_one_line() -> None:
    done = command("nothing")
    assert (done.stdout, str(done.exception)) == ("", "nothing: no such file or folder")
    assert isinstance(done.exception, UsageError)
