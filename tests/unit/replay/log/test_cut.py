"""Where replay begins, and when regions count as still: the parts of a cut that need no cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.errors import TransientError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, LogPosition, SeenFile, WalRange
from walferry.replay.log import cut as cutting
from walferry.replay.log.cut import Cut, cut_log, lines_of, quiet_cut, standing, start_fence
from walferry.replay.rounds import rounds as replaying
from walferry.replay.rounds.rounds import _settled_cut
from walferry.run import log_folder
from walferry.run.facts import kept_lines
from walferry.run.run import Run
from walferry.storage import FileStatus, Local
from walferry.wal.files import Place, WalFile

TABLE = "shop:orders"
R = "r"
HOME, AWAY = Server("rs", 1, 2), Server("rs", 2, 3)


def wal(group: str, number: int, place: Place) -> WalFile:
    return WalFile(f"{group}.{number}", group, group, number, f"/{group}.{number}", place, 10)


def cut_of(*files: WalFile, before: str = "still", after: str = "still", at_ms: int = 1) -> Cut:
    """A cut whose newest live file of each group is behind it."""
    current = {file.group: file.number for file in files if file.place is Place.LIVE}
    return Cut(at_ms, {TABLE: {R: before}}, {TABLE: {R: after}}, list(files), current, {TABLE: []})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.ledger.phases.start("protect")
        run.ledger.phases.finish("protect", {})
        yield run


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the cuts of the log be these, one after the other."""

    def be(*made: Cut) -> None:
        waiting = iter(made)
        monkeypatch.setattr(cutting, "cut_log", lambda *_, **__: next(waiting))
        monkeypatch.setattr(cutting, "take_stock", lambda *_: None)
        monkeypatch.setattr(time, "sleep", lambda _: None)

    return be


def test_groups_of_dead_servers_are_in_the_snapshot_whole_and_leave_no_gap(run: Run, cuts: Callable[..., None]) -> None:
    archived, splitting = wal("gone", 5, Place.ARCHIVED), wal("dying", 6, Place.SPLITTING)
    cuts(cut_of(archived, splitting, wal("rs", 7, Place.LIVE)))
    start_fence(run)
    ledger = run.ledger
    assert ledger.log.fence("start") == [
        LogPosition("dying", "", 7, 0), LogPosition("gone", "", 6, 0), LogPosition("rs", "rs.7", 7, 0),
    ]  # fmt: skip
    ledger.log.see_files([SeenFile("rs.7", "rs", "rs", 7, "/rs.7", 10, sealed=True)])
    ledger.log.set_ranges([WalRange("rs.7", 0, 10, TABLE, 0, 0, None, None, "applied")])
    ledger.log.set_fence("end", [LogPosition("rs", "rs.8", 8, 0)])
    assert ledger.log.gaps() == []


def test_between_the_fence_and_the_first_round_nothing_is_a_gap(run: Run, cuts: Callable[..., None]) -> None:
    """The files in which the fence is set are recorded with it."""
    cuts(cut_of(wal("gone", 5, Place.ARCHIVED), wal("rs", 6, Place.LIVE), wal("rs", 7, Place.LIVE)))
    start_fence(run)
    assert [(file.name, file.state) for file in run.ledger.log.files()] == [("rs.7", "open")]
    assert [gap.reason for gap in run.ledger.log.gaps()] == []


def test_a_fence_is_cut_again_until_no_region_moved_during_the_cut(run: Run, cuts: Callable[..., None]) -> None:
    cuts(
        cut_of(wal("rs", 7, Place.LIVE), before="here", after="there"),
        cut_of(wal("rs", 8, Place.LIVE), before="there", after="there"),
    )
    start_fence(run)
    assert kept_lines(run, "applied") == {TABLE: {R: "there"}}
    assert run.ledger.log.fence("start") == [LogPosition("rs", "rs.8", 8, 0)]


def test_a_kill_between_the_fence_and_the_end_of_its_phase_leaves_the_fence_with_its_lines_and_its_time(
    run: Run, cuts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream has each table from the fence on whose regions the fence knows."""
    first, again = wal("rs", 7, Place.LIVE), wal("rs", 9, Place.LIVE)
    cuts(cut_of(first, at_ms=5), cut_of(again, before="moved", after="moved", at_ms=60))

    def kill(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cutting, "record_seen", kill)
        with pytest.raises(KeyboardInterrupt):
            start_fence(run)
    facts = start_fence(run)
    assert (facts.groups, facts.at_ms) == (1, 5)
    assert kept_lines(run, "applied") == {TABLE: {R: "still"}}
    assert run.ledger.log.fence("start") == [LogPosition("rs", "rs.7", 7, 0)]


def test_a_cut_that_never_is_quiet_is_given_up(
    run: Run, cuts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts(cut_of(before="here", after="there"), cut_of(before="there", after="here"))
    monkeypatch.setattr(cutting, "REST_SECONDS", -1)
    with pytest.raises(TransientError, match=f"regions of {TABLE} moved"):
        quiet_cut(run)


def test_a_round_in_which_regions_moved_needs_a_quiet_cut_and_one_in_which_none_did_takes_any(
    run: Run, cuts: Callable[..., None]
) -> None:
    loud = cut_of(wal("rs", 7, Place.LIVE), before="there", after="elsewhere")
    quiet = cut_of(wal("rs", 8, Place.LIVE), before="elsewhere", after="elsewhere")
    cuts(loud, quiet)
    assert _settled_cut(run, {TABLE: {R: "here"}}) == quiet
    cuts(loud, quiet)
    assert _settled_cut(run, {TABLE: {R: "elsewhere"}}) == loud


def test_a_round_in_which_regions_moved_waits_for_the_logs_of_a_server_that_died(
    run: Run, cuts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Run] = []
    monkeypatch.setattr(replaying, "await_archive", waited.append)
    dying = cut_of(wal("dying", 6, Place.SPLITTING), wal("rs", 7, Place.LIVE))
    whole = cut_of(wal("dying", 6, Place.ARCHIVED), wal("rs", 8, Place.LIVE))
    cuts(dying, whole)
    assert _settled_cut(run, {TABLE: {R: "here"}}) == whole
    assert waited == [run]


def test_what_a_dead_server_wrote_is_in_front_of_the_cut_once_it_is_archived() -> None:
    splitting, archived = wal("dying", 6, Place.SPLITTING), wal("gone", 5, Place.ARCHIVED)
    sealed, current = wal("rs", 7, Place.LIVE), wal("rs", 8, Place.LIVE)
    made = Cut(1, {}, {}, [splitting, archived, sealed, current], {"rs": 8}, {})
    assert made.below() == [archived, sealed]


@dataclass
class Rolling:
    """A source with one server, which begins a new log some time after it was asked to, or dies instead.

    `hanging`: the seconds that it goes on with the old one, whose trailer comes last.
    """

    root: Path
    dying: bool = False
    hanging: float = 0
    alive: list[Server] = field(default_factory=lambda: [HOME])
    number: int = 7

    def servers(self) -> list[Server]:
        return self.alive

    def regions(self, table: str) -> list[Region]:
        return []

    def write_counts(self, server: Server, tables: object, attempts: int = 1) -> dict[str, int]:
        return {}

    def path(self, number: int) -> str:
        return f"{self.root}/WALs/{HOME.name}/rs%2C1%2C2.{number}"

    def write(self) -> None:
        Local().write(self.path(self.number), [b"log"])
        self.number += 1
        if Path(self.path(self.number - 2)).exists():
            threading.Timer(self.hanging, self.close, [self.number - 2]).start()

    def close(self, number: int) -> None:
        Path(self.path(number)).write_bytes(b"log and more LAWP")

    def roll_wal(self, server: Server, attempts: int = 1) -> None:
        if self.dying:
            self.alive = []
        else:
            threading.Timer(0.1, self.write).start()


@contextmanager
def rolled(source: Rolling, files: Local) -> Iterator[Run]:
    """A run on that source, which writes to its first log. Who waits looks ten times as often."""
    pause = time.sleep
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{source.root}"}}
    with (
        Ledger.open(f"sqlite:///{source.root / 'ledger.db'}", actor="test") as ledger,
        patch("time.sleep", lambda seconds: pause(seconds / 10)),
    ):
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=source, wal_files=files)
        source.write()
        yield run


@pytest.mark.parametrize(("dying", "behind"), [(False, {"rs%2C1%2C2": 8}), (True, {})], ids=["rolls", "dies"])
def test_what_was_written_before_a_cut_is_below_it_or_to_be_split_though_a_roll_takes_time_or_the_server_dies(
    dying: bool, behind: dict[str, int], tmp_path: Path
) -> None:
    source = Rolling(tmp_path, dying)
    with rolled(source, Local()) as run:
        made = cut_log(run)
    assert [file.number for file in (made.splitting() if dying else made.below())] == [7]
    assert made.current == behind


@pytest.mark.parametrize("ends", [True, False], ids=["its session ends", "it stays"])
def test_a_server_that_does_not_answer_is_asked_to_roll_for_as_long_as_it_counts_as_alive(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(Rolling):
        asked = 0

        def roll_wal(self, server: Server, attempts: int = 1) -> None:
            self.asked += 1
            if ends and self.asked == 3:
                self.alive = []
            raise TransientError("rs refuses the connection")

    monkeypatch.setattr(cutting, "ROLL_SECONDS", 0.5)
    source = Dead(tmp_path)
    with rolled(source, Local()) as run:
        if ends:
            made = cut_log(run)
            assert ([file.number for file in made.splitting()], source.asked) == ([7], 3)
        else:
            with pytest.raises(TransientError, match="refuses the connection"):
                cut_log(run)


@pytest.mark.parametrize("archived", [False, True], ids=["where it was", "archived at once"])
def test_a_cut_waits_until_the_server_has_left_the_log_in_front_of_it(archived: bool, tmp_path: Path) -> None:
    """The next log is listed before the server changes over to it; until then edits go to the old one."""

    class Slow(Rolling):
        def close(self, number: int) -> None:
            super().close(number)
            if archived:
                Path(f"{self.root}/oldWALs").mkdir()
                Path(self.path(number)).rename(f"{self.root}/oldWALs/{Path(self.path(number)).name}")
            self.closed = time.monotonic()

    source = Slow(tmp_path, hanging=0.3)
    with rolled(source, Local()) as run:
        made = cut_log(run)
    assert time.monotonic() > source.closed
    assert made.current == {"rs%2C1%2C2": 8}


@dataclass
class Apart(Rolling):
    """As `Rolling`, with a second server, which logs elsewhere and may have a region."""

    serving: bool = True

    def __post_init__(self) -> None:
        self.alive = [HOME, AWAY]
        self.address = ClusterAddress("zk:2181", rootdir=f"hdfs://nn:1{self.root}")

    def roll_wal(self, server: Server, attempts: int = 1) -> None:
        if server == HOME:
            super().roll_wal(server)

    def table_enabled(self, table: str) -> bool:
        return True

    def regions(self, table: str) -> list[Region]:
        return on(AWAY if self.serving else HOME)

    def settings(self, server: Server) -> dict[str, str]:
        return {"hbase.wal.dir": f"hdfs://{server.host}:{server.port}/new"}


def test_a_server_with_regions_whose_log_is_elsewhere_is_named_beside_others_whose_log_is_here(tmp_path: Path) -> None:
    """While servers are restarted one by one with another hbase.wal.dir."""
    with rolled(Apart(tmp_path), Local()) as run:
        said = (
            f"has no folder of rs,2,3, which has regions of {TABLE}; its hbase.wal.dir is hdfs://rs:2/new: set `waldir`"
        )
        with pytest.raises(TransientError, match=f"^source: {tmp_path}/WALs {said}"):
            cut_log(run)
        run.source.alive = [HOME]  # type: ignore[attr-defined]
        assert cut_log(run).current == {"rs%2C1%2C2": 9}, "the other one has died"


def test_a_killed_server_that_still_counts_as_live_does_not_spoil_a_cut(tmp_path: Path) -> None:
    """HBase renames its folder as soon as another process takes its port, long before its session ends."""
    with rolled(Apart(tmp_path), Local()) as run:
        folder = tmp_path / "WALs" / f"{AWAY.name}-splitting"
        Local().write(f"{folder}/rs%2C2%2C3.5", [b"log"])
        made = cut_log(run)
        assert [file.name for file in made.splitting()] == ["rs%2C2%2C3.5"]
        (folder / "rs%2C2%2C3.5").unlink()
        cut_log(run)


def test_a_server_that_dies_while_the_log_is_cut_is_not_missed(tmp_path: Path) -> None:
    class Dies(Apart):
        def roll_wal(self, server: Server, attempts: int = 1) -> None:
            super().roll_wal(server)
            self.alive = [HOME]

    with rolled(Dies(tmp_path), Local()) as run:
        assert cut_log(run).current == {"rs%2C1%2C2": 8}


def test_a_server_without_regions_need_not_have_a_log(tmp_path: Path) -> None:
    with rolled(Apart(tmp_path, serving=False), Local()) as run:
        assert cut_log(run).current == {"rs%2C1%2C2": 8}


def test_no_log_of_any_live_server_may_pass_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of 1.x has no folder until it has its first region again."""
    monkeypatch.setattr(log_folder, "log_files_of", lambda _: Local())
    source = Apart(tmp_path, serving=False)
    with rolled(source, Local()) as run:
        source.alive = [AWAY]
        source.__dict__["regions"] = lambda table: []
        with pytest.raises(TransientError, match=r"^source: .*/WALs has no folder of a live region server"):
            cut_log(run)
        (tmp_path / "WALs" / AWAY.name).mkdir()
        assert cut_log(run).current == {}


def test_a_log_that_is_never_closed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "ROLL_SECONDS", 0.4)
    named = pytest.raises(TransientError, match=r"has not closed rs%2C1%2C2\.7 yet")
    with rolled(Rolling(tmp_path, hanging=1.0), Local()) as run, named:
        cut_log(run)


def test_the_log_of_a_server_that_joins_during_the_cut_is_not_below_it(tmp_path: Path) -> None:
    joined = Server("new", 1, 3)

    class Joining(Local):
        def list(self, path: str) -> list[FileStatus]:
            if source.number > 8 and joined not in source.alive:
                source.alive.append(joined)
                self.write(f"{tmp_path}/WALs/{joined.name}/new%2C1%2C3.1", [b""])
            return super().list(path)

    source = Rolling(tmp_path)
    with rolled(source, Joining()) as run:
        made = cut_log(run)
    assert made.current == {"rs%2C1%2C2": 8, "new%2C1%2C3": 1}
    assert [file.number for file in made.below()] == [7]


def test_a_fence_knows_each_group_of_the_archive_and_a_round_only_what_matters_to_it(tmp_path: Path) -> None:
    """A group that the start fence does not name counts in full."""
    with rolled(Rolling(tmp_path), Local()) as run:
        cut_log(run)
        Local().write(f"{tmp_path}/oldWALs/gone%2C1%2C1.3", [b"log LAWP"])
        assert [file.number for file in cut_log(run).files] == [7, 8, 9]
        made = quiet_cut(run)
    assert [(file.group, file.number) for file in made.files if file.place is Place.ARCHIVED] == [("gone%2C1%2C1", 3)]


@dataclass
class Meta:
    """What a client knows of one table's regions."""

    regions_now: list[Region]
    alive: list[Server]
    enabled: bool = True

    def servers(self) -> list[Server]:
        return self.alive

    def table_enabled(self, table: str) -> bool:
        return self.enabled


def on(server: Server | None, open_sequence: int = 9) -> list[Region]:
    return [Region(b"r", "r", TABLE, b"", b"", server, 1, open_sequence)]


def lines(meta: Meta) -> tuple[str, str]:
    client = cast(HBaseClient, meta)
    return lines_of(client, TABLE, meta.regions_now)[R], lines_of(client, TABLE, meta.regions_now)[R]


def test_a_region_that_stays_has_one_line_and_a_reopened_one_another() -> None:
    first, again = lines(Meta(on(HOME), [HOME]))
    assert first == again
    assert lines(Meta(on(HOME, 10), [HOME]))[0] != first


def test_the_others_of_a_table_stand_still_while_one_of_its_regions_moves_is_split_or_comes_anew() -> None:
    earlier = {TABLE: {"a": "rs 1", "b": "rs 1", "parent": "rs 1"}, "gone": {"x": "rs 1"}}
    later = {TABLE: {"a": "rs 1", "b": "other 2", "daughter": "rs 3"}, "new": {"y": "rs 1"}}
    assert standing(earlier, later) == {TABLE: {"a"}, "new": set()}


def test_a_cut_need_not_be_quiet_for_regions_that_stood_still_before_it() -> None:
    """One that moves during this cut is among those that moved at the next."""
    made = replace(cut_of(), before={TABLE: {"a": "1", "b": "1"}}, after={TABLE: {"a": "1", "b": "2", "c": "1"}})
    assert not made.is_quiet(TABLE)
    assert not made.is_quiet(TABLE, {"b"})
    assert made.is_quiet(TABLE, {"b", "c"})


@pytest.mark.parametrize("meta", [Meta(on(None), [HOME]), Meta(on(HOME), [])], ids=["on its way", "on a dead server"])
def test_a_region_that_is_not_served_is_never_still(meta: Meta) -> None:
    first, again = lines(meta)
    assert first != again


def test_the_closed_regions_of_a_disabled_table_are_still() -> None:
    first, again = lines(Meta(on(None), [HOME], enabled=False))
    assert first == again


def test_files_of_a_server_that_just_died_are_neither_sealed_nor_below_a_cut() -> None:
    """Its znode is gone and the master has not renamed its folder yet: the files are to be split."""
    dying, alive, old = wal("dying", 5, Place.LIVE), wal("rs", 7, Place.LIVE), wal("rs", 6, Place.LIVE)
    archived = wal("gone", 3, Place.ARCHIVED)
    cut = Cut(1, {TABLE: {R: "still"}}, {TABLE: {R: "still"}}, [dying, alive, old, archived], {"rs": 7}, {TABLE: []})
    assert cut.below() == [old, archived]
    assert cut.splitting() == [dying]
