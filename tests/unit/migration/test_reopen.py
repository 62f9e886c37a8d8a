"""After a write stop whose checks did not pass, the writers can go on: everything from the approval on is done anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.migration.cutover import reopen
from walferry.run.answers import Word, keep_word, word_of
from walferry.run.heartbeat import beating
from walferry.run.phases import steps
from walferry.run.run import Run

TABLE = "shop:orders"


class Source:
    """In place of the source: which tables were set READONLY."""

    def __init__(self) -> None:
        self.read_only = {TABLE: True}

    def set_read_only(self, table: str, read_only: bool) -> None:
        self.read_only[table] = read_only


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """All is done but the last check."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__.update(source=Source())
        for phase, subject in steps("migration", [TABLE]):
            if phase.name == "check_drain":
                break
            done(run, phase.name, {"at_ms": None} if phase.name == "open_target" else {}, subject)
        yield run


def done(run: Run, phase: str, facts: dict[str, Any], subject: str = "") -> None:
    run.ledger.phases.start(phase, subject)
    run.ledger.phases.finish(phase, facts, subject)


def done_phases(run: Run) -> set[str]:
    return {phase.phase for phase in run.ledger.phases.all() if phase.state == "done"}


def test_the_run_replays_again_and_asks_again(run: Run) -> None:
    keep_word(run.ledger, "write_stop", Word("kim", 5))
    assert reopen(run, "it takes too long", "kim", dry_run=True) == []
    assert "write_stop" in done_phases(run), "a dry run changes nothing"
    reopen(run, "it takes too long", "kim")
    assert done_phases(run) == {"plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy"}
    assert word_of(run.ledger, "write_stop") is None


def test_readonly_is_lifted_where_the_run_has_set_it(run: Run) -> None:
    run.ledger.objects.plan("source", "read-only table", TABLE)
    run.ledger.objects.made("source", "read-only table", TABLE)
    assert reopen(run, "", "kim") == [TABLE]
    assert run.source.read_only == {TABLE: False}  # type: ignore[attr-defined]
    assert [item.state for item in run.ledger.objects.all()] == ["removed"]


def test_it_is_refused_once_the_target_is_open_to_clients(run: Run) -> None:
    done(run, "open_target", {"at_ms": 5})
    with pytest.raises(UsageError, match="is open to clients"):
        reopen(run, "", "kim")


def test_it_is_refused_before_the_write_stop_and_while_a_process_works(run: Run) -> None:
    with beating(run.ledger, "compare shop:orders", "kim"), pytest.raises(UsageError, match="works on move-1"):
        reopen(run, "", "kim")
    run.ledger.phases.reopen("write_stop")
    with pytest.raises(UsageError, match="have not been stopped"):
        reopen(run, "", "kim")
