"""Which region each of the sorted cells is written for, and what happens to files when the lease is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest

from unit.apply.guards import Guard
from walferry.apply import bulk_loader
from walferry.apply.bulk_loader import Loader, StagedHFile, _by_region
from walferry.apply.route import Route
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.formats.cells import Bytes, Int64s, cell_starts, encode_cell
from walferry.formats.hfile_writer import StoreFormat
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RemoteError, RequestTimeoutError
from walferry.replay.rights.lease import LeaseLostError
from walferry.security.handed import WorkerLoginError
from walferry.storage import Local
from write_limits import write_limits

ROWS = [b"%02d" % number for number in range(30)]


def cells(size: int) -> Iterator[tuple[Bytes, Int64s]]:
    for at in range(0, len(ROWS), size):
        buffer = np.frombuffer(b"".join(encode_cell(row, b"f", b"q", 1, 4) for row in ROWS[at : at + size]), np.uint8)
        yield buffer, cell_starts(buffer)
        yield buffer, cell_starts(buffer)[:0]


def regions(*borders: bytes) -> list[Region]:
    return [Region(start, start.decode(), "t", start, end, None, 1) for start, end in pairwise(borders)]


def rows_by_region(found: list[Region], size: int) -> dict[str, list[bytes]]:
    placed = {}
    for region, mine in _by_region(found, cells(size), "t"):
        placed[region.encoded] = [
            buffer[at + 14 : at + 16].tobytes() for buffer, positions in mine for at in positions.tolist()
        ]
    return placed


@pytest.mark.parametrize("size", [1, 7, 30])
def test_each_row_goes_to_the_region_that_holds_it(size: int) -> None:
    found = rows_by_region(regions(b"", b"03", b"031", b"10", b"20", b""), size)
    assert found == {"": ROWS[:3], "03": [b"03"], "031": ROWS[4:10], "10": ROWS[10:20], "20": ROWS[20:]}


@pytest.mark.parametrize(
    "found",
    [regions(b"", b"10", b"20"), [*regions(b"", b"10"), *regions(b"20", b"")], regions(b"10", b"")],
    ids=["none at the end", "a hole", "none at the beginning"],
)
@pytest.mark.parametrize("size", [1, 7, 30])
def test_rows_that_no_region_holds_are_an_error(size: int, found: list[Region]) -> None:
    with pytest.raises(TransientError, match="no region for some rows of t"):
        rows_by_region(found, size)


@pytest.fixture
def route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Route:
    client = SimpleNamespace(cluster_id=lambda: str(UUID(int=1)), regions=lambda table: regions(b"", b""))
    monkeypatch.setattr(bulk_loader, "shared_client", lambda target: client)
    monkeypatch.setattr(bulk_loader, "shared_files", lambda *_: Local())
    target = ClusterAddress("zk", webhdfs="http://nn:1", rootdir=f"hdfs://nn{tmp_path}")
    return Route(target, "", (1, 1), target, {"t": "t"}, Guard(), write_limits())


def test_files_of_a_later_holder_of_the_lease_are_not_removed(route: Route, tmp_path: Path) -> None:
    def lost(tables: Collection[str]) -> None:
        raise LeaseLostError(f"the lease on {tables} is lost")

    Local().write(f"{tmp_path}/piece/other/1", [b"cells"])
    with pytest.raises(LeaseLostError):
        Loader(replace(route, guard=Guard(lost)), "t", f"{tmp_path}/piece")
    assert Local().status(f"{tmp_path}/piece/other/1") is not None
    Loader(route, "t", f"{tmp_path}/piece")
    assert Local().status(f"{tmp_path}/piece/other/1") is None


def test_a_file_that_is_removed_while_it_is_written_is_written_by_another_attempt(
    route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(self: Local, path: str, chunks: Iterable[bytes]) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Local, "write", removed)
    loader = Loader(route, "t", f"{tmp_path}/piece")
    with pytest.raises(TransientError, match=r"piece/.*/1 no longer exists: another attempt has taken over"):
        loader.load(loader.stage(b"f", b"", StoreFormat(), cells(30)))


def test_a_file_waits_for_its_turn_before_it_is_begun_and_counts_as_a_whole_once_it_is_written(
    route: Route, tmp_path: Path
) -> None:
    """In the midst of one nothing may wait: a data node gives up a file to which nothing is written."""
    (staged,) = Loader(route, "t", f"{tmp_path}/piece").stage(b"f", b"", StoreFormat(), cells(30))
    assert isinstance(route.guard, Guard)
    assert route.guard.turns == [(0, 0), (30, staged.bytes)]


class SlowToClose(Local):
    """Files are closed when they are told to."""

    def __init__(self) -> None:
        self.may_close, self.closed = threading.Event(), list[str]()

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        super().write(path, chunks, block_size=block_size)
        assert self.may_close.wait(20)
        self.closed.append(path)


def test_a_file_may_be_closed_while_the_next_is_written_but_not_after_it_is_loaded(
    route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, requested = SlowToClose(), list[list[str]]()

    def load_once(self: Loader, staged: Sequence[StagedHFile]) -> list[StagedHFile]:
        assert {file.path for file in staged} == set(files.closed)
        requested.append([file.path for file in staged])
        return []

    monkeypatch.setattr(bulk_loader, "shared_files", lambda *_: files)
    monkeypatch.setattr(Loader, "_load_once", load_once)
    loader = Loader(route, "t", f"{tmp_path}/piece")
    staged = [file for family in (b"f", b"g") for file in loader.stage(family, b"", StoreFormat(), cells(30))]
    assert [file.cells for file in staged] == [30, 30]
    assert not files.closed
    threading.Timer(0.2, files.may_close.set).start()
    loader.load(staged)
    assert [sorted(paths) for paths in requested] == [sorted(files.closed)]


def test_however_many_regions_there_are_a_few_files_are_closed_at_a_time(
    route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a small file of each region was under way at once, with a thread and a connection of its own."""
    writing, most, changed = list[str](), list[int](), threading.Lock()

    class Slow(Local):
        def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
            with changed:
                writing.append(path)
                most.append(len(writing))
            super().write(path, chunks, block_size=block_size)
            time.sleep(0.05)
            with changed:
                writing.remove(path)

    monkeypatch.setattr(bulk_loader, "shared_files", lambda *_: Slow())
    loader = Loader(route, "t", f"{tmp_path}/piece")
    monkeypatch.setattr(loader._client, "regions", lambda table: regions(b"", *ROWS[1:], b""))
    staged = [file for family in (b"f", b"g") for file in loader.stage(family, b"", StoreFormat(), cells(30))]
    loader.await_closed()
    assert len(staged) == len(most) == 2 * len(ROWS)
    assert 1 < max(most) <= bulk_loader.CLOSING_AT_ONCE


def test_nothing_is_written_to_once_staging_has_failed(
    route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[tuple[Bytes, Int64s]]:
        yield from cells(30)
        raise UsageError("the source is gone")

    files = SlowToClose()
    monkeypatch.setattr(bulk_loader, "shared_files", lambda *_: files)
    loader = Loader(route, "t", f"{tmp_path}/piece")
    loader.stage(b"f", b"", StoreFormat(), cells(30))
    threading.Timer(0.2, files.may_close.set).start()
    with pytest.raises(UsageError, match="the source is gone"):
        loader.stage(b"g", b"", StoreFormat(), broken())
    assert len(files.closed) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "write HFile"]


Ask = Callable[[Region, Sequence[str]], bool]


@dataclass
class Regions:
    """Two regions whose stores have a file that was loaded earlier. `ask`: what a request to load does."""

    ask: Ask

    def __post_init__(self) -> None:
        self.found = regions(b"", b"15", b"")
        self.stores = {region.encoded: ["a1_SeqId_3_"] for region in self.found}

    def cluster_id(self) -> str:
        return str(UUID(int=1))

    def regions(self, table: str) -> list[Region]:
        return self.found

    def locate(self, table: str, row: bytes) -> Region:
        return next(region for region in self.found if region.holds(row))

    def store_files(self, region: Region, family: bytes) -> list[str]:
        return self.stores[region.encoded]

    def bulk_load(self, region: Region, files: Sequence[tuple[bytes, str]], *_: object, **__: object) -> bool:
        return self.ask(region, [path for _, path in files])


@pytest.fixture
def loaded(route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Regions], Loader]:
    def loader(there: Regions) -> Loader:
        monkeypatch.setattr(bulk_loader, "shared_client", lambda target: there)
        return Loader(replace(route, limits=write_limits(settle_seconds=0.0)), "t", f"{tmp_path}/piece")

    return loader


def test_a_file_that_is_gone_was_loaded_if_its_store_has_got_one_since(loaded: Callable[[Regions], Loader]) -> None:
    def ask(region: Region, paths: Sequence[str]) -> bool:
        asked.append(region.encoded)
        for number, path in enumerate(paths):
            Path(path).unlink()
            there.stores[region.encoded] = [*there.stores[region.encoded], f"b{number}_SeqId_9_"]
        raise RequestTimeoutError("no answer", sent=True)

    asked: list[str] = []
    loader = loaded(there := Regions(ask))
    loader.load(loader.stage(b"f", b"", StoreFormat(), cells(30)))
    assert asked == ["", "15"]


def test_whether_a_file_was_loaded_is_unknown_if_it_is_gone_and_its_store_has_got_none(
    loaded: Callable[[Regions], Loader],
) -> None:
    """Hole: a file of the same length, of an earlier load, was taken for it."""

    def ask(region: Region, paths: Sequence[str]) -> bool:
        Path(paths[0]).unlink()
        raise RequestTimeoutError("no answer", sent=True)

    loader = loaded(Regions(ask))
    with pytest.raises(
        TransientError, match=r"unknown whether t loaded .*/1: the file is gone, and the store does not"
    ):
        loader.load(loader.stage(b"f", b"", StoreFormat(), cells(30)))


@pytest.mark.parametrize("refusal", [RemoteError("no such family"), WorkerLoginError("its token ended", sent=False)])
def test_a_refusal_of_one_region_leaves_no_file_that_a_late_request_to_another_could_still_take(
    refusal: WalferryError, loaded: Callable[[Regions], Loader]
) -> None:
    def ask(region: Region, paths: Sequence[str]) -> bool:
        if region.encoded == "":
            late.extend(map(Path, paths))
            raise RequestTimeoutError("no answer", sent=True)
        raise refusal

    late: list[Path] = []
    loader = loaded(Regions(ask))
    staged = loader.stage(b"f", b"", StoreFormat(), cells(30))
    with pytest.raises(type(refusal), match=refusal.message):
        loader.load(staged)
    assert [path.exists() for path in late] == [False]
