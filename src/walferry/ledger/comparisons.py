"""Comparisons of one run's tables, the rows that differ, and what a person accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import sha256

from sqlalchemy import ColumnElement, Table, delete, func, insert, select, tuple_, update

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger.columns import to_columns, to_json
from walferry.ledger.rows import AcceptedDifference, ComparedTable, Difference, DifferenceKind, RangeComparison
from walferry.ledger.store import Store, fetch

DECIDED_BY_A_PERSON: Collection[DifferenceKind] = (
    "not-in-log", "history-dependent", "snapshot-marker", "expired-overwrite"
)  # fmt: skip
"""kinds of difference that a person may accept: readers see them, so they shut the gate until somebody does"""
Decision = tuple[str, bytes, str]
"""Table, row and fingerprint of an accepted difference."""


AUDITED_ROWS = 200
"""most accepted rows that one audit line names, beside a digest of all; `accepted_differences` lists them"""


class Comparisons:
    """Comparisons of one run's tables, the rows that differ, and what a person accepted."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(
        self, compared: ComparedTable, ranges: Sequence[RangeComparison], differences: Sequence[Difference]
    ) -> ComparedTable:
        """Record a comparison as the newest of its table. Returns it with its number as `attempt`."""
        heads = self._store.table("compared_tables")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            of_table = (heads.c.run_id == self._run_id, heads.c.table_name == compared.table)
            newest = connection.execute(select(func.max(heads.c.attempt)).where(*of_table)).scalar_one()
            compared = replace(compared, attempt=(newest or 0) + 1)
            key = {"run_id": self._run_id, "attempt": compared.attempt}
            connection.execute(insert(heads), [to_columns(compared) | key])
            for name, items in (("comparisons", ranges), ("differences", differences)):
                if items:
                    connection.execute(insert(self._store.table(name)), [to_columns(item) | key for item in items])
            unequal = sum(not item.equal for item in ranges)
            inputs = {
                "table": compared.table,
                "attempt": compared.attempt,
                "purpose": compared.purpose,
                "end_fence": compared.end_fence,
                "ranges": len(ranges),
                "differing_rows": compared.differing_rows,
                "differences": dict(Counter(difference.kind for difference in differences)),
            }
            outcome = f"{unequal} of {len(ranges)} ranges differ"
            self._store.note(connection, "compare", self._run_id, inputs, outcome)
        return compared

    def add(self, compared: ComparedTable, differences: Sequence[Difference]) -> None:
        """Add differing rows that a comparison had not found to that comparison's record."""
        if not differences:
            return
        heads, found = self._store.table("compared_tables"), self._store.table("differences")
        mine = (heads.c.run_id == self._run_id, heads.c.table_name == compared.table)
        with self._store.database.write() as connection:
            connection.execute(
                update(heads)
                .where(*mine, heads.c.attempt == compared.attempt)
                .values(differing_rows=heads.c.differing_rows + len(differences))
            )
            key = {"run_id": self._run_id, "attempt": compared.attempt}
            connection.execute(insert(found), [to_columns(item) | key for item in differences])
            inputs = {"table": compared.table, "attempt": compared.attempt, "rows": len(differences)}
            self._store.note(connection, "add differences", self._run_id, inputs)

    def tables(self) -> list[ComparedTable]:
        """Every comparison of every table, by table and number."""
        heads = self._store.table("compared_tables")
        order = (heads.c.table_name, heads.c.attempt)
        with self._store.database.read() as connection:
            return fetch(connection, ComparedTable, heads, heads.c.run_id == self._run_id, order=order)

    def ranges(self, of: Sequence[ComparedTable] | None = None) -> list[RangeComparison]:
        """Ranges by table and start row, from these comparisons or from each table's newest."""
        table = self._store.table("comparisons")
        order = (table.c.table_name, table.c.start_row)
        with self._store.database.read() as connection:
            return fetch(connection, RangeComparison, table, *self._chosen(table, of), order=order)

    def differences(self, of: Sequence[ComparedTable] | None = None, table: str | None = None) -> list[Difference]:
        """Rows that differ (in `table`), from these comparisons or from each table's newest."""
        found = self._store.table("differences")
        conditions = self._chosen(found, of)
        if table is not None:
            conditions.append(found.c.table_name == table)
        order = (found.c.table_name, found.c.row_key, found.c.kind)
        with self._store.database.read() as connection:
            return fetch(connection, Difference, found, *conditions, order=order)

    def record_look(self, table: str, differences: Sequence[Difference]) -> None:
        """Keep the differing rows of the newest look at what was touched since a table's comparison. They replace the
        rows of the previous look."""
        looked = self._store.table("looked_differences")
        mine = (looked.c.run_id == self._run_id, looked.c.table_name == table)
        found = {item.row: item for item in differences}
        if not found and not self.looked(table):
            return
        with self._store.database.write() as connection:
            connection.execute(delete(looked).where(*mine))
            if found:
                rows = [to_columns(item) | {"run_id": self._run_id} for item in found.values()]
                connection.execute(insert(looked), rows)

    def looked(self, table: str | None = None) -> list[Difference]:
        """Rows that differed at the last look at each table (or at `table`), and were left as they are."""
        looked = self._store.table("looked_differences")
        conditions = [looked.c.run_id == self._run_id] + ([looked.c.table_name == table] if table is not None else [])
        order = (looked.c.table_name, looked.c.row_key)
        with self._store.database.read() as connection:
            return fetch(connection, Difference, looked, *conditions, order=order)

    def accept(self, differences: Sequence[Difference], reason: str, actor: str) -> None:
        """Record that a person accepts these differences; those accepted before stay as they are.

        Raises UsageError for an empty reason, and for a difference whose exact cells are unknown.
        """
        if not reason.strip():
            raise UsageError("give a reason for accepting differences: it is recorded")
        if unknown := [item for item in differences if not item.fingerprint]:
            raise UsageError(f"a row of {unknown[0].table} was recorded without its cells: compare again")
        table = self._store.table("accepted_differences")
        with self._store.database.write() as connection:
            self._store.run(connection, self._run_id)
            known = fetch(connection, AcceptedDifference, table, table.c.run_id == self._run_id)
            decided = {decision(item) for item in known}
            new = {decision(item): item for item in differences if decision(item) not in decided}
            at = now_ms()
            rows = [
                AcceptedDifference(item.table, item.row, item.fingerprint, item.detail, reason, actor, at)
                for item in new.values()
            ]
            if rows:
                connection.execute(insert(table), [to_columns(row) | {"run_id": self._run_id} for row in rows])
                named = [to_columns(row) for row in rows]
                digest = sha256(to_json({"differences": named}).encode()).hexdigest()
                inputs = {"differences": named[:AUDITED_ROWS], "rows": len(rows), "digest": digest, "reason": reason}
                self._store.note(connection, "accept differences", self._run_id, inputs, actor=actor)

    def accepted(self) -> dict[Decision, AcceptedDifference]:
        """What was accepted, by table, row and fingerprint."""
        table = self._store.table("accepted_differences")
        with self._store.database.read() as connection:
            rows = fetch(connection, AcceptedDifference, table, table.c.run_id == self._run_id)
        return {decision(row): row for row in rows}

    def undecided(self, of: Sequence[ComparedTable] | None = None) -> list[Difference]:
        """Rows of these comparisons, or of each table's newest, that wait for a person's decision."""
        decided = self.accepted()
        return [item for item in self.differences(of) if needs_decision(item, decided)]

    def _chosen(self, table: Table, of: Sequence[ComparedTable] | None) -> list[ColumnElement[bool]]:
        of_run = table.c.run_id == self._run_id
        attempts = tuple_(table.c.table_name, table.c.attempt)
        if of is not None:
            return [of_run, attempts.in_([(item.table, item.attempt) for item in of])]
        made = self._store.table("comparisons")
        newest = (
            select(made.c.table_name, func.max(made.c.attempt))
            .where(made.c.run_id == self._run_id)
            .group_by(made.c.table_name)
        )
        return [of_run, attempts.in_(newest)]


def decision(item: Difference | AcceptedDifference) -> Decision:
    """The key of a decision about a difference."""
    return item.table, item.row, item.fingerprint


def lacks_explanation(difference: Difference, decided: Collection[Decision]) -> bool:
    """Whether the gate is shut because nothing explains this difference, and no person has accepted exactly it."""
    return difference.kind == "unexplained" and decision(difference) not in decided


def needs_decision(difference: Difference, decided: Collection[Decision]) -> bool:
    """Whether the gate is shut until a person accepts exactly this difference."""
    return difference.kind in DECIDED_BY_A_PERSON and decision(difference) not in decided
