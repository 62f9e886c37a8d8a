"""Comparisons from snapshots: what files show that no server would, the choice, and that no snapshot remains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unit.migration.filled_ledger import SPEC
from unit.spark_stand_in import SPARK
from walferry.clock import CLOCKS_APART_MS
from walferry.errors import TransientError, UnreadableInputError, WalferryError
from walferry.formats.cells import CellIndex, CellType, cells_to_arrow, encode_cell, index_cells
from walferry.formats.hfile import StoredCells
from walferry.formats.merge import alive, merged
from walferry.formats.resolve import FamilyRules
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Family
from walferry.ledger import Ledger
from walferry.migration.comparing import compare
from walferry.migration.sides import stored_sides
from walferry.migration.sides.digest import RangePair, Taken, compare_pair
from walferry.snapshots.manifest import SnapshotRegion

TTL_TAG = 8
NOW = 1_000_000
TABLE = "shop:orders"
HERE = ClusterAddress("127.0.0.1:1", rootdir="hdfs://127.0.0.1:1/hbase")


def block(*cells: tuple[bytes, int, bytes, int | None]) -> bytes:
    """Puts of (row, timestamp, value, own TTL)."""
    return b"".join(
        encode_cell(row, b"f", b"q", at, CellType.PUT, value, [(TTL_TAG, ttl.to_bytes(8, "big"))] if ttl else [])
        for row, at, value, ttl in cells
    )


def index(*cells: tuple[bytes, int, bytes, int | None]) -> CellIndex:
    return index_cells(np.frombuffer(block(*cells), np.uint8))


def values(files: list[list[StoredCells]]) -> list[bytes]:
    shown = merged([alive(iter(file), NOW) for file in files])
    return [value for cells in shown for value in cells_to_arrow(cells)["value"].to_pylist()]


def test_what_an_expired_put_had_overwritten_shows_up_again_as_at_a_region_server() -> None:
    """A merge of the files alone keeps the newest of equal keys, which nobody sees, and hides the one below."""
    below = [StoredCells(index((b"a", 9, b"below", None), (b"b", 9, b"below", None)), np.array([1, 1]))]
    over = [StoredCells(index((b"a", 9, b"expired", 1), (b"b", 9, b"alive", 2 * NOW)), np.array([2, 2]))]
    assert values([below, over]) == [b"below", b"alive"]
    assert values([[StoredCells(index((b"a", 9, b"expired", 1)), np.array([2]))]]) == []


def test_cells_that_expire_while_snapshots_are_taken_are_read_again_live() -> None:
    """The moments are the snapshots', not those at which a file was read."""
    read: list[str] = []

    def live(start: bytes, stop: bytes) -> Iterator[bytes]:
        read.append("live")
        yield block((b"a", NOW, b"v", None), (b"b", NOW, b"v", None))

    def stored(*cells: tuple[bytes, int, bytes, int | None]) -> Any:
        return lambda start, stop: iter([index(*cells)])

    pair = RangePair(HERE, HERE, "t", "t", "region", b"", b"", {b"f": FamilyRules(1, 0, None)})
    taken = Taken(NOW, NOW + 1, (live, live))
    both = (b"b", NOW, b"v", None)
    late = stored((b"a", NOW, b"v", CLOCKS_APART_MS + 2), both)  # expires after the last moment
    soon = stored((b"a", NOW, b"v", CLOCKS_APART_MS), both)
    outcome = compare_pair(pair, late, stored(both), lambda: 9 * NOW, taken=taken)
    assert (outcome.rows, outcome.uncompared, read) == ((b"a",), 0, [])
    assert (outcome.first_ms, outcome.last_ms) == (NOW, NOW + 1 + CLOCKS_APART_MS)
    outcome = compare_pair(pair, soon, stored(both), lambda: 9 * NOW, taken=taken)
    assert (outcome.rows, outcome.source.cells, read) == ((), 2, ["live", "live"])


class FakeCluster:
    """Snapshots by name, and a table with one family."""

    def __init__(self, **attributes: str) -> None:
        self.names: set[str] = set()
        self.held = 600 << 20
        self.family = Family("f", attributes)
        self.refuses: WalferryError | None = None

    def describe(self, table: str) -> Any:
        return SimpleNamespace(families={"f": self.family})

    def held_bytes(self) -> dict[str, int]:
        return {TABLE: self.held}

    def snapshot(self, name: str, table: str) -> None:
        if self.refuses:
            raise self.refuses
        self.names.add(name)

    def delete_snapshot(self, name: str) -> bool:
        there = name in self.names
        self.names.discard(name)
        return there


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        run_id = ledger.open_run("move", "tester", SPEC, "tester").run_id
        yield SimpleNamespace(
            source=FakeCluster(), target=FakeCluster(), ledger=ledger.of(run_id),
            source_files=None, target_files=None, source_root="/hbase", target_root="/hbase",
            pair=lambda table: SimpleNamespace(source=table, target=table),
            snapshot=lambda table: "walferry-move-1-shop.orders",
        )  # fmt: skip


def regions(*borders: bytes) -> list[SnapshotRegion]:
    return [SnapshotRegion("r", a, b, ()) for a, b in pairwise(borders)]


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> list[list[SnapshotRegion]]:
    """What the next manifests say."""
    found: list[list[SnapshotRegion]] = []
    monkeypatch.setattr(stored_sides, "read_manifest", lambda *_: None)
    monkeypatch.setattr(stored_sides, "snapshot_regions", lambda *_: found.pop(0))
    return found


def left(run: Any) -> list[str]:
    return [item.name for item in run.ledger.objects.all() if item.state != "removed"]


def test_snapshots_are_gone_afterwards_with_those_that_a_killed_comparison_left(run: Any, manifests: Any) -> None:
    prefix = "walferry-move-1-shop.orders-"
    run.ledger.objects.plan("source", "snapshot", f"{prefix}verify-1")
    run.ledger.objects.plan("source", "snapshot", f"{prefix}phase-1")
    run.source.names |= {f"{prefix}verify-1", f"{prefix}phase-1", "somebody else's"}
    manifests += [regions(b"", b"m", b""), regions(b"", b"")]
    with stored_sides.snapshots_taken(run, TABLE, "verify") as stored:
        (name,) = run.target.names
        assert run.source.names == {f"{prefix}phase-1", "somebody else's", name}
        assert len(left(run)) == 3
        assert name == f"{prefix}verify-{stored.first_ms}"
    assert (run.source.names, run.target.names) == ({f"{prefix}phase-1", "somebody else's"}, set())
    assert left(run) == [f"{prefix}phase-1"]


def test_one_that_fails_leaves_nothing(run: Any, manifests: Any) -> None:
    run.target.refuses = WalferryError("no permission")
    with pytest.raises(WalferryError, match="no permission"), stored_sides.snapshots_taken(run, TABLE, "verify"):
        pass
    assert (run.source.names, left(run)) == (set(), [])


@pytest.mark.parametrize("borders", [(b"a", b""), (b"", b"m")])
def test_a_snapshot_without_some_of_the_rows_is_not_used(run: Any, manifests: Any, borders: tuple[bytes, ...]) -> None:
    """Rows of a region that neither side has would count as equal."""
    manifests += [regions(b"", b""), regions(*borders)]
    with pytest.raises(UnreadableInputError, match="leave out"), stored_sides.snapshots_taken(run, TABLE, "verify"):
        pass
    assert (run.source.names, run.target.names) == (set(), set())
    manifests += [[*regions(b"", b"k"), *regions(b"m", b"")], regions(b"", b"")]
    with pytest.raises(UnreadableInputError, match="leave out"), stored_sides.snapshots_taken(run, TABLE, "verify"):
        pass


@pytest.mark.parametrize("attribute", ["IS_MOB", "NEW_VERSION_BEHAVIOR"])
def test_what_no_file_shows_and_what_is_small_is_scanned(run: Any, attribute: str) -> None:
    assert stored_sides.why_scanned(run, TABLE) is None
    run.target = FakeCluster(**{attribute: "true"})
    assert stored_sides.why_scanned(run, TABLE) == f"family f of {TABLE} has {attribute}"
    run.target = FakeCluster(ENCRYPTION="AES", **{attribute: "false"})
    assert stored_sides.why_scanned(run, TABLE) == f"family f of {TABLE} has ENCRYPTION"
    run.target = FakeCluster()
    run.source.held = 3 << 20
    assert str(stored_sides.why_scanned(run, TABLE)).startswith("it has 3 MiB")


def test_what_snapshots_cannot_do_scans_do_unless_the_spec_says_no(
    run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scanned: list[object] = []
    run.source.regions = lambda table: []
    monkeypatch.setattr(compare, "_pairs", lambda *_: [])
    monkeypatch.setattr(compare, "compare_pairs", lambda *asked: scanned.append(asked) or [])  # type: ignore[func-returns-value]
    run.source.refuses = WalferryError("no permission for a snapshot")
    run.spec = SimpleNamespace(compare="auto")
    assert compare._both_sides(run, SPARK, TABLE, "verify") == ([], [])
    assert "no permission for a snapshot" in caplog.text
    run.spec.compare = "snapshots"
    with pytest.raises(WalferryError, match="no permission"):
        compare._both_sides(run, SPARK, TABLE, "verify")
    run.spec.compare = "auto"
    run.source.refuses = TransientError("a worker is gone")
    with pytest.raises(TransientError):
        compare._both_sides(run, SPARK, TABLE, "verify")
    assert len(scanned) == 1
    run.spec.compare = "scans"
    compare._both_sides(run, SPARK, TABLE, "verify")
    assert len(scanned) == 2
