"""Passes over a pair of tables: what each pass read and found, and what is known of each region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from walferry.amounts import rows_differ
from walferry.clock import now_ms
from walferry.errors import WalferryError
from walferry.ledger.columns import to_columns, to_json
from walferry.ledger.store import Store, fetch

RowState = Literal["differs", "under way"]
KEPT = 1_000
"""newest passes that the ledger keeps"""


@dataclass(frozen=True)
class PassRecord:
    """One pass. `reasons`: why regions were read whole, and how many for each reason. `second_reader`: what the second
    reader found, as `run.notes.spot_check.SpotCheck.facts` returns it. `shipped`: what the peer that feeds the pair was
    seen to ship before rows were judged, and `why` rows were not judged: it did not ship, or too little is known of
    them; {} if no row had to be judged."""

    number: int
    attempt: int
    started_ms: int
    ended_ms: int | None = None
    regions: int = 0
    whole_regions: int = 0
    log_bytes: int = 0
    written_rows: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    differing_rows: int = 0
    under_way_rows: int = 0
    reasons: dict[str, Any] = field(default_factory=dict)
    second_reader: dict[str, Any] = field(default_factory=dict)
    shipped: dict[str, Any] = field(default_factory=dict)

    @property
    def not_judged(self) -> str:
        """Why rows that differed to the end were not judged; "" if they were, or there were none."""
        return str(self.shipped.get("why", "")) if self.under_way_rows else ""


@dataclass(frozen=True)
class PassPosition:
    """Places in the logs of both sides (`migration.pairs.pair_log.PlaceInLog`, as JSON)."""

    position: int
    at_ms: int
    source: dict[str, Any]
    target: dict[str, Any]


@dataclass(frozen=True)
class PassRegion:
    """What is known of a region of the source, by its newest pass. Keys are hex in the ledger."""

    table: str = field(metadata={"column": "table_name"})
    region: str
    target_table: str
    start: bytes = field(metadata={"column": "start_row"})
    stop: bytes = field(metadata={"column": "stop_row"})
    lines: str
    number: int = field(metadata={"column": "pass"})
    position: int
    whole: bool
    why: str
    whole_ms: int
    clean_ms: int | None
    rows_read: int
    bytes_read: int
    fragile: bool
    """a compaction may change which cells are visible"""
    unnamed: int
    """differing rows beyond those that the ledger lists"""


@dataclass(frozen=True)
class PassDifference:
    """A row that differed when a pass last read it. The state `under way` means that other cells differed at each
    read, or that nobody can tell (`PassRecord.not_judged`)."""

    table: str = field(metadata={"column": "table_name"})
    row: bytes = field(metadata={"column": "row_key"})
    region: str
    state: RowState
    detail: str
    found_ms: int


class Passes:
    """The passes of one run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    # ---- reading

    def latest(self, count: int) -> list[PassRecord]:
        """The newest passes, oldest first. The last one may be unfinished."""
        passes = self._store.table("passes")
        query = select(passes).where(passes.c.run_id == self._run_id).order_by(passes.c.number.desc()).limit(count)
        with self._store.database.read() as connection:
            numbers = [row.number for row in connection.execute(query)]
            least = min(numbers, default=0)
            same = (passes.c.run_id == self._run_id, passes.c.number >= least)
            return fetch(connection, PassRecord, passes, *same, order=(passes.c.number,))

    def regions(self) -> list[PassRegion]:
        """Every region that is known, by table and first row."""
        regions = self._store.table("pass_regions")
        order = (regions.c.table_name, regions.c.start_row)
        with self._store.database.read() as connection:
            return fetch(connection, PassRegion, regions, regions.c.run_id == self._run_id, order=order)

    def positions(self) -> dict[int, PassPosition]:
        """The positions that regions refer to, by number."""
        positions = self._store.table("pass_positions")
        with self._store.database.read() as connection:
            found = fetch(connection, PassPosition, positions, positions.c.run_id == self._run_id)
        return {one.position: one for one in found}

    def differences(self, count: int | None = None) -> list[PassDifference]:
        """The first `count` rows that differed when a pass last read them; rows under way come last."""
        table = self._store.table("pass_differences")
        order = (table.c.state, table.c.table_name, table.c.row_key)
        with self._store.database.read() as connection:
            found = fetch(connection, PassDifference, table, table.c.run_id == self._run_id, order=order)
        return found[:count]

    # ---- a pass

    def begin(self, attempt: int) -> PassRecord:
        """Continue the unfinished pass as this attempt of the phase, or start a new pass."""
        passes = self._store.table("passes")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            same = (passes.c.run_id == self._run_id, passes.c.ended_ms.is_(None))
            unfinished = fetch(connection, PassRecord, passes, *same)
            if unfinished:
                connection.execute(update(passes).where(*same).values(attempt=attempt))
                return replace(unfinished[0], attempt=attempt)
            newest = select(func.max(passes.c.number)).where(passes.c.run_id == self._run_id)
            made = PassRecord((connection.execute(newest).scalar_one() or 0) + 1, attempt, now_ms())
            connection.execute(insert(passes).values(to_columns(made) | {"run_id": self._run_id}))
            old = (passes.c.run_id == self._run_id, passes.c.number <= made.number - KEPT)
            connection.execute(delete(passes).where(*old))
            return made

    def keep_position(
        self, current: PassRecord, source: Mapping[str, Any], target: Mapping[str, Any], at_ms: int, log_bytes: int,
        written_rows: int,
    ) -> int:  # fmt: skip
        """Record places in both logs, and how much of both was read up to them. Returns the position's number."""
        positions = self._store.table("pass_positions")
        with self._store.database.write() as connection:
            before = self._current(connection, current)
            newest = select(func.max(positions.c.position)).where(positions.c.run_id == self._run_id)
            number = (connection.execute(newest).scalar_one() or 0) + 1
            made = PassPosition(number, at_ms, dict(source), dict(target))
            connection.execute(insert(positions).values(to_columns(made) | {"run_id": self._run_id}))
            self._change(
                connection, current, log_bytes=before.log_bytes + log_bytes,
                written_rows=before.written_rows + written_rows,
            )  # fmt: skip
        return number

    def record(self, current: PassRecord, regions: Sequence[PassRegion], differences: Sequence[PassDifference]) -> None:
        """Record the regions just read and their differing rows, which replace what was known of these regions.

        A pass may read a region twice; the region counts once. Raises WalferryError once another process has
        taken the pass over.
        """
        with self._store.database.write() as connection:
            before = self._current(connection, current)
            again = {
                (region.table, region.region)
                for region in self._regions(connection, [region.region for region in regions])
                if region.number == current.number
            }
            first = [region for region in regions if (region.table, region.region) not in again]
            since = {(d.table, d.row): d.found_ms for d in self._differences(connection)}
            for region in regions:
                self._forget(connection, region.table, region.region)
            self._insert(connection, "pass_regions", regions)
            self._insert_rows(connection, differences, since)
            whole = [region for region in first if region.whole]
            reasons = Counter(before.reasons) + Counter(region.why for region in whole)
            self._change(
                connection, current, regions=before.regions + len(first),
                whole_regions=before.whole_regions + len(whole),
                rows_read=before.rows_read + sum(region.rows_read for region in regions),
                bytes_read=before.bytes_read + sum(region.bytes_read for region in regions),
                reasons=to_json(dict(reasons)),
            )  # fmt: skip

    def settle(self, current: PassRecord, differences: Sequence[PassDifference], rows_read: int) -> None:
        """Record the rows that still differ, which replace all rows that differed so far."""
        table = self._store.table("pass_differences")
        with self._store.database.write() as connection:
            before = self._current(connection, current)
            since = {(d.table, d.row): d.found_ms for d in self._differences(connection)}
            connection.execute(delete(table).where(table.c.run_id == self._run_id))
            self._insert_rows(connection, differences, since)
            self._change(connection, current, rows_read=before.rows_read + rows_read)

    def add(
        self,
        current: PassRecord,
        differences: Sequence[PassDifference],
        rows_read: int,
        second_reader: Mapping[str, Any],
    ) -> None:
        """Record what the second reader found, and add its differing rows to those known so far."""
        with self._store.database.write() as connection:
            before = self._current(connection, current)
            self._insert_rows(connection, differences, {})
            self._change(
                connection, current, rows_read=before.rows_read + rows_read, second_reader=to_json(second_reader)
            )

    def finish(
        self, current: PassRecord, there: Collection[tuple[str, str]], shipped: Mapping[str, Any] | None = None
    ) -> PassRecord:
        """End a pass that has read every region in `there` (table, region). Forgets all other regions.

        `shipped`: as in the record. If rows were not judged, those that the ledger does not list are under way.
        """
        judged = not (shipped or {}).get("why")
        kept, rows = self._store.table("pass_regions"), self._store.table("pass_differences")
        positions = self._store.table("pass_positions")
        ended_ms = now_ms()
        with self._store.database.write() as connection:
            self._current(connection, current)
            for region in self._regions(connection):
                if (region.table, region.region) not in there:
                    self._forget(connection, region.table, region.region)
            regions, differences = self._regions(connection), self._differences(connection)
            its_rows = (rows.c.run_id == kept.c.run_id, rows.c.table_name == kept.c.table_name)
            differs = exists().where(*its_rows, rows.c.region == kept.c.region)
            clean = (kept.c.run_id == self._run_id, kept.c.unnamed == 0, ~differs)
            connection.execute(update(kept).where(*clean).values(clean_ms=ended_ms))
            used = {region.position for region in regions}
            unused = positions.c.position.not_in(sorted(used))
            connection.execute(delete(positions).where(positions.c.run_id == self._run_id, unused))
            unnamed = sum(region.unnamed for region in regions)
            differing = sum(d.state == "differs" for d in differences) + (unnamed if judged else 0)
            under_way = sum(d.state == "under way" for d in differences) + (0 if judged else unnamed)
            self._change(
                connection, current, ended_ms=ended_ms, differing_rows=differing, under_way_rows=under_way,
                shipped=to_json(shipped or {}),
            )  # fmt: skip
            done = self._current(connection, current)
            inputs = {"pass": done.number, "regions": done.regions, "whole": done.whole_regions, "rows": done.rows_read}
            inputs |= {f"second_reader_{what}": done.second_reader.get(what, 0) for what in ("rows", "differing")}
            self._store.note(connection, "pass", self._run_id, inputs, rows_differ(differing))
            return done

    # ---- parts

    def _current(self, connection: Connection, current: PassRecord) -> PassRecord:
        passes = self._store.table("passes")
        same = (passes.c.run_id == self._run_id, passes.c.number == current.number)
        found = fetch(connection, PassRecord, passes, *same)
        if not found or found[0].attempt != current.attempt:
            raise WalferryError(
                f"pass {current.number} of {self._run_id} was taken over by another process: this one ends",
                run=self._run_id,
            )
        return found[0]

    def _change(self, connection: Connection, current: PassRecord, **values: Any) -> None:
        passes = self._store.table("passes")
        same = (passes.c.run_id == self._run_id, passes.c.number == current.number)
        connection.execute(update(passes).where(*same).values(**values))

    def _regions(self, connection: Connection, names: Sequence[str] | None = None) -> list[PassRegion]:
        """The known regions: all, or those of these encoded names."""
        table = self._store.table("pass_regions")
        same = [table.c.run_id == self._run_id]
        if names is not None:
            same.append(table.c.region.in_(names))
        return fetch(connection, PassRegion, table, *same)

    def _differences(self, connection: Connection) -> list[PassDifference]:
        table = self._store.table("pass_differences")
        return fetch(connection, PassDifference, table, table.c.run_id == self._run_id)

    def _forget(self, connection: Connection, name: str, region: str) -> None:
        """Remove a region, and its rows that differ."""
        for table in (self._store.table("pass_regions"), self._store.table("pass_differences")):
            same = (table.c.run_id == self._run_id, table.c.table_name == name, table.c.region == region)
            connection.execute(delete(table).where(*same))

    def _insert_rows(
        self, connection: Connection, differences: Sequence[PassDifference], since: Mapping[tuple[str, bytes], int]
    ) -> None:
        """Record differing rows, each with the time of its first finding. A row may have moved from another region."""
        table = self._store.table("pass_differences")
        for item in differences:
            same = (table.c.run_id == self._run_id, table.c.table_name == item.table)
            connection.execute(delete(table).where(*same, table.c.row_key == item.row.hex()))
        first = [replace(item, found_ms=since.get((item.table, item.row), item.found_ms)) for item in differences]
        self._insert(connection, "pass_differences", first)

    def _insert(self, connection: Connection, name: str, items: Sequence[Any]) -> None:
        if items:
            rows = [to_columns(item) | {"run_id": self._run_id} for item in items]
            connection.execute(insert(self._store.table(name)), rows)
