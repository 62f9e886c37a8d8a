"""The ledger keeps notes by run, name and subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.ledger import Ledger, RunLedger


@pytest.fixture
def runs(tmp_path: Path) -> list[RunLedger]:
    book = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test")
    return [book.of(book.open_run(name, "cli", {**SPEC, "name": name}, "kim").run_id) for name in ("one", "two")]


def test_values_that_are_kept_together_are_there_by_subject_until_their_name_is_dropped(runs: list[RunLedger]) -> None:
    for run in runs:
        run.notes.keep_each("part", {"r1": {"rows": 1}, "r2": {"rows": 2}})
        run.notes.keep("other", {"rows": 9}, "r1")
    one, two = runs
    one.notes.keep_each("part", {"r2": {"rows": 3}})
    assert {subject: facts for subject, (facts, _) in one.notes.named("part").items()} == {
        "r1": {"rows": 1}, "r2": {"rows": 3},
    }  # fmt: skip
    one.notes.drop_named("part")
    assert one.notes.named("part") == {}
    assert one.notes.get("other", "r1") == {"rows": 9}
    assert len(two.notes.named("part")) == 2


def test_a_value_is_kept_only_if_what_belongs_to_it_does_not_fail(runs: list[RunLedger]) -> None:
    def refuse(connection: object) -> None:
        raise LookupError

    one, _ = runs
    one.notes.keep("note", {"rows": 1})
    with pytest.raises(LookupError):
        one.notes.keep("note", {"rows": 2}, also=refuse)
    assert one.notes.get("note") == {"rows": 1}
