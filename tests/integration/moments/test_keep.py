"""`walferry keep` on a real cluster: what it has kept is judged from its folder alone, whatever happened meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.migration.command import walferry
from integration.migration.moves import at_work, cluster_keys, unique
from integration.moments.keepers import Keeper, covered, has_bases
from walferry.clock import now_ms
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.formats.cells import CellIndex, index_cells
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.zookeeper import Server
from walferry.ledger import RunLedger
from walferry.ledger.rows import Base
from walferry.replay.keeping import objects
from walferry.run.notes.kept_moments import copied_ends
from walferry.run.run import LogRun
from walferry.snapshots.manifest import cells_of, read_manifest, snapshot_regions
from walferry.storage import Local
from walferry.wal.copies import with_copies
from walferry.wal.files import list_archive
from walferry.wal.open import edits_of, open_wal

pytestmark = pytest.mark.cluster
DEADLINE_S = 120.0


@dataclass
class Writer:
    """Puts rows into a table, each once, and notes when each was acknowledged."""

    table: str
    acknowledged: list[tuple[bytes, int]] = field(default_factory=list)
    """row, and when by this machine's clock"""

    def write(self, source: MiniCluster, over: Callable[[], bool]) -> None:
        with HBaseClient(source.address) as client:
            number = 0
            while not over():
                rows = [b"%c-%08d" % (b"afkpu"[at % 5], at) for at in range(number, number + 20)]
                with suppress(WalferryError):  # a server was killed: again
                    client.put(self.table, [Cell(row, b"f", b"q", self.table.encode()) for row in rows])
                    at_ms = now_ms()
                    self.acknowledged += [(row, at_ms) for row in rows]
                    number += len(rows)
                time.sleep(0.01)


@pytest.fixture
def keeper(source: MiniCluster, tmp_path: Path) -> Iterator[Keeper]:
    """A run that copies everything to a folder of this machine; its processes and snapshots are gone at the end."""
    keys = {key: value for key, value in cluster_keys(source).items() if key != "thrift"}
    one = Keeper(tmp_path, {
        "name": unique("keep_"), "source": keys, "folder": f"{tmp_path}/kept", "copy_bases": True, "tail_seconds": 1,
    })  # fmt: skip
    yield one
    one.kill()
    with one.ledger() as ledger, LogRun(ledger, one.run_id) as run:
        objects.release(run)


def rows_of(folder: Path, base: Base) -> set[bytes]:
    """The rows of a base, from the folder alone."""
    regions = snapshot_regions(str(folder), read_manifest(Local(), str(folder), base.snapshot))
    return {row for region in regions for cells in cells_of(Local(), region, None) for row in rows_in(cells)}


def rows_in(cells: CellIndex) -> set[bytes]:
    return {cells.row(number) for number in range(len(cells))}


def logged(folder: Path, base: Base) -> set[bytes]:
    """The rows of the base's table in the log from its fence on, as read from the folder alone."""
    files = with_copies(Local(), [f"file://{folder}"], ClusterAddress("none:1", user="me"))
    found = set()
    for file in list_archive(files, "/nowhere"):
        if file.number >= base.fence.get(file.group, 0):
            for batch in open_wal(files, "/nowhere", file):
                edits = edits_of(batch, base.table)
                for start, end in zip(edits.cells_start, edits.end, strict=True):
                    found |= rows_in(index_cells(edits.buffer, int(start), int(end)))
    return found


def judge(keeper: Keeper, writers: list[Writer]) -> None:
    """From each base and the log since, every edit is there that was acknowledged before the last look at the log."""
    with keeper.ledger() as ledger:
        run = ledger.of(keeper.run_id)
        ends, bases = copied_ends(run), run.bases.there()
    assert ends is not None
    for writer in writers:
        due = {row for row, at_ms in writer.acknowledged if at_ms < ends.covered_ms}
        of_table = [base for base in bases if base.table == writer.table and base.copied_ms]
        assert due
        assert of_table
        for base in of_table:
            missing = due - rows_of(keeper.kept, base) - logged(keeper.kept, base)
            assert not missing, f"{len(missing)} of {len(due)} rows, such as {min(missing)!r}, of {base}"


def test_each_edit_is_in_the_folder_through_rolls_a_split_kills_of_both_and_the_retention(
    source: MiniCluster, at_source: HBaseClient, victim: Server, keeper: Keeper, tmp_path: Path
) -> None:
    tables = [unique("k") for _ in range(3)]
    for table in tables:
        at_source.create_table(table, {"f": {}}, [b"f", b"p"])
    writers = [Writer(table) for table in tables]
    with ExitStack() as writing:
        writing.enter_context(at_work(*(lambda over, one=one: one.write(source, over) for one in writers)))
        keeper.start(tables=tables[:2])
        keeper.await_so(has_bases(tables[:2]), "there is no base")
        for server in at_source.servers():
            at_source.roll_wal(server)
        at_source.split_region(at_source.regions(tables[0])[0], b"c")
        began_ms = now_ms()
        keeper.await_so(lambda run: covered(run, began_ms), "the ends are not copied")
        keeper.kill()
        judge(keeper, writers[:2])

        keeper.start(tables=tables, base_hours=0.002)
        source.kill_region_server(1)
        killed_ms = now_ms()
        keeper.await_so(has_bases(tables, killed_ms), "there is no base after the kill")
        looked_ms = now_ms()
        keeper.await_so(lambda run: covered(run, looked_ms), "the ends are not copied after the kill")
        keeper.kill()
        judge(keeper, writers)

        keeper.start(keep_days=0.00002)
        keeper.await_so(lambda run: len(run.bases.there()) <= 2 * len(tables) and gone(run), "nothing is let go")
        keeper.kill()
        judge(keeper, writers)

    aborted = walferry(tmp_path, "abort", keeper.run_id, "--reason", "a test")
    assert aborted.returncode == 0, aborted.stderr
    assert not keeper.kept.exists()
    assert not [one.name for one in at_source.snapshots() if one.name.startswith(keeper.run_id)]


def gone(run: RunLedger) -> bool:
    """Whether copies of the log and bases were deleted."""
    said = [line.action for line in run.audit_trail()]
    return "staged WAL removed" in said and "base dropped" in said
