"""What the ledger promises about comparisons, their differences and people's decisions."""

from __future__ import annotations

import pytest

from unit.migration.filled_ledger import compared
from walferry.errors import UsageError
from walferry.ledger import Difference, Ledger, RangeComparison, RunRecord
from walferry.ledger.comparisons import decision


class TestComparisons:
    @staticmethod
    def side(table: str, digest: str, **more: int) -> RangeComparison:
        return RangeComparison(table, "r1", b"", b"\xff", 1, 2, "aa", 1, 2, digest, {"MASKED": 3}, **more)

    def test_the_newest_comparison_of_each_table_counts(self, ledger: Ledger, run: RunRecord) -> None:
        kept, side = ledger.of(run.run_id).comparisons, self.side
        difference = Difference("t1", b"\x00row", "in-flight", "seen later")
        first = kept.record(compared("t1", 1), [side("t1", "bb")], [difference])
        other = kept.record(compared("t2"), [side("t2", "aa")], [])
        newest = kept.record(compared("t1"), [side("t1", "aa")], [])
        assert [(made.table, made.attempt) for made in (first, other, newest)] == [("t1", 1), ("t2", 1), ("t1", 2)]
        assert kept.tables() == [first, newest, other]
        assert kept.ranges() == [side("t1", "aa"), side("t2", "aa")]
        assert kept.ranges([first]) == [side("t1", "bb")]
        assert kept.ranges([]) == []
        assert kept.differences() == []
        assert kept.differences([first, other]) == [difference]

    def test_a_range_is_equal_only_when_all_of_it_was_compared(self) -> None:
        assert self.side("t", "aa").equal
        assert not self.side("t", "bb").equal
        assert not self.side("t", "aa", uncompared=1).equal

    def test_a_decision_is_about_one_difference_and_is_signed(self, ledger: Ledger, run: RunRecord) -> None:
        kept = ledger.of(run.run_id).comparisons
        one, other = (Difference("t1", b"\x00row", "not-in-log", "d", print_) for print_ in ("aa", "bb"))
        kept.accept([one], "a counter that nobody needs", "alice")
        kept.accept([one], "again", "bob")
        assert list(kept.accepted()) == [decision(one)]
        made = kept.accepted()[decision(one)]
        assert (made.reason, made.accepted_by, made.detail) == ("a counter that nobody needs", "alice", "d")
        assert decision(other) not in kept.accepted()
        line = ledger.of(run.run_id).audit_trail()[-1]
        assert (line.actor, line.action) == ("alice", "accept differences")
        assert line.inputs["differences"][0]["row_key"] == b"\x00row".hex()
        with pytest.raises(UsageError, match="give a reason"):
            kept.accept([other], " ", "alice")
        with pytest.raises(UsageError, match="compare again"):
            kept.accept([Difference("t1", b"row", "not-in-log", "of an older ledger")], "because", "alice")
