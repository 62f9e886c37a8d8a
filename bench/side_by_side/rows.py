"""What is measured: each row has walferry, one or more rivals, and a check of what each of them left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path

from bench.side_by_side import data as data_sets
from bench.side_by_side.clusters import Clusters
from bench.side_by_side.data import Data
from bench.side_by_side.feeding import feed, replicate
from bench.side_by_side.ours import Ours
from bench.side_by_side.rivals import Rivals
from bench.side_by_side.timing import Timed

from walferry.errors import WalferryError
from walferry.run.run import archive_folder


class State(Enum):
    """What a table of the target is, beside the source's."""

    EQUAL = "equal"
    SPOILED = "spoiled"
    OTHER = "other"


class Bench:
    """The running clusters, both contenders, and data sets as they are asked for."""

    def __init__(self, clusters: Clusters, size: float) -> None:
        self.clusters = clusters
        self.ours = Ours(clusters)
        self.rivals = Rivals(clusters)
        self.size = size
        self._made: dict[int, Data] = {}
        self._numbers = count(1)
        self._state: dict[str, State] = {}
        self._snapshots: set[str] = set()
        self._peers: dict[str, str] = {}
        self._passed: dict[str, Path] = {}

    def data(self, cells: int) -> Data:
        """A data set of so many cells, scaled by the bench's size; a single cell stays one."""
        wanted = cells if cells == 1 else max(1, round(cells * self.size))
        if wanted not in self._made:
            self._made[wanted] = data_sets.make(self.clusters, f"cells{wanted}", wanted)
        return self._made[wanted]

    def empty_target(self, data: Data) -> None:
        """Make the target's table an empty one with the source's borders."""
        client = self.clusters.target_client
        if client.table_exists(data.table):
            client.disable_table(data.table)
            client.truncate_table(data.table)
        else:
            data_sets.create(client, data.table, data.rows)
        self._state[data.table] = State.OTHER

    def empty_target_of_peer(self, data: Data) -> None:
        """Have the source's table ship to its peers, and make the target's an empty one."""
        replicate(self.clusters.source_client, data.table)
        self.empty_target(data)

    def drop_target(self, data: Data) -> None:
        """Drop the target's table, and what earlier copies left: a copy skips files that are there."""
        client, root = self.clusters.target_client, self.clusters.target.address.root_path
        if client.table_exists(data.table):
            client.disable_table(data.table)
            client.delete_table(data.table)
        for snapshot in client.snapshots():
            client.delete_snapshot(snapshot.name)
        self.clusters.target_files.delete(archive_folder(root, data.table), recursive=True)
        self._state[data.table] = State.OTHER

    def fill_target(self, data: Data) -> None:
        """Make the target's table a copy of the source's."""
        if self._state.get(data.table) is not State.EQUAL:
            self.drop_target(data)
            self.export(data)
            self.check_target(data, "ExportSnapshot")

    def spoil_target(self, data: Data) -> None:
        """Make the target's table a copy in which every thousandth row has another value."""
        if self._state.get(data.table) is not State.SPOILED:
            self.fill_target(data)
            data_sets.change_rows(self.clusters.target_client, data)
            self._state[data.table] = State.SPOILED

    def feed_target(self, data: Data) -> None:
        """Make the target's table a copy of the source's, which a peer of the source keeps equal."""
        self.fill_target(data)
        if data.table not in self._peers:
            self._peers[data.table] = feed(self.clusters, data.table)

    def pass_once(self, data: Data) -> None:
        """Do the same, and let walferry do its first pass over this pair."""
        self.feed_target(data)
        if data.table not in self._passed:
            folder = self.pair(data)
            self.ours.verify_pair(folder, whole=True)
            self._passed[data.table] = folder

    def remove_peer(self, data: Data) -> None:
        """Remove the peer, so that no other row's writes are shipped."""
        self.clusters.source_client.remove_peer(self._peers.pop(data.table))
        self._passed.pop(data.table, None)

    def peer(self, data: Data) -> str:
        """The peer that feeds the target's table."""
        return self._peers[data.table]

    def pair(self, data: Data) -> Path:
        """A new pair of both tables, as `Ours.pair`."""
        return self.ours.pair(data, self.peer(data))

    def passed(self, data: Data) -> Path:
        """The pair that has had its first pass."""
        return self._passed[data.table]

    def export(self, data: Data) -> Timed:
        """Take a snapshot, copy it by HBase's tool and open it; only the snapshot is not timed."""
        client, snapshot = self.clusters.source_client, f"bench-{next(self._numbers)}"
        client.snapshot(snapshot, data.table)
        try:
            return self.rivals.copy_and_open(data.table, snapshot)
        finally:
            client.delete_snapshot(snapshot)

    def snapshot(self, data: Data) -> str:
        """A snapshot of the source's table; taken once."""
        name = f"bench-of-{data.table}"
        if name not in self._snapshots:
            self.clusters.source_client.snapshot(name, data.table)
            self._snapshots.add(name)
        return name

    def local_logs(self, data: Data) -> list[Path]:
        """Copies of the data's logs on this machine."""
        folder = self.clusters.folder / "logs-of" / data.table
        if not folder.exists():
            folder.mkdir(parents=True)
            for path in data_sets.log_paths(self.clusters, data):
                with (folder / Path(path).name.replace("%", "_")).open("wb") as copy:
                    copy.writelines(self.clusters.source_files.read(path))
        return sorted(folder.iterdir())

    def check_target(self, data: Data, who: str) -> None:
        """Raise WalferryError unless the target's table is what the source's is."""
        data_sets.check(self.clusters.target_client, data.table, data.digest, who)
        self._state[data.table] = State.EQUAL

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
    goal_without_startup: float | None
    ours: Work
    rivals: Mapping[str, Work]
    prepare: Callable[[Bench, Data], object]
    check: Callable[[Bench, Data, str, Timed], None]
    most_rounds: int = 99
    """of a row that takes long"""
    tidy: Callable[[Bench, Data], object] = lambda bench, data: None
    """after all rounds: puts back what would change other rows"""


def _replay(bench: Bench, data: Data, apply: str) -> Timed:
    return bench.ours.replay(data, apply)


def _play_live(bench: Bench, data: Data) -> Timed:
    return bench.rivals.play_wal(data_sets.log_paths(bench.clusters, data), data.table)


def _play_in_bulk(bench: Bench, data: Data) -> Timed:
    return bench.rivals.play_wal_in_bulk(data_sets.log_paths(bench.clusters, data), data.table, bench.output())


def _drop_new(bench: Bench, data: Data) -> None:
    client, new = bench.clusters.source_client, _new(data)
    if client.table_exists(new):
        client.disable_table(new)
        client.delete_table(new)


def _restore_live(bench: Bench, data: Data) -> Timed:
    paths = data_sets.log_paths(bench.clusters, data)
    return bench.rivals.restore(data.base.snapshot, paths, data.table, _new(data))


def _restore_in_bulk(bench: Bench, data: Data) -> Timed:
    paths = data_sets.log_paths(bench.clusters, data)
    return bench.rivals.restore(data.base.snapshot, paths, data.table, _new(data), bench.output())


def _new(data: Data) -> str:
    return f"{data.table}-before"


def _restored(bench: Bench, data: Data, who: str, done: Timed) -> None:
    data_sets.check(bench.clusters.source_client, _new(data), data.digest, who)


def _same_cells(bench: Bench, data: Data, who: str, done: Timed) -> None:
    bench.check_target(data, who)


def _told_rows(bench: Bench, data: Data, who: str, done: Timed, differing: Callable[[Data], int]) -> None:
    if int(done.output) != differing(data):
        raise WalferryError(f"{who} found {done.output} differing rows in {data.table}, not {differing(data)}")


def _counted(bench: Bench, data: Data, who: str, done: Timed) -> None:
    if int(done.output) != data.rows:
        raise WalferryError(f"{who} counted {done.output} in {data.table}, not {data.rows}")


def _decoded(bench: Bench, data: Data, who: str, done: Timed) -> None:
    """Both end with an error unless they have read every file to its trailer."""


def _many(bench: Bench, data: Data) -> list[Path]:
    """The data's logs as often as makes about DECODED_BYTES, or once if it is the single cell."""
    logs = bench.local_logs(data)
    once = sum(log.stat().st_size for log in logs)
    return logs * (1 if data.cells == 1 else max(1, round(bench.size * DECODED_BYTES / once)))


DECODED_BYTES = 2_000_000_000
_LIVE = {"WALPlayer, live": _play_live}
_BULK = {"WALPlayer, bulk, and BulkLoadHFilesTool": _play_in_bulk}
_COMPARE: Mapping[str, Work] = {
    "HashTable and SyncTable": lambda bench, data: bench.rivals.compare(data.table, bench.output()),
    "VerifyReplication": lambda bench, data: bench.rivals.verify_replication(data.table),
}
_COMPARE_FED: Mapping[str, Work] = {
    "VerifyReplication": lambda bench, data: bench.rivals.verify_replication(data.table, bench.peer(data)),
}
_RESTORE = {"clone and WALPlayer, live": _restore_live, "clone and WALPlayer, bulk, loaded": _restore_in_bulk}
_COUNT = {"RowCounter": lambda bench, data: bench.rivals.count_rows(data.table)}

ROWS = (
    Row(
        "decode", "WALs of 2 GB in all to columns", 10_000_000, 20, None,
        lambda bench, data: bench.ours.print_columns(_many(bench, data)),
        {"WALPrettyPrinter -p": lambda bench, data: bench.rivals.print_wal(_many(bench, data))},
        Bench.local_logs, _decoded,
    ),
    Row(
        "replay-1.3m", "replay sealed WALs until visible", 1_300_000, 1.5, 4,
        partial(_replay, apply="auto"), _LIVE | _BULK, Bench.empty_target, _same_cells,
    ),
    Row(
        "rpc-1.3m", "the same by rpc", 1_300_000, 1.0, None,
        partial(_replay, apply="rpc"), _LIVE, Bench.empty_target, _same_cells,
    ),
    Row(
        "replay-10m", "replay sealed WALs until visible", 10_000_000, 3.5, 6,
        partial(_replay, apply="auto"), _BULK, Bench.empty_target, _same_cells,
    ),
    Row(
        "rpc-10m", "the same by rpc", 10_000_000, 1.3, 1.3,
        partial(_replay, apply="rpc"), _LIVE, Bench.empty_target, _same_cells, most_rounds=2,
    ),
    Row(
        "copy", "copy a snapshot and open it, checksums compared", 10_000_000, 1.5, 2,
        lambda bench, data: bench.ours.copy_and_open(data),
        {"ExportSnapshot and clone": Bench.export}, Bench.drop_target, _same_cells,
    ),
    Row(
        "copy-again", "empty a table and copy it by the region servers", 10_000_000, 1.0, None,
        lambda bench, data: bench.ours.copy_again(data),
        {"CopyTable": lambda bench, data: bench.rivals.copy_table(data.table)},
        Bench.empty_target, _same_cells, most_rounds=2,
    ),
    Row(
        "receive-history", "copy what a table has before edits of it are received", 10_000_000, 1.0, None,
        lambda bench, data: bench.ours.receive_history(data),
        {"CopyTable": lambda bench, data: bench.rivals.copy_table(data.table)},
        Bench.empty_target_of_peer, _same_cells, most_rounds=2,
    ),
    Row(
        "restore-1.3m", "a table as of a moment, from a snapshot and the log since", 1_300_000, 1.5, None,
        lambda bench, data: bench.ours.restore(data, _new(data)),
        _RESTORE, _drop_new, _restored,
    ),
    Row(
        "restore-10m", "the same", 10_000_000, 1.5, None,
        lambda bench, data: bench.ours.restore(data, _new(data)),
        _RESTORE, _drop_new, _restored, most_rounds=2,
    ),
    Row(
        "verify-equal", "compare two equal tables", 10_000_000, 3, 6,
        lambda bench, data: bench.ours.compare(data), _COMPARE, Bench.fill_target,
        partial(_told_rows, differing=lambda data: 0), most_rounds=2,
    ),
    Row(
        "verify-differing", "find 0.1 % of rows that differ", 10_000_000, 5, 6,
        lambda bench, data: bench.ours.compare(data), _COMPARE, Bench.spoil_target,
        partial(_told_rows, differing=data_sets.changed_rows), most_rounds=2,
    ),
    Row(
        "verify-pair", "compare two tables that replication keeps equal", 10_000_000, 3, 6,
        lambda bench, data: bench.ours.verify_pair(bench.pair(data), whole=True), _COMPARE_FED, Bench.feed_target,
        partial(_told_rows, differing=lambda data: 0), most_rounds=2, tidy=Bench.remove_peer,
    ),
    Row(
        "verify-pair-again", "the same, once they were compared", 10_000_000, 3, None,
        lambda bench, data: bench.ours.verify_pair(bench.passed(data), whole=False), _COMPARE_FED, Bench.pass_once,
        partial(_told_rows, differing=lambda data: 0), most_rounds=2, tidy=Bench.remove_peer,
    ),
    Row(
        "snapshot-stat", "count the rows and cells of a snapshot", 10_000_000, 1.5, None,
        lambda bench, data: bench.ours.stat_snapshot(bench.snapshot(data)),
        _COUNT, Bench.snapshot, _counted,
    ),
    Row(
        "snapshot-count", "count a snapshot's rows as a DataFrame, and take the newest timestamp", 10_000_000, 5, None,
        lambda bench, data: bench.ours.count_snapshot(bench.snapshot(data)),
        _COUNT, Bench.snapshot, _counted,
    ),
)  # fmt: skip
