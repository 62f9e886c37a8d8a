"""Passes over a pair on real clusters: equal tables that no run has copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from integration.migration.moves import content, make_spec, raw, spark, taken_away, unique
from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError
from walferry.formats.cells import CellType
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import delete_column, delete_version
from walferry.hbase.thrift import connect
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.ledger.passes import Passes
from walferry.migration.comparing import written_rows
from walferry.migration.comparing.spot_check import ONLY_SECOND, UNREAD
from walferry.migration.pairs import pair_pass, pair_rows
from walferry.migration.pairs.pair_findings import findings
from walferry.migration.pairs.pair_log import COMPACTED
from walferry.migration.pairs.pair_pass import open_pair, verify_pair
from walferry.migration.pairs.pair_plan import MOVED, NEW
from walferry.migration.sides import digest
from walferry.migration.sides.digest import scans
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.wal.files import Place, WalFile, if_sealed, parse_wal_name

pytestmark = pytest.mark.cluster

ONE, TWO = unique("pair_"), unique("pair_")
SPLITS = [b"r2", b"r4", b"r6"]


@pytest.fixture(scope="module")
def pair(source: MiniCluster, target: MiniCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two tables, equal on both sides, and a pass that was interrupted after its third region, and went on."""
    for cluster in (source, target):
        with HBaseClient(cluster.address) as client:
            for table in (ONE, TWO):
                client.create_table(table, {"f": {"VERSIONS": "3"}}, SPLITS)
        write(cluster, ONE, {b"r%d%d" % (region, row): b"v" for region in range(8) for row in range(10)})
        write(cluster, TWO, {b"r1": b"v", b"r7": b"v"})
    spec = make_spec(source, target, [ONE, TWO], max_lag=2)
    folder = tmp_path_factory.mktemp("pair")
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="tester") as ledger:
        record = open_pair(ledger, spec, "tester", 7)
        with Run(ledger, record.run_id) as run, pytest.MonkeyPatch.context() as patch:
            patch.setattr(pair_pass, "SETTLE_SECONDS", 0.1)
            yield run


def write(cluster: MiniCluster, table: str, rows: dict[bytes, bytes], timestamp: int = 1) -> None:
    """By happybase."""
    connection = connect(cluster.address)
    try:
        for row, value in rows.items():
            connection.table(table).put(row, {b"f:q": value}, timestamp=timestamp)
    finally:
        connection.close()


def one_pass(run: Run) -> dict[str, Any]:
    return verify_pair(run, spark) | findings(run.ledger, 100)


def closed(run: Run, server: Server, name: str) -> str:
    """Have a server go on in another log. Returns where the one of that name is then."""
    run.source.roll_wal(server)
    parsed = parse_wal_name(name)
    assert parsed is not None
    file = WalFile(name, *parsed, "", Place.LIVE, 0)
    deadline = time.monotonic() + 30
    while (now := if_sealed(run.source_files, run.wal_root, file)) is None:
        assert time.monotonic() < deadline, f"{name} is not closed"
        time.sleep(0.2)
    return now.path


def equal(source: MiniCluster, target: MiniCluster) -> bool:
    return all(content(source, table) == content(target, table) for table in (ONE, TWO))


def test_a_pass_that_was_interrupted_goes_on_with_the_regions_that_it_had_not_read(
    pair: Run, source: MiniCluster, target: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = 0

    def record(self: Passes, *args: Any) -> None:
        nonlocal recorded
        if recorded == 3:
            raise TransientError("the ledger does not answer")
        recorded += 1
        kept(self, *args)

    with monkeypatch.context() as patch:
        kept = Passes.record
        patch.setattr(Passes, "record", record)
        patch.setattr(pair_pass, "AT_ONCE", 1)
        patch.setattr(pair_pass, "workers", lambda _: 0)
        with pytest.raises(TransientError):
            one_pass(pair)
    assert [made.regions for made in pair.ledger.passes.latest(5)] == [3]

    found = one_pass(pair)
    assert equal(source, target)
    assert (found["number"], found["regions"], found["whole_regions"]) == (1, 8, 8)
    assert (found["rows_read"], found["differing_rows"]) == (82, 0)
    assert found["reasons"] == {NEW: 8}
    assert [table["clean"] for table in found["tables"]] == [4, 4]


def test_a_later_pass_reads_only_the_rows_that_were_written_on_either_side(
    pair: Run, source: MiniCluster, target: MiniCluster
) -> None:
    for cluster in (source, target):
        write(cluster, ONE, {b"r05": b"new", b"r51": b"new"}, 2)
    write(target, TWO, {b"r7": b"v"})  # what is there already
    found = one_pass(pair)
    assert equal(source, target)
    assert (found["whole_regions"], found["written_rows"], found["rows_read"]) == (0, 3, 3)
    assert found["differing_rows"] == 0
    assert 0 < found["bytes_read"] < 2_000

    found = one_pass(pair)
    assert (found["whole_regions"], found["written_rows"], found["rows_read"]) == (0, 0, 0)


def test_what_somebody_changes_at_the_target_alone_is_found_and_named_until_it_is_mended(
    pair: Run, source: MiniCluster, target: MiniCluster
) -> None:
    write(target, ONE, {b"r33": b"spoilt"}, 5)
    connection = connect(target.address)
    connection.table(TWO).delete(b"r1")
    connection.close()
    for _ in range(2):  # a row that differs is read again, although nobody wrote it since
        found = one_pass(pair)
        assert not equal(source, target)
        assert (found["differing_rows"], found["under_way_rows"], found["whole_regions"]) == (2, 0, 0)
        assert [(d["table"], d["row"], d["detail"]) for d in found["differences"]] == sorted(
            [(ONE, "r33", "only at the target: put f:q at 5"), (TWO, "r1", "only at the source: put f:q at 1")]
        )
    clean = {(r.table, r.start): r.clean_ms for r in pair.ledger.passes.regions()}
    assert clean[ONE, b"r2"] < clean[ONE, b"r4"]  # type: ignore[operator]
    write(source, ONE, {b"r33": b"spoilt"}, 5)
    write(target, TWO, {b"r1": b"v"}, 1 << 50)
    write(source, TWO, {b"r1": b"v"}, 1 << 50)
    connection = connect(source.address)
    connection.table(TWO).delete(b"r1", timestamp=1)
    connection.close()
    assert equal(source, target)
    found = one_pass(pair)
    assert (found["differing_rows"], found["rows_read"], found["whole_regions"]) == (0, 2, 0)


def test_regions_whose_log_is_gone_are_read_whole_and_the_result_says_why(
    pair: Run, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    victim = next(region.server for region in at_source.regions(ONE) if region.start == b"r4")
    assert victim is not None
    there = {(t, region.encoded) for t in (ONE, TWO) for region in at_source.regions(t) if region.server == victim}
    (position,) = pair.ledger.passes.positions().values()
    ((group, place),) = [
        (group, place) for group, place in position.source.items() if victim.name.replace(",", "%2C") in group
    ]
    (number,) = place["open"]
    for cluster in (source, target):
        write(cluster, ONE, {b"r45": b"lost"}, 3)
    with taken_away(pair.source_files, closed(pair, victim, f"{group}.{number}")):
        found = one_pass(pair)
    assert equal(source, target)
    assert {(item["table"], item["region"]) for item in found["whole"]} == there
    assert {item["why"] for item in found["whole"]} == {
        f"source: WAL file {group}.{number} no longer exists, and was read only up to byte {place['open'][number]}"
    }
    assert found["differing_rows"] == 0


def test_a_compaction_is_trusted_unless_a_region_holds_what_may_bring_older_versions_to_light(
    pair: Run, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    for client in (at_source, pair.target):
        client.mutate(ONE, [delete_version(b"r05", b"f", b"q", 2), delete_column(b"r51", b"f", b"q")])
    at_source.flush_table(ONE)
    at_source.compact_table(ONE, major=True)
    deadline = time.monotonic() + 60
    while any(kind != CellType.PUT for row in (b"r05", b"r51") for _, _, kind, _ in raw(at_source, ONE, row)):
        assert time.monotonic() < deadline, f"{ONE} is not compacted"
        time.sleep(0.2)
    found = one_pass(pair)
    assert equal(source, target)
    assert [(item["from"], item["why"]) for item in found["whole"]] == [("", f"source: {COMPACTED}")]
    assert (found["differing_rows"], found["rows_read"]) == (0, 20 + 1)


def test_a_region_that_was_opened_again_is_read_whole(pair: Run, target: MiniCluster) -> None:
    with HBaseClient(target.address) as client:
        client.disable_table(TWO)
        client.enable_table(TWO)
    found = one_pass(pair)
    assert {(item["table"], item["why"]) for item in found["whole"]} == {(TWO, MOVED)}
    assert found["whole_regions"] == 4


def test_rows_that_differ_for_the_second_reader_alone_make_the_pass_differ_until_they_are_mended(
    pair: Run, source: MiniCluster, target: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What our own reader sees of the target is the source: it finds both equal whatever the target holds."""
    one_pass(pair)
    write(source, ONE, {b"r15": b"v", b"r55": b"v"}, 9)
    write(target, ONE, {b"r15": b"v", b"r55": b"spoilt"}, 9)
    with monkeypatch.context() as patch:
        blind(pair, patch)
        for _ in range(2):  # nobody writes the row between the two
            found = one_pass(pair)
            assert found["differing_rows"] == 1
            assert [(d["table"], d["row"], d["detail"]) for d in found["differences"]] == [(ONE, "r55", ONLY_SECOND)]
            assert found["second_reader"]["differing"] == 1
        assert found["written_rows"] == 0
    write(target, ONE, {b"r55": b"v"}, 9)
    found = one_pass(pair)
    assert equal(source, target)
    assert (found["differing_rows"], found["second_reader"]["differing"]) == (0, 0)


def blind(pair: Run, patch: pytest.MonkeyPatch) -> None:
    """Our own reader reads the source in place of the target."""
    for module in (digest, pair_rows, written_rows):
        patch.setattr(module, "scans", lambda of: (scans(of)[0], scans(of)[0]))
    patch.setattr(pair.target, "scan_raw", pair.source.scan_raw)


def test_a_sample_of_each_region_that_is_read_whole_is_read_by_the_second_reader_too(
    pair: Run, source: MiniCluster, target: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that skips the log, so that only the whole reading comes by its region."""
    connection = connect(target.address)
    connection.table(TWO).put(b"r1", {b"f:q": b"spoilt"}, timestamp=1 << 51, wal=False)
    connection.close()
    assert one_pass(pair)["differing_rows"] == 0, "nothing names it"
    with monkeypatch.context() as patch:
        blind(pair, patch)
        pair.ledger.notes.keep("options of the pair", {"whole_every_days": 1e-9})
        found = one_pass(pair)
    pair.ledger.notes.keep("options of the pair", {"whole_every_days": 7})
    assert found["whole_regions"] == 8
    assert found["second_reader"]["rows"] > 40
    assert [(d["table"], d["row"], d["detail"]) for d in found["differences"]] == [(TWO, "r1", ONLY_SECOND)]


def test_a_thrift_server_that_does_not_answer_fails_no_pass(
    pair: Run, source: MiniCluster, target: MiniCluster
) -> None:
    with HBaseClient(target.address) as client:
        client.mutate(TWO, [delete_version(b"r1", b"f", b"q", 1 << 51)])
    write(source, TWO, {b"r7": b"v"})
    whole, pair.__dict__["spec"] = pair.spec, unreachable(pair.spec)
    try:
        found = one_pass(pair)
        assert found["second_reader"]["rows"] == 0
        assert "does not answer" in found["second_reader"]["why"]
        assert [(d["row"], d["detail"]) for d in found["differences"]] == [("r1", UNREAD)], "it differed before"
    finally:
        pair.__dict__["spec"] = whole
    found = one_pass(pair)
    assert (found["differing_rows"], found["second_reader"]["why"]) == (0, "")
    assert found["second_reader"]["rows"] >= 2, "those that the pass before could not read, too"


def unreachable(spec: ResolvedSpec) -> ResolvedSpec:
    return spec.model_copy(update={"target": spec.target.model_copy(update={"thrift": "127.0.0.1:1"})})
