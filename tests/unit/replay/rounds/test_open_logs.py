"""What a pass over the open logs measures, and what it asks of the source: by server, and kept in the ledger."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from unit.apply.guards import Guard
from unit.formats.wal_builder import TRAILER, entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry import clock
from walferry.apply.by_group import GroupTask, Part
from walferry.apply.route import Route
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import EntryBatch, WalReader
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import RequestTimeoutError
from walferry.hbase.versions import release_of
from walferry.ledger import Hold, LateEdit, Ledger, QuarantineItem, Round
from walferry.refusals import ANY_REGION
from walferry.replay.log.cut import Cut
from walferry.replay.rights.dirty import UnmarkedRowsError
from walferry.replay.rights.lease import LeaseLostError, OutcomeUnknownError
from walferry.replay.rounds import open_logs as following
from walferry.replay.rounds import open_tail, rounds
from walferry.replay.rounds.early import Early
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.replay.rounds.open_tail import OpenTail
from walferry.replay.rounds.rounds import NotCutError
from walferry.run.facts import keep_lines
from walferry.run.notes.sent_early import sent_early
from walferry.run.progress.lag import Followed, ahead_of, covered_ms, lag_by_group, lag_of, lag_split
from walferry.run.progress.status import status
from walferry.run.run import Run
from walferry.storage import FileStatus, Local
from walferry.wal.files import Place, WalFile, list_live
from walferry.wal.open import Until, open_wal

TABLE = "shop:orders"
SERVERS = ("rs,1,1", "rs,1,2", "rs,1,3")
NOW = 1_790_000_000_000
HERE = ClusterAddress("127.0.0.1:1")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, {TABLE: TABLE}, Guard())
LINES = {TABLE: {f"region of {server}": f"{server} 1" for server in SERVERS}}
ALL = frozenset(LINES[TABLE])
WALS = Path(__file__).parents[3] / "fixtures" / "wal"


class Counting(Local):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def list(self, path: str) -> list[FileStatus]:
        self.asked["list"] += 1
        return super().list(path)

    def status(self, path: str) -> FileStatus | None:
        self.asked["status"] += 1
        return super().status(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        self.asked["read"] += 1
        return super().read(path, offset, length)


def group_of(server: str) -> str:
    return server.replace(",", "%2C")


def path_of(run: Run, server: str) -> Path:
    """The log that a server writes to."""
    folder = Path(f"{run.wal_root}/WALs/{server}")
    return max(folder.glob("*"), default=folder / f"{group_of(server)}.{NOW - 10_000}")


def roll(run: Run, server: str, *, closed: bool = True) -> Path:
    """Begin a server's next log, and close the one before; returns that."""
    path = path_of(run, server)
    if closed:
        with path.open("ab") as log:
            log.write(TRAILER)
    path.with_suffix(f".{int(path.suffix[1:]) + 1_000}").write_bytes(header())
    return path


def cut_of(run: Run, at_ms: int = NOW, lines: dict[str, str] | None = None) -> Cut:
    """A cut, before which everything is sealed that is not a server's newest log. `lines`: of regions that are not
    where they were at first."""
    files = list_live(run.source_files, run.wal_root)
    now = {TABLE: {region_of(server): f"{server} 1" for server in SERVERS} | (lines or {})}
    return Cut(at_ms, now, now, files, {file.group: file.number for file in files}, {})


def below(cut: Cut) -> list[WalFile]:
    return [file for file in cut.files if file.number < cut.current[file.group]]


def region_of(server: str) -> str:
    return f"region of {server}"


def write(run: Run, server: str, age_ms: int, sequence_number: int = 1, region: str | None = None) -> None:
    """Append an edit that is so old by now to a server's open log."""
    append(run, server, encode_cell(b"r", b"f", b"q", 1, 4), age_ms, sequence_number, region)


def mark(run: Run, server: str, what: str, sequence_number: int, region: str | None = None) -> None:
    """Append the marker of an opening or a closing."""
    cell = encode_cell(b"r", b"METAFAMILY", f"HBASE::REGION_EVENT::REGION_{what}".encode(), 1, 4)
    append(run, server, cell, 0, sequence_number, region)


def append(run: Run, server: str, cell: bytes, age_ms: int, sequence_number: int, region: str | None) -> None:
    fields = {"encoded_region_name": (region or region_of(server)).encode(), "write_time": NOW - age_ms}
    with path_of(run, server).open("ab") as log:
        log.write(entry([cell], sequence_number, table_name=TABLE.encode(), **fields))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The present moment, for everybody."""
    time = [NOW]
    for module in (clock, following, open_tail):
        monkeypatch.setattr(module, "now_ms", lambda: time[0])
    monkeypatch.setattr(following, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(following, "SECONDS_PER_GROUP", 0.0)
    return time


@pytest.fixture
def run(tmp_path: Path, now: list[int]) -> Iterator[Run]:
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        source = SimpleNamespace(close=lambda: None, release=release_of("2.6.3"))
        run.__dict__.update(source=source, source_files=Counting())
        for server in SERVERS:
            path_of(run, server).parent.mkdir(parents=True)
            path_of(run, server).write_bytes(header())
        run.ledger.rounds.record(Round(1, NOW - 6_000, NOW - 5_000, 1, 1, 1, 1, lag_ms=1_000, backlog_bytes=0))
        yield run


Follow = Callable[[], OpenLogs]


@pytest.fixture
def follow(run: Run, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """The open logs after a cut five seconds ago."""
    monkeypatch.setattr(following, "send_entries", lambda *_: [])
    monkeypatch.setattr(following, "SETTLE_SECONDS", (0.0, 0.0))

    def begun() -> OpenLogs:
        keep_lines(run, "applied", LINES)
        open_logs = OpenLogs(run, ROUTE, lambda _: None)
        open_logs.applied(cut_of(run, NOW - 5_000))
        return open_logs

    return begun


@pytest.fixture
def sent(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sequence numbers of what is sent, in this order."""
    found: list[int] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        found.extend(n for part in parts for n in part.batch.sequence_number[part.picked].tolist())
        return []

    monkeypatch.setattr(following, "send_entries", send)
    return found


def settle(run: Run, open_logs: OpenLogs, cut: Cut | None = None) -> Early:
    """What of a batch of all sealed logs was sent."""
    cut = cut or cut_of(run)
    return open_logs.settle(cut, below(cut), LINES, ROUTE)


def measured(run: Run) -> dict[str, Followed]:
    kept = ahead_of(run.ledger)
    assert kept is not None
    return {one.server: one.model_copy(update={"read_ms": 0}) for one in kept.groups.values()}


def test_a_pass_measures_for_each_server_how_old_edits_were_when_seen_and_how_long_they_took(
    run: Run, follow: Follow, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 400, 1)
    write(run, SERVERS[0], 300, 2)
    write(run, SERVERS[1], 2_500)
    under_way: list[dict[str, Followed]] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        now[0] += 300
        under_way.append(measured(run))
        now[0] += 400
        return []

    monkeypatch.setattr(following, "send_entries", send)
    assert open_logs.go_on()
    (during,) = under_way
    assert [during[server].sending_since_ms for server in SERVERS] == [NOW, NOW, 0]
    assert during[SERVERS[0]].covered_ms == NOW - 5_000, "since the cut: it is not applied yet"
    found = measured(run)
    assert found == {
        SERVERS[0]: Followed(server=SERVERS[0], covered_ms=NOW, apply_ms=700, shown_after_ms=400),
        SERVERS[1]: Followed(server=SERVERS[1], covered_ms=NOW, apply_ms=700, shown_after_ms=2_500),
        SERVERS[2]: Followed(server=SERVERS[2], covered_ms=NOW),
    }
    now[0] += 1_000
    assert open_logs.go_on()
    assert measured(run)[SERVERS[1]] == Followed(server=SERVERS[1], covered_ms=now[0], shown_after_ms=2_500)


def test_a_server_that_a_region_has_come_to_from_a_dead_one_lags_behind_the_others(
    run: Run, follow: Follow, now: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[1], 0)
    write(run, SERVERS[0], 0, 9, region=region_of(SERVERS[2]))
    now[0] += 2_000
    assert not open_logs.go_on(), "a round is needed"
    slowest, *others = lag_by_group(run.ledger, lag_of(run.ledger))
    assert (slowest.server, slowest.seconds) == (SERVERS[0], 7.0)
    assert [one.seconds for one in others] == [0.0, 0.0]
    split = lag_split(lag_of(run.ledger), [slowest, *others])
    assert split is not None
    assert (split.server, split.seconds) == (SERVERS[0], 7.0)


def test_a_region_that_moves_is_followed_without_a_round_and_without_meta(
    run: Run, follow: Follow, sent: list[int], now: list[int]
) -> None:
    open_logs = follow()  # its source answers nothing
    here, there = SERVERS[0], SERVERS[1]
    mark(run, there, "OPEN", 9, region=region_of(here))
    write(run, there, 0, 10, region=region_of(here))
    now[0] += 1_000
    assert open_logs.go_on()
    assert sent == []
    assert measured(run)[there].covered_ms == NOW - 5_000, "what waits is not covered"
    write(run, here, 0, 6)
    mark(run, here, "CLOSE", 7)
    assert open_logs.go_on()
    assert sent == [6, 10]
    assert measured(run)[there].covered_ms == now[0]
    write(run, there, 0, 11, region=region_of(here))
    assert open_logs.go_on()
    assert sent == [6, 10, 11]


def test_a_pass_lists_the_folder_of_each_server_once_and_reads_each_open_log_once(run: Run, follow: Follow) -> None:
    """Its costs: `docs/platform.md` derives the requests per second from it."""
    open_logs, files = follow(), run.source_files
    assert isinstance(files, Counting)
    write(run, SERVERS[0], 400)
    assert open_logs.go_on()  # the first one looks up each log
    files.asked.clear()
    write(run, SERVERS[0], 300, 2)
    assert open_logs.go_on()
    assert files.asked == {"list": 1 + len(SERVERS), "read": len(SERVERS)}


@pytest.mark.parametrize(("groups", "seconds"), [(1, 0.5), (25, 0.5), (50, 1.0), (500, 10.0)])
def test_of_many_servers_each_is_asked_less_often(groups: int, seconds: float) -> None:
    assert following.seconds_between(groups) == seconds


def test_an_edit_that_was_rejected_as_late_is_not_sent_of_an_open_log(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    for number in (1, 2, 3):
        write(run, SERVERS[0], 0, number)
    wal = path_of(run, SERVERS[0])
    (batch,) = open_wal(run.source_files, run.wal_root, list_live(run.source_files, run.wal_root)[0], Until.NOW)
    late = LateEdit(wal.name, int(batch.offset[1]), TABLE, region_of(SERVERS[0]), 2, NOW, 1, b"r", NOW)
    run.ledger.late.found([late])
    run.ledger.late.decide([late], "reject", "nobody wants it", "test")
    assert follow().go_on()
    assert sent == [1, 3]


def hold(run: Run, table: str, region: str = ANY_REGION) -> int:
    item = QuarantineItem("earlier", 5, 7, table, region, 4, "refused", b"")
    (number,) = run.ledger.quarantine.put([item], lambda ids: [Hold("earlier", table, region, 0, ids[0])])
    return number


def test_what_was_passed_over_because_its_table_was_held_is_sent_once_another_table_is(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: a table that is held as a whole was told from no other one, and the edit was taken for sent."""
    of_table = hold(run, TABLE)
    open_logs = follow()
    write(run, SERVERS[0], 400)
    open_logs.go_on()
    assert sent == []
    run.ledger.quarantine.release(of_table, "retry", "mended", "test")
    run.ledger.quarantine.drop_holds(of_table)
    hold(run, "shop:users")
    early = settle(run, open_logs, cut := cut_of(run))
    assert early.sent == {}
    open_logs.applied(cut)
    open_logs.go_on()
    assert sent == [1]


def test_what_was_sent_of_a_log_is_kept_until_it_was_compared_whoever_goes_on(run: Run, follow: Follow) -> None:
    """Hole: the next process began at the log's beginning, and what the one before it had sent beyond was forgotten."""
    write(run, SERVERS[0], 400)
    write(run, SERVERS[0], 300, 2)
    name = path_of(run, SERVERS[0]).name
    assert follow().go_on()
    (before,) = sent_early(run.ledger)[name].shown
    path_of(run, SERVERS[0]).write_bytes(header())  # its bytes were taken back
    write(run, SERVERS[0], 200, 3)
    open_logs = follow()
    assert sent_early(run.ledger)[name].shown == (before,), "before anything is sent of it again"
    assert open_logs.go_on()
    earlier, own = sent_early(run.ledger)[name].shown
    assert (earlier, own[0] < before[0]) == (before, True)
    roll(run, SERVERS[0])
    assert settle(run, open_logs).sent[name].shown == (before, own)


def test_a_process_that_has_lost_its_leases_notes_and_sends_nothing(run: Run, follow: Follow, sent: list[int]) -> None:
    follow()
    is_lost = False

    def fence(_: Connection) -> None:
        if is_lost:
            raise LeaseLostError("another process has taken it", table="orders", number=1)

    open_logs = OpenLogs(run, ROUTE, fence)
    open_logs.applied(cut_of(run, NOW - 5_000))
    is_lost = True
    write(run, SERVERS[0], 0, 1)
    with pytest.raises(LeaseLostError):
        open_logs.go_on()
    assert (sent, sent_early(run.ledger)) == ([], {})


def test_a_log_is_followed_into_the_next_one_and_a_new_server_into_its_first_without_a_round(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0])
    write(run, SERVERS[0], 0, 2)
    assert open_logs.go_on()
    assert sent == [1, 2]
    new = "rs,1,9"
    path_of(run, new).parent.mkdir()
    path_of(run, new).write_bytes(header())
    mark(run, SERVERS[0], "CLOSE", 3)
    mark(run, new, "OPEN", 5, region=region_of(SERVERS[0]))
    write(run, new, 0, 6, region=region_of(SERVERS[0]))
    assert open_logs.go_on()
    assert open_logs.go_on()
    assert sent == [1, 2, 6]
    write(run, SERVERS[1], 0, 7)
    sealed = roll(run, SERVERS[1])
    archive = Path(f"{run.wal_root}/oldWALs")
    archive.mkdir()
    sealed.rename(archive / sealed.name)
    write(run, SERVERS[1], 0, 8)
    assert open_logs.go_on()
    assert sent == [1, 2, 6, 7, 8]


def test_a_log_whose_writer_broke_needs_a_round_and_the_next_one_is_not_read(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0], closed=False)
    write(run, SERVERS[0], 0, 1)
    assert open_logs.go_on(), "it may be about to be closed"
    assert not open_logs.go_on(), "a round is needed"
    assert sent == [1]
    cut = cut_of(run)
    early = settle(run, open_logs, cut)
    assert open_logs.go_on()
    assert sent == [1], "nothing is followed until the batch is applied"
    open_logs.applied(cut)
    assert open_logs.go_on()
    assert sent == [1, 1]
    assert early.sent[below(cut)[0].name].regions == ALL, "what was sent of it is left out if it was sealed with that"


def test_while_a_batch_is_applied_regions_go_on_of_which_it_has_nothing_and_others_wait_for_it(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    stays, moved, back = SERVERS
    write(run, stays, 0, 1)
    write(run, stays, 0, 40, region=region_of(moved))  # its opening is nowhere
    write(run, back, 0, 2)
    mark(run, back, "CLOSE", 3)
    mark(run, moved, "OPEN", 5, region=region_of(back))
    write(run, moved, 0, 6, region=region_of(back))
    assert not open_logs.go_on()
    assert sorted(sent) == [1, 2, 6]
    sealed = [roll(run, server) for server in SERVERS]
    write(run, stays, 0, 7)
    write(run, stays, 0, 41, region=region_of(moved))
    assert not open_logs.go_on()
    cut = cut_of(run, lines={region_of(moved): f"{stays} 39", region_of(back): f"{moved} 4"})
    early = settle(run, open_logs, cut)
    assert {name: one.regions for name, one in early.sent.items() if one.regions} == {
        log.name: {region_of(stays), region_of(back)} for log in sealed
    }
    assert early.followed == {region_of(back)}
    assert early.logs == {log.name for log in sealed}
    write(run, stays, 0, 8)
    write(run, moved, 0, 9, region=region_of(back))
    write(run, stays, 0, 42, region=region_of(moved))
    for _ in range(4):
        assert open_logs.go_on(), "however long the batch takes"
    assert sorted(sent) == [1, 2, 6, 7, 8, 9]
    open_logs.applied(cut)
    write(run, stays, 0, 43, region=region_of(moved))
    assert open_logs.go_on()
    assert sorted(sent) == [1, 2, 6, 7, 8, 9, 41, 42, 43]
    assert sent[-3:] == [41, 42, 43]


def test_a_region_that_is_held_while_a_batch_is_applied_is_not_sent_after_it(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    here, there = region_of(SERVERS[0]), region_of(SERVERS[1])
    write(run, SERVERS[2], 0, 1, region=here)  # that nobody saw it come to
    assert not open_logs.go_on()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs, cut := cut_of(run))
    write(run, SERVERS[0], 0, 2)
    write(run, SERVERS[1], 0, 3)
    assert open_logs.go_on()
    hold(run, TABLE, here)
    hold(run, TABLE, there)
    open_logs.applied(cut)
    write(run, SERVERS[1], 0, 4)
    write(run, SERVERS[2], 0, 5)
    assert open_logs.go_on()
    assert sent == [3, 5]
    for file in below(cut):
        Path(file.path).unlink()
    roll(run, SERVERS[1])
    assert {region for one in settle(run, open_logs).sent.values() for region in one.regions} == {region_of(SERVERS[2])}


@pytest.mark.parametrize("waits", ["for the batch", "for a closing"])
def test_of_a_table_that_is_stopped_nothing_is_sent_that_has_waited(
    waits: str, run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: what a restored table holds now was sent once the batch had found that it began anew."""
    open_logs = follow()
    here, there = SERVERS[0], SERVERS[1]
    cut: Cut | None = None
    if waits == "for the batch":
        write(run, there, 0, 1, region=region_of(here))  # that nobody saw it come to
        assert not open_logs.go_on()
        for server in SERVERS:
            roll(run, server)
        settle(run, open_logs, cut := cut_of(run))
        write(run, here, 0, 2)
    else:
        mark(run, there, "OPEN", 9, region=region_of(here))
        write(run, there, 0, 10, region=region_of(here))
    assert open_logs.go_on()
    hold(run, TABLE)
    if cut:
        open_logs.applied(cut)
    else:
        mark(run, here, "CLOSE", 7)
    open_logs.go_on()
    assert sent == []


def test_until_a_batch_is_applied_that_has_something_new_it_does_not_count_as_applied(
    run: Run, follow: Follow, now: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[2], 0, 1, region=region_of(SERVERS[0]))  # left: only the batch applies it
    assert not open_logs.go_on()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs, cut := cut_of(run))
    now[0] += 100_000
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == NOW - 5_000
    open_logs.applied(cut)
    assert covered_ms(run.ledger) == NOW
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == now[0]
    for file in below(cut):
        Path(file.path).unlink()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs)
    now[0] += 1_000
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == now[0], "the batch has nothing that was not sent"


def test_what_a_log_repeats_of_one_whose_writer_broke_is_not_sent_over_what_came_after_a_move(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    here, there, _ = SERVERS
    for closed in (False, True):
        write(run, here, 0, 5)
        mark(run, here, "CLOSE", 7)
        roll(run, here, closed=closed)
    mark(run, there, "OPEN", 9, region=region_of(here))
    write(run, there, 0, 10, region=region_of(here))
    open_logs.go_on()
    open_logs.go_on()
    assert sent == [5, 10]
    roll(run, there)
    early = settle(run, open_logs, cut_of(run, lines={region_of(here): f"{there} 8"}))
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(here)}


def test_logs_that_are_all_rolled_between_their_listing_and_their_reading_are_followed(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: each was read up to its trailer, and the next one was looked for only while another one was read."""
    open_logs, live = follow(), run.source_log.live

    def rolled() -> list[WalFile]:
        listed = live()
        for server in SERVERS:
            roll(run, server)
        return listed

    with monkeypatch.context() as beside:
        beside.setattr(run.source_log, "live", rolled)
        assert open_logs.go_on()
    for number, server in enumerate(SERVERS, start=1):
        write(run, server, 0, number)
    assert open_logs.go_on()
    assert sorted(sent) == list(range(1, len(SERVERS) + 1))


def test_after_a_pause_a_log_that_was_not_seen_is_not_passed_over(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_logs, seconds = follow(), [0.0]
    monkeypatch.setattr(following, "steady_s", lambda: seconds[0])
    write(run, SERVERS[0], 0, 1)
    assert open_logs.go_on()
    roll(run, SERVERS[0])
    between = path_of(run, SERVERS[0])
    write(run, SERVERS[0], 0, 2)
    roll(run, SERVERS[0])
    between.unlink()
    write(run, SERVERS[0], 0, 3)
    seconds[0] += 60
    covered = covered_ms(run.ledger)
    assert not open_logs.go_on(), "a round is needed"
    assert (sent, covered_ms(run.ledger)) == ([1], covered)


def test_a_log_that_was_archived_while_the_log_was_cut_is_followed(run: Run, follow: Follow, sent: list[int]) -> None:
    open_logs = follow()
    for server in SERVERS:
        roll(run, server)
    cut = cut_of(run)
    name = path_of(run, SERVERS[0]).name
    cut = replace(cut, files=[replace(f, place=Place.ARCHIVED) if f.name == name else f for f in cut.files])
    settle(run, open_logs, cut)
    open_logs.applied(cut)
    roll(run, SERVERS[0])
    write(run, SERVERS[0], 0, 7)
    assert open_logs.go_on()
    assert sent == [7]


def test_the_log_of_a_server_that_came_after_the_cut_is_not_compared_yet(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: OpenLogs) -> bool:
        raise IndexError("index 7 is out of bounds")

    open_logs, cut, new = follow(), cut_of(run), "rs,1,9"
    path_of(run, new).parent.mkdir()
    path_of(run, new).write_bytes(header())
    mark(run, SERVERS[0], "CLOSE", 3)
    mark(run, new, "OPEN", 5, region=region_of(SERVERS[0]))
    write(run, new, 0, 6, region=region_of(SERVERS[0]))
    open_logs.go_on()
    open_logs.go_on()
    assert sent == [6]
    monkeypatch.setattr(OpenLogs, "_pass", broken)
    assert path_of(run, new).name in sent_early(run.ledger)
    assert path_of(run, new).name not in settle(run, open_logs, cut).logs


@pytest.mark.parametrize("what", ["an older log turns up", "one in between was not seen", "its server has died"])
def test_of_a_server_whose_logs_were_not_all_read_in_their_order_nothing_is_left_out(
    what: str, run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: a log that turned up late was applied over newer edits, which had been sent while theirs was open."""
    open_logs = follow()
    lost = SERVERS[0]
    write(run, lost, 0, 1)
    if what == "one in between was not seen":
        roll(run, lost)
        between = path_of(run, lost)
        write(run, lost, 0, 2)
        roll(run, lost)
        archived = between.rename(Path(f"{run.wal_root}/archived"))
        open_logs.go_on()
        archived.rename(between)
    elif what == "an older log turns up":
        open_logs.go_on()
        older = path_of(run, lost).with_suffix(f".{NOW - 20_000}")
        older.write_bytes(header() + TRAILER)
        roll(run, lost)
    else:
        open_logs.go_on()
        folder = path_of(run, lost).parent
        folder.rename(folder.with_name(f"{lost}-splitting"))
    for server in SERVERS[1:]:
        write(run, server, 0, 1)
        roll(run, server)
    cut = cut_of(run)
    if what == "its server has died":
        cut.current.pop(group_of(lost))
    files = [file for file in cut.files if file.number < cut.current.get(file.group, file.number + 1)]
    early = open_logs.settle(cut, files, LINES, ROUTE)
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(lost)}


def test_of_a_region_that_is_elsewhere_than_the_logs_have_shown_nothing_is_left_out(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    mark(run, SERVERS[0], "CLOSE", 2)
    for server in SERVERS:
        roll(run, server)
    early = settle(run, open_logs, cut_of(run, lines={region_of(SERVERS[0]): f"{SERVERS[1]} 3"}))
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(SERVERS[0])}
    assert early.followed == set()


def test_if_a_batch_goes_in_bulk_nothing_is_sent_until_it_is_applied_and_then_all_since_the_cut_is(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0])
    settle(run, open_logs, cut := cut_of(run))
    write(run, SERVERS[0], 0, 2)
    open_logs.go_on()
    open_logs.stop()
    write(run, SERVERS[0], 0, 3)
    open_logs.go_on()
    assert sent == [1, 2]
    open_logs.applied(cut)
    open_logs.go_on()
    assert sent == [1, 2, 2, 3]


def test_beside_a_round_passes_go_on_and_end_with_it(run: Run, follow: Follow, sent: list[int]) -> None:
    open_logs = follow()
    with open_logs.beside():
        write(run, SERVERS[0], 0, 1)
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sent == [1]
    write(run, SERVERS[0], 0, 2)
    time.sleep(0.2)
    assert sent == [1]


def test_a_round_that_fails_is_left_once_no_request_is_under_way_and_tells_of_an_unknown_outcome(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the replay went on after a log that could not be cut, beside a request of the thread, or without its
    verdict."""
    begun, done = threading.Event(), threading.Event()

    def send(*_: Any) -> list[Any]:
        begun.set()
        time.sleep(0.5)
        done.set()
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=True)

    open_logs = follow()
    monkeypatch.setattr(following, "send_entries", send)
    monkeypatch.setattr(following, "END_SECONDS", 0.01)
    write(run, SERVERS[0], 400)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(OutcomeUnknownError))
        stack.enter_context(open_logs.beside())
        assert begun.wait(20)
        raise NotCutError("a server does not answer")
    assert done.is_set()


def test_while_released_edits_are_applied_nothing_is_sent_and_a_log_that_cannot_be_cut_is_told(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are read again for them must be as new as all that was sent."""
    reached: list[str] = []

    def apply_released(*_: Any) -> None:
        write(run, SERVERS[0], 0, 1)
        time.sleep(0.3)
        reached.append(f"released after {len(sent)}")

    def cut(*_: Any) -> Cut:
        deadline = time.monotonic() + 20
        while not sent and time.monotonic() < deadline:
            time.sleep(0.01)
        raise TransientError("a server does not answer", server="rs,1,1")

    open_logs = follow()
    for name in ("continue_batch", "fence_of", "kept_lines"):
        monkeypatch.setattr(rounds, name, lambda *_: None)
    monkeypatch.setattr(rounds, "shared_by_workers", lambda run, route, spark: route)
    monkeypatch.setattr(rounds, "apply_released", apply_released)
    monkeypatch.setattr(rounds, "_settled_cut", cut)
    with pytest.raises(NotCutError, match="a server does not answer") as raised:
        rounds.run_round(run, cast(SparkSession, None), ROUTE, open_logs)
    assert raised.value.server == "rs,1,1"
    assert (reached, sent) == (["released after 0"], [1])


def test_while_the_ledger_cannot_be_reached_no_pass_is_made(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Run) -> bool:
        raise TransientError("the ledger does not answer")

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "is_paused", away)
    with open_logs.beside():
        time.sleep(0.3)
    assert sent == []


def test_an_unknown_outcome_beside_a_round_keeps_a_batch_from_being_begun_and_ends_the_replay(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any) -> list[Any]:
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=True)

    open_logs, reached = follow(), threading.Event()
    monkeypatch.setattr(following, "send_entries", send)
    write(run, SERVERS[0], 400)
    beside = open_logs.beside()
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(OutcomeUnknownError))
        stack.enter_context(beside)
        time.sleep(0.3)
        reached.set()
        roll(run, SERVERS[0])
        with pytest.raises(OutcomeUnknownError):
            settle(run, open_logs)
    assert reached.is_set()


def test_only_under_the_same_leases_something_is_taken_for_sent(run: Run, follow: Follow) -> None:
    open_logs, cut = follow(), cut_of(run)
    with pytest.raises(AssertionError, match="other leases"):
        open_logs.settle(cut, [], LINES, replace(ROUTE, guard=Guard()))


KINDS = ["1.7.2-dictionary", "2.2.3-dictionary", "dictionary", "dictionary-raw-tags", "values-gz", "values-snappy"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_log_is_followed_in_slices_each_entry_once(
    kind: str, run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a compressed log that showed more than one slice was read from the middle of its dictionary, and ended the
    replay for good."""
    whole = (WALS / f"{kind}.wal").read_bytes()
    path = path_of(run, SERVERS[0])
    read: list[int] = []

    def took(self: Any, batch: EntryBatch, tables: Sequence[str]) -> None:
        read.extend(batch.sequence_number.tolist())

    monkeypatch.setattr(OpenTail, "took", took)
    monkeypatch.setattr(open_tail, "SLICE_BYTES", 1)
    monkeypatch.setattr(open_tail, "BATCH_BYTES", 4_000)
    path.write_bytes(whole[: len(whole) // 2])
    open_logs = follow()
    open_logs.go_on()  # its regions are on no server, so that nothing is sent
    assert read
    path.write_bytes(whole)
    open_logs.go_on()
    kept = ahead_of(run.ledger)
    assert kept is not None
    assert kept.fault == ""
    expected = [n for batch in WalReader([whole], kind) for n in batch.sequence_number.tolist()]
    assert read == expected


def test_an_error_of_any_kind_leaves_the_rounds_going_and_is_told(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: OpenLogs) -> bool:
        raise IndexError("index 7 is out of bounds")

    open_logs = follow()
    monkeypatch.setattr(OpenLogs, "_pass", broken)
    assert open_logs.go_on()
    assert open_logs.go_on()
    told = "open logs are not followed until the next round: index 7 is out of bounds"
    assert status(run.ledger)["not_followed"] == told
    monkeypatch.undo()
    follow()
    assert status(run.ledger)["not_followed"] == ""


@pytest.mark.parametrize("sent", [True, False], ids=["it may have arrived", "it was not sent"])
def test_a_request_that_may_still_be_carried_out_ends_the_leases(
    sent: bool, run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the next round sent a newer put of the same timestamp under the same leases, and the old one came last."""

    def send(*_: Any) -> list[Any]:
        raise RequestTimeoutError("rs,1,1 does not answer", server=SERVERS[0], method="Multi", sent=sent)

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "send_entries", send)
    if sent:
        with pytest.raises(OutcomeUnknownError, match="may not have arrived: rs,1,1 does not answer"):
            open_logs.go_on()
    else:
        assert open_logs.go_on()
        assert "does not answer" in status(run.ledger)["not_followed"]


def test_rows_that_could_not_be_marked_end_the_replay(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any) -> list[Any]:
        raise UnmarkedRowsError("rows are dirty", table=TABLE, first="a", last="b")

    open_logs = follow()
    write(run, SERVERS[0], 400)
    monkeypatch.setattr(following, "send_entries", send)
    with pytest.raises(UnmarkedRowsError):
        open_logs.go_on()
