"""What the ledger promises about the quarantine."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE
from walferry.errors import UsageError
from walferry.ledger import Hold, Ledger, QuarantineItem, RunRecord


class TestQuarantine:
    ITEM = QuarantineItem("rs1.10", 20, 30, TABLE, "r1", 4, "unknown tag", b"\x00\xff")

    def test_the_bytes_come_back_and_the_same_item_keeps_its_id(self, ledger: Ledger, run: RunRecord) -> None:
        first = ledger.of(run.run_id).quarantine.put([self.ITEM])
        assert ledger.of(run.run_id).quarantine.put([self.ITEM]) == first
        (item,) = ledger.of(run.run_id).quarantine.items("held")
        assert (item.quarantine_id, item.data, item.reason) == (first[0], b"\x00\xff", "unknown tag")

    def test_a_release_needs_a_reason_and_is_signed(self, ledger: Ledger, run: RunRecord) -> None:
        (item,) = ledger.of(run.run_id).quarantine.put([self.ITEM])
        with pytest.raises(UsageError, match="reason"):
            ledger.of(run.run_id).quarantine.release(item, "accept", " ", "alice")
        with pytest.raises(UsageError, match="retry, rpc, reread, accept"):
            ledger.of(run.run_id).quarantine.release(item, "forget", "because", "alice")  # type: ignore[arg-type]
        released = ledger.of(run.run_id).quarantine.release(item, "accept", "test data", "alice")
        assert ledger.of(run.run_id).quarantine.items("released") == [released]
        assert ledger.of(run.run_id).quarantine.release(item, "accept", "again", "bob") == released
        with pytest.raises(UsageError, match="alice as accept"):
            ledger.of(run.run_id).quarantine.release(item, "retry", "no", "bob")
        assert ledger.of(run.run_id).audit_trail()[-1].actor == "alice"

    def test_a_hold_set_twice_is_one_hold(self, ledger: Ledger, run: RunRecord) -> None:
        (item,) = ledger.of(run.run_id).quarantine.put([self.ITEM])
        hold = Hold("rs1.10", TABLE, "r1", 20, item)
        ledger.of(run.run_id).quarantine.hold([hold, hold])
        ledger.of(run.run_id).quarantine.hold([hold])
        assert ledger.of(run.run_id).quarantine.holds() == [hold]
