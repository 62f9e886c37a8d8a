"""What the second reader reads after a pass over a pair, and which rows differ by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.migration.pair_ledger import differs, region
from unit.migration.two_readers import OTHERS, SHOWN, Clusters
from walferry.formats.cells import CellType, encode_cell
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, PassDifference, PassRecord
from walferry.migration.comparing.second_reader import RowsToRead, SecondReading
from walferry.migration.comparing.spot_check import ONLY_SECOND, UNREAD
from walferry.migration.pairs import pair_rows, pair_spot_check
from walferry.migration.pairs.pair_findings import new_differences, pass_facts, pass_line, told
from walferry.migration.pairs.pair_plan import Borders, sights
from walferry.migration.pairs.pair_shipping import Shipping
from walferry.migration.pairs.pair_spot_check import Drawn, spot_check_pair
from walferry.migration.sides.row_sides import RowSides
from walferry.run.run import Run

THRIFT = CLUSTER | {"thrift": "127.0.0.1:1"}
REGIONS = [
    Region(name, name.decode(), "t", start, stop, Server("rs", 1, 2), 1, 2)
    for name, start, stop in ((b"r1", b"", b"m"), (b"r2", b"m", b""))
]
BORDERS = Borders(sights("t", "t", REGIONS, REGIONS))


def spec(**more: Any) -> dict[str, Any]:
    return SPEC | {"tables": [{"source": "t", "target": "t"}], "source": THRIFT, "target": THRIFT, "max_lag": 1} | more


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as opened:
        yield opened


class Pair(Clusters):
    """Both sides of table t: what Thrift shows, and what our own reader shows (`ours`: rows that differ for it)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
        super().__init__(monkeypatch)
        self._ledger = ledger
        self.ours: dict[bytes, RowSides | None] = {}
        self.looks = 0
        self.fails = False
        monkeypatch.setattr(pair_rows, "_look", lambda run, table, rows: {row: self.ours.get(row) for row in rows})
        monkeypatch.setattr(pair_rows, "differing", self._differing)
        monkeypatch.setattr(pair_spot_check, "read_both", self._read_both)

    def _differing(self, run: Run, table: str, rows: Sequence[bytes]) -> Mapping[bytes, str]:
        self.looks += 1
        return {row: "" for row in rows if self.ours.get(row) is not None}

    def _read_both(self, run: Run, asked: Mapping[str, RowsToRead], seconds: float) -> dict[str, SecondReading]:
        from walferry.migration.comparing.second_reader import read_both

        return read_both(run, asked, seconds, self.pause)

    def exactly(self, rows: Any) -> Any:
        if self.fails:
            raise OSError("no answer")
        return super().exactly(rows)

    def run(self, **more: Any) -> Run:
        run = Run(self._ledger, self._ledger.open_run("shop", "pair", spec(**more), "test", "pair").run_id)
        run.__dict__.update(source=self, target=self)
        return run

    def one_pass(
        self,
        around: Sequence[bytes] = (),
        exactly: Sequence[bytes] = (),
        ours: Sequence[PassDifference] = (),
        **more: Any,
    ) -> PassRecord:
        """A whole pass that draws these rows, and finds those of its own that differ."""
        run = self.run(**more)
        before = run.ledger.passes.differences()
        current, drawn = run.ledger.passes.begin(1), Drawn(run)
        position = run.ledger.passes.keep_position(current, {}, {}, 1, 100, 3)
        both = [region(name, number=current.number, position=position) for name in ("r1", "r2")]
        drawn.add("t", around, exactly)
        drawn.keep()
        run.ledger.passes.record(current, both, ours)
        spot_check_pair(run, current, BORDERS, drawn, before, Shipping(run, {}))
        return run.ledger.passes.finish(current, {("t", "r1"), ("t", "r2")})

    def found(self) -> list[tuple[bytes, str, str]]:
        return [(item.row, item.state, item.detail) for item in self.run().ledger.passes.differences()]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> Pair:
    return Pair(monkeypatch, ledger)


def test_drawn_rows_those_after_them_and_rows_of_the_logs_are_read_and_the_pass_tells_of_it(pair: Pair) -> None:
    made = pair.one_pass(around=[b"a"], exactly=[b"c"])
    assert pair.asked == [[b"a", b"b"], [b"c"]]
    assert made.second_reader["text"] == "3 rows read by HBase's own Java client on both sides: all equal"
    assert (made.second_reader["rows"], made.second_reader["differing"], made.differing_rows) == (3, 0, 0)
    assert pass_line(pass_facts(made)).endswith("; second reader: " + made.second_reader["text"])


def test_a_row_that_differs_for_the_second_reader_alone_makes_the_pass_differ_until_it_is_equal_again(
    pair: Pair,
) -> None:
    pair.there[b"b"] = OTHERS
    made = pair.one_pass(around=[b"a"])
    assert (made.differing_rows, made.second_reader["differing"]) == (1, 1)
    assert pair.found() == [(b"b", "differs", ONLY_SECOND)]
    assert pair.now >= 1, "an edit may take as long"
    ledger = pair.run().ledger
    [first] = ledger.passes.differences()
    assert (first.region, {r.region: r.clean_ms is None for r in ledger.passes.regions()}) == (
        "r1", {"r1": True, "r2": False},
    )  # fmt: skip
    assert new_differences(ledger)
    told(ledger)

    pair.asked.clear()
    assert pair.one_pass().differing_rows == 1, "nobody wrote it since, and no log names it"
    assert pair.asked[1] == [b"b"]
    assert pair.run().ledger.passes.differences()[0].found_ms == first.found_ms
    assert not new_differences(ledger)
    pair.there[b"b"] = SHOWN
    assert pair.one_pass().differing_rows == 0
    pair.asked.clear()
    assert pair.one_pass().second_reader["why"] == "the pass has read no rows"
    assert pair.asked[1] == []


def test_a_row_that_our_own_reader_sees_differ_by_now_is_described_by_it(pair: Pair) -> None:
    pair.there[b"b"] = OTHERS
    cell = (b"f", b"q", 6, CellType.PUT, b"w", b"")
    pair.ours[b"b"] = RowSides(frozenset(), frozenset([cell]), (), (cell,), 1, False, 1)
    made = pair.one_pass(exactly=[b"b"])
    assert pair.found() == [(b"b", "differs", "only at the target: put f:q at 6")]
    assert (made.differing_rows, made.second_reader["differing"], made.second_reader["excused"]) == (1, 0, 1)


def test_a_row_that_the_pass_knows_is_not_counted_twice(pair: Pair) -> None:
    pair.there[b"b"] = OTHERS
    made = pair.one_pass(exactly=[b"b"], ours=[differs(b"b")])
    assert (made.differing_rows, made.second_reader["excused"], pair.looks) == (1, 1, 0)
    assert pair.found() == [(b"b", "differs", differs(b"b").detail)]


def test_an_edit_that_came_before_our_own_reader_found_the_row_equal_is_no_difference_and_is_read_again(
    pair: Pair,
) -> None:
    pair.there[b"b"] = OTHERS

    def arrives(*asked: Any) -> Mapping[bytes, str]:
        pair.there[b"b"] = SHOWN
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_rows, "differing", arrives)
        made = pair.one_pass(exactly=[b"b"])
    assert (made.differing_rows, made.second_reader["excused"]) == (0, 1)
    pair.asked.clear()
    pair.one_pass()
    assert pair.asked[1] == [b"b"]


def test_a_row_that_correct_copies_may_show_differently_is_no_difference(pair: Pair) -> None:
    pair.there[b"b"] = OTHERS
    pair.raw = [
        encode_cell(b"b", b"f", b"", 9, CellType.DELETE_FAMILY),
        encode_cell(b"b", b"f", b"", 3, CellType.PUT, b"v"),
    ]
    made = pair.one_pass(exactly=[b"b"])
    assert (made.differing_rows, made.second_reader["excused"]) == (0, 1)


def test_a_thrift_server_that_fails_fails_no_pass_and_the_rows_wait_for_the_next_one(pair: Pair) -> None:
    pair.fails = True
    made = pair.one_pass(around=[b"a"], exactly=[b"c"])
    assert (made.differing_rows, made.second_reader["rows"]) == (0, 0)
    assert made.second_reader["text"] == "no row was read by a second reader: reading by Thrift failed: no answer"
    pair.fails = False
    pair.there[b"c"] = OTHERS
    assert pair.one_pass().differing_rows == 1
    assert pair.asked[:2] == [[b"a", b"b"], [b"c"]]


def test_a_row_that_differed_and_cannot_be_read_now_differs_until_it_can(pair: Pair) -> None:
    pair.there[b"b"] = OTHERS
    pair.one_pass(exactly=[b"b"])
    pair.fails = True
    made = pair.one_pass()
    assert (made.differing_rows, pair.found()) == (1, [(b"b", "differs", UNREAD)])
    assert made.second_reader["text"].endswith("; 1 that differed last time were not read")
    pair.fails = False
    pair.there[b"b"] = SHOWN
    assert pair.one_pass().differing_rows == 0


def test_without_thrift_servers_or_rows_for_it_there_is_no_second_reader_and_the_pass_says_why(pair: Pair) -> None:
    pair.there[b"b"] = OTHERS
    pair.one_pass(exactly=[b"b"])
    made = pair.one_pass(exactly=[b"a"], source=CLUSTER)
    assert made.second_reader["why"] == "no Thrift server of the source is known (`thrift`)"
    assert pair.found() == [(b"b", "differs", UNREAD)], "what was found is not forgotten"
    made = pair.one_pass(exactly=[b"a"], spot_check=0)
    assert (made.second_reader["why"], made.differing_rows) == ("the spec has `spot_check: 0`", 0)


def test_what_is_drawn_is_bounded_and_outlives_a_pass_that_is_killed(pair: Pair) -> None:
    run = pair.run(spot_check=30)
    drawn = Drawn(run)
    drawn.add("t", [b"%04d" % n for n in range(500)], [b"x%04d" % n for n in range(500)])
    drawn.add("t", [b"%04d" % n for n in range(500, 1000)])
    asked = drawn.asked("t")
    assert (len(asked.around), len(asked.exactly)) == (10, 10)
    assert any(row >= b"0500" for row in asked.around), "the last ones had their chance"
    drawn.keep()
    assert Drawn(run).asked("t") == asked
