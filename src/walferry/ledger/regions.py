"""What is known of the regions of one run's tables: their store files, and whether they are closed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlalchemy import Connection, delete, insert, select

from walferry.ledger.columns import from_columns, to_columns
from walferry.ledger.rows import KnownRegion
from walferry.ledger.store import Store

RegionKey = tuple[str, str]
"""Source table and encoded region."""
RegionChanges = Mapping[RegionKey, KnownRegion | None]
"""What is known of regions now; None for those that no longer exist."""
_AT_ONCE = 500


class Regions:
    """What is known of the regions of one run's tables. `Log.set_ranges` changes them with the ranges."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id

    def known(self, tables: Collection[str], regions: Iterable[str] = ()) -> dict[RegionKey, KnownRegion]:
        """What is known of these regions of the tables, and of all that are closed."""
        table = self._store.table("known_regions")
        mine = (table.c.run_id == self._run_id, table.c.table_name.in_(sorted(tables)))
        found = {}
        named = (table.c.region.in_(names) for names in _cut(sorted(set(regions))))
        with self._store.database.read() as connection:
            for wanted in (table.c.closed_sequence.is_not(None), *named):
                for row in connection.execute(select(table).where(*mine, wanted)).mappings():
                    known = from_columns(KnownRegion, dict(row))
                    found[known.table, known.region] = known
        return found

    def begin(self, known: Collection[KnownRegion]) -> None:
        """Record what is known before the log is read."""
        with self._store.database.write() as connection:
            change_regions(self._store, connection, self._run_id, {(one.table, one.region): one for one in known})

    def forget(self, table: str) -> None:
        """Delete what is known of a table's regions, because the replay left out some of the log."""
        regions = self._store.table("known_regions")
        with self._store.database.write() as connection:
            connection.execute(delete(regions).where(regions.c.run_id == self._run_id, regions.c.table_name == table))


def change_regions(store: Store, connection: Connection, run_id: str, changes: RegionChanges) -> None:
    """Replace what is known, within a transaction."""
    regions = store.table("known_regions")
    names: dict[str, list[str]] = {}
    for table, region in changes:
        names.setdefault(table, []).append(region)
    for table, mine in names.items():
        for some in _cut(mine):
            connection.execute(
                delete(regions).where(
                    regions.c.run_id == run_id, regions.c.table_name == table, regions.c.region.in_(some)
                )
            )
    kept = [known for known in changes.values() if known is not None]
    for first in range(0, len(kept), _AT_ONCE):
        rows = [to_columns(known) | {"run_id": run_id} for known in kept[first : first + _AT_ONCE]]
        connection.execute(insert(regions), rows)


def _cut(names: list[str]) -> Iterator[list[str]]:
    """Cut names into lists that fit into one statement."""
    for first in range(0, len(names), _AT_ONCE):
        yield names[first : first + _AT_ONCE]
