"""Writes sorted cells to HFiles on the target's file system, and has its regions take them.

A file belongs to one region and family, and to edits of one origin. It lies in a folder of this attempt, below the
piece's folder. A load request moves all of its files, or none. If the outcome of a request is unknown, this module
renames the request's files: the request can no longer take a file that was still there to rename. The files that are
gone count as taken if the region's store has gained at least as many loaded files since. (They are only counted,
because HBase gives loaded files other names.)
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import Full, Queue
from uuid import UUID, uuid4

from walferry.apply.permit import Permit
from walferry.apply.route import Route
from walferry.background import begun
from walferry.clock import now_ms, steady_s
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import Bytes, Int64s, as_run
from walferry.formats.hfile import HFile
from walferry.formats.hfile_writer import StoreFormat, WrittenFile, hfile_chunks
from walferry.formats.order import count_below
from walferry.formats.wal import cluster_ids
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError, RemoteError, ServerBusyError
from walferry.security.handed import WorkerLoginError
from walferry.spark.clients import shared_client, shared_files
from walferry.storage import FileSystem

log = logging.getLogger(__name__)

CLOSING_AT_ONCE = 8
"""most files of a piece that are open at once: each takes a thread and a connection, and a small file also takes memory
for its bytes; a table may have thousands of regions"""

LOADED = "_SeqId_"
"""a part of the names that HBase gives to loaded files (HStore.getBulkLoadSeqId)"""

Cells = Iterator[tuple[Bytes, Int64s]]
"""sorted cells: a buffer, and where each begins in it"""


def staging_folder(root: str, table: str) -> str:
    """The folder in which files for a target table wait to be loaded, on the file system of HBase's root: a region
    moves them.

    The holder of the table's lease first removes this folder, so that a late request of an earlier holder finds no
    file.
    """
    return f"{root.rstrip('/')}/staging/walferry/{table.replace(':', '=')}"


@dataclass(frozen=True)
class StagedHFile:
    """An HFile that is to be loaded."""

    region: str
    """encoded name of the region it was written for"""
    family: bytes
    clusters: bytes
    format: StoreFormat
    path: str
    first_row: bytes
    last_row: bytes
    cells: int
    bytes: int
    beside: frozenset[str] = frozenset()
    """names of the loaded files that the region's store had before the request"""


@dataclass
class Loader:
    """Stages and loads the files of one piece. `folder`: the piece's folder on the target's file system.

    HDFS takes a while to close a file, so the next file is written meanwhile. All files are closed before any is
    loaded.
    """

    route: Route
    table: str
    """as at the source"""
    folder: str
    _files: FileSystem = field(init=False)
    _attempt: str = field(init=False, default_factory=lambda: uuid4().hex)
    _count: int = field(init=False, default=0)
    _closing: list[tuple[str, Future[None]]] = field(init=False, default_factory=list)
    """files whose last byte is handed over"""

    def __post_init__(self) -> None:
        target = self.route.target
        self._client = shared_client(target)
        self._files = shared_files(target)
        self._own = {UUID(self._client.cluster_id())}
        self._target = self.route.tables[self.table]
        self.route.guard({self._target})  # a later holder of the lease may have files there
        # Delete the files of earlier attempts, so that those attempts' requests can no longer find them.
        self._files.delete(self.folder, recursive=True)
        # A region server moves the files as its own user, who may differ from ours. So, like HBase's staging folders,
        # the attempt's folder is open to everyone who knows its name, and nobody else can list the piece's folder above
        # it.
        self._files.mkdirs(self.folder, 0o711)
        self._files.mkdirs(f"{self.folder}/{self._attempt}", 0o777)

    def stage(self, family: bytes, clusters: bytes, format: StoreFormat, cells: Cells) -> list[StagedHFile]:
        """Write the cells of one family and origin, a file for each region that has some. On return the files may still
        be open.

        Raises TransientError if no region holds some of the cells at the moment. By then no file is being written any
        more.
        """
        return self._stage(self._client.regions(self._target), family, clusters, format, cells)

    def await_closed(self) -> None:
        """Wait until all files are closed. If some cannot be closed, raises the error of the first of these, but only
        once no file is being written any more."""
        closing, self._closing = self._closing, []
        failed = [(path, error) for path, file in closing if (error := file.exception()) is not None]
        for path, error in failed:
            if isinstance(error, FileNotFoundError):
                raise TransientError(f"{path} no longer exists: another attempt has taken over", file=path) from error
            raise error

    def load(self, staged: Sequence[StagedHFile]) -> None:
        """Load all files into their regions, wherever these are now; returns once all are loaded.

        Raises TransientError if attempts run out, or if it stays unknown whether files were loaded, and RemoteError for
        errors that no attempt can change. After an error none of the files can be loaded any more.
        """
        self.await_closed()
        left = list(staged)
        for attempt in range(1, self.route.limits.attempts + 1):
            left = self._load_once(left)
            if not left:
                self._files.delete(self.folder, recursive=True)
                return
            time.sleep(min(2.0**attempt / 4, 8.0))
        raise TransientError(
            f"{len(left)} HFiles, the first {left[0].path}, could not be loaded into {self._target} in {attempt} "
            "attempts. Check that its regions are online and do not keep moving or splitting", table=self._target,
        )  # fmt: skip

    # ------------------------------------------------------------------ one attempt

    def _load_once(self, staged: Sequence[StagedHFile]) -> list[StagedHFile]:
        """Try each file once; returns the files not loaded."""
        left: list[StagedHFile] = []
        unknown: list[StagedHFile] = []
        now = self._client.regions(self._target)
        placed = [part for file in staged for part in self._placed(file, now)]
        placed.sort(key=attrgetter("region", "clusters"))
        regions = {region.encoded: region for region in now}
        for (encoded, clusters), group in groupby(placed, key=attrgetter("region", "clusters")):
            files = list(group)
            self.route.guard.wait_turn({self._target}, 0, 0)
            self.route.guard({self._target})  # a lost lease ends all, not only this region
            if encoded in {file.region for file in unknown}:
                left += files  # nothing else goes to a region while it may still be loading
                continue
            try:
                files = self._noted(regions[encoded], files)
                taken = self._request(regions[encoded], clusters, files)
            except RegionNotServedError as error:
                log.warning("region %s of %s: %s", encoded, self._target, error)
                taken = False
            except WorkerLoginError:
                self._not_taken(unknown)  # as below
                raise
            except TransientError as error:
                log.warning("region %s of %s: %s", encoded, self._target, error)
                if isinstance(error, ServerBusyError):
                    self.route.guard.slow_down()
                if error.facts.get("sent", True):
                    unknown += files
                    continue
                taken = False
            except WalferryError:
                self._not_taken(unknown)  # other regions' files: the load ends here, and they may not be loaded later
                raise
            if not taken:
                left += files
        return left + self._not_taken(unknown)

    def _request(self, region: Region, clusters: bytes, files: Sequence[StagedHFile]) -> bool:
        rows = {self._target: (min(file.first_row for file in files), max(file.last_row for file in files))}
        permit = Permit(self.route.guard, {self._target}, self.route.limits.request_seconds)
        begun = steady_s()
        permit.ask()
        try:
            loaded = self._client.bulk_load(
                region, [(file.family, file.path) for file in files], self._cluster_ids(clusters),
                timeout_s=self.route.limits.request_seconds, since=begun, may_send=permit.ask,
            )  # fmt: skip
        except WalferryError as error:
            if error.facts.get("sent", True):
                permit.check(lambda: rows)
            if isinstance(error, RemoteError) and "WrongRegionException" in str(error):
                return False
            raise
        permit.check(lambda: rows)
        if loaded:
            ignored = [file.path for file in files if self._files.status(file.path) is not None]
            if ignored:
                raise WalferryError(
                    f"region {region.encoded} of {self._target} answered that it had loaded {ignored[0]}, but left it "
                    "where it was; apply the edits by rpc, and please report this",
                    table=self._target, region=region.encoded, file=ignored[0],
                )  # fmt: skip
        return loaded

    def _not_taken(self, files: Sequence[StagedHFile]) -> list[StagedHFile]:
        """After requests with unknown outcomes: the files that they have not loaded, and no longer can.

        Raises TransientError for a file that is gone but in no store: repeating the piece writes it again.
        """
        if not files:
            return []
        time.sleep(self.route.limits.settle_seconds)
        left, gone = [], defaultdict[tuple[str, bytes], list[StagedHFile]](list)
        for file in files:
            path = self._path()
            try:
                self._files.rename(file.path, path)
            except FileNotFoundError:
                gone[file.region, file.family].append(file)
                continue
            left.append(replace(file, path=path))
        self.route.guard({self._target})  # otherwise a later holder may have removed them
        for (_, family), taken in gone.items():
            region = self._client.locate(self._target, taken[0].first_row)
            if len(self._loaded(region, family) - taken[0].beside) < len(taken):  # such as after a compaction
                raise TransientError(
                    f"it is unknown whether {self._target} loaded {taken[0].path}: the file is gone, and the store "
                    "does not show it; the piece is loaded again",
                    table=self._target, file=taken[0].path,
                )  # fmt: skip
        return left

    def _noted(self, region: Region, files: Sequence[StagedHFile]) -> list[StagedHFile]:
        """The files, each with the names of the loaded files that are in its store before the request."""
        before = {family: self._loaded(region, family) for family in {file.family for file in files}}
        return [replace(file, beside=before[file.family]) for file in files]

    def _loaded(self, region: Region, family: bytes) -> frozenset[str]:
        """Names of the bulk-loaded files in an open store; a daughter's references count as the files they refer to."""
        names = (path.rpartition("/")[2].partition(".")[0] for path in self._client.store_files(region, family))
        return frozenset(name for name in names if LOADED in name)

    def _placed(self, file: StagedHFile, regions: Sequence[Region]) -> list[StagedHFile]:
        """The file, if one region holds all of its rows; otherwise its cells, written again for each region."""
        holding = [region for region in regions if region.holds(file.first_row)]
        if holding and holding[0].holds(file.last_row):
            return [replace(file, region=holding[0].encoded)]
        log.info("%s was split; writing %s again for the new regions", self._target, file.path)
        status = self._files.status(file.path)
        if status is None:
            raise TransientError(f"{file.path} no longer exists: another attempt has taken over", file=file.path)

        hfile = HFile(partial(self._files.read, file.path), status.length, file.path)
        cells = (as_run(batch.cells) for batch in hfile.batches())
        parts = self._stage(regions, file.family, file.clusters, file.format, cells)
        self.await_closed()
        if sum(part.cells for part in parts) != file.cells:
            raise WalferryError(f"{file.path} has {file.cells} cells, but its parts differ; please report this")
        self._files.delete(file.path)
        return parts

    def _stage(
        self, regions: Sequence[Region], family: bytes, clusters: bytes, format: StoreFormat, cells: Cells
    ) -> list[StagedHFile]:
        staged = []
        try:
            for region, mine in _by_region(regions, cells, self._target):
                if len(self._closing) >= CLOSING_AT_ONCE:
                    self._closing[-CLOSING_AT_ONCE][1].exception()  # waits until it is closed, as those before it are
                # HDFS gives up an idle file. So wait for the turn before a file is begun, never while it is being
                # written.
                self.route.guard.wait_turn({self._target}, 0, 0)
                path = self._path()
                written = WrittenFile()
                chunks = hfile_chunks(mine, format, now_ms(), written)
                self._closing.append((path, _handed_over(chunks, partial(self._write, path))))
                if self._closing[-1][1].done():
                    self.await_closed()  # it failed, or was fast
                self.route.guard.wait_turn({self._target}, written.cells, written.size)
                staged.append(
                    StagedHFile(
                        region.encoded, family, clusters, format, path, written.first_row, written.last_row,
                        written.cells, written.size,
                    )
                )  # fmt: skip
        except BaseException:
            with suppress(Exception):
                self.await_closed()
            raise
        return staged

    def _write(self, path: str, chunks: Iterator[bytes]) -> None:
        self._files.write(path, chunks)
        if self.route.target.security.kerberos is not None:
            # Where HDFS checks rights, a server refuses to move what it may not write
            # (SecureBulkLoadManager.secureBulkLoadHFiles without a token).
            self._files.set_permission(path, 0o666)

    def _path(self) -> str:
        self._count += 1
        return f"{self.folder}/{self._attempt}/{self._count}"

    def _cluster_ids(self, clusters: bytes) -> list[str]:
        """The clusters that the edits have been on, except the target: a server loads nothing if the request names its
        cluster."""
        least, most = self.route.source_id
        been_on = {UUID(int=(most << 64) | least), *cluster_ids(clusters)}
        return sorted(str(found) for found in been_on - self._own)


def _handed_over(chunks: Iterable[bytes], write: Callable[[Iterator[bytes]], None]) -> Future[None]:
    """Run `write` in its own thread on chunks made in this thread; returns once all chunks are handed over."""
    waiting: Queue[bytes | BaseException | None] = Queue(1)

    def received() -> Iterator[bytes]:
        while (chunk := waiting.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    writing = begun(lambda: write(received()), "write HFile")

    def hand_over(item: bytes | BaseException | None) -> None:
        while not writing.done():
            try:
                waiting.put(item, timeout=0.1)
                return
            except Full:
                continue  # the network is slower than we are, or writing has failed

    try:
        for chunk in chunks:
            hand_over(chunk)
            if writing.done():
                break  # `write` has failed: its error is raised later
        hand_over(None)
    except BaseException as error:
        hand_over(error)
        writing.exception()  # waits until nothing more is written
        raise
    return writing


def _by_region(regions: Sequence[Region], cells: Cells, table: str) -> Iterator[tuple[Region, Cells]]:
    """Each region that has some of the sorted cells, with its cells; to be read one after the other.

    Raises TransientError for cells that no region holds.
    """
    rest: list[tuple[Bytes, Int64s]] = []

    def following() -> tuple[Bytes, Int64s] | None:
        if rest:
            return rest.pop()
        return next((found for found in cells if len(found[1])), None)

    def until(stop: bytes) -> Cells:
        while (found := following()) is not None:
            buffer, positions = found
            below = count_below(buffer, positions, stop) if stop else len(positions)
            if below:
                yield buffer, positions[:below]
            if below < len(positions):
                rest.append((buffer, positions[below:]))
                return

    for region in sorted(regions, key=attrgetter("start")):
        found = following()
        if found is None:
            return
        rest.append(found)
        if count_below(*found, region.start):
            break
        if not region.end or count_below(*found, region.end):
            yield region, until(region.end)
    if following() is not None:
        raise TransientError(f"hbase:meta has no region for some rows of {table} at the moment", table=table)
