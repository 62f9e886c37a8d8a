"""Which moments a run of kind `keep` has kept, and how much a loss of the source would cost now."""

from __future__ import annotations

from dataclasses import dataclass

from walferry.amounts import amount
from walferry.clock import duration, iso, now_ms
from walferry.ledger import RunLedger
from walferry.run.notes.kept_moments import LOSS_SECONDS, copied_ends, folder_bytes, lost_ends, troubles_of
from walferry.run.recorded_spec import source_tables


@dataclass(frozen=True)
class Moments:
    """What is kept now."""

    loss_seconds: float | None
    """seconds of changes that a loss of the source would cost now; None before the first look at its log"""
    limit_seconds: float
    """above this it is too much"""
    since_ms: dict[str, int | None]
    """for each table the first moment that can be restored; None without a base"""
    bases: int
    copied_bases: int
    """those whose files are in the folder"""
    folder_bytes: int | None
    troubles: dict[str, str]
    """why tables have no new base, by table"""

    lost_ends: int
    """logs that HBase deleted before they were copied whole"""

    @property
    def is_exposed(self) -> bool:
        """Whether a loss of the source would cost too much."""
        return self.loss_seconds is not None and self.loss_seconds > self.limit_seconds

    @property
    def each_has_a_base(self) -> bool:
        """Whether each table can be restored to some moment."""
        return None not in self.since_ms.values()

    @property
    def text(self) -> str:
        """The same in words."""
        loss = "nothing of the log is copied yet"
        if self.loss_seconds is not None:
            loss = f"a loss of the source now would cost {duration(self.loss_seconds)} of changes"
        said = [loss]
        if begun := [ms for ms in self.since_ms.values() if ms is not None]:
            tables = amount(len(begun), "table")
            said.append(f"{amount(self.bases, 'base')} of {tables}, any moment since {iso(max(begun))}")
        if without := sorted(table for table, ms in self.since_ms.items() if ms is None):
            said.append(f"no base yet of {', '.join(without)}")
        if self.lost_ends:
            ends = amount(self.lost_ends, "end of a log is lost", "ends of logs are lost")
            said.append(f"{ends}: moments after that need a later base")
        said += [f"no new base of {table}: {why}" for table, why in sorted(self.troubles.items())]
        return "; ".join(said)


def moments_of(ledger: RunLedger) -> Moments:
    """What a run of kind `keep` has kept, from the ledger."""
    run, ends, bases = ledger.record, copied_ends(ledger), ledger.bases.there()
    since: dict[str, int | None] = dict.fromkeys(source_tables(run))
    for base in reversed(bases):  # the oldest last
        since[base.table] = base.complete_ms
    return Moments(
        loss_seconds=None if ends is None else round(ends.loss_seconds(now_ms()), 1),
        limit_seconds=max(LOSS_SECONDS, 3 * float(run.spec.get("tail_seconds", 0))),
        since_ms=since,
        bases=len(bases),
        copied_bases=sum(base.copied_ms is not None for base in bases),
        folder_bytes=folder_bytes(ledger),
        troubles={table: trouble.why for table, trouble in troubles_of(ledger).items()},
        lost_ends=len(lost_ends(ledger)),
    )
