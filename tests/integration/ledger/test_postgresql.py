"""Every promise of tests/unit/ledger, kept by a real PostgreSQL."""

from __future__ import annotations

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
from walferry.ledger import Ledger

pytestmark = pytest.mark.cluster


def test_processes_write_one_after_the_other_whatever_isolation_is_the_databases_default(ledger_url: str) -> None:
    url = make_url(ledger_url)
    strict = url.update_query_dict({"options": f"{url.query['options']} -cdefault_transaction_isolation=serializable"})
    processes = writers(strict.render_as_string(hide_password=False), count=2, rounds=50)
    assert [process.communicate(timeout=120)[1] for process in processes] == ["", ""]
    with Ledger.open(ledger_url, actor="tester") as ledger:
        ledger.verify_audit()
        assert ledger.audit_head().sequence == 1 + 2 * 50 * 2


def test_the_audit_trail_cannot_be_truncated(ledger: Ledger, ledger_url: str) -> None:
    ledger.audit("alice", "look", None, {}, "seen")
    engine = create_engine(ledger_url)
    with pytest.raises(DBAPIError, match="never changed or removed"), engine.begin() as connection:
        connection.execute(text("TRUNCATE audit"))
    engine.dispose()
    assert ledger.audit_head().sequence == 1
