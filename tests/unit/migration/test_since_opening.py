"""A row that was equal at the opening, and that only a flush, a compaction or a TTL has changed since, is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.clock import now_ms
from walferry.hbase.descriptors import Range
from walferry.ledger import Ledger
from walferry.ledger.rows import ClusterSide
from walferry.migration import touched
from walferry.migration.explain import EXPIRED_OVERWRITE, HISTORY, SNAPSHOT_MARKER
from walferry.migration.fragile_rows import Span, Spans
from walferry.migration.since_opening import Fragile, changed_since
from walferry.run.run import Run

TABLE = "shop:orders"
LOW, HIGH = (b"", b"m"), (b"m", b"")
BEFORE = [(LOW, "source low"), (HIGH, "source high"), (LOW, "target low"), (HIGH, "target high")]
LATER = 86_400_000


def row(key: bytes, *, marked: bool = True, due_ms: int | None = None) -> Span:
    return Span(key, key + b"\0", marked, due_ms)


class Sides:
    """The digests of the store files, by side and region."""

    def __init__(self) -> None:
        self.now = {("source", LOW): "source low", ("source", HIGH): "source high"}
        self.now |= {("target", LOW): "target low", ("target", HIGH): "target high"}

    def files(self, run: Run, side: ClusterSide, table: str, of: Spans | None = None) -> list[tuple[Range, str]]:
        assert of is not None
        found = [(region, digest) for (at, region), digest in self.now.items() if at == side and of.meet(region)]
        return found[::-1]


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    made = Sides()
    monkeypatch.setattr(touched, "store_files_at", made.files)
    return made


@pytest.fixture
def run(tmp_path: Path, sides: Sides) -> Iterator[Run]:
    """The target was opened by `open_target`."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        spans = Spans.of([row(b"a"), row(b"b"), row(b"x"), row(b"t", marked=False, due_ms=now_ms() - 1)])
        spans += Spans.of([row(b"u", marked=False, due_ms=now_ms() + LATER)])
        Fragile.of(spans, BEFORE, [b"b"]).keep(run.ledger, TABLE)
        run.ledger.phases.start("open_target")
        run.ledger.phases.finish("open_target", {"at_ms": now_ms()})
        yield run


ROWS = [b"a", b"b", b"c", b"t", b"u", b"x"]


def test_nothing_has_changed_while_all_files_are_the_same(run: Run) -> None:
    assert changed_since(run, TABLE, [b"a", b"b", b"c", b"x"]) == {}


@pytest.mark.parametrize("side", touched.SIDES)
def test_a_compaction_changes_rows_of_its_region_that_had_markers_and_were_equal(
    run: Run, sides: Sides, side: ClusterSide
) -> None:
    sides.now[side, LOW] = "compacted"
    found = changed_since(run, TABLE, ROWS)
    assert found.keys() == {b"a", b"t"}, "b differed at the opening, c had no marker, x is in the other region"
    assert found[b"a"].keys() == {HISTORY, SNAPSHOT_MARKER}
    assert f"its region at the {side} was flushed, compacted or split since" in found[b"a"][HISTORY]


def test_a_ttl_that_has_ended_since_explains_what_it_overwrote_and_nothing_else(run: Run, sides: Sides) -> None:
    sides.now = dict.fromkeys(sides.now, "compacted")
    assert changed_since(run, TABLE, [b"t", b"u"]).keys() == {b"t"}
    assert changed_since(run, TABLE, [b"t", b"u"])[b"t"].keys() == {EXPIRED_OVERWRITE}


def test_a_region_that_nobody_can_look_at_explains_nothing(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = ""
    assert changed_since(run, TABLE, [b"a"]) == {}


def test_before_the_opening_nothing_is_explained_by_it(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = "compacted"
    run.ledger.phases.reopen("open_target")
    assert changed_since(run, TABLE, [b"a"]) == {}


def test_after_the_run_nothing_is_explained_by_it(run: Run, sides: Sides) -> None:
    sides.now["source", LOW] = "compacted"
    run.ledger.end("aborted", "kim")
    assert changed_since(run, TABLE, [b"a"]) == {}
