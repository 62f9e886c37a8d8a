"""Texts for gates, state, report and board about log sequence numbers that no entry has.

`replay.log.numbering` finds these numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from walferry.amounts import amount
from walferry.ledger import CountedNumbers, NumberGap, RunLedger
from walferry.run.facts import opened_ms
from walferry.run.progress.status_model import CountedShown

CAUSES = (
    "Known causes: a WAL was deleted that no list names (see the NameNode's audit log); writers of the table skip the "
    "log (SKIP_WAL, by the client or as the table's DURABILITY); flushes or snapshots of an idle region, more than one "
    "a minute"
)


def number_gap_text(gap: NumberGap) -> str:
    """A number gap as a clause."""
    count = gap.last - gap.first + 1
    return (
        f"region {gap.region} of {gap.table} has no entries {gap.first} to {gap.last} ({count}) between the WAL files "
        f"{gap.file_before} and {gap.file_after}"
    )


def undecided(ledger: RunLedger) -> dict[str, str]:
    """The number gaps that shut the gate: a clause for each table."""
    told = {}
    for gap, places in ledger.numbers.undecided():
        told[gap.table] = number_gap_text(gap) + (f", the first of {places} such places" if places > 1 else "")
    return told


def way_on(ledger: RunLedger, tables: Collection[str]) -> str:
    """What a person can do about missing numbers."""
    run = ledger.record
    commands = " and ".join(f"`walferry accept-numbers {run.name} --table {table} --reason …`" for table in tables)
    if opened_ms(ledger) is not None:
        return (
            "find out which. The target is open to clients and stays as it is; the whole comparison names every row "
            f"that differs, also after the loss of a WAL. Once those are repaired or accepted: {commands}"
        )
    return (
        f"find out which; if no WAL was lost: {commands}; otherwise `walferry abort {run.name} --reason …`, drop the "
        "target tables and start over"
    )


def faults(ledger: RunLedger, told: str = "") -> list[str]:
    """What shuts the gate: a text for each table, with the causes and what to do. Texts in `told` are left out."""
    return [f"{why}. Now {to_do}" for why, to_do in reasons(ledger, told)]


def reasons(ledger: RunLedger, told: str = "") -> list[tuple[str, str]]:
    """The same in two parts: the text with the causes, and what to do."""
    found = {table: text for table, text in undecided(ledger).items() if text not in told}
    return [(f"{text}. {CAUSES}", way_on(ledger, [table])) for table, text in found.items()]


def counted(ledger: RunLedger) -> list[CountedShown]:
    """Missing numbers that shut no gate, by table; only a hint unless a person has accepted them."""
    return [CountedShown(**asdict(row), text=_counted(row)) for row in ledger.numbers.counted()]


def _counted(row: CountedNumbers) -> str:
    numbers, places = amount(row.numbers, "number"), amount(row.places, "place")
    if row.accepted_by:
        return (
            f"numbers that are missing in the log of {row.table} are accepted for this run by {row.accepted_by}: "
            f"{row.reason}; counted: {numbers} at {places}"
        )
    return (
        f"the log of {row.table} lacks {numbers} at {places}. In HBase 1.x, increments, appends and failed checks "
        "leave such numbers without an entry. They prove nothing, but a lost WAL would look the same"
    )
