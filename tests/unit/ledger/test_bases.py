"""Bases that a run of kind `keep` has taken, in both databases."""

from __future__ import annotations

from walferry.ledger import Ledger
from walferry.ledger.rows import Base

SPEC = {"name": "shop", "tables": ["a"]}


def base(snapshot: str, table: str, complete_ms: int) -> Base:
    return Base(snapshot, table, {"g1": 100}, complete_ms - 5, complete_ms, 10)


def test_a_base_is_there_from_its_record_until_it_is_dropped(ledger: Ledger) -> None:
    run = ledger.of(ledger.open_run("shop", "me", SPEC, "me", "keep").run_id)
    for one in (base("s2", "a", 20), base("s1", "a", 10), base("t1", "b", 15)):
        run.bases.record(one)
    assert [one.snapshot for one in run.bases.there()] == ["s1", "t1", "s2"]
    assert run.bases.there("b") == [base("t1", "b", 15)]
    run.bases.dropped("s1")
    run.bases.copied("s2")
    (left,) = run.bases.there("a")
    assert left.snapshot == "s2"
    assert left.copied_ms is not None
    assert [(run_id, one.snapshot) for run_id, one in run.bases.of_all_runs("b")] == [("shop-1", "t1")]
