"""What the ledger keeps about passes over a pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import REGION, differs, one_pass, region
from walferry.errors import UsageError, WalferryError
from walferry.ledger import Ledger, RunLedger


@pytest.fixture
def pair(ledger: Ledger) -> RunLedger:
    return ledger.of(ledger.open_run("shop", "pair", SPEC, "tester", "pair").run_id)


def test_a_pass_sums_up_what_its_regions_took_and_why_they_were_read_whole(pair: RunLedger) -> None:
    rest = region("r2", start=b"m", stop=b"", whole=False, why="", rows_read=1, bytes_read=10)
    done = one_pass(pair, differs(b"a"), differs(b"z", "r2", "under way"), regions=[REGION, rest])
    assert (done.number, done.regions, done.whole_regions, done.rows_read, done.bytes_read) == (1, 2, 1, 6, 60)
    assert (done.log_bytes, done.written_rows, done.differing_rows, done.under_way_rows) == (100, 3, 1, 1)
    assert done.reasons == {"never read before": 1}
    assert pair.passes.latest(5) == [done]
    assert [d.row for d in pair.passes.differences()] == [b"a", b"z"]
    assert [r.clean_ms for r in pair.passes.regions()] == [None, None]
    assert [line.action for line in pair.audit_trail()][-1] == "pass"


def test_a_region_is_clean_once_a_pass_has_ended_in_which_none_of_its_rows_differ(pair: RunLedger) -> None:
    one_pass(pair, differs(b"a"))
    done = one_pass(pair, regions=[region(whole=False, why="")])
    assert [r.clean_ms for r in pair.passes.regions()] == [done.ended_ms]
    assert (done.differing_rows, pair.passes.differences()) == (0, [])


def test_rows_beyond_those_with_a_name_count_and_keep_their_region_from_being_clean(pair: RunLedger) -> None:
    done = one_pass(pair, differs(b"a"), regions=[region(unnamed=4)])
    assert done.differing_rows == 5
    assert [r.clean_ms for r in pair.passes.regions()] == [None]


def test_a_row_keeps_the_moment_since_which_it_differs(pair: RunLedger) -> None:
    one_pass(pair, differs(b"a", found_ms=7))
    one_pass(pair, differs(b"a", found_ms=99))
    assert [d.found_ms for d in pair.passes.differences()] == [7]


def test_an_interrupted_pass_goes_on_and_its_older_process_records_nothing_more(pair: RunLedger) -> None:
    first = pair.passes.begin(1)
    position = pair.passes.keep_position(first, {"g": {}}, {}, 1, 100, 3)
    pair.passes.record(first, [replace(REGION, position=position)], [])
    second = pair.passes.begin(2)
    assert (second.number, second.regions) == (1, 1)
    with pytest.raises(WalferryError, match="was taken over by another process"):
        pair.passes.record(first, [region("r2")], [])
    assert [r.region for r in pair.passes.regions()] == ["r1"]


def test_a_region_that_is_read_twice_in_a_pass_counts_once_and_its_rows_twice(pair: RunLedger) -> None:
    current = pair.passes.begin(1)
    pair.passes.record(current, [region(unnamed=9)], [differs(b"a")])
    pair.passes.record(current, [REGION], [])
    (made,) = pair.passes.latest(1)
    assert (made.regions, made.whole_regions, made.rows_read) == (1, 1, 10)
    assert pair.passes.differences() == []


def test_what_no_longer_exists_is_forgotten_with_the_places_that_nothing_refers_to(pair: RunLedger) -> None:
    one_pass(pair, differs(b"a"))
    one_pass(pair, regions=[region("r2"), region("r3")])
    assert [r.region for r in pair.passes.regions()] == ["r2", "r3"]
    assert pair.passes.differences() == []
    assert list(pair.passes.positions()) == [2]


def test_a_pair_may_change_its_tables_but_not_its_clusters(ledger: Ledger, pair: RunLedger) -> None:
    more = SPEC | {"tables": [{"source": "t", "target": "t"}], "max_lag": 5}
    assert ledger.open_run("shop", "pair", more, "tester", "pair").run_id == pair.run_id
    assert pair.record.spec == more
    with_thrift = more | {"source": more["source"] | {"thrift": "h:1"}}
    assert ledger.open_run("shop", "pair", with_thrift, "tester", "pair").run_id == pair.run_id, "the same cluster"
    assert pair.record.spec == with_thrift
    with pytest.raises(UsageError, match="with another spec"):
        ledger.open_run("shop", "pair", SPEC | {"target": "elsewhere"}, "tester", "pair")
