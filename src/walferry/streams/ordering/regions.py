"""The regions of a stream's tables: their rows, age and read points, and which regions had their rows before."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from walferry.apply.region_events import Origin
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import TableNotFoundError
from walferry.streams.ordering.order import Asked

log = logging.getLogger(__name__)

SERVERS_AT_ONCE = 4

Rows = tuple[bytes, bytes]
"""a range of rows: [start, end), where an empty end is that of the table"""


class KnownRegions:
    """All regions of the tables that were ever seen, by encoded name. Not thread-safe."""

    def __init__(
        self, source: HBaseClient, rows: Mapping[str, Rows], known_origins: Mapping[str, Origin] | None = None
    ) -> None:
        """`rows` and `known_origins`: those of regions that were seen before."""
        self._source = source
        self._rows = dict(rows)
        self._origins = dict(known_origins or {})
        self._regions: dict[str, Region] = {}
        self._unknown: set[str] = set()

    def rows_of(self, region: str) -> Rows | None:
        """The rows of a region; None if they are unknown."""
        return self._rows.get(region)

    def origin(self, region: str) -> Origin | None:
        """Where a region begins, and when it was made; None if that is unknown."""
        return self._origins.get(region)

    def note_origins(self, found: Mapping[str, Origin]) -> None:
        """Keep what the log says of regions that have opened."""
        self._origins |= found

    def share_rows(self, one: str, other: str) -> bool | None:
        """Whether two regions of a table have a row in common; None if the rows of one are unknown."""
        mine, theirs = self._rows.get(one), self._rows.get(other)
        return None if mine is None or theirs is None else _overlap(mine, theirs)

    def read_points(self, asked: Sequence[Asked]) -> Mapping[Asked, int]:
        """The read points of regions as the given servers tell them.

        Those that a server does not serve, and those of servers that do not answer now, are left out.
        """
        of_server: dict[str, list[Region]] = defaultdict(list)
        for server, name in asked:
            if (region := self._regions.get(name)) is not None:
                of_server[server].append(region)
        with ThreadPoolExecutor(SERVERS_AT_ONCE, thread_name_prefix="read points") as asking:
            found: dict[Asked, int] = {}
            for part in asking.map(self._of_server, of_server.items()):
                found |= part
        return found

    def _of_server(self, server_and_regions: tuple[str, list[Region]]) -> dict[Asked, int]:
        server, regions = server_and_regions
        try:
            answers = self._source.read_points([(server, region) for region in regions], attempts=1)
        except TransientError as error:
            log.info("%s does not tell read points now: %s", server, error)
            return {}
        points = zip(regions, answers, strict=True)
        return {(server, region.encoded): point for region, point in points if point is not None}

    def present(self, table: str) -> set[str]:
        """The regions that a table has now; none if it does not exist."""
        found = set[str]()
        with suppress(TableNotFoundError):
            for region in self._source.regions(table):
                self._regions[region.encoded] = region
                self._rows[region.encoded] = (region.start, region.end)
                self._origins[region.encoded] = Origin(region.start, region.region_id)
                found.add(region.encoded)
        return found

    def learn(self, table: str, regions: Collection[str]) -> None:
        """Look up these regions of a table, unless they are known, or no longer existed when they were looked up."""
        if not set(regions) - self._regions.keys() - self._unknown:
            return
        self.present(table)
        self._unknown |= set(regions) - self._regions.keys()


def _overlap(one: Rows, other: Rows) -> bool:
    return (not one[1] or other[0] < one[1]) and (not other[1] or one[0] < other[1])
