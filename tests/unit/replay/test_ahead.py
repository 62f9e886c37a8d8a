"""What a pass over the open logs measures, and what it asks of the source: by server, and kept in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.apply.guards import Guard
from unit.formats.wal_builder import entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry import clock
from walferry.apply.by_group import GroupTask, Part
from walferry.apply.route import Route
from walferry.formats.cells import encode_cell
from walferry.formats.wal import EntryBatch, WalReader
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import RequestTimeoutError
from walferry.hbase.versions import release_of
from walferry.ledger import Hold, LateEdit, Ledger, QuarantineItem, Round
from walferry.refusals import ANY_REGION
from walferry.replay import ahead
from walferry.replay.ahead import OpenLogs
from walferry.replay.cut import Cut
from walferry.replay.dirty import UnmarkedRowsError
from walferry.replay.lease import OutcomeUnknownError
from walferry.run.facts import keep_lines
from walferry.run.lag import Followed, ahead_of, lag_by_group, lag_of, lag_split
from walferry.run.run import Run
from walferry.run.sent_early import sent_early
from walferry.run.status import status
from walferry.storage import FileStatus, Local
from walferry.wal.files import list_live
from walferry.wal.open import Until, open_wal

TABLE = "shop:orders"
SERVERS = ("rs,1,1", "rs,1,2", "rs,1,3")
NOW = 1_790_000_000_000
HERE = ClusterAddress("127.0.0.1:1")
ROUTE = Route(HERE, "/hbase", (1, 2), HERE, {TABLE: TABLE}, Guard())
WALS = Path(__file__).parents[2] / "fixtures" / "wal"


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
    return Path(f"{run.wal_root}/WALs/{server}/{group_of(server)}.{NOW - 10_000}")


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
    for module in (clock, ahead):
        monkeypatch.setattr(module, "now_ms", lambda: time[0])
    monkeypatch.setattr(ahead, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(ahead, "SECONDS_PER_GROUP", 0.0)
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
    lines = {TABLE: {region_of(server): f"{server} 1" for server in SERVERS}}
    monkeypatch.setattr(ahead, "send_entries", lambda *_: [])

    def begun() -> OpenLogs:
        keep_lines(run, "applied", lines)
        files = list_live(run.source_files, run.wal_root)
        followed: Any = OpenLogs(run, ROUTE)
        followed.begin(Cut(NOW - 5_000, lines, lines, files, {file.group: file.number for file in files}, {}))
        return followed  # type: ignore[no-any-return]

    return begun


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

    monkeypatch.setattr(ahead, "send_entries", send)
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
    run: Run, follow: Follow, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        sent.extend(n for part in parts for n in part.batch.sequence_number[part.picked].tolist())
        return []

    open_logs = follow()  # its source answers nothing
    monkeypatch.setattr(ahead, "send_entries", send)
    here, there = SERVERS[0], SERVERS[1]
    mark(run, there, "OPEN", 9, region=region_of(here))
    write(run, there, 0, 10, region=region_of(here))
    now[0] += 1_000
    assert open_logs.go_on()
    assert sent == []
    assert measured(run)[there].covered_ms == NOW - 5_000, "what waits is not covered"
    assert open_logs.sent(ROUTE)[path_of(run, there).name].regions == {region_of(s) for s in SERVERS} - {
        region_of(here)
    }
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
    assert ahead.seconds_between(groups) == seconds


def test_an_edit_that_was_rejected_as_late_is_not_sent_of_an_open_log(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        write(run, SERVERS[0], 0, number)
    wal = path_of(run, SERVERS[0])
    (batch,) = open_wal(run.source_files, run.wal_root, list_live(run.source_files, run.wal_root)[0], Until.NOW)
    late = LateEdit(wal.name, int(batch.offset[1]), TABLE, region_of(SERVERS[0]), 2, NOW, 1, b"r", NOW)
    run.ledger.late.found([late])
    run.ledger.late.decide([late], "reject", "nobody wants it", "test")
    sent: list[int] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        sent.extend(n for part in parts for n in part.batch.sequence_number[part.picked].tolist())
        return []

    open_logs = follow()
    monkeypatch.setattr(ahead, "send_entries", send)
    assert open_logs.go_on()
    assert sent == [1, 3]


def test_what_was_passed_over_because_its_table_was_held_is_sent_once_another_table_is(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a table that is held as a whole was told from no other one, and the edit was taken for sent."""
    sent: list[int] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        sent.extend(n for part in parts for n in part.batch.sequence_number[part.picked].tolist())
        return []

    def hold(table: str) -> int:
        item = QuarantineItem("earlier", 5, 7, table, ANY_REGION, 4, "damaged", b"")
        (number,) = run.ledger.quarantine.put([item], lambda ids: [Hold("earlier", table, ANY_REGION, 0, ids[0])])
        return number

    of_table = hold(TABLE)
    open_logs = follow()
    monkeypatch.setattr(ahead, "send_entries", send)
    write(run, SERVERS[0], 400)
    open_logs.go_on()
    assert sent == []
    run.ledger.quarantine.release(of_table, "retry", "mended", "test")
    run.ledger.quarantine.drop_holds(of_table)
    hold("shop:users")
    lines = {TABLE: {region_of(server): f"{server} 1" for server in SERVERS}}
    files = list_live(run.source_files, run.wal_root)
    open_logs.begin(Cut(NOW, lines, lines, files, {file.group: file.number for file in files}, {}))
    assert path_of(run, SERVERS[0]).name not in open_logs.sent(ROUTE)
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
    assert open_logs.sent(ROUTE)[name].shown == (before,)
    assert open_logs.go_on()
    earlier, own = sent_early(run.ledger)[name].shown
    assert (earlier, own[0] < before[0]) == (before, True)
    assert open_logs.sent(ROUTE)[name].shown == (before, own)


def test_only_under_the_same_leases_and_holds_is_something_taken_for_sent(run: Run, follow: Follow) -> None:
    write(run, SERVERS[0], 400)
    name = path_of(run, SERVERS[0]).name
    open_logs = follow()
    assert open_logs.go_on()
    assert open_logs.sent(ROUTE)[name].regions == {region_of(server) for server in SERVERS}
    with pytest.raises(AssertionError, match="other leases"):
        open_logs.sent(replace(ROUTE, guard=Guard()))
    item = QuarantineItem("earlier", 5, 7, TABLE, "another region", 4, "refused", b"")
    run.ledger.quarantine.put([item], lambda ids: [Hold("earlier", TABLE, "another region", 0, ids[0])])
    assert open_logs.sent(ROUTE)[name].regions == frozenset()


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

    monkeypatch.setattr(ahead._Tail, "took", took)
    monkeypatch.setattr(ahead, "SLICE_BYTES", 1)
    monkeypatch.setattr(ahead, "BATCH_BYTES", 4_000)
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
    monkeypatch.setattr(ahead, "send_entries", send)
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
    monkeypatch.setattr(ahead, "send_entries", send)
    with pytest.raises(UnmarkedRowsError):
        open_logs.go_on()
