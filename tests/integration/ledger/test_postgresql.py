"""Every promise of tests/unit/ledger, kept by a real PostgreSQL."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from unit.ledger.test_audit import *  # noqa: F403
from unit.ledger.test_comparisons import *  # noqa: F403
from unit.ledger.test_database import *  # noqa: F403
from unit.ledger.test_database import writers
from unit.ledger.test_folding import *  # noqa: F403
from unit.ledger.test_gaps import *  # noqa: F403
from unit.ledger.test_leases import *  # noqa: F403
from unit.ledger.test_ledger import *  # noqa: F403
from unit.ledger.test_log import *  # noqa: F403
from unit.ledger.test_objects import *  # noqa: F403
from unit.ledger.test_packing import *  # noqa: F403
from unit.ledger.test_passes import *  # noqa: F403
from unit.ledger.test_phases import *  # noqa: F403
from unit.ledger.test_quarantine import *  # noqa: F403
from unit.ledger.test_received import *  # noqa: F403
from unit.ledger.test_rounds import *  # noqa: F403
from unit.ledger.test_upgrade import *  # noqa: F403
from walferry.errors import TransientError
from walferry.ledger import Ledger, database
from walferry.ledger.database import Database

pytestmark = pytest.mark.cluster


def test_processes_write_one_after_the_other_whatever_isolation_is_the_databases_default(ledger_url: str) -> None:
    url = make_url(ledger_url)
    strict = url.update_query_dict({"options": f"{url.query['options']} -cdefault_transaction_isolation=serializable"})
    processes = writers(strict.render_as_string(hide_password=False), count=2, rounds=50)
    assert [process.communicate(timeout=120)[1] for process in processes] == ["", ""]
    with Ledger.open(ledger_url, actor="tester") as ledger:
        ledger.verify_audit()
        assert ledger.audit_head().sequence == 1 + 2 * 50 * 2


def test_a_writer_that_is_suspended_keeps_others_waiting_for_a_while_only(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "IDLE_TIMEOUT_S", 2)
    suspended, other = Database(ledger_url), Database(ledger_url)
    count = text("SELECT COUNT(*) FROM runs")

    def write() -> None:
        with suspended.write() as connection:
            connection.execute(count)
            with other.write() as its:
                its.execute(count)
            connection.execute(count)

    with closing(suspended), closing(other):
        with pytest.raises(TransientError, match=r"did not answer|was suspended for more than 2 s"):
            write()
        with suspended.write() as connection:
            connection.execute(count)


def test_a_session_that_was_ended_since_it_was_suspended_is_told_so(ledger_url: str) -> None:
    """As psycopg2 tells it unless the connection's end is seen first."""
    ends = text("DO $$ BEGIN RAISE 'ended' USING ERRCODE = '25P03'; END $$")
    with (
        closing(Database(ledger_url)) as opened,
        pytest.raises(TransientError, match="nothing of that is recorded"),
        opened.read() as connection,
    ):
        connection.execute(ends)


def test_the_audit_trail_cannot_be_truncated(ledger: Ledger, ledger_url: str) -> None:
    ledger.audit("alice", "look", None, {}, "seen")
    engine = create_engine(ledger_url)
    with pytest.raises(DBAPIError, match="never changed or removed"), engine.begin() as connection:
        connection.execute(text("TRUNCATE audit"))
    engine.dispose()
    assert ledger.audit_head().sequence == 1
