"""What the ledger promises about the objects that a run creates on the clusters."""

from __future__ import annotations

import pytest

from walferry.errors import WalferryError
from walferry.ledger import Ledger, RunRecord


class TestObjects:
    def test_an_object_is_planned_before_it_is_made(self, ledger: Ledger, run: RunRecord) -> None:
        with pytest.raises(WalferryError, match="never planned"):
            ledger.of(run.run_id).objects.made("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.plan("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.made("source", "peer", "walferry_move-1")
        ledger.of(run.run_id).objects.plan("source", "peer", "walferry_move-1")
        assert [o.state for o in ledger.of(run.run_id).objects.all()] == ["made"]
        ledger.of(run.run_id).objects.removed("source", "peer", "walferry_move-1")
        assert [o.name for o in ledger.of(run.run_id).objects.all("removed")] == ["walferry_move-1"]
        assert ledger.of(run.run_id).objects.all("made") == []
