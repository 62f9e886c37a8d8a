"""Comparisons on real clusters, of tables that one run has copied and replayed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from integration.migration.moves import begin, copy_tables, fill, make_spec, raw, run_of, spark, unique, visible
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.formats.cells import CellType
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version, put
from walferry.migration.comparing.compare import compare
from walferry.migration.explaining.accept import accept
from walferry.migration.explaining.difference_classes import (
    EXPIRED_OVERWRITE,
    HISTORY,
    IN_FLIGHT,
    NOT_IN_LOG,
    UNEXPLAINED,
)
from walferry.replay.rounds.follower import replay
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

NAME = unique("cmp_")
EQUAL, EXPIRED, KEPT, ROWS = f"{NAME}_equal", f"{NAME}_expired", f"{NAME}_kept", f"{NAME}_rows"
FAMILIES = {
    EQUAL: {"VERSIONS": "5"},
    EXPIRED: {"TTL": "100"},
    KEPT: {"VERSIONS": "4", "MIN_VERSIONS": "2", "TTL": "1"},
    ROWS: {"VERSIONS": "1"},
}


def cell(row: bytes, value: bytes, timestamp: int | None = None) -> Cell:
    return Cell(row, b"f", b"q", value, timestamp)


def compact(client: HBaseClient, name: str, row: bytes, gone: int) -> None:
    """Flush and major-compact, and wait until the row's marker of that type is gone."""
    client.flush_table(name)
    client.compact_table(name, major=True)
    deadline = time.monotonic() + 60
    while any(kind == gone for _, _, kind, _ in raw(client, name, row)):
        assert time.monotonic() < deadline, f"{name} is not compacted"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def moved(source: MiniCluster, target: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Copied, written to behind the fence, and replayed once."""
    spec = make_spec(source, target, list(FAMILIES))
    with HBaseClient(source.address) as client, run_of(spec, tmp_path_factory.mktemp("compare")) as run:
        for name, family in FAMILIES.items():
            client.create_table(name, {"f": family}, [b"r10"])
        for name in (EQUAL, KEPT, ROWS):
            fill(client, name)
        begin(run)
        copy_tables(run)

        client.put(EQUAL, [cell(b"r01", b"new"), cell(b"s01", b"more")])
        client.mutate(EQUAL, [delete_column(b"r02", b"f", b"q"), delete_version(b"r03", b"f", b"q", 1)])
        client.mutate(EQUAL, [put(b"r04", [cell(b"r04", b"short")], ttl_ms=1)])
        client.mutate(EQUAL, [put(b"r05", [cell(b"r05", b"long")], ttl_ms=86_400_000)])
        now = time.time_ns() // 1_000_000
        client.put(EXPIRED, [cell(b"r01", b"old", now - 99_000), cell(b"r02", b"young", now + 400_000)])

        for timestamp in (2, 3, 4, 5, 3):  # the source drops some of them at once, the target none
            client.put(KEPT, [cell(b"r%02d" % number, b"%d" % timestamp, timestamp) for number in range(10)])
            client.flush_table(KEPT)
        client.compact_table(KEPT, major=True)
        client.put(KEPT, [cell(b"r01", b"young", now), cell(b"r02", b"another", 5), cell(b"r03", b"too old", 2)])

        unlogged = put(b"unlogged", [cell(b"unlogged", b"never logged")])
        unlogged.durability = pb.MutationProto.SKIP_WAL
        client.mutate(ROWS, [unlogged])
        for timestamp in (2, 3, 4):
            client.put(ROWS, [cell(b"surplus", b"%d" % timestamp, timestamp)])
        # One version is kept: a flush drops the first, then the second is deleted, and nothing is left.
        client.put(ROWS, [cell(b"history", b"one", 11)])
        client.put(ROWS, [cell(b"history", b"two", 12)])
        client.flush_table(ROWS)
        client.mutate(ROWS, [delete_version(b"history", b"f", b"q", 12)])
        # A put that expires at once overwrites another of the same timestamp, which shows up again at the source. The
        # target takes both in one batch and keeps the later one only.
        client.put(ROWS, [cell(b"over", b"below", now)])
        client.mutate(ROWS, [put(b"over", [cell(b"over", b"above", now)], ttl_ms=1)])
        replay(run, spark(), until=lambda: True)
        yield run


def found(run: Run, table: str) -> dict[bytes, str]:
    """The class of each differing row, as the ledger keeps it."""
    compare(run, spark, table)
    return {d.row: d.kind for d in run.ledger.comparisons.differences(None, table)}


def test_equal_tables_are_equal_also_when_one_side_has_compacted(
    moved: Run, source: MiniCluster, target: MiniCluster
) -> None:
    assert visible(source, EQUAL) == visible(target, EQUAL)
    for attempt in (1, 2):
        result = compare(moved, spark, EQUAL)
        assert (result.differing_rows, result.unexplained, len(result.ranges)) == (0, 0, 2)
        assert sum(r.source_rows for r in result.ranges) == 19  # 20, two deleted, one new
        assert sum(r.dropped["target"]["marker"] for r in result.ranges) == (2 if attempt == 1 else 0)
        if attempt == 1:
            compact(moved.target, EQUAL, b"r02", gone=CellType.DELETE_COLUMN)
            compact(moved.target, EQUAL, b"r03", gone=CellType.DELETE)
            assert len(raw(moved.source, EQUAL, b"r02")) == 2
    ranges = [r for r in moved.ledger.log.ranges() if r.table == EQUAL]
    assert {r.state for r in ranges} == {"verified"}


def test_of_a_table_with_a_ttl_everything_that_a_reader_sees_is_compared(
    moved: Run, source: MiniCluster, target: MiniCluster
) -> None:
    """Hole: the moment of comparison lay ten minutes ahead and more, so that nothing of this table was compared."""
    result = compare(moved, spark, EXPIRED)
    assert visible(source, EXPIRED) == visible(target, EXPIRED)
    assert [row for row, _, _ in visible(source, EXPIRED)] == [b"r02"]
    assert (result.differing_rows, result.uncompared, sum(r.source_cells for r in result.ranges)) == (0, 0, 1)

    now = time.time_ns() // 1_000_000
    moved.target.put(EXPIRED, [cell(b"r02", b"forged", now + 400_000), cell(b"r07", b"stranger", now + 400_000)])
    assert found(moved, EXPIRED) == {b"r02": UNEXPLAINED, b"r07": UNEXPLAINED}
    (region,) = [r for r in moved.ledger.comparisons.ranges() if r.table == EXPIRED and not r.start]
    assert not region.equal
    assert region.first_ms is not None
    assert abs(region.first_ms - now) < 60_000


def test_expired_versions_that_a_family_keeps_are_equal_whatever_a_side_has_dropped(
    moved: Run, source: MiniCluster, target: MiniCluster
) -> None:
    result = compare(moved, spark, KEPT)
    assert (result.differing_rows, result.unexplained) == (0, 0)
    assert sum(r.source_cells for r in result.ranges) == 10 * 2 + 10  # two versions of what was written again
    seen = visible(target, KEPT)
    assert {row: [timestamp for _, timestamp in cells] for row, _, cells in seen}[b"r00"] == [5, 4]
    assert seen == visible(source, KEPT)


def test_every_difference_is_found_with_its_row_and_gets_its_class(
    moved: Run, source: MiniCluster, target: MiniCluster
) -> None:
    assert [timestamp for _, timestamp, kind, _ in raw(moved.source, ROWS, b"surplus") if kind == CellType.PUT] == [4]
    assert len(raw(moved.target, ROWS, b"surplus")) > 1
    assert 11 not in [timestamp for _, timestamp, _, _ in raw(moved.source, ROWS, b"history")]
    assert [value for row, _, cells in visible(source, ROWS) if row == b"over" for value, _ in cells] == [b"below"]
    assert b"over" not in [row for row, _, _ in visible(target, ROWS)]
    explained = {b"unlogged": NOT_IN_LOG, b"history": HISTORY, b"over": EXPIRED_OVERWRITE}
    assert found(moved, ROWS) == explained

    moved.target.put(ROWS, [cell(b"r07", b"forged", 1), cell(b"zz", b"stranger")])
    moved.target.mutate(ROWS, [delete_column(b"r13", b"f", b"q")])
    moved.source.put(ROWS, [cell(b"r01", b"later")])
    moved.source.mutate(ROWS, [delete_column(b"r02", b"f", b"q")])
    unexplained = {b"r07": UNEXPLAINED, b"r13": UNEXPLAINED, b"zz": UNEXPLAINED}
    in_flight = {b"r01": IN_FLIGHT, b"r02": IN_FLIGHT}
    assert found(moved, ROWS) == explained | unexplained | in_flight

    replay(moved, spark(), until=lambda: True)
    compact(moved.target, ROWS, b"r13", gone=CellType.DELETE_COLUMN)
    assert found(moved, ROWS) == explained | unexplained


def test_what_sparks_workers_find_in_the_log_is_what_the_process_alone_finds_there(
    moved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved.source.put(ROWS, [cell(b"r03", b"under way")])
    seen = []
    for here_bytes in (1 << 30, 1):
        monkeypatch.setenv("WALFERRY_HERE_BYTES", str(here_bytes))
        differences = compare(moved, spark, ROWS).differences
        seen.append([(found.row, found.kind, found.detail, found.fingerprint) for found in differences])
    assert seen[0] == seen[1]
    assert {kind for _, kind, _, _ in seen[0]} >= {IN_FLIGHT, NOT_IN_LOG, HISTORY, UNEXPLAINED}


def test_a_decision_about_an_unlogged_row_covers_no_later_loss(moved: Run) -> None:
    """Hole: rows that the log does not hold passed as a warning, and a lost log looks just like that."""
    undecided = compare(moved, spark, ROWS).undecided
    accept(moved.ledger, ROWS, ["unlogged"], "a cache that nobody needs", "tester")
    assert compare(moved, spark, ROWS).undecided == undecided - 1
    unlogged = put(b"unlogged", [cell(b"unlogged", b"never logged either")])
    unlogged.durability = pb.MutationProto.SKIP_WAL
    moved.source.mutate(ROWS, [unlogged])
    assert compare(moved, spark, ROWS).undecided == undecided


def test_hundreds_of_unlogged_rows_are_examined_one_by_one_and_can_be_accepted(moved: Run) -> None:
    """Hole: only 200 rows of a table were looked at, so that more of them shut the gate for good."""
    unlogged = [put(b"u%03d" % number, [cell(b"u%03d" % number, b"never logged")]) for number in range(450)]
    for mutation in unlogged:
        mutation.durability = pb.MutationProto.SKIP_WAL
    moved.source.mutate(EQUAL, unlogged)
    result = compare(moved, spark, EQUAL)
    assert (result.differing_rows, result.undecided, result.unexplained) == (450, 450, 0)
    assert len(accept(moved.ledger, EQUAL, None, "a cache that nobody needs", "tester")) == 450
    again = compare(moved, spark, EQUAL)
    assert (again.differing_rows, again.undecided, again.shuts_the_gate) == (450, 0, False)


def test_a_row_of_which_thousands_of_cells_differ_is_cut_off_and_says_so(moved: Run) -> None:
    """Hole: every cell of such a row was collected."""
    wide = put(b"wide", [Cell(b"wide", b"f", b"%05d" % number, b"never logged") for number in range(2_500)])
    wide.durability = pb.MutationProto.SKIP_WAL
    narrow = put(b"narrow", [Cell(b"narrow", b"f", b"%05d" % number, b"never logged") for number in range(50)])
    narrow.durability = pb.MutationProto.SKIP_WAL
    moved.source.mutate(ROWS, [wide, narrow])
    moved.source.put(ROWS, [Cell(b"wide", b"f", b"z", b"logged")])
    compare(moved, spark, ROWS)
    differences = {d.row: d for d in moved.ledger.comparisons.differences(None, ROWS)}
    assert (differences[b"wide"].kind, differences[b"wide"].fingerprint) == (UNEXPLAINED, "")
    assert differences[b"wide"].detail.startswith("2501 cells differ, too many to examine each: only the first 1000 ")
    assert differences[b"narrow"].kind == NOT_IN_LOG
    with pytest.raises(UsageError, match=r"row wide of .* cannot be accepted"):
        accept(moved.ledger, ROWS, ["wide"], "a cache", "tester")


def test_snapshots_of_both_sides_show_what_scans_show_and_are_deleted(
    moved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells in several files of each side, markers, versions that one side has dropped; one row differs for good.

    The last test: a snapshot flushes.
    """
    before = {side: {taken.name for taken in side.snapshots()} for side in (moved.source, moved.target)}
    moved.source.put(EQUAL, [cell(b"r06", b"under way")])
    moved.target.put(EQUAL, [cell(b"stranger", b"forged", 7)])
    found = {}
    for way in ("scans", "snapshots"):
        monkeypatch.setattr(moved, "spec", moved.spec.model_copy(update={"compare": way}))
        for table in (EQUAL, KEPT, EXPIRED, ROWS):
            made = compare(moved, spark, table)
            sums = [(r.start, r.stop, r.region, r.source_digest, r.target_digest) for r in made.ranges]
            found[way, table] = sums, {difference.row: difference.kind for difference in made.differences}
    for table in (EQUAL, KEPT, EXPIRED, ROWS):
        assert found["snapshots", table] == found["scans", table]
    assert found["snapshots", EQUAL][1].items() >= {b"r06": IN_FLIGHT, b"stranger": UNEXPLAINED}.items()
    assert before == {side: {taken.name for taken in side.snapshots()} for side in (moved.source, moved.target)}
