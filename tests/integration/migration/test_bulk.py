"""Sorted cells reach the target as HFiles that HBase itself reads, once, wherever the regions are by then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from integration.migration.moves import content
from unit.apply.guards import Guard
from walferry.apply.bulk_loader import Loader, StagedHFile
from walferry.apply.route import Route
from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.formats.cells import Bytes, CellType, Int64s, cell_starts, encode_cell
from walferry.formats.hfile_writer import StoreFormat
from walferry.formats.order import stepped_over, store_order, winners
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RequestTimeoutError
from walferry.hbase.mutate import Cell, delete_column, delete_family, delete_version, put
from walferry.storage import PermissionDeniedError, WebHdfs
from write_limits import write_limits

pytestmark = pytest.mark.cluster

PRINTER = "org.apache.hadoop.hbase.io.hfile.HFilePrettyPrinter"
ROWS = [b"row%03d" % number for number in range(300)]
FORMATS = {
    "plain": StoreFormat(),
    "fast-diff": StoreFormat(700, "GZ", "FAST_DIFF", "ROWCOL"),
    "diff": StoreFormat(700, encoding="DIFF", bloom="NONE"),
    "prefix": StoreFormat(700, encoding="PREFIX"),
    "row-index": StoreFormat(700, encoding="ROW_INDEX_V1"),
}


@dataclass(frozen=True)
class Target:
    """A table of the target, and what loads into it."""

    client: HBaseClient
    table: str
    files: WebHdfs
    route: Route
    folder: str

    def loader(self) -> Loader:
        return Loader(self.route, self.table, self.folder)


@pytest.fixture
def there(source: MiniCluster, target: MiniCluster, at_target: HBaseClient) -> Target:
    """An empty table of the target with three regions."""
    name = f"bulk{uuid4().hex[:8]}"
    at_target.create_table(name, {"f": {"VERSIONS": "9"}}, [b"row100", b"row200"])
    assert target.address.webhdfs is not None
    files = WebHdfs(target.address.webhdfs, target.address.user, security=target.address.security)
    origin = UUID(int=7)
    route = Route(
        source.address, "/hbase", (origin.int & (1 << 64) - 1, origin.int >> 64), target.address, {name: name},
        Guard(), write_limits(settle_seconds=0.1),
    )  # fmt: skip
    return Target(at_target, name, files, route, f"/hbase/staging/{name}")


Edit = tuple[bytes, bytes, int, CellType, bytes]


def edits(count: int) -> list[Edit]:
    """Row, qualifier, timestamp, type and value; few columns and timestamps, for many equal keys and markers."""
    chance = random.Random(count)
    found = []
    for number in range(count):
        kind = chance.choices([CellType.PUT, CellType.DELETE, CellType.DELETE_COLUMN, CellType.DELETE_FAMILY],
                              [90, 4, 4, 2])[0]  # fmt: skip
        qualifier = b"" if kind is CellType.DELETE_FAMILY else chance.choice([b"", b"a", b"b"])
        row, value = chance.choice(ROWS), b"value %d" % number if kind is CellType.PUT else b""
        found.append((row, qualifier, chance.randint(1, 6), kind, value))
    return found


def written_by_hbase(client: HBaseClient, table: str, made: Sequence[Edit]) -> None:
    """The same edits one after the other, by the client."""
    client.create_table(table, {"f": {"VERSIONS": "9"}})
    for row, qualifier, timestamp, kind, value in made:
        if kind is CellType.PUT:
            client.mutate(table, [put(row, [Cell(row, b"f", qualifier, value, timestamp)])])
        elif kind is CellType.DELETE_FAMILY:
            client.mutate(table, [delete_family(row, b"f", timestamp)])
        else:
            delete = delete_version if kind is CellType.DELETE else delete_column
            client.mutate(table, [delete(row, b"f", qualifier, timestamp)])


def in_order(made: Sequence[Edit]) -> Iterator[tuple[Bytes, Int64s]]:
    """As files take them, in two batches."""
    cells = [encode_cell(row, b"f", column, timestamp, kind, value) for row, column, timestamp, kind, value in made]
    buffer = np.frombuffer(b"".join(cells), np.uint8)
    positions = cell_starts(buffer)
    positions = positions[store_order(buffer, positions, np.arange(len(positions)) << 8)]
    positions = positions[winners(buffer, positions)]
    positions = positions[~stepped_over(buffer, positions)]
    yield buffer, positions[: len(positions) // 2]
    yield buffer, positions[len(positions) // 2 :]


@pytest.mark.parametrize(
    "format",
    ["plain", "fast-diff", *(pytest.param(name, marks=pytest.mark.long) for name in ("diff", "prefix", "row-index"))],
)
def test_hbase_shows_what_was_loaded_as_if_it_had_written_it(
    format: str, source: MiniCluster, target: MiniCluster, at_source: HBaseClient, there: Target
) -> None:
    made = edits(1500)
    written_by_hbase(at_source, there.table, made)
    loader = there.loader()
    staged = loader.stage(b"f", b"", FORMATS[format], in_order(made))
    loader.await_closed()
    assert len(staged) == 3, "a file for each region"
    for file in staged:
        printed = tools.run(target, PRINTER, ["-v", "-k", "-m", "-f", file.path])
        assert f"Scanned kv count -> {file.cells}" in printed
    loader.load(staged)
    here = content(source, there.table)
    assert len(here) > 300
    assert content(target, there.table) == here
    assert there.files.status(there.folder) is None


def test_files_written_before_a_split_are_cut_for_its_daughters(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, there: Target
) -> None:
    made = edits(400)
    written_by_hbase(at_source, there.table, made)
    loader = there.loader()
    staged = loader.stage(b"f", b"", StoreFormat(), in_order(made))
    there.client.split_region(there.client.regions(there.table)[1], b"row150")
    loader.load(staged)
    assert content(target, there.table) == content(source, there.table)


Load = Callable[..., bool]


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_load_with_an_unknown_outcome_is_repeated_only_if_the_files_still_lie_there(
    carried_out: bool, source: MiniCluster, target: MiniCluster, at_source: HBaseClient, there: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = edits(300)
    written_by_hbase(at_source, there.table, made)
    asked: list[str] = []
    real: Load = HBaseClient.bulk_load

    def times_out(
        client: HBaseClient, region: Any, files: Sequence[tuple[bytes, str]], *args: Any, **more: Any
    ) -> bool:
        asked.append(files[0][1])
        if len(asked) > 1:
            return real(client, region, files, *args, **more)
        if carried_out:
            real(client, region, files, *args, **more)
        raise RequestTimeoutError("no answer", sent=True)

    monkeypatch.setattr(HBaseClient, "bulk_load", times_out)
    loader = there.loader()
    loader.load(loader.stage(b"f", b"", StoreFormat(), in_order(made)))
    assert len(asked) == (3 if carried_out else 4)
    assert len(set(asked)) == len(asked), "a late request finds no file"
    assert content(target, there.table) == content(source, there.table)


def test_an_answer_is_not_believed_while_the_file_lies_where_it_was(
    at_target: HBaseClient, there: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loader, "_cluster_ids", lambda *_: [at_target.cluster_id()])
    loader = there.loader()
    with pytest.raises(WalferryError, match="but left it where it was"):
        loader.load(loader.stage(b"f", b"", StoreFormat(), in_order(edits(10))))


def test_edits_that_came_from_the_target_are_loaded_without_its_name(at_target: HBaseClient, there: Target) -> None:
    own = UUID(at_target.cluster_id())
    name = pb.UUID(least_sig_bits=own.int & (1 << 64) - 1, most_sig_bits=own.int >> 64)
    clusters = pb.WALKey(cluster_ids=[name]).SerializePartialToString()
    loader = there.loader()
    assert loader._cluster_ids(clusters) == [str(UUID(int=7))]
    loader.load(loader.stage(b"f", clusters, StoreFormat(), in_order(edits(10))))


def test_another_user_may_move_what_is_staged_but_not_look_for_it(there: Target) -> None:
    loader = there.loader()
    (file,) = loader.stage(b"f", b"", StoreFormat(), in_order(edits(1)))
    loader.await_closed()
    stranger = WebHdfs(there.files.url, "mallory")
    with pytest.raises(PermissionDeniedError):
        stranger.list(there.folder)
    stranger.rename(file.path, f"{file.path}-taken")


def test_a_new_attempt_removes_what_the_one_before_it_left(there: Target) -> None:
    before = there.loader()
    left: list[StagedHFile] = before.stage(b"f", b"", StoreFormat(), in_order(edits(10)))
    before.await_closed()
    there.loader()
    assert all(there.files.status(file.path) is None for file in left)
