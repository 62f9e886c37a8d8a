"""Cut the source's log: roll every WAL and observe each roll, so that everything written before is in sealed files.

A cut also takes the line of each region (which server has it, and since which opening) before the first roll and after
the last. Equal lines at two cuts prove that the region stood still between them, because every opening raises the
region's open sequence number in hbase:meta. So everything written to its rows in between is in one WAL group, in order.
While a region is in transition, its line never equals any other.

A cut is quiet for a region that did not move during the cut. Only a quiet cut guarantees that, for every edit in the
files before it, the earlier edits of the row are in those files too. If the region moves, a row's first edit may come
after the old server's roll and its second edit before the new server's.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from walferry import ledger
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import TableNotFoundError
from walferry.hbase.zookeeper import Server
from walferry.ledger import LogPosition, SeenFile
from walferry.replay.keeping.protect import not_applied, take_stock, way_of
from walferry.replay.log.idle import idle_servers
from walferry.request_meter import unhindered_s
from walferry.run.facts import FenceFacts, Lines, keep_lines, keeping_start, kept_start
from walferry.run.log_folder import require_log_folder
from walferry.run.run import LogRun
from walferry.wal.files import Place, WalFile, if_sealed, parse_wal_name
from walferry.wal.open import bytes_held

log = logging.getLogger(__name__)

ROLL_SECONDS = 60.0
REST_SECONDS = 120.0
SPLIT_SECONDS = 120.0


@dataclass(frozen=True)
class Cut:
    """The files before the cut hold everything written before `started_ms`; `current` and later files hold the rest."""

    started_ms: int
    before: Lines
    """the lines before the first roll"""
    after: Lines
    """the lines after the last roll"""
    files: list[WalFile]
    """the WAL files after the last roll; perhaps only those archived files that matter (`_with_archive`)"""
    current: dict[str, int]
    """for each group, the number of the first file after the cut"""
    regions: dict[str, list[Region]]
    """each table's regions after the last roll, whose lines are `after`"""
    whole: bool = False
    """whether `files` has all existing WAL files"""

    def below(self) -> list[WalFile]:
        """The sealed files before the cut, without dead servers' files that HBase is still splitting."""
        return [f for f in self.files if not self._is_splitting(f) and self.is_before(f.group, f.number)]

    def begun(self) -> list[WalFile]:
        """The newest file of each WAL group that still writes."""
        return [file for file in self.files if file.number == self.current.get(file.group)]

    @cached_property
    def groups(self) -> frozenset[str]:
        """The WAL groups that had a file at the cut."""
        return frozenset(file.group for file in self.files)

    def is_before(self, group: str, number: int) -> bool:
        """Whether the group's file with this number was created before the cut and is no longer written to. False for
        groups that appeared later."""
        return group in self.groups and number < self.current.get(group, number + 1)

    def is_quiet(self, table: str, beside: Collection[str] = ()) -> bool:
        """Whether no region of the table, except those in `beside`, moved during the cut."""
        moved = self.before[table].items() ^ self.after[table].items()
        return all(region in beside for region, _ in moved)

    def splitting(self) -> list[WalFile]:
        """Files of dead servers that HBase splits or is about to split; they are applied once they are archived."""
        return [file for file in self.files if self._is_splitting(file)]

    def _is_splitting(self, file: WalFile) -> bool:
        return file.place is Place.SPLITTING or (file.place is Place.LIVE and file.group not in self.current)


def lines_of(client: HBaseClient, table: str, regions: Sequence[Region]) -> dict[str, str]:
    """The current line of each region of a table: server with its start code, open sequence number.

    A region of an enabled table that is not open on a live server gets a line that never equals any other.
    """
    alive = {server.name for server in client.servers()}
    lines = {region.encoded: line_of(region) for region in regions}
    moving = [r.encoded for r in regions if r.server is None or r.server.name not in alive]
    if moving and client.table_enabled(table):
        lines |= {region: f"in transition {uuid4().hex}" for region in moving}
    return lines


def line_of(region: Region) -> str:
    """The line of a region that is not in transition."""
    return line_at(region.server.name if region.server else "-", region.open_sequence)


def line_at(server: str, open_sequence: int) -> str:
    """The line of a region that is open on a server, by its open sequence number in hbase:meta."""
    return f"{server} {open_sequence}"


def server_of(line: str) -> str:
    """The server in the line of a region that is not in transition."""
    return line.rpartition(" ")[0]


def standing(earlier: Lines, later: Lines) -> dict[str, frozenset[str]]:
    """The regions of each table that stood still between two cuts."""
    return {
        table: frozenset(region for region, _ in lines.items() & earlier.get(table, {}).items())
        for table, lines in later.items()
    }


def regions_if_exists(client: HBaseClient, table: str) -> list[Region]:
    """The table's regions; none when somebody dropped it (`cutover.gates` reports that)."""
    try:
        return client.regions(table)
    except TableNotFoundError:
        return []


def cut_log(run: LogRun, *, whole: bool = False, applied: Lines | None = None) -> Cut:
    """Roll the source's WALs and wait until each group has a new file and its previous file is closed.

    `whole`: list all archived files, not only those that matter to the run (`_with_archive`). `applied`: the lines of
    the last applied cut; while they are unchanged, servers to which nothing was written since are not rolled.
    Raises TransientError if the rolls are not finished within a minute, or if servers' logs are elsewhere.
    """
    names, started_ms = run.source_tables, time.time_ns() // 1_000_000
    before = {name: lines_of(run.source, name, regions_if_exists(run.source, name)) for name in names}
    servers = run.source.servers()
    # Edits from before a move may be on any server, even on one that has no region of the tables now.
    idle, remember = idle_servers(run, servers, started_ms, may_rest=before == applied)
    old = newest(run.wal_listing.live())
    deadline = unhindered_s() + ROLL_SECONDS
    for server in servers:
        if server.name not in idle:
            _roll(run, server, deadline)
    closed: dict[str, WalFile] = {}
    while True:
        files = run.wal_listing.live()
        # Ask after the listing: a server registers before it opens a log, so no live server of a listed log seems dead.
        alive = {server.name for server in run.source.servers()}
        new = newest(file for file in files if file.place is Place.LIVE)
        waiting = [
            group for group, file in old.items()
            if file.place is Place.LIVE and file.server in alive and file.server not in idle
            and (group not in new or new[group].number <= file.number)
        ]  # fmt: skip
        left = [
            file for file in files
            if file.place is Place.LIVE and file.server in alive
            and (old[file.group].number if file.group in old else 0) <= file.number < new[file.group].number
        ]  # fmt: skip
        # A new file in the listing need not be in use yet: its predecessor may receive edits until it is closed.
        for file in () if waiting else left:
            if file.name not in closed:
                now = if_sealed(run.wal_files, run.wal_root, file)
                if now is None:
                    break
                closed[file.name] = now
        if not waiting and all(file.name in closed for file in left):
            break
        if unhindered_s() > deadline:
            open_one = old[waiting[0]].name if waiting else next(f.name for f in left if f.name not in closed)
            raise TransientError(
                f"the source was asked to roll its WALs {ROLL_SECONDS:.0f} s ago and has not closed {open_one} yet; "
                "check the region server's log",
                file=open_one,
            )
        time.sleep(0.3)
    remember()
    # A server that died during the cut has no file after it: HBase splits and archives the server's whole folder.
    current = {group: file.number for group, file in new.items() if file.server in alive}
    regions = {name: regions_if_exists(run.source, name) for name in names}
    after = {name: lines_of(run.source, name, regions[name]) for name in names}
    _require_logs(run, files, servers, before)
    # Take closed files from `closed`: the listing shows no length for a file that was open.
    files = _with_archive(run, [closed.get(file.name, file) for file in files], whole=whole)
    return Cut(started_ms, before, after, files, current, regions, run.wal_listing.whole)


def _require_logs(run: LogRun, files: Iterable[WalFile], servers: Iterable[Server], before: Lines) -> None:
    """Raise TransientError if servers log elsewhere. That is only looked at if one with regions, or each, has no log
    among the listed: until it has a region, a server may have none."""
    serving = {server_of(line) for lines in before.values() for line in lines.values()}
    names = {server.name for server in servers}
    lacking = names - {file.server for file in files}
    if lacking & serving or (lacking and lacking == names):
        require_log_folder(run.source, "source", run.source_tables, run.wal_files)


def _roll(run: LogRun, server: Server, deadline: float) -> None:
    """Keep asking a server to roll its WALs until it answers or counts as dead: a dead server's ZooKeeper session may
    end late."""
    told = False
    while True:
        try:
            return run.source.roll_wal(server, attempts=1)
        except TransientError as error:
            if server.name not in {alive.name for alive in run.source.servers()}:
                return None
            if unhindered_s() > deadline:
                raise
            if not told:
                log.warning(
                    "%s does not answer; asking again until it answers or counts as dead: %s", server.name, error
                )
                told = True
        time.sleep(1.0)


def _with_archive(run: LogRun, live: Sequence[WalFile], *, whole: bool) -> list[WalFile]:
    """The live files, and the archived files that matter: seen or queued for the run's peer, and not applied yet.

    A log that was created, closed and archived since the last cut is in the peer's queue, or holds no edit
    (`completeness`). Without a peer all archived files are listed: the cleaner leaves few of them.
    """
    way = way_of(run)
    if whole or not way.NAMES_EVERY_LOG:
        return run.wal_listing.with_archive(live, (), whole=True)
    fences = run.fences()
    expected = {file.name for file in fences.within(run.ledger.log.unapplied())}
    for name in not_applied(run, way.kept(run)):
        place = parse_wal_name(name)
        if place is not None and fences.starts_by(place):
            expected.add(name)
    return run.wal_listing.with_archive(live, expected, whole=whole)


def quiet_cut(run: LogRun) -> Cut:
    """A cut during which no region of the run's tables moved. Raises TransientError after two minutes without one."""
    return cut_until(run, lambda cut: [table for table in cut.before if not cut.is_quiet(table)], whole=True)


def cut_until(
    run: LogRun, moving: Callable[[Cut], Collection[str]], *, whole: bool = False, applied: Lines | None = None
) -> Cut:
    """Cut the log, as `cut_log` does, until `moving` returns no table whose moves spoil the cut.

    Raises TransientError after two minutes.
    """
    deadline = unhindered_s() + REST_SECONDS
    logged = ""
    while True:
        cut = cut_log(run, whole=whole, applied=applied)
        moved = ", ".join(sorted(moving(cut)))
        if not moved:
            return cut
        if unhindered_s() > deadline:
            raise TransientError(
                f"regions of {moved} moved during every cut of the log for {REST_SECONDS:.0f} s; "
                "pause the balancer and try again",
                tables=moved.split(", "),
            )
        if moved != logged:
            logged = moved
            log.info("regions of %s moved during the cut of the log; cutting again until none moves", moved)
        time.sleep(1.0)


def await_archive(run: LogRun) -> list[WalFile]:
    """Wait until HBase has split and archived dead servers' logs, and list all WAL files. Raises TransientError after
    two minutes."""
    deadline = unhindered_s() + SPLIT_SECONDS
    while True:
        alive = {server.name for server in run.source.servers()}
        files = run.wal_listing.live()
        left = [f for f in files if f.place is Place.SPLITTING or (f.place is Place.LIVE and f.server not in alive)]
        if not left:
            return _with_archive(run, files, whole=True)
        if unhindered_s() > deadline:
            raise TransientError(
                f"the source is still splitting {left[0].path} after {SPLIT_SECONDS:.0f} s; "
                "check the source's master, then run again",
                file=left[0].name,
            )
        time.sleep(1.0)


def newest(files: Iterable[WalFile]) -> dict[str, WalFile]:
    """The newest file of each group."""
    found: dict[str, WalFile] = {}
    for file in files:
        if file.group not in found or found[file.group].number < file.number:
            found[file.group] = file
    return found


# ------------------------------------------------------------------ fences


def start_fence(run: LogRun) -> FenceFacts:
    """Cut the log and record, for every group that exists now, where replay begins.

    Every edit that a later snapshot lacks is at or past these positions. The snapshot has all edits of dead servers'
    groups, even of groups that are still being split: a region reopens only after it has recovered those edits, and a
    snapshot waits for its regions. Groups that appear later are read from their first file.
    """

    def work() -> dict[str, Any]:
        cut = quiet_cut(run)
        positions = start_positions(cut)
        facts = FenceFacts(groups=len(positions), at_ms=cut.started_ms)
        # In one transaction: a kill may come before this phase is done, and regions have moved when it is done again.
        run.ledger.log.set_fence("start", positions, keeping_start(run, facts, cut.before))
        record_seen(run, [file for file in cut.files if run.fences().starts_by(file)], sealed=())
        take_stock(run, cut.files)
        return (kept_start(run) or facts).model_dump()

    return FenceFacts.model_validate(run.once("fence", work))


def start_positions(cut: Cut) -> list[LogPosition]:
    """Where the log after a cut begins, in each WAL group that existed then."""
    by_group: dict[str, list[WalFile]] = defaultdict(list)
    for file in cut.files:
        by_group[file.group].append(file)
    positions = []
    for group, files in by_group.items():
        after = [file for file in files if file.number >= cut.current.get(group, file.number + 1)]
        if after:
            first = min(after, key=lambda file: file.number)
            positions.append(LogPosition(group, first.name, first.number, 0))
        else:  # a dead server's group: replay begins after its last file
            positions.append(LogPosition(group, "", max(file.number for file in files) + 1, 0))
    return positions


def end_fence(run: LogRun) -> FenceFacts:
    """Cut the log after writes have stopped: replay ends at the positions recorded here."""

    def work() -> dict[str, Any]:
        cut = quiet_cut(run)
        see(run, cut)
        first = {file.group: file for file in cut.files if file.number == cut.current.get(file.group)}
        positions = [LogPosition(group, file.name, file.number, 0) for group, file in sorted(first.items())]
        run.ledger.log.set_fence("end", positions)
        keep_lines(run, "end fence", cut.before)
        return FenceFacts(groups=len(positions), at_ms=cut.started_ms).model_dump()

    return FenceFacts.model_validate(run.once("end_fence", work))


def see(run: LogRun, cut: Cut) -> list[WalFile]:
    """Record every file at or after the start fence in the ledger. Returns those that are before the cut.

    If the whole archive was listed, applied files that no longer exist at the source are folded.
    """
    fences = run.fences()
    wanted = [file for file in cut.files if fences.starts_by(file)]
    below = {file.name for file in cut.below()}
    record_seen(run, wanted, sealed=below)
    if cut.whole:
        run.ledger.log.fold({file.name for file in cut.files})
        take_stock(run, cut.files)
    return [file for file in wanted if file.name in below]


def record_seen(run: LogRun, files: Iterable[WalFile], sealed: Collection[str]) -> None:
    """Record a listing in the ledger; `sealed`: names of the files that nobody writes to any more.

    The listing does not show whether an open file holds anything, so each call opens such a file until an entry is
    found in it. If the log is later deleted together with its server, the ledger knows whether it ever held an entry.
    """
    listed = {file.name: file for file in files}
    for name in run.ledger.log.applied(listed):
        del listed[name]  # an applied file no longer changes
    known = run.ledger.log.known(listed)
    seen = []
    for file in listed.values():
        if file.name not in sealed and not file.length and not (file.name in known and known[file.name].length):
            file = replace(file, length=bytes_held(run.wal_files, run.wal_root, file))
        seen.append(as_seen(file, file.name in sealed))
    run.ledger.log.see_files(seen)


def as_seen(file: WalFile, sealed: bool) -> SeenFile:
    """A listed file as the ledger records it."""
    return SeenFile(file.name, file.group, file.server, file.number, file.path, file.length, sealed)


def as_listed(file: ledger.RecordedFile) -> WalFile:
    """A file of the ledger in the form of a listing, for readers that look up where it is now."""
    return WalFile(file.name, file.group, file.server, file.number, file.path, Place.ARCHIVED, file.length)
