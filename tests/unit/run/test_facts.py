"""What steers later phases is read and written in one place, with types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from unit.migration.filled_ledger import SPEC
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.run.facts import (
    FenceFacts,
    WriteStopFacts,
    applied_cut,
    fence_facts,
    fenced_ms,
    keep_applied_cut,
    write_stop_facts,
)
from walferry.run.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


def finish(run: Run, phase: str, facts: dict[str, object]) -> None:
    run.ledger.phases.start(phase)
    run.ledger.phases.finish(phase, facts)


def test_the_last_applied_cut_takes_the_place_of_the_start_fences(run: Run) -> None:
    with pytest.raises(UsageError, match="this needs fence"):
        applied_cut(run)
    assert fenced_ms(run.ledger) is None
    finish(run, "fence", FenceFacts(groups=2, before={"t": "a"}, at_ms=5).model_dump())
    assert (applied_cut(run), fenced_ms(run.ledger)) == ({"t": "a"}, 5)
    keep_applied_cut(run, {"t": "b"})
    assert applied_cut(run) == {"t": "b"}
    assert fence_facts(run, "start").before == {"t": "a"}


def test_facts_that_are_not_what_they_should_be_steer_nothing(run: Run) -> None:
    assert write_stop_facts(run.ledger) is None
    finish(run, "fence", {"at_ms": 5})
    with pytest.raises(ValidationError, match="before"):
        fence_facts(run, "start")
    finish(run, "write_stop", WriteStopFacts(at_ms=7, how="readonly").model_dump())
    assert write_stop_facts(run.ledger) == WriteStopFacts(at_ms=7, how="readonly", by=None)
