"""What the ledger promises about leases."""

from __future__ import annotations

import pytest

from unit.ledger.entries import TABLE
from walferry.errors import WalferryError
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.leases import FollowedTwiceError
from walferry.ledger.rows import RunKind


class TestLeases:
    @pytest.mark.parametrize("kind", ["migration", "standby", "drain"])
    def test_of_two_runs_that_follow_a_log_into_a_table_the_second_waits_for_the_end_of_the_first(
        self, ledger: Ledger, kind: RunKind
    ) -> None:
        """Hole: a drain applied newer edits while a standby was down. The standby then put older edits over them."""
        first = ledger.open_run("first", "o", {"tables": ["t"]}, "o", "standby").run_id
        second = ledger.open_run("second", "o", {"tables": ["t"]}, "o", kind).run_id
        window = ledger.open_run("window", "o", {"tables": ["t"]}, "o", "window").run_id
        ledger.of(first).leases.take(TABLE, "worker a", 7)
        ledger.of(first).leases.release(TABLE, 7)
        with pytest.raises(FollowedTwiceError, match="run first-1 follows a log"):
            ledger.of(second).leases.require_alone([TABLE])
        with pytest.raises(FollowedTwiceError, match="`walferry abort first-1`"):
            ledger.of(second).leases.take(TABLE, "worker b", 8)
        ledger.of(window).leases.take(TABLE, "worker c", 8)
        ledger.of(first).leases.take(TABLE, "worker a", 9)
        ledger.of(first).end("aborted", "o", "enough")
        ledger.of(second).leases.take(TABLE, "worker b", 10)

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
