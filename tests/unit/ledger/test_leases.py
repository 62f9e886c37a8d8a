"""What the ledger promises of leases."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE
from walferry.errors import WalferryError
from walferry.ledger import Ledger, RunRecord


class TestLeases:
    def test_a_lease_with_an_older_number_is_refused(self, ledger: Ledger, run: RunRecord) -> None:
        ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        ledger.of(run.run_id).leases.take(TABLE, "worker b", 8)
        with pytest.raises(WalferryError, match="worker b"):
            ledger.of(run.run_id).leases.take(TABLE, "worker a", 7)
        with pytest.raises(WalferryError, match="stale"):
            ledger.of(run.run_id).leases.take(TABLE, "worker a", 8)
        ledger.of(run.run_id).leases.release(TABLE, 8)
        assert [(x.fencing_number, x.released_ms is None) for x in ledger.leases(TABLE)] == [(7, True), (8, False)]
