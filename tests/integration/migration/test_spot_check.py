"""The second reader, HBase's own Java client behind Thrift, on real clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.migration.moves import begin, copy_tables, make_spec, run_of, spark, unique
from walferry.cli.comparisons import verify
from walferry.cutover.gates import drain_rows
from walferry.embedded.cluster import MiniCluster
from walferry.errors import SidesDifferError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_version
from walferry.hbase.thrift import connect
from walferry.migration.comparing.compare import TableComparison, compare
from walferry.migration.comparing.spot_check import ONLY_SECOND, spot_check
from walferry.migration.explaining import explain_rows
from walferry.migration.explaining.accept import accept
from walferry.migration.report import compared_tables
from walferry.migration.sides import digest
from walferry.migration.sides.digest import scans
from walferry.replay.rounds.follower import replay
from walferry.run.notes.spot_check import SpotCheck
from walferry.run.run import Run
from walferry.spark.clients import shared_client

pytestmark = pytest.mark.cluster

TABLE = unique("spot_")
ROWS = 60


def cell(row: bytes, value: bytes, timestamp: int | None = None) -> Cell:
    return Cell(row, b"f", b"q", value, timestamp)


@pytest.fixture(scope="module")
def moved(source: MiniCluster, target: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Copied, written to behind the fence, and replayed once."""
    spec = make_spec(source, target, [TABLE], unlogged_writes="ignore")
    with HBaseClient(source.address) as client, run_of(spec, tmp_path_factory.mktemp("spot")) as run:
        client.create_table(TABLE, {"f": {"VERSIONS": "3"}}, [b"r20", b"r40"])
        client.put(TABLE, [cell(b"r%02d" % number, b"first", 5) for number in range(ROWS)])
        begin(run)
        copy_tables(run)
        client.put(TABLE, [cell(b"r%02d" % number, b"second") for number in range(0, ROWS, 2)])
        client.mutate(TABLE, [delete_column(b"r01", b"f", b"q"), delete_version(b"r03", b"f", b"q", 5)])
        replay(run, spark(), until=lambda: True)
        yield run


def compared(run: Run) -> TableComparison:
    run.ledger.phases.start("compare", TABLE)
    return compare(run, spark, TABLE, "phase")


def checked(run: Run, result: TableComparison) -> SpotCheck:
    found = spot_check(run, spark, result)
    assert not found.why
    return found


def spoil(run: Run, row: bytes, value: bytes) -> None:
    """A write at the target that no comparison has seen."""
    connect(run.spec.target.address()).table(TABLE).put(row, {b"f:q": value}, timestamp=7)


def test_the_rows_of_every_region_and_those_written_last_are_read_and_equal(moved: Run) -> None:
    result = compared(moved)
    found = checked(moved, result)
    assert len(result.sample) > ROWS / 2, "it has fewer cells than are sampled"
    assert found == SpotCheck(comparison=result.compared.attempt, rows=ROWS - 2, seconds=found.seconds)
    assert [row["second_reader"] for row in drain_rows(moved.ledger, [result.compared])] == [0, 0, 0]


def test_rows_that_only_the_second_reader_finds_shut_the_gate_of_their_region_until_somebody_accepts_them(
    moved: Run,
) -> None:
    result = compared(moved)
    spoil(moved, b"r41", b"spoilt")
    spoil(moved, b"r50a", b"stray")  # between two rows: no comparison can have drawn it
    try:
        found = checked(moved, result)
        assert sorted(bytes.fromhex(row) for row in found.differing) == [b"r41", b"r50a"]
        [newest] = [made for made in moved.ledger.comparisons.tables() if made.attempt == result.compared.attempt]
        assert newest.differing_rows == 2
        rows = drain_rows(moved.ledger, [newest])
        assert [(row["unexplained"], row["second_reader"]) for row in rows] == [(0, 0), (0, 0), (2, 2)]
        accept(moved.ledger, TABLE, ["r41", "r50a"], "spoilt by a test", "kim")
        assert [row["second_reader"] for row in drain_rows(moved.ledger, [newest])] == [0, 0, 0]
    finally:
        spoil_no_more(moved, b"r41", b"r50a")
    again = checked(moved, compared(moved))
    assert not again.differing
    assert again.rows >= ROWS - 2


def spoil_no_more(run: Run, *rows: bytes) -> None:
    """Its marker hides whatever else is written to the row at that timestamp."""
    with HBaseClient(run.spec.target.address()) as client:
        client.mutate(TABLE, [delete_version(row, b"f", b"q", 7) for row in rows])


def test_without_a_thrift_server_nothing_is_read_and_the_report_says_so(
    source: MiniCluster, target: MiniCluster, moved: Run, tmp_path: Path
) -> None:
    spec = make_spec(source, target, [TABLE], unlogged_writes="ignore")
    bare = spec.model_copy(update={"target": spec.target.model_copy(update={"thrift": None})})
    with run_of(bare, tmp_path) as run:
        result = compared(run)
        assert not result.sample
        assert spot_check(run, spark, result).why == "no Thrift server of the target is known (`thrift`)"
        assert [row["second_reader"] for row in drain_rows(run.ledger, [result.compared])] == [None] * 3


def test_verify_fails_by_rows_that_only_the_second_reader_finds(
    moved: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own reader reads the source in place of the target, so that it finds both equal whatever the target holds."""
    spoil(moved, b"r43", b"spoilt")
    with monkeypatch.context() as patch:
        patch.setattr(digest, "scans", lambda pair: (scans(pair)[0], scans(pair)[0]))
        patch.setattr(explain_rows, "shared_client", lambda _: shared_client(moved.source_address()))
        with pytest.raises(SidesDifferError, match="source and target differ"):
            verify(moved.record.name, as_json=True, ledger=moved.ledger.whole.url)
    [facts] = json.loads(capsys.readouterr().out)
    assert (facts["differing_rows"], facts["unexplained"]) == (1, 1)
    assert (facts["second_reader"]["differing"], facts["second_reader"]["why"]) == (1, "")
    assert facts["second_reader"]["rows"] == ROWS - 2
    [item] = moved.ledger.comparisons.differences()
    assert (item.row, item.detail) == (b"r43", ONLY_SECOND)

    spoil_no_more(moved, b"r43")
    verify(moved.record.name, ledger=moved.ledger.whole.url)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{TABLE}: 3 regions, 0 differing rows")
    assert said[1] == f"  second reader: {ROWS - 2} rows read by HBase's own Java client on both sides: all equal"
    assert compared_tables(moved.ledger)[TABLE].second_reader == said[1].removeprefix("  second reader: ")
