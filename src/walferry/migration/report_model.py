"""The shape of a run's report, which `walferry report --json` prints and docs/json/report.schema.json describes.

The parts of which a large run has many (phases, coverage, missing numbers, rows) are dataclasses: pydantic takes them
as they are and validates only the few models around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from walferry.ledger.rows import PhaseState, Purpose
from walferry.migration.explaining.accept import DifferenceShown
from walferry.run.progress.status_model import RunShown


class TableReport(BaseModel):
    """What the newest comparison of a table found."""

    model_config = ConfigDict(frozen=True)

    made_by: Purpose | None = Field(
        description="`phase`: the migration itself, `verify`: a person asked; null in ledgers that did not record it"
    )
    regions: int = Field(description="regions that were compared")
    equal_regions: int = Field(description="regions among these of which both sides are equal")
    source_rows: int = Field(description="rows that the source showed")
    source_cells: int = Field(description="cells that the source showed")
    source_digest: str = Field(description="sum of the digests of these cells modulo 2^128, in hex")
    target_rows: int = Field(description="rows that the target showed")
    target_cells: int = Field(description="cells that the target showed")
    target_digest: str = Field(description="sum of the digests of these cells modulo 2^128, in hex")
    expiring: int = Field(description="cells that expired during the comparison and that both sides held")
    uncompared: int = Field(description="cells that expired during the comparison and that only one side held")
    dropped: dict[str, int] = Field(description="invisible cells by side and cause, such as `source expired`")
    differences: dict[str, int] = Field(description="rows that differ, of those that are named, by class")
    unexplained: int = Field(description="rows that differ without an explanation and that nobody has accepted")
    undecided: int = Field(description="rows that differ for a known reason and that wait for a decision")
    second_reader: str | None = Field(description="what HBase's own client found, in words; null if it did not read")
    rows: tuple[DifferenceShown, ...] = Field(description="the rows that differ, the worst first")
    rows_since: tuple[DifferenceShown, ...] = Field(
        description="rows that differed when touched rows were compared again"
    )
    after_the_run: bool = Field(description="whether the comparison began after the end of the run")
    equal_since: bool = Field(description="whether what differed was equal when the rows were compared again")


@dataclass(frozen=True)
class PhaseReport:
    """A phase of the run, for one table or for the whole run."""

    phase: Annotated[str, Field(description="the name of the phase")]
    subject: Annotated[str, Field(description="the table; empty for a phase of the whole run")]
    state: Annotated[PhaseState, Field(description="what the ledger has of the phase")]
    attempts: Annotated[int, Field(description="how often the phase was started")]
    seconds: Annotated[float, Field(description="duration of the last attempt, so far or in total")]
    error: Annotated[str, Field(description="what the phase failed with, in words; empty if it has not failed")]
    error_class: Annotated[str, Field(description="the class of that error; empty if there is none")]


@dataclass(frozen=True)
class CoverageReport:
    """Bytes of a WAL group by state, for one table; the four add up to all bytes that were read."""

    group: Annotated[str, Field(description="the WAL group")]
    table: Annotated[str, Field(description="the source table")]
    seen: Annotated[int, Field(description="bytes seen in a WAL that was open")]
    sealed: Annotated[int, Field(description="bytes of closed WALs that are not applied")]
    applied: Annotated[int, Field(description="bytes that are applied and not compared yet")]
    verified: Annotated[int, Field(description="bytes that are applied and compared")]


@dataclass(frozen=True)
class MissingNumbers:
    """Sequence numbers of a region that no WAL has."""

    table: Annotated[str, Field(description="the source table")]
    region: Annotated[str, Field(description="the encoded name of the region")]
    first: Annotated[int, Field(description="the first number that is missing")]
    last: Annotated[int, Field(description="the last number that is missing")]
    file_before: Annotated[str, Field(description="the WAL with the last number before")]
    file_after: Annotated[str, Field(description="the WAL with the first number after")]
    found_ms: Annotated[int, Field(description="when that was found, in ms since 1970 (UTC)")]
    accepted_ms: Annotated[int | None, Field(description="when a person accepted it, in ms since 1970 (UTC), or null")]
    accepted_by: Annotated[str | None, Field(description="who accepted it; null: nobody has")]
    reason: Annotated[str | None, Field(description="why that person did; null: nobody has")]
    text: Annotated[str, Field(description="the same in words")]


class CopiedAgain(BaseModel):
    """The last time that a target table was emptied and copied again."""

    model_config = ConfigDict(frozen=True)

    by: str = Field(description="who asked for it")
    reason: str = Field(description="why that person did; empty if no reason was given")
    at_ms: int = Field(description="when the copying ended, in ms since 1970 (UTC)")
    cells: int = Field(description="cells that were copied")
    size: int = Field(description="bytes of these cells")
    seconds: float = Field(description="how long that took, without interruptions; 0 if nobody has measured it")
    request: str = Field(description="the name of the request, such as a task of Airflow; empty without one")
    text: str = Field(description="the same in words")


class TrailHead(BaseModel):
    """The newest line of the audit trail: kept elsewhere, it proves that no line was cut off."""

    model_config = ConfigDict(frozen=True)

    sequence: int = Field(description="the line's number")
    hash: str = Field(description="the line's hash, which covers all lines before")


class Report(RunShown):
    """What a run did and what it found: `walferry report --json`, and `report.json` in the reports folder."""

    version: Literal[1] = Field(description="rises when a field is removed or changes its meaning")
    outcome: str = Field(description="why the run ended, in words; empty before that")
    topics: dict[str, str] = Field(description="the topic of each source table of a stream; empty for other runs")
    tables: dict[str, TableReport] = Field(description="the newest comparison of each source table that has one")
    unexplained: int = Field(description="the sum over all tables")
    undecided: int = Field(description="the sum over all tables")
    uncompared: int = Field(description="the sum over all tables")
    phases: tuple[PhaseReport, ...] = Field(description="the phases that were started, by name and table")
    rounds: int = Field(description="rounds of the replay that are done")
    edits_applied: int = Field(description="cells that these rounds applied")
    log_bytes: int = Field(description="bytes of the log that these rounds applied")
    read_only: tuple[str, ...] = Field(description="source tables that the run has set READONLY")
    quarantine: int = Field(description="items in quarantine that wait for a decision")
    copied_again: dict[str, CopiedAgain] = Field(description="the tables that were copied again")
    repaired: dict[str, dict[str, int]] = Field(
        description="rows that were repaired, by table and class of the difference; empty where the class is not known"
    )
    late_edits: dict[str, int] = Field(
        description="edits after the end fence, by decision: `apply`, `reject` or `undecided`"
    )
    gaps: int | None = Field(description="ranges of the log that are not applied; null before the end fence")
    unseen: tuple[str, ...] = Field(
        description="what the run cannot see until the last whole comparison, in words; empty after that"
    )
    missing_numbers: tuple[MissingNumbers, ...] = Field(description="places where sequence numbers are missing")
    coverage: tuple[CoverageReport, ...] = Field(description="how much of the log is applied, by WAL group and table")
    audit_head: TrailHead = Field(description="the newest line of the audit trail")
    ledger: str = Field(description="the URL of the ledger, without its password")
    data_docs: str | None = Field(description="the index page of the Data Docs; null before the last check")
