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
    fence_facts,
    fenced_ms,
    keep_lines,
    kept_lines,
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


def test_the_lines_of_a_cut_are_as_they_were_kept_last(run: Run) -> None:
    assert kept_lines(run, "applied") == {}
    keep_lines(run, "applied", {"t": {"r": "a"}})
    keep_lines(run, "end fence", {"t": {"r": "b"}})
    assert (kept_lines(run, "applied"), kept_lines(run, "end fence")) == ({"t": {"r": "a"}}, {"t": {"r": "b"}})
    keep_lines(run, "applied", {"t": {}})
    assert kept_lines(run, "applied") == {"t": {}}


def test_a_fence_is_known_once_its_phase_is_done(run: Run) -> None:
    with pytest.raises(UsageError, match="this needs fence"):
        fence_facts(run, "start")
    assert fenced_ms(run.ledger) is None
    finish(run, "fence", FenceFacts(groups=2, at_ms=5).model_dump())
    assert (fence_facts(run, "start").groups, fenced_ms(run.ledger)) == (2, 5)


def test_facts_that_are_not_what_they_should_be_steer_nothing(run: Run) -> None:
    assert write_stop_facts(run.ledger) is None
    finish(run, "fence", {"at_ms": 5})
    with pytest.raises(ValidationError, match="groups"):
        fence_facts(run, "start")
    finish(run, "write_stop", WriteStopFacts(at_ms=7, how="readonly").model_dump())
    assert write_stop_facts(run.ledger) == WriteStopFacts(at_ms=7, how="readonly", by=None)
