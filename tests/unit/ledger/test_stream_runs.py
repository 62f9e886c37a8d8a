from __future__ import annotations

from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.ledger import Ledger, SeenFile
from walferry.ledger.rows import WalRange

SPEC: dict[str, Any] = {"name": "changes", "tables": ["a", "shop:b"], "topic": "{table}", "max_lag": 30}


def applied(table: str, file: str = "g.1") -> WalRange:
    return WalRange(file, 0, 10, table, 1, 1, 1, 1, "applied")


def see(ledger: Ledger, run_id: str, name: str) -> None:
    ledger.of(run_id).log.see_files([SeenFile(name, "g", "s", int(name[2:]), f"/{name}", 10, True)])


def test_a_stream_may_get_more_tables_and_its_earlier_files_stay_accounted_for(ledger: Ledger) -> None:
    run = ledger.open_run("changes", "me", SPEC, "me", "stream")
    log = ledger.of(run.run_id).log
    see(ledger, run.run_id, "g.1")
    log.set_ranges([applied("a"), applied("shop:b")])
    assert log.applied(["g.1"]) == {"g.1"}
    more = SPEC | {"tables": ["a", "another", "shop:b"], "max_lag": 5}
    assert ledger.open_run("changes", "me", more, "me", "stream").run_id == run.run_id
    assert ledger.run(run.run_id).spec == more
    assert log.applied(["g.1"]) == {"g.1"}
    assert {part.table: part.cells for part in log.ranges(file="g.1")} == {"a": 1, "shop:b": 1, "another": 0}
    see(ledger, run.run_id, "g.2")
    log.set_ranges([applied("a", "g.2"), applied("shop:b", "g.2")])
    assert log.applied(["g.2"]) == set(), "the new table needs it, too"
    log.set_ranges([applied("another", "g.2")])
    assert log.applied(["g.2"]) == {"g.2"}


def test_a_stream_keeps_its_tables_and_its_topics(ledger: Ledger) -> None:
    ledger.open_run("changes", "me", SPEC, "me", "stream")
    with pytest.raises(UsageError, match="run changes-1 has shop:b, which its spec no longer names"):
        ledger.open_run("changes", "me", SPEC | {"tables": ["a"]}, "me", "stream")
    with pytest.raises(UsageError, match="with another spec"):
        ledger.open_run("changes", "me", SPEC | {"topic": "x.{table}"}, "me", "stream")
