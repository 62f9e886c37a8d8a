"""A batch of sealed files, and what a process needs to apply it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.apply.outcomes import FileReport
from walferry.apply.prefix import Sent
from walferry.apply.route import Route
from walferry.hbase.descriptors import Region
from walferry.ledger.batches import Change
from walferry.refusals import ANY_REGION
from walferry.replay.log import lineage
from walferry.replay.quarantine import held_regions
from walferry.run.run import Run
from walferry.wal.files import WalFile


class Batch(BaseModel):
    """Sealed files to apply together, and what was known of the tables' regions when the batch began."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    files: tuple[WalFile, ...]
    calm: frozenset[str]
    """the tables all of whose regions stood still while the files were written"""
    standing: frozenset[str]
    """the regions of all tables that stood still"""
    followed: frozenset[str] = frozenset()
    """regions that moved, but whose edits before their last opening were all sent while the logs were open"""
    cut_ms: int
    """once the batch is applied, so is everything written before this moment"""
    before: dict[str, dict[str, str]]
    """the lines of the regions before the cut"""
    regions: dict[str, tuple[Region, ...]]
    """each table's regions as of the cut; for the drain, as of the drain's beginning"""
    held: dict[str, frozenset[str]] = {}
    """for each table, the regions that quarantine held at the batch's beginning"""
    bulk: int = 0
    """how many more times the batch may fail to load in bulk; 0: it goes by group"""


@dataclass(frozen=True)
class Work:
    """A batch, with what a process needs to apply it."""

    run: Run
    spark: SparkSession
    route: Route
    batch: Batch
    lease_check: Change
    """raises LeaseLostError, within a change of the ledger, if another process has taken the leases"""
    sent: Mapping[str, Sent]

    @property
    def followed(self) -> frozenset[str]:
        """The regions of `Batch.followed`, if their edits that were sent early are left out of all files. A process
        that continues the batch leaves out nothing, so it has none."""
        named = [sent.regions for sent in self.sent.values() if sent.regions]
        return self.batch.followed.intersection(*named) if named else frozenset()

    @property
    def standing(self) -> frozenset[str]:
        """The regions whose edits go by group."""
        return self.batch.standing | self.followed

    def held(self) -> dict[str, set[str]]:
        """For each table the regions that were held when the batch began, or are held now: holds that a killed process
        recorded still count when its pieces are repeated."""
        held = {table: set(regions) for table, regions in self.batch.held.items()}
        for table, regions in held_regions(self.run).items():
            held.setdefault(table, set()).update(regions)
        return held

    def stopped(self) -> set[str]:
        """Tables that are held as a whole: nothing is applied to them any more."""
        return {table for table, regions in held_regions(self.run).items() if ANY_REGION in regions}

    def narrowed(self, tables: Collection[str]) -> Route:
        """The route for some of the tables."""
        return replace(self.route, tables={t: target for t, target in self.route.tables.items() if t in tables})

    def guard(self) -> None:
        """Raise LeaseLostError if the leases are no longer held; `lease_check` does it in a change of the ledger."""
        self.route.guard(list(self.route.tables.values()))


def trace_regions(
    work: Work, reports: Sequence[FileReport], tables: Collection[str]
) -> tuple[lineage.Known, lineage.Lineage]:
    """What was known of these tables' regions before the reports, and what the reports show."""
    events = [event for report in reports if report.complete for event in report.events if event.table in tables]
    before = work.run.ledger.regions.known(tables, (event.region for event in events))
    return before, lineage.trace_at(work.run.source, before, events)
