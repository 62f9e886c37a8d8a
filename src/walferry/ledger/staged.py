"""Copies of the source's WALs in the folder of a run (`protect: stage`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import delete, func, insert, select, update

from walferry.clock import now_ms
from walferry.ledger.columns import to_columns
from walferry.ledger.rows import StagedFile
from walferry.ledger.store import Store, chunks, fetch


class StagedFiles:
    """The copies of one run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def record(self, file: StagedFile) -> None:
        """Record a copy that is complete under its final name. The copy replaces an earlier one of the same file."""
        staged = self._store.table("staged_files")
        with self._store.database.write() as connection:
            self._store.unfinished(connection, self._run_id)
            connection.execute(delete(staged).where(staged.c.run_id == self._run_id, staged.c.name == file.name))
            connection.execute(insert(staged).values(to_columns(file) | {"run_id": self._run_id}))
            facts = {"file": file.name, "bytes": file.bytes, "sha256": file.sha256}
            self._store.note(connection, "WAL staged", self._run_id, facts)

    def there(self) -> list[StagedFile]:
        """The copies that still exist, oldest first."""
        staged = self._store.table("staged_files")
        same = (staged.c.run_id == self._run_id, staged.c.removed_ms.is_(None))
        with self._store.database.read() as connection:
            return fetch(connection, StagedFile, staged, *same, order=(staged.c.staged_ms, staged.c.name))

    def known(self, names: Collection[str]) -> dict[str, StagedFile]:
        """The copies ever made of these files, by name."""
        staged = self._store.table("staged_files")
        found: dict[str, StagedFile] = {}
        with self._store.database.read() as connection:
            for some_names in chunks(names):
                some = staged.c.name.in_(some_names)
                rows = fetch(connection, StagedFile, staged, staged.c.run_id == self._run_id, some)
                found.update((row.name, row) for row in rows)
        return found

    def removed(self, names: Iterable[str]) -> None:
        """Record that copies were deleted."""
        staged = self._store.table("staged_files")
        with self._store.database.write() as connection:
            for name in names:
                same = (staged.c.run_id == self._run_id, staged.c.name == name)
                connection.execute(update(staged).where(*same).values(removed_ms=now_ms()))
                self._store.note(connection, "staged WAL removed", self._run_id, {"file": name})

    def size(self) -> tuple[int, int]:
        """How many copies there are, and their bytes."""
        staged = self._store.table("staged_files")
        query = select(func.count(), func.coalesce(func.sum(staged.c.bytes), 0))
        with self._store.database.read() as connection:
            same = (staged.c.run_id == self._run_id, staged.c.removed_ms.is_(None))
            count, size = connection.execute(query.where(*same)).one()
        return int(count), int(size)
