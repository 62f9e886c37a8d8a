"""A time window of the log gives exactly its edits, and windows converge in whatever order they are run (R3)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import content, make_spec, taken_away
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GapError, TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_family, delete_version, put
from walferry.ledger import Ledger
from walferry.replay.log.cut import record_seen
from walferry.replay.log.settled import OverlappingRunError
from walferry.replay.pieces import bulk_pieces, group_pieces
from walferry.replay.rounds.follower import replay
from walferry.replay.windows.window import WindowOpenError, open_window, plan_window, replay_window
from walferry.run.run import Run
from walferry.settings import LogTimes
from walferry.storage import WebHdfs

pytestmark = pytest.mark.cluster

Span = tuple[int, int]
Replay = Callable[[str, Span], Run]
ROWS = [b"%c%d" % (letter, number) for letter in b"bmt" for number in range(5)]


@pytest.fixture(autouse=True)
def little_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and test share a clock, so that windows need not wait a minute for others."""
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'windows.db'}", actor="test") as book:
        yield book


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the edits are applied: by rpc, unless a test says otherwise; small as they are, most often without Spark."""
    way, _, by_spark = str(getattr(request, "param", "rpc")).partition(" by ")
    if by_spark:
        monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")
    return way


@pytest.fixture
def open_replay(source: MiniCluster, target: MiniCluster, ledger: Ledger, way: str) -> Iterator[Replay]:
    """Opens the run of a window of one table."""
    opened: list[Run] = []

    def go(table: str, span: Span) -> Run:
        edges = {"from": iso(span[0]), "to": iso(span[1])}
        spec = make_spec(source, target, [table], window=edges, apply=way).model_copy(update={"name": "replay"})
        opened.append(Run(ledger, open_window(ledger, spec, "test").run_id))
        return opened[-1]

    yield go
    for run in opened:
        run.close()


@pytest.fixture
def two_tables(make_table: Callable[..., str], at_target: HBaseClient) -> str:
    """A table that is empty on both sides."""
    table = make_table((b"m",))
    at_target.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}})
    # Each load brings a file, and a compaction of all files drops markers that cover puts of the next window.
    at_target.modify_table(at_target.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    return table


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def now() -> int:
    """A moment with no edit within some milliseconds of it."""
    time.sleep(0.05)
    at = time.time_ns() // 1_000_000
    time.sleep(0.05)
    return at


def test_where_files_may_not_be_staged_auto_says_so_and_goes_by_rpc(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, two_tables: str, ledger: Ledger,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    start = now()
    edit(at_source, two_tables, 1)
    end = now()
    time.sleep(LogTimes.read().clock_skew_seconds)
    spec = make_spec(source, target, [two_tables], window={"from": iso(start), "to": iso(end)}, apply="auto")
    monkeypatch.setattr(bulk_pieces, "BULK_FROM_BYTES", 0)
    monkeypatch.setattr(bulk_pieces, "BULK_REGION_BYTES", 0)
    monkeypatch.setattr(Run, "target_files", WebHdfs(str(target.address.webhdfs), "mallory"))
    with Run(ledger, open_window(ledger, spec.model_copy(update={"name": "replay"}), "test").run_id) as run:
        replay_window(run, lambda: spark)
    assert "are applied by rpc, not in bulk" in caplog.text
    assert "as user mallory" in caplog.text
    here = content(source, two_tables)
    assert len(here) > 10
    assert content(target, two_tables) == here


def replay_killed_at_the_third_piece(run: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay a window until two of its pieces are recorded, and a third one is applied."""
    finish, done = run.ledger.batches.finish, 0

    def counted(*args: object) -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        finish(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(run.ledger.batches, "finish", counted)
        with pytest.raises(KeyboardInterrupt):
            replay_window(run, lambda: spark)


def edit(client: HBaseClient, table: str, step: int, edits: int = 40, size: int = 0) -> None:
    """Puts and deletes of few cells at few timestamps, so that what comes later decides; values of at least `size`."""
    chance = random.Random(step)
    for number in range(edits):
        row, timestamp = chance.choice(ROWS), chance.randint(1, 4)
        if chance.random() < 0.2:
            kind = chance.choice([delete_version, delete_column])
            client.mutate(table, [kind(row, b"f", b"q", timestamp)])
        elif chance.random() < 0.05:
            client.mutate(table, [delete_family(row, b"g", timestamp)])
        else:
            family = chance.choice([b"f", b"g"])
            client.mutate(
                table, [put(row, [Cell(row, family, b"q", (b"%d-%d" % (step, number)).ljust(size), timestamp)])]
            )


def spans_of(edges: Sequence[int]) -> list[Span]:
    return list(pairwise(edges))


@pytest.mark.parametrize(
    ("way", "order"),
    [("rpc", (0, 1, 2)), ("bulk", (2, 1, 0)), ("rpc", (1, 2, 1, 0, 2, 0)), ("bulk by Spark", (1, 2, 1, 0, 2, 0))],
    indirect=["way"], ids=["in order", "reversed, in bulk", "repeated", "repeated, in bulk by Spark"],
)  # fmt: skip
def test_windows_converge_in_whatever_order_and_however_often_they_run(
    order: Sequence[int], source: MiniCluster, target: MiniCluster, at_source: HBaseClient, two_tables: str,
    open_replay: Replay, spark: SparkSession,
) -> None:  # fmt: skip
    edges = [now()]
    for step in range(3):
        edit(at_source, two_tables, step)
        if step == 1:  # the middle window lies in several files, and a region moves in the midst of it
            for server in at_source.servers():
                at_source.roll_wal(server)
            region = at_source.regions(two_tables)[0]
            others = [server for server in at_source.servers() if server != region.server]
            at_source.move_region(region, others[0])
            edit(at_source, two_tables, 10)
        edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    for number in order:
        replay_window(open_replay(two_tables, spans_of(edges)[number]), lambda: spark)
    here = content(source, two_tables)
    assert len(here) > 15
    assert content(target, two_tables) == here


@pytest.mark.long
def test_a_window_that_was_killed_starts_over_if_another_one_ran_in_between(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, two_tables: str, open_replay: Replay,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WALFERRY_PIECE_BYTES", str(1 << 19))
    # A compaction after moves drops markers, and the source then shows older puts that come after them.
    at_source.modify_table(at_source.describe(two_tables).with_attribute("COMPACTION_ENABLED", "false"))
    edges = [now()]
    for step in range(2):
        for part in range(4):
            edit(at_source, two_tables, 4 * step + part, size=30_000)
            region = at_source.regions(two_tables)[0]
            if part < 2:
                at_source.move_region(region, next(s for s in at_source.servers() if s != region.server))
            for server in at_source.servers():
                at_source.roll_wal(server)
        edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    older, newer = spans_of(edges)
    run = open_replay(two_tables, newer)
    replay_killed_at_the_third_piece(run, spark, monkeypatch)
    pieces = run.ledger.batches.pieces()
    assert sum(piece.state == "done" for piece in pieces) == 2
    assert {piece.kind for piece in pieces} == {"rows", "group"}
    replay_window(open_replay(two_tables, older), lambda: spark)
    facts = replay_window(run, lambda: spark)
    assert facts["repeated"] == 0, "edits of the older window went over those of pieces that were done"
    here = content(source, two_tables)
    assert len(here) > 10
    assert content(target, two_tables) == here


@pytest.mark.parametrize("way", ["bulk", pytest.param("bulk by Spark", marks=pytest.mark.long)], indirect=True)
def test_a_window_that_was_killed_as_it_was_loaded_goes_on_with_the_pieces_that_are_left(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, two_tables: str, open_replay: Replay,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WALFERRY_PIECE_BYTES", "5000")
    start = now()
    for step in range(3):
        edit(at_source, two_tables, step, size=1000)
    run = open_replay(two_tables, (start, now()))
    time.sleep(LogTimes.read().clock_skew_seconds)
    replay_killed_at_the_third_piece(run, spark, monkeypatch)
    pieces = run.ledger.batches.pieces()
    assert 2 == sum(piece.state == "done" for piece in pieces) < len(pieces) - 1
    facts = replay_window(run, lambda: spark)
    assert facts["pieces"] == len(pieces)
    here = content(source, two_tables)
    assert len(here) > 15
    assert content(target, two_tables) == here


@pytest.mark.parametrize("way", ["rpc", "bulk by Spark"], indirect=True)
def test_a_window_with_a_split_in_it_ends_with_the_later_of_equal_puts(
    source: MiniCluster,
    target: MiniCluster,
    at_source: HBaseClient,
    two_tables: str,
    open_replay: Replay,
    spark: SparkSession,
) -> None:
    edges = [now()]
    for value in (b"parent", b"daughter"):
        at_source.put(two_tables, [Cell(row, b"f", b"q", value, 7) for row in (b"a", b"k")])
        if value == b"parent":
            at_source.split_region(at_source.regions(two_tables)[0], b"f")
    edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    replay_window(open_replay(two_tables, (edges[0], edges[1])), lambda: spark)
    here = content(source, two_tables)
    assert len(here) == 2
    assert content(target, two_tables) == here


def test_a_window_holds_its_first_moment_and_not_its_last(
    target: MiniCluster, at_source: HBaseClient, two_tables: str, open_replay: Replay, spark: SparkSession
) -> None:
    edges = [now()]
    for name in (b"before", b"inside", b"after"):
        at_source.put(two_tables, [Cell(name, b"f", b"q", b"v", 1)])
        edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    run = open_replay(two_tables, (edges[1], edges[2]))
    facts = replay_window(run, lambda: spark)
    assert facts["cells"] == 1
    assert list(content(target, two_tables)) == ["b'inside' b'f:q'"]
    assert run.ledger.record.state == "done"


def test_a_window_of_the_past_does_not_undo_what_a_migration_has_replayed_since(
    at_source: HBaseClient, make_table: Callable[..., str], start_run: Callable[..., Run], source: MiniCluster,
    target: MiniCluster, spark: SparkSession,
) -> None:  # fmt: skip
    table = make_table()
    run = start_run(table)
    edges = [now()]
    for step in (1, 2):
        edit(at_source, table, step)
        edges.append(now())
        replay(run, spark, until=lambda: True)
    here = content(source, table)
    assert content(target, table) == here
    spec = make_spec(source, target, [table], window={"from": iso(edges[0]), "to": iso(edges[1])})
    with Run(run.ledger.whole, open_window(run.ledger.whole, spec, "test").run_id) as older:
        facts = replay_window(older, lambda: spark)
    assert facts["outranked"] > 0
    assert content(target, table) == here


def test_an_aborted_window_keeps_nothing_of_another_one_out_and_an_unfinished_one_is_waited_for(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, two_tables: str, open_replay: Replay,
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    edges = [now()]
    shown = []
    for step in range(2):
        edit(at_source, two_tables, step)
        shown.append(content(source, two_tables))
        edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    later = open_replay(two_tables, (edges[1], edges[2]))
    with monkeypatch.context() as patch:
        patch.setattr(
            group_pieces, "apply_groups", lambda spark, tasks, what: (_ for _ in ()).throw(TransientError("killed"))
        )
        with pytest.raises(TransientError, match="killed"):
            replay_window(later, lambda: spark)
    whole = open_replay(two_tables, (edges[0], edges[2]))
    with pytest.raises(OverlappingRunError, match=f"run {later.run_id} has not finished"):
        replay_window(whole, lambda: spark)
    for run in (later, whole):
        run.ledger.end("aborted", "test", "enough")
    facts = replay_window(open_replay(two_tables, (edges[0], edges[1])), lambda: spark)
    assert facts["outranked"] == 0
    assert content(target, two_tables) == shown[0]
    replay_window(open_replay(two_tables, (edges[1], edges[2])), lambda: spark)
    assert content(target, two_tables) == shown[1]


def test_a_window_that_is_not_over_says_when_it_will_be(
    two_tables: str, open_replay: Replay, spark: SparkSession
) -> None:
    run = open_replay(two_tables, (now(), now() + 3_600_000))
    with pytest.raises(WindowOpenError, match="will be complete at") as early:
        replay_window(run, lambda: spark)
    assert early.value.exit_code == 3
    assert run.ledger.record.state == "running"


def test_a_window_whose_log_is_gone_names_what_is_missing_and_applies_nothing(
    target: MiniCluster, at_source: HBaseClient, two_tables: str, open_replay: Replay, spark: SparkSession
) -> None:
    edges = [now()]
    edit(at_source, two_tables, 1)
    edges.append(now())
    time.sleep(LogTimes.read().clock_skew_seconds)
    run = open_replay(two_tables, (edges[0], edges[1]))
    for server in at_source.servers():
        at_source.roll_wal(server)
    record_seen(run, plan_window(run).files, sealed=set())
    home = at_source.regions(two_tables)[0].server
    assert home is not None
    lost = next(file for file in plan_window(run).files if file.server == home.name)
    with taken_away(run.source_files, lost.path), pytest.raises(GapError, match=lost.name) as gap:
        replay_window(run, lambda: spark)
    assert gap.value.exit_code == 6
    assert content(target, two_tables) == {}
    assert run.ledger.record.state == "failed"


def test_a_table_that_began_a_new_history_within_the_window_is_not_replayed(
    at_source: HBaseClient, two_tables: str, open_replay: Replay, spark: SparkSession
) -> None:
    start = now()
    edit(at_source, two_tables, 1, 10)
    at_source.disable_table(two_tables)
    at_source.truncate_table(two_tables)
    edit(at_source, two_tables, 2, 10)
    end = now()
    time.sleep(LogTimes.read().clock_skew_seconds)
    with pytest.raises(WalferryError, match="two histories"):
        replay_window(open_replay(two_tables, (start, end)), lambda: spark)


def test_a_target_without_the_table_or_a_family_is_refused(
    make_table: Callable[..., str], at_target: HBaseClient, open_replay: Replay, spark: SparkSession
) -> None:
    start = now()
    time.sleep(LogTimes.read().clock_skew_seconds)
    table = make_table()
    with pytest.raises(UsageError, match=f"no table {table} at the target"):
        replay_window(open_replay(table, (start, start + 10)), lambda: spark)
    at_target.create_table(table, {"f": {}})
    with pytest.raises(UsageError, match="lacks the families g"):
        replay_window(open_replay(table, (start, start + 10)), lambda: spark)
