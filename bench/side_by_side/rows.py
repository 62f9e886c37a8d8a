"""What is measured: each row has walferry, one or more rivals, and a check of what each of them left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from bench.side_by_side import data as data_sets
from bench.side_by_side.clusters import Clusters
from bench.side_by_side.data import Data
from bench.side_by_side.ours import Ours
from bench.side_by_side.rivals import Rivals
from bench.side_by_side.timing import Timed


class Bench:
    """The running clusters, both contenders, and data sets as they are asked for."""

    def __init__(self, clusters: Clusters, size: float) -> None:
        self.clusters = clusters
        self.ours = Ours(clusters)
        self.rivals = Rivals(clusters)
        self._size = size
        self._made: dict[int, Data] = {}
        self._numbers = count(1)

    def data(self, cells: int) -> Data:
        """A data set of so many cells, scaled by the bench's size; a single cell stays one."""
        wanted = cells if cells == 1 else max(1, round(cells * self._size))
        if wanted not in self._made:
            self._made[wanted] = data_sets.make(self.clusters, f"cells{wanted}", wanted)
        return self._made[wanted]

    def empty_target(self, data: Data) -> None:
        """Truncate the target's table."""
        client = self.clusters.target_client
        client.disable_table(data.table)
        client.truncate_table(data.table)

    def check_target(self, data: Data, who: str) -> None:
        """Raise WalferryError unless the target's table is what the source's is."""
        data_sets.check(self.clusters.target_client, data.table, data.digest, who)

    def output(self) -> str:
        """A folder on HDFS that is not there yet."""
        return f"/bench-output/{next(self._numbers)}"


Work = Callable[[Bench, Data], Timed]


@dataclass(frozen=True)
class Row:
    """One comparison. The quicker of several rivals counts."""

    name: str
    what: str
    cells: int
    goal: float
    ours: Work
    rivals: Mapping[str, Work]
    prepare: Callable[[Bench, Data], None]
    check: Callable[[Bench, Data, str], None]
    goal_without_startup: float | None = None
    most_rounds: int = field(default=99)
    """for rows that take long"""


def _replay(bench: Bench, data: Data, apply: str) -> Timed:
    return bench.ours.replay(data, apply)


def _play_live(bench: Bench, data: Data) -> Timed:
    return bench.rivals.play_wal(data_sets.log_paths(bench.clusters, data), data.table)


def _play_in_bulk(bench: Bench, data: Data) -> Timed:
    return bench.rivals.play_wal_in_bulk(data_sets.log_paths(bench.clusters, data), data.table, bench.output())


_LIVE = {"WALPlayer, live": _play_live}
_BULK = {"WALPlayer, bulk, and BulkLoadHFilesTool": _play_in_bulk}

ROWS = (
    Row(
        "replay-1.3m", "replay sealed WALs until visible", 1_300_000, 1.5,
        partial(_replay, apply="auto"), _LIVE | _BULK, Bench.empty_target, Bench.check_target, 4,
    ),
    Row(
        "rpc-1.3m", "the same by rpc", 1_300_000, 1.0,
        partial(_replay, apply="rpc"), _LIVE, Bench.empty_target, Bench.check_target,
    ),
)  # fmt: skip
