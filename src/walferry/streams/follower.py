"""Follows the log and sends every change of the stream's tables, in row order, in one transaction for each pass.

A pass lists the log, reads what has become visible, asks the servers which of it they have acknowledged, puts it in the
order of each region (`ordering.order`) and sends it. The transaction also has the positions, so after a kill another
process goes on exactly there: it reads the log again from the first entry that was not sent, and knows by each region's
number what was.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from walferry.apply.region_events import origins
from walferry.clock import now_ms, steady_s
from walferry.errors import GapError, TransientError
from walferry.formats.markers import Marker
from walferry.formats.wal import EntryBatch
from walferry.hbase.client import HBaseClient
from walferry.replay.log.lineage import FIRST_SEQUENCE
from walferry.storage import FileSystem
from walferry.streams.delivery import Committer
from walferry.streams.image.rows import RowImages
from walferry.streams.ordering.order import RegionOrder
from walferry.streams.ordering.regions import KnownRegions
from walferry.streams.ordering.repeated import require_written_again
from walferry.streams.ordering.sent import GroupRead, RegionSent, StreamPositions
from walferry.streams.ordering.stays import NEVER, LogPlace, Taken
from walferry.streams.sending import Refused, Sending
from walferry.wal.files import WalFile, find_wal, live_file, parse_wal_name
from walferry.wal.live_tail import LiveTail
from walferry.wal.offsets import BatchLimits, CertainListing, FileSpan, GroupPosition, Offset, missing
from walferry.wal.open import Until, is_length_final, open_wal

log = logging.getLogger(__name__)

PASS_BYTES = 8 << 20
"""most bytes of log that one pass reads, except for a single longer entry"""
BATCH_BYTES = 4 << 20
READERS = 4
ROLL_AFTER_SECONDS = 30.0
"""an entry that waits this long for its acknowledgement, and whose file is open, has its server's WAL rolled"""
IDLE_COMMIT_SECONDS = 10.0
"""positions are recorded this often when there is nothing to send"""
FORGET_SECONDS = 600.0
"""time between two looks for regions that no longer exist"""
MOST_WAITING_BYTES = 512 << 20
"""bytes of entries that may wait for their order to be known; a pass that reads beyond fails"""
_OF_STREAM = (Marker.REGION_OPEN, Marker.REGION_CLOSE)


@dataclass
class Tally:
    """What was read of a file for one table."""

    entries: int = 0
    cells: int = 0
    first_write_ms: int | None = None
    last_write_ms: int | None = None

    def add(self, batch: EntryBatch, picked: npt.NDArray[np.intp]) -> None:
        """Count these entries."""
        times = batch.write_time[picked]
        self.entries += len(picked)
        self.cells += int(batch.cell_count[picked].sum())
        self.first_write_ms = min(int(times.min()), self.first_write_ms or 2**62)
        self.last_write_ms = max(int(times.max()), self.last_write_ms or 0)


@dataclass(frozen=True)
class Passed:
    """What one pass did."""

    messages: int
    bytes: int
    """of the messages' values"""
    cells: int
    """of the entries sent; filters may have left some of them out"""
    read_bytes: int
    read_ms: int | None
    """everything acknowledged that was written before this moment was read; None: not known"""
    waiting: frozenset[str]
    """the tables of which something was read and not sent"""
    covered_ms: int | None
    """everything acknowledged that was written before this moment is sent, but for held tables; None: not known"""
    refused: tuple[Refused, ...] = ()


class Follower:
    """Follows the log of a cluster for one stream. Not thread-safe; after any error, begin with a new one."""

    def __init__(
        self,
        source: HBaseClient,
        files: FileSystem,
        root: str,
        tables: Collection[str],
        sending: Sending,
        sink: Committer,
        known: KnownRegions,
        positions: StreamPositions,
        held: Collection[str] = (),
        held_tables: Collection[str] = (),
        images: RowImages | None = None,
    ) -> None:
        """`tables`: as the log names them. `positions`: where to begin. `held`: regions to hold from their first entry
        that was not sent; `held_tables`: tables whose regions are all held so. `images`: what reads the row after each
        change; None: nothing does."""
        self._source = source
        self._files = files
        self._root = root
        self._tables = frozenset(tables)
        self._sending = sending
        self._sink = sink
        self._images = images
        self._known = known
        self._tail = LiveTail(files, root)
        self._committed = self._written = positions
        self._committed_s = steady_s()
        self._offset = Offset(1, {group: read.sent for group, read in positions.groups.items()})
        self._numbers: dict[str, set[int]] = {}
        """of each group, the files from the first one that is not sent whole"""
        before = {group: read.read for group, read in positions.groups.items()}
        first_number = FIRST_SEQUENCE if source.release.opens_past_closing else NEVER
        self._held_tables = frozenset(held_tables)
        self._order = RegionOrder(before, known.share_rows, first_number, held_tables, known.origin)
        for region, sent in positions.regions.items():
            self._order.know(sent.table, region, sent.server, sent.number, sent.incarnation)
        for region, sent in positions.regions.items():
            if region in held or sent.table in held_tables:
                self._order.hold(region, {}, sent.number)
        self.tallies: dict[str, dict[str, Tally]] = {}
        """by file and table, of files that were read from their beginning; the caller drops files it needs no more"""
        self._rolled: dict[str, float] = {}
        self._waits_since: float | None = None
        self._forgot_s = steady_s()

    @property
    def positions(self) -> StreamPositions:
        """What the destination has on record: a kill of this process would not lose it."""
        return self._written

    def write(self) -> None:
        """Have the destination write what it keeps."""
        self._sink.write()
        self._written = self._committed

    def tend(self) -> None:
        """Have the destination write what it keeps, if it is time to."""
        if self._sink.keeps_positions:
            self._sink.commit({})
        if not self._sink.keeps_positions:
            self._written = self._committed

    def pass_once(self) -> Passed:
        """Make one pass: read, order, send, commit."""
        began_ms = now_ms()
        if self._images is not None:
            self._images.begin()
        start = self._offset
        end = self._tail.next(start, BatchLimits(PASS_BYTES if self._images is None else self._images.pass_bytes))
        taken = self._read(end.spans) if end is not start else []
        self._offset = end
        self._note_files(end)
        self._seal()
        whole = self._tail.whole
        for table, regions in _regions(taken).items():
            self._known.learn(table, regions)
        answers = self._known.read_points(self._order.asks(taken))
        if self._images is not None:
            self._images.note(taken, answers)
        passed = self._order.pass_on(taken, answers, whole=whole)
        for one in self._order.take_repeated():
            earlier = [file for file in self._tail.listing.groups.get(one.group, ()) if file.number < one.number]
            require_written_again(self._files, self._root, earlier, one)
        sent = self._sending.send(passed, self._order.incarnation)
        for region, places in sent.held.items():
            before = self._committed.regions.get(region)
            self._order.hold(region, places, sent.last.get(region, NEVER if before is None else before.number))
        self._commit(bool(sent.messages))
        if sent.refused:
            self.write()  # before the ledger has them
        is_written = not self._sink.keeps_changes
        self._roll_late()
        if whole and steady_s() - self._forgot_s > FORGET_SECONDS:
            self._forget_gone()
        if self._order.waiting_bytes > MOST_WAITING_BYTES:
            raise TransientError("too many entries wait for their order to be known")
        waiting = self._order.waiting_tables()
        read_ms = began_ms if whole else None
        covered = read_ms if is_written and not waiting - self._held_tables else None
        if self._images is not None:
            numbers = {name: known.number for name, known in self._committed.regions.items()}
            self._images.settle(numbers, None if waiting else read_ms)
        size = sum(span.stop - span.start for span in end.spans) if end is not start else 0
        return Passed(
            sent.messages, sent.bytes, sent.cells, size, read_ms, waiting, covered, tuple(sent.refused)
        )  # fmt: skip

    def record(self) -> None:
        """Record the positions now, also if nothing was sent."""
        self._commit(True)

    def _read(self, spans: Sequence[FileSpan]) -> list[Taken]:
        with ThreadPoolExecutor(READERS, thread_name_prefix="stream") as readers:
            found = [one for some in readers.map(lambda span: list(self._entries(span)), spans) for one in some]
        begun = {span.file for span in spans if not span.start}
        self.tallies |= {file: {} for file in begun}
        for one in found:
            self._known.note_origins(origins(one.batch, one.picked))
            if one.file in self.tallies:
                count(one, self.tallies[one.file])
        return found

    def _tables_in(self, file: WalFile) -> frozenset[str]:
        """The tables for which a file counts: not those that joined the stream later."""
        tables = self._committed.tables
        late = {
            name for name in self._tables if name in tables and file.number < tables[name].begins.get(file.group, 0)
        }
        return self._tables - late

    def count_file(self, file: str) -> dict[str, Tally]:
        """Count a sealed file, by table."""
        found: dict[str, Tally] = {}
        for one in self._entries(FileSpan(file, 0, 0, True)):
            count(one, found)
        return found

    @property
    def listing(self) -> CertainListing:
        """The log's files at the last pass."""
        return self._tail.listing

    def _entries(self, span: FileSpan) -> Iterator[Taken]:
        file = live_file(self._root, span.file)
        assert file is not None, span.file
        tables = self._tables_in(file)
        stop = None if span.sealed else span.stop
        wal = open_wal(
            self._files, self._root, file, Until.SEALED, start=span.start, stop=stop, batch_bytes=BATCH_BYTES
        )
        try:
            for batch in wal:
                wanted = batch.holds_data | batch.of_kinds(_OF_STREAM)
                picked = np.flatnonzero(wanted & batch.of_tables(tables))
                if len(picked):
                    yield Taken(file.group, file.server, file.number, batch, picked, span.sealed)
        except GapError:
            raise missing(span.file, span.start) from None

    def _note_files(self, end: Offset) -> None:
        for group, position in end.groups.items():
            self._numbers.setdefault(group, set()).update((position.number, *position.ahead))

    def _seal(self) -> None:
        """Tell the order which files with waiting entries are sealed, and with how many bytes."""
        for group, number in self._order.open_files():
            position = self._offset.groups.get(group)
            if position is None or not (position.number > number or position.read or position.over):
                continue
            name = f"{group}.{number}"
            file = live_file(self._root, name)
            assert file is not None, name
            now = find_wal(self._files, self._root, file)
            if now is None:
                raise missing(name, 0)
            if not is_length_final(self._files, now):
                continue
            before = self._order.taken_back
            self._order.seal(group, number, now.length)
            if taken_back := self._order.taken_back - before:
                log.warning(
                    "WAL file %s was sealed without %d entries that it had shown: they were never acknowledged, and "
                    "were not sent", name, taken_back,
                )  # fmt: skip

    def _commit(self, sent: bool) -> None:
        if sent or steady_s() - self._committed_s >= IDLE_COMMIT_SECONDS:
            now = self._now()
            changed = now.changed(self._committed)
            if sent or changed:
                self._sink.commit(changed)
            self._committed, self._committed_s = now, steady_s()
        self.tend()

    def _now(self) -> StreamPositions:
        unsent = self._order.unsent()
        groups = {}
        for group, position in self._offset.groups.items():
            place = unsent.get(group)
            read = LogPlace(position.number, position.offset)
            if (before := self._committed.groups.get(group)) is not None:
                read = max(read, before.read)  # at first, this process reads again what an earlier one has read
            if place is not None and place < (position.number, position.offset):
                numbers = sorted(number for number in self._numbers[group] if number > place.number)
                position = GroupPosition(place.number, place.offset, ahead=tuple(numbers))
            self._numbers[group] = {n for n in self._numbers[group] if n >= position.number}
            groups[group] = GroupRead(position, read)
        regions = {
            name: RegionSent(*known, self._known.rows_of(name), self._known.origin(name))
            for name, known in self._order.sent().items()
        }  # fmt: skip
        tables = {
            name: replace(table, schema=self._sending.schemas.get(name, ""))
            for name, table in self._committed.tables.items()
        }
        return StreamPositions(groups, regions, tables, self._committed.epoch)

    def _forget_gone(self) -> None:
        """Forget regions that no longer exist."""
        if self._order.unsent():
            return
        self._forgot_s = steady_s()
        for table in self._tables:
            self._order.forget_gone(table, self._known.present(table))

    def _roll_late(self) -> None:
        """Roll the WAL of servers whose entries have waited for long: a sealed file needs no acknowledgement."""
        waiting = {group for group, _ in self._order.open_files()}
        if not waiting:
            self._waits_since = None
            return
        self._waits_since = self._waits_since or steady_s()
        if steady_s() - self._waits_since < ROLL_AFTER_SECONDS:
            return
        servers = {parsed.server for group in waiting if (parsed := parse_wal_name(f"{group}.0"))}
        for server in self._source.servers():
            if server.name in servers and steady_s() - self._rolled.get(server.name, -1e9) > 2 * ROLL_AFTER_SECONDS:
                log.info("rolling the WAL of %s: entries wait for their acknowledgement", server.name)
                self._rolled[server.name] = steady_s()
                self._source.roll_wal(server)


def count(one: Taken, tallies: dict[str, Tally]) -> None:
    """Add the edits among these entries to the tally of their table."""
    edits = one.picked[one.batch.holds_data[one.picked]]
    for code in np.unique(one.batch.table[edits]).tolist():
        tally = tallies.setdefault(one.batch.tables[code].decode(), Tally())
        tally.add(one.batch, edits[one.batch.table[edits] == code])


def _regions(taken: Sequence[Taken]) -> dict[str, set[str]]:
    """The regions of these entries, by table."""
    found: dict[str, set[str]] = defaultdict(set)
    for one in taken:
        pairs = np.unique(np.stack([one.batch.table[one.picked], one.batch.region[one.picked]]), axis=1)
        for table, region in pairs.T.tolist():
            found[one.batch.tables[table].decode()].add(one.batch.regions[region].decode())
    return found
