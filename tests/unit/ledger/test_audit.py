"""What the ledger promises about its audit trail."""

from __future__ import annotations

import hashlib
import json

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from walferry.errors import WalferryError
from walferry.ledger import AuditHead, Ledger, RunRecord


def behind_the_triggers(url: str, *statements: str) -> None:
    """Change the audit table, as anybody with the database's password could."""
    engine = create_engine(url)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        else:
            for trigger in ("audit_no_update", "audit_no_delete", "audit_no_replace"):
                connection.execute(text(f"DROP TRIGGER {trigger}"))
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


class TestAudit:
    @pytest.fixture
    def head(self, ledger: Ledger) -> AuditHead:
        for number in range(5):
            ledger.audit("alice", "look", None, {"number": number}, "seen")
        return ledger.audit_head()

    def test_a_whole_trail_is_accepted(self, ledger: Ledger, head: AuditHead) -> None:
        ledger.verify_audit(head)
        newer = ledger.audit("alice", "look", None, {}, "again")
        ledger.verify_audit(head)
        assert ledger.audit_head() == AuditHead(6, newer)

    @pytest.mark.parametrize(
        "column", ["actor = 'mallory'", "outcome = 'ok'", "at_ms = 1", "inputs = '{}'", "run_id = 'x'", "action = 'y'"]
    )
    def test_a_changed_line_is_found(self, ledger: Ledger, ledger_url: str, head: AuditHead, column: str) -> None:
        behind_the_triggers(ledger_url, f"UPDATE audit SET {column} WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 3 "):
            ledger.verify_audit()

    def test_a_changed_line_whose_hash_was_made_to_fit_is_found_by_the_line_behind_it(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        before, line = ledger.audit_trail()[1:3]
        body = {
            "action": line.action,
            "actor": "mallory",
            "at_ms": line.at_ms,
            "inputs": json.dumps(line.inputs, separators=(",", ":")),
            "outcome": line.outcome,
            "run_id": line.run_id,
            "sequence": 3,
        }
        text_of_line = f"{before.hash}\n{json.dumps(body, separators=(',', ':'))}"
        forged = hashlib.sha256(text_of_line.encode()).hexdigest()
        behind_the_triggers(ledger_url, f"UPDATE audit SET actor = 'mallory', hash = '{forged}' WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 4 "):
            ledger.verify_audit()

    def test_a_removed_line_is_found(self, ledger: Ledger, ledger_url: str, head: AuditHead) -> None:
        behind_the_triggers(ledger_url, "DELETE FROM audit WHERE sequence = 3")
        with pytest.raises(WalferryError, match="line 3 is missing"):
            ledger.verify_audit()

    def test_a_removed_line_is_found_though_the_others_were_numbered_anew(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        behind_the_triggers(
            ledger_url,
            "DELETE FROM audit WHERE sequence = 3",
            "UPDATE audit SET sequence = 3 WHERE sequence = 4",
            "UPDATE audit SET sequence = 4 WHERE sequence = 5",
        )
        with pytest.raises(WalferryError, match="line 3 "):
            ledger.verify_audit()

    @pytest.mark.parametrize("kept", [0, 3])
    def test_lines_cut_off_the_end_are_found_by_the_head_kept_elsewhere(
        self, ledger: Ledger, ledger_url: str, head: AuditHead, kept: int
    ) -> None:
        behind_the_triggers(ledger_url, f"DELETE FROM audit WHERE sequence > {kept}")
        ledger.verify_audit()
        with pytest.raises(WalferryError, match=rf"line {kept + 1} to 5 were cut off"):
            ledger.verify_audit(head)

    def test_a_trail_written_anew_after_a_cut_is_found_by_the_head(
        self, ledger: Ledger, ledger_url: str, head: AuditHead
    ) -> None:
        behind_the_triggers(ledger_url, "DELETE FROM audit WHERE sequence > 3")
        for _ in range(3):
            ledger.audit("mallory", "look", None, {}, "nothing to see")
        with pytest.raises(WalferryError, match=r"line 5 .*rewritten"):
            ledger.verify_audit(head)

    @pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'mallory'", "DELETE FROM audit"])
    def test_the_database_refuses_to_change_or_remove_lines(
        self, ledger: Ledger, ledger_url: str, head: AuditHead, statement: str
    ) -> None:
        engine = create_engine(ledger_url)
        with pytest.raises(DBAPIError, match="audit lines are never"), engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()
        assert ledger.audit_head() == head

    def test_a_change_that_fails_leaves_no_line(self, ledger: Ledger, run: RunRecord) -> None:
        head = ledger.audit_head()
        with pytest.raises(WalferryError):
            ledger.of(run.run_id).objects.made("source", "snapshot", "never planned")
        assert ledger.audit_head() == head
