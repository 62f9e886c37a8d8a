"""What a pass says of a pair that a replication peer feeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import REGION, differs, one_pass, region
from walferry.ledger import Ledger, PassDifference
from walferry.migration.pairs import pair_shipping
from walferry.migration.pairs.pair_findings import new_differences, pass_facts, pass_line, told
from walferry.migration.pairs.pair_pass import open_pair
from walferry.migration.pairs.pair_shipping import Shipping
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.run import Run

ROLLED_MS = 1_700_000_000_000
STUCK = "not shipped in 60 s: peer east: rs1 has not shipped log.7: table t is disabled at the sink: enable it"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    spec = ResolvedPairSpec.model_validate(SPEC | {"peer": "east", "max_lag": 30})
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        with_clusters = Run(ledger, open_pair(ledger, spec, "test", 7).run_id)
        with_clusters.__dict__.update(source=None, wal_files=None, wal_root="/hbase")
        yield with_clusters


class Ships:
    """What `ship` was asked for, and does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> None:
        self.outcomes, self.waits = list(outcomes), list[float]()
        monkeypatch.setattr(pair_shipping, "ship", self.ship)

    def ship(self, spec: Any, source: Any, files: Any, root: str, wait_s: float) -> Sequence[Shipped]:
        assert spec.peer == "east"
        self.waits.append(wait_s)
        if why := self.outcomes.pop(0):
            raise NotReplicatedError(why)
        return [Shipped("east", ROLLED_MS, ROLLED_MS + 1000, 2, 2, 0)]


def test_a_pass_tells_what_its_peer_had_shipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ships = Ships(monkeypatch, "")
    shipping = Shipping(run, [])
    assert shipping.facts() == {}, "nothing had to be shipped"
    shipping.ship()
    assert ships.waits == [60]
    facts = shipping.facts()
    assert facts == {
        "peer": "east", "rolled_ms": ROLLED_MS, "shipped_ms": ROLLED_MS + 1000, "queues": 2, "logs": 2, "files": 0,
        "why": "",
    }  # fmt: skip
    assert told_line(run, facts).endswith("; peer east had shipped all that was written before 2023-11-14T22:13:20Z")


def test_a_pass_that_cannot_judge_says_so_and_why_and_waits_only_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ships = Ships(monkeypatch, STUCK)
    shipping = Shipping(run, [])
    shipping.ship()
    shipping.ship()
    assert len(ships.waits) == 1
    line = told_line(run, shipping.facts(), replace(differs(b"a"), state="under way"))
    assert line.startswith("pass 1: not judged, 1 more under way")
    assert line.endswith(f"; rows that differ are NOT JUDGED: {STUCK}")
    line = told_line(run, shipping.facts())  # all rows were equal in the end
    assert line.startswith("pass 2: equal; ")
    assert "JUDGED" not in line


def test_a_peer_that_stops_after_it_was_seen_to_ship_is_no_proof(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reader needs rows shipped that were written after the first proof."""
    Ships(monkeypatch, "", STUCK)
    shipping = Shipping(run, [])
    shipping.ship()
    shipping.ship()
    assert shipping.facts() == {"peer": "east", "why": STUCK}


def told_line(run: Run, shipped: dict[str, Any], *rows: PassDifference) -> str:
    return pass_line(pass_facts(one_pass(run.ledger, *rows, shipped=shipped)))


def test_rows_that_no_list_has_are_under_way_and_no_news_until_a_pass_can_judge_them(run: Run) -> None:
    for judged, differing, under_way in ((False, 0, 7), (True, 7, 0)):
        current = run.ledger.passes.begin(1)
        position = run.ledger.passes.keep_position(current, {}, {}, 1, 100, 3)
        crowded = region(unnamed=7, number=current.number, position=position)
        run.ledger.passes.record(current, [crowded], [])
        done = run.ledger.passes.finish(current, {(REGION.table, REGION.region)}, {} if judged else {"why": STUCK})
        assert (done.differing_rows, done.under_way_rows) == (differing, under_way)
        assert new_differences(run.ledger) is judged
        told(run.ledger)
    assert not new_differences(run.ledger)


def test_the_peer_of_a_recorded_pair_is_read_with_its_spec(run: Run) -> None:
    assert Shipping(run, [differs(b"a")]).peer == "east"
    assert run.spec.as_recorded()["peer"] == "east"
