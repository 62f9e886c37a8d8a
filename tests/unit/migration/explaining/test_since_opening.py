"""A row that was equal at the opening, and that only a flush, a compaction or a TTL has changed since, is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.clock import now_ms
from walferry.ledger import Ledger
from walferry.ledger.rows import ClusterSide
from walferry.migration.explaining import since_opening
from walferry.migration.explaining.difference_classes import EXPIRED_OVERWRITE, HISTORY, SNAPSHOT_MARKER
from walferry.migration.explaining.since_opening import Fragile, changed_since
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.migration.sides.store_files import RegionFiles
from walferry.run.run import Run
from walferry.run.sides import SIDES

TABLE = "shop:orders"
LOW, HIGH = (b"", b"m"), (b"m", b"")
LATER = 86_400_000


def row(key: bytes, *, marked: bool = True, due_ms: int | None = None, by_version: bool = False) -> RowSpan:
    return RowSpan(key, key + b"\0", marked, due_ms, by_version)


class Sides:
    """The names of the store files, by side and region."""

    def __init__(self) -> None:
        self.now = {(side, region): {"first", "second"} for side in SIDES for region in (LOW, HIGH)}

    def files(self, run: Run | None, side: ClusterSide, table: str, of: RowSpans | None = None) -> list[RegionFiles]:
        return [
            RegionFiles(region, f"{at} {region!r}", {"f": frozenset(names)} if names else None)
            for (at, region), names in self.now.items()
            if at == side and (of is None or of.meet(region))
        ]


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    made = Sides()
    monkeypatch.setattr(since_opening, "store_files_at", made.files)
    return made


@pytest.fixture
def run(tmp_path: Path, sides: Sides) -> Iterator[Run]:
    """The target was opened by `open_target`."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        spans = RowSpans.of([row(b"a"), row(b"b"), row(b"x"), row(b"t", marked=False, due_ms=now_ms() - 1)])
        spans += RowSpans.of([row(b"u", marked=False, due_ms=now_ms() + LATER), row(b"v", by_version=True)])
        before = [one for side in SIDES for one in sides.files(None, side, TABLE)]
        Fragile.of(spans, before, [b"b"]).keep(run.ledger, TABLE)
        run.ledger.phases.start("open_target")
        run.ledger.phases.finish("open_target", {"at_ms": now_ms()})
        yield run


ROWS = [b"a", b"b", b"c", b"t", b"u", b"x"]


def test_nothing_has_changed_while_all_files_are_the_same(run: Run) -> None:
    assert changed_since(run, TABLE, [b"a", b"b", b"c", b"x"]) == {}


@pytest.mark.parametrize("side", SIDES)
def test_a_compaction_changes_rows_of_its_region_that_had_markers_and_were_equal(
    run: Run, sides: Sides, side: ClusterSide
) -> None:
    sides.now[side, LOW] = {"compacted"}
    found = changed_since(run, TABLE, ROWS)
    assert found.keys() == {b"a", b"t"}, "b differed at the opening, c had no marker, x is in the other region"
    assert found[b"a"].keys() == {HISTORY, SNAPSHOT_MARKER}
    assert f"its region at the {side} was flushed, compacted or split since" in found[b"a"][HISTORY]


@pytest.mark.parametrize("now", [{"first", "second", "flushed"}, {"first", "compacted"}], ids=["flush", "some files"])
def test_what_leaves_a_file_of_before_changes_only_rows_whose_markers_hide_single_versions(
    run: Run, sides: Sides, now: set[str]
) -> None:
    """Hole: a difference of any row with a marker was excused by a mere flush of its region."""
    sides.now = dict.fromkeys(sides.now, now)
    assert changed_since(run, TABLE, [b"a", b"v", b"x"]).keys() == {b"v"}


def test_a_ttl_that_has_ended_since_explains_what_it_overwrote_and_nothing_else(run: Run, sides: Sides) -> None:
    sides.now = {at: {"compacted"} for at in sides.now}
    assert changed_since(run, TABLE, [b"t", b"u"]).keys() == {b"t"}
    assert changed_since(run, TABLE, [b"t", b"u"])[b"t"].keys() == {EXPIRED_OVERWRITE}


def test_a_region_that_nobody_can_look_at_explains_nothing(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = set()
    assert changed_since(run, TABLE, [b"a"]) == {}


def test_before_the_opening_nothing_is_explained_by_it(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = {"compacted"}
    run.ledger.phases.reopen("open_target")
    assert changed_since(run, TABLE, [b"a"]) == {}


def test_after_the_run_nothing_is_explained_by_it(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = {"compacted"}
    run.ledger.end("aborted", "kim")
    assert changed_since(run, TABLE, [b"a"]) == {}
