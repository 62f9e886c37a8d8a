"""NumberSpans that no file has between two files of a region: which are explained, and which are a gap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from unit.formats.wal_builder import entry, header
from unit.migration.filled_ledger import SPEC
from walferry.apply.number_spans import NumberSpan, NumberSpans
from walferry.apply.outcomes import FileReport, TableTally
from walferry.errors import UsageError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import WalReader
from walferry.hbase.versions import release_of
from walferry.ledger import Ledger, NumberGap, RegionNumber, RunLedger
from walferry.replay.log import numbering
from walferry.run.progress.missing_numbers import counted, faults
from walferry.run.run import Run

TABLE = "shop:orders"
GROUP = "rs%2C1%2C2"
MINUTE = 60_000


def name(number: int) -> str:
    return f"{GROUP}.{number}"


def span(first: int, last: int, file: int = 2, *, region: str = "r", edits: str = "ee", at_ms: int = 0) -> NumberSpan:
    """`edits`: "e" for an edit and "m" for a marker, at the beginning and at the end."""
    return NumberSpan(TABLE, region, name(file), first, last, edits[0] == "e", edits[1] == "e", at_ms)


def known(number: int, *, edit: bool = True, file: int = 1) -> RegionNumber:
    return RegionNumber(TABLE, "r", number, name(file), edit)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        (known(10), span(11, 20), None),
        (known(10), span(12, 20), (11, 11)),  # a lost file that held one edit
        (known(10), span(12, 20, edits="me"), None),  # a flush, or an opening after a closing
        (known(10), span(13, 20, edits="me"), (11, 12)),
        (known(10, edit=False), span(14, 20), None),  # the flush of an empty region
        (known(10, edit=False), span(15, 20), (11, 14)),
        (known(10, edit=False), span(18, 20, at_ms=5 * MINUTE), None),  # a snapshot every minute
        (known(10, edit=False), span(40, 50, at_ms=5 * MINUTE), (11, 39)),
        (known(10), span(5, 20), None),  # began anew: for `lineage` to judge
        (known(10), span(10, 12, edits="me"), None),
    ],
)
def test_a_hole_between_two_files(before: RegionNumber, after: NumberSpan, missing: tuple[int, int] | None) -> None:
    last, gaps = numbering.chain([before], [after])
    assert [(gap.first, gap.last, gap.file_before, gap.file_after) for gap in gaps] == (
        [(*missing, name(1), name(2))] if missing else []
    )
    assert [number.number for number in last] == [20 if after.last == 20 else after.last]


def test_a_region_is_followed_across_files_in_the_order_of_its_numbers_and_others_do_not_matter() -> None:
    spans = [span(21, 30, 9), span(7, 8, 3, region="other"), span(1, 10, 4), span(11, 20, 2)]
    last, gaps = numbering.chain([], spans)
    assert gaps == []
    assert {number.region: (number.number, number.file) for number in last} == {
        "r": (30, name(9)),
        "other": (8, name(3)),
    }


def test_the_spans_of_a_file_are_collected_batch_by_batch() -> None:
    """Over batches of a few entries each; what is not selected does not count."""

    def one(region: bytes, number: int, *, marker: bool = False) -> bytes:
        family, qualifier = (b"METAFAMILY", b"HBASE::FLUSH") if marker else (b"f", b"q")
        cell = encode_cell(b"r", family, qualifier, 1, 4, b"v" * 50)
        return entry([cell], encoded_region_name=region, log_sequence_number=number, write_time=number)

    many = [one(b"a" * 32, number) for number in range(6, 40)]
    end = [one(b"b" * 32, 100), one(b"a" * 32, 40), one(b"b" * 32, 101, marker=True)]
    content = header() + b"".join([one(b"a" * 32, 5, marker=True), *many, *end])
    numbers = NumberSpans("file")
    for batch in WalReader(iter([content]), "file", batch_bytes=300):
        numbers.add(batch, np.ones(len(batch), bool))
        numbers.add(batch, np.zeros(len(batch), bool))
    found = {s.region[0]: (s.first, s.last, s.begins_with_edit, s.ends_with_edit, s.begins_ms) for s in numbers.spans()}
    assert found == {"a": (5, 40, False, True, 5), "b": (100, 101, True, False, 100)}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        ledger_run = ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id)
        source = SimpleNamespace(release=SimpleNamespace(skips_numbers=False))
        yield cast(Run, SimpleNamespace(ledger=ledger_run, source=source))


def report(*spans: NumberSpan, complete: bool = True) -> FileReport:
    file = spans[0].file if spans else name(1)
    return FileReport(file, 10, complete, (TableTally(TABLE, 1, 1, 1, 1),), (), (), numbers=spans)


def apply(run: Run, *reports: FileReport) -> None:
    change = numbering.number_change(run, reports, [TABLE])
    run.ledger.log.set_ranges([], None, change)


def places(ledger: RunLedger) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in ledger.numbers.gaps(accepted=False)]


def test_a_gap_shuts_the_gate_until_a_person_says_why_nothing_was_lost(run: Run) -> None:
    apply(run, report(span(1, 10, 1)))
    apply(run, report(span(15, 20, 2)))
    assert places(run.ledger) == [(11, 14)]
    (fault,) = faults(run.ledger)
    assert f"region r of {TABLE} has no entries 11 to 14 (4) between the WAL files {name(1)} and {name(2)}" in fault
    with pytest.raises(UsageError, match="give a reason"):
        numbering.accept(run.ledger, TABLE, " ", "me")
    assert "a WAL was deleted" in fault
    assert "SKIP_WAL" in fault
    assert f"`walferry accept-numbers move --table {TABLE} --reason …`; otherwise `walferry abort move" in fault
    with pytest.raises(UsageError, match="has no source table 'other'"):
        numbering.accept(run.ledger, "other", "why not", "me")
    numbering.accept(run.ledger, TABLE, "skips the log", "me", dry_run=True)
    assert faults(run.ledger)
    numbering.accept(run.ledger, TABLE, "skips the log", "me")
    assert faults(run.ledger) == []
    (accepted,) = run.ledger.numbers.gaps(accepted=True)
    assert (accepted.accepted_by, accepted.reason) == ("me", "skips the log")


def test_a_decision_stands_for_the_run_and_later_gaps_of_that_table_are_only_counted(run: Run) -> None:
    """With writers that skip the log each round finds new ones: the gate could not be kept open."""
    apply(run, report(span(1, 10, 1), span(1, 10, 1, region="s")))
    numbering.accept(run.ledger, TABLE, "skips the log", "me")  # before anything was found, too
    apply(run, report(span(15, 20, 2)))
    apply(run, report(span(22, 30, 3), span(12, 30, 3, region="s")))
    assert run.ledger.numbers.gaps() == []
    assert faults(run.ledger) == []
    (row,) = run.ledger.numbers.counted()
    assert (row.table, row.places, row.numbers, row.accepted_by, row.reason) == (TABLE, 3, 6, "me", "skips the log")
    (told,) = counted(run.ledger)
    assert told.text.endswith("accepted for this run by me: skips the log; counted: 6 numbers at 3 places")
    (line,) = [line for line in run.ledger.audit_trail() if line.action == "missing numbers accepted"]
    assert (line.actor, line.outcome) == ("me", "skips the log")

    elsewhere = RegionNumber("shop:other", "o", 10, name(1), True)
    gap = NumberGap("shop:other", "o", 11, 12, name(1), name(2), 1)
    run.ledger.log.set_ranges([], None, run.ledger.numbers.change([elsewhere], [gap], []))
    assert len(faults(run.ledger)) == 1, "another table needs a decision of its own"
    numbering.accept(run.ledger, TABLE, "they still do", "you")
    assert [(row.places, row.reason) for row in run.ledger.numbers.counted()] == [(3, "they still do")]


def test_a_decision_covers_what_was_found_before_and_what_comes(run: Run) -> None:
    apply(run, report(span(1, 10, 1)))
    apply(run, report(span(15, 20, 2)))
    assert len(numbering.accept(run.ledger, TABLE, "skips the log", "me")) == 1
    apply(run, report(span(30, 40, 3)))
    assert places(run.ledger) == []
    assert [(row.places, row.numbers) for row in run.ledger.numbers.counted()] == [(1, 9)]


def test_numbers_that_1_x_skips_are_a_hint_and_shut_no_gate(run: Run) -> None:
    """A failed check takes one and writes nothing; handlers that wait at once take theirs before any of them writes."""
    run.source.release = release_of("1.7.2")
    apply(run, report(span(1, 100, 1)))
    apply(run, report(span(104, 106, 2)))
    apply(run, report(span(108, 110, 3)))
    assert run.ledger.numbers.gaps() == []
    assert faults(run.ledger) == []
    (told,) = counted(run.ledger)
    assert (told.table, told.places, told.numbers, told.accepted_by) == (TABLE, 2, 4, None)
    assert (
        f"the log of {TABLE} lacks 4 numbers at 2 places. In HBase 1.x, increments, appends and failed checks leave "
        in told.text
    )
    assert "abort" not in told.text


def test_of_many_places_the_oldest_is_told(run: Run) -> None:
    apply(run, report(span(1, 10, 1)))
    for number in range(2, 6):
        apply(run, report(span(10 * number, 10 * number + 5, number)))
    (fault,) = faults(run.ledger)
    assert "has no entries 11 to 19 (9)" in fault
    assert "the first of 4 such places" in fault
    assert faults(run.ledger, f"as said, {fault}") == []


def test_after_damage_the_numbers_begin_anew(run: Run) -> None:
    apply(run, report(span(1, 10, 1)))
    apply(run, report(span(11, 12, 2), complete=False))
    apply(run, report(span(30, 40, 3)))
    assert places(run.ledger) == []


def test_what_is_recorded_twice_counts_once(run: Run) -> None:
    for _ in range(2):
        apply(run, report(span(1, 10, 1)))
        apply(run, report(span(15, 20, 2)))
    assert places(run.ledger) == [(11, 14)]
