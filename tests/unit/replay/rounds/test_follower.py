"""Two processes that work on one run never replay at the same time (R8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unit.migration.filled_ledger import SPEC
from unit.replay.rights.test_durability import Source, Target
from unit.spark_stand_in import SPARK
from walferry.errors import GateShutError, WalferryError
from walferry.ledger import Ledger, Round, RunLedger
from walferry.replay.rights import applying, dirty, standstill
from walferry.replay.rights.lease import OutcomeUnknownError
from walferry.replay.rounds import follower
from walferry.replay.rounds.rounds import NotCutError
from walferry.run import between_rounds
from walferry.run.notes.failing import failing
from walferry.run.notes.sent_early import SentEarly, compared, note_sent, sent_early
from walferry.run.phases import phases_of
from walferry.run.run import Run, RunEndedError
from write_limits import write_limits

PATIENCE = 20.0


@contextmanager
def process(ledger_url: str, run_id: str, target: Target) -> Iterator[Run]:
    """The run as a process of its own sees it: with its own connection to the ledger and its own ZooKeeper session."""
    own = Target()
    own.zookeeper, own.zk = target.zookeeper, target.zookeeper.session()
    with Ledger.open(ledger_url, actor="test") as ledger:
        run = Run(ledger, run_id)
        run.__dict__.update(target=own, source=Source())
        yield run


@pytest.fixture(autouse=True)
def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The open logs are a stub, or have nothing to send."""
    monkeypatch.setattr(follower, "lease_check_of", lambda *_: lambda _: None)


def run_before_replay(ledger: Ledger) -> str:
    """A run all of whose phases before its replay are done; its id."""
    run_id = ledger.open_run("move", "test", SPEC, "test").run_id
    phases = ledger.of(run_id).phases
    for phase in phases_of("migration")[:7]:
        for subject in ("shop:orders",) if phase.by_table else ("",):
            phases.start(phase.name, subject)
            phases.finish(phase.name, {}, subject)
    return run_id


def test_of_two_processes_that_were_told_to_resume_a_run_the_second_replays_once_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pause = f"sqlite:///{tmp_path / 'ledger.db'}", threading.Event().wait
    monkeypatch.setattr(time, "sleep", lambda seconds: pause(min(seconds, 0.02)))
    monkeypatch.setattr(applying, "limits_of", lambda *_: write_limits(request_seconds=0.1, settle_seconds=0))
    monkeypatch.setattr(applying, "remove_staged", lambda run, pairs: None)  # there is no file system
    replaying: list[str] = []
    rounds: list[str] = []
    together: list[str] = []
    both_begun, last_rounds = threading.Event(), threading.Event()

    def run_round(run: Run, *_: object) -> Round:
        name = threading.current_thread().name
        replaying.append(name)
        rounds.append(name)
        if rounds.count("second") == 2:
            last_rounds.set()
        both_begun.wait(PATIENCE)
        pause(0.3)  # for the other one, should nothing hold it back
        if len(replaying) > 1:
            together.append(name)
        replaying.remove(name)
        return Round(1, 0, 0, 0, 0, 0, 0, 0, 0)

    monkeypatch.setattr(follower, "run_round", run_round)
    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=lambda _: None))
    ended: dict[str, BaseException | None] = {}

    def follow() -> None:
        with process(url, run_id, target) as run:
            try:
                follower.follow(run, SPARK)
                ended[threading.current_thread().name] = None
            except RunEndedError as error:
                ended[threading.current_thread().name] = error

    target = Target()
    with Ledger.open(url, actor="test") as ledger:
        run_id = run_before_replay(ledger)
        phases = ledger.of(run_id).phases
        threads = [threading.Thread(target=follow, name=name) for name in ("first", "second")]
        threads[0].start()
        until(lambda: bool(rounds))
        threads[1].start()
        until(lambda: [p.attempts for p in phases.all() if p.phase == "replay"] == [2])
        both_begun.set()
        assert last_rounds.wait(PATIENCE)
        phases.start("write_stop")
        phases.finish("write_stop", {})
        for thread in threads:
            thread.join(PATIENCE)
        assert phases.facts("replay") == {}
    assert together == []
    assert rounds[0] == "first"
    assert "first" not in rounds[rounds.index("second") :]
    assert ended["second"] is None
    assert "taken over by a newer attempt" in str(ended["first"])


def test_a_standby_ends_with_a_round_that_seals_what_was_sent_and_shuts_where_rows_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: it ended between two rounds, and nobody looked whether the source had lost what it had been sent."""
    rounds: list[bool] = []

    def run_round(run: Run, spark: object, route: object, open_logs: object = None) -> Round:
        rounds.append(open_logs is not None)
        if open_logs is None:
            compared(run.ledger, sent_early(run.ledger))
        return Round(1, 0, 0, 0, 0, 0, 0, 0, 0)

    mark = dirty.DirtyRows.of("shop:orders", b"", b"", "standby-1", 3, 5, "edits that the source has lost")
    marks = [[mark], []]
    monkeypatch.setattr(standstill, "applying", lambda *_: nullcontext())
    monkeypatch.setattr(follower, "wait_while_paused", lambda _: None)
    monkeypatch.setattr(follower, "run_round", run_round)
    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=lambda _: None))
    monkeypatch.setattr(dirty, "marks_of", lambda _: marks.pop(0))
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("standby", "test", SPEC, "test", "standby").run_id)
        for phase in phases_of("standby"):
            if phase.name in ("replay", "release"):
                continue
            for subject in ("shop:orders",) if phase.by_table else ("",):
                run.ledger.phases.start(phase.name, subject)
                run.ledger.phases.finish(phase.name, {}, subject)
        note_sent(run.ledger, {"rs.7": SentEarly(shown=((9, 1),), tables=("shop:orders",))}, lambda _: None)
        with pytest.raises(GateShutError, match="edits that the source has lost: `walferry verify standby` compares"):
            follower.follow(run, SPARK)
        assert rounds == [True, False]
        follower.follow(run, SPARK)
        assert rounds == [True, False, True], "nothing was sent since"
        assert run.ledger.phases.facts("replay") == {}


def fails_with(error: Exception) -> Callable[[Run], None]:
    def let_go(_: Run) -> None:
        raise error

    return let_go


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        yield book.of(book.open_run("move", "test", SPEC, "test").run_id)


def test_replay_goes_on_when_applied_logs_cannot_be_let_go_and_says_so(
    ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standstill, "applying", lambda *_: nullcontext())
    monkeypatch.setattr(follower, "wait_while_paused", lambda _: None)
    monkeypatch.setattr(follower, "run_round", lambda *_: Round(1, 0, 0, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(
        follower, "way_of", lambda _: SimpleNamespace(let_go=fails_with(WalferryError("peers may not be changed")))
    )
    run = cast(Run, SimpleNamespace(spec=SimpleNamespace(follow=False, max_lag=30), ledger=ledger))
    follower.replay(run, SPARK, until=lambda: True)
    assert "applied WALs cannot be released and accumulate: peers may not be changed" in caplog.text

    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=fails_with(RunEndedError("aborted"))))
    with pytest.raises(RunEndedError):
        follower.replay(run, SPARK, until=lambda: True)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the leases were released, each time that they were left."""
    left: list[bool] = []

    @contextmanager
    def applying(_: Run) -> Iterator[None]:
        try:
            yield
        except BaseException:
            left.append(False)
            raise
        left.append(True)

    monkeypatch.setattr(standstill, "applying", applying)
    return left


def test_after_a_request_with_an_unknown_outcome_the_leases_are_taken_again(
    left: list[bool], ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever left them by an error is waited for (`lease.held_leases`)."""

    def go_on() -> bool:
        if not left:
            raise OutcomeUnknownError("edits of open logs may not have arrived")
        return True

    open_logs = SimpleNamespace(go_on=go_on)
    monkeypatch.setattr(follower, "wait_while_paused", lambda _: None)
    monkeypatch.setattr(follower, "is_paused", lambda _: False)
    monkeypatch.setattr(follower, "OpenLogs", lambda *_: open_logs)
    monkeypatch.setattr(follower, "run_round", lambda *_: Round(1, 0, 0, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=lambda _: None))
    run = SimpleNamespace(spec=SimpleNamespace(follow=True, max_lag=30), ledger=ledger)
    follower.replay(cast(Run, run), SPARK, until=lambda: left == [False])
    assert left == [False, True]


def test_while_the_log_cannot_be_cut_what_can_be_followed_is_followed_under_the_same_leases(
    left: list[bool], ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole: a server of the source that died ended the replay, and its successor waited for the leases."""
    rounds, passes = list[int](), list[bool]()

    def run_round(*_: object) -> Round:
        rounds.append(1)
        if len(rounds) in (2, 3, 4):
            raise NotCutError("rs,1,2 refuses the connection")
        return Round(1, 0, 0, 0, 0, 0, 0, 0, 0)

    def go_on() -> bool:
        passes.append(failing(ledger, "cut") is not None)
        return True

    monkeypatch.setattr(between_rounds, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(follower, "EARLY_SECONDS", 0.05)
    monkeypatch.setattr(follower, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(follower, "wait_while_paused", lambda _: None)
    monkeypatch.setattr(follower, "is_paused", lambda _: False)
    monkeypatch.setattr(follower, "OpenLogs", lambda *_: SimpleNamespace(go_on=go_on))
    monkeypatch.setattr(follower, "run_round", run_round)
    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=lambda _: None))
    run = SimpleNamespace(spec=SimpleNamespace(follow=True, max_lag=0), ledger=ledger)
    follower.replay(cast(Run, run), SPARK, until=lambda: len(rounds) == 5)
    assert left == [True]
    assert not passes[0]
    assert passes[-1], "the ledger says that cuts fail"
    assert failing(ledger, "cut") is None, "and that they succeed again"
    assert caplog.text.count("the log cannot be cut now; trying again: rs,1,2 refuses") == 3
    monkeypatch.setattr(follower, "CUT_SECONDS", -1.0)
    rounds[:] = [1]
    with pytest.raises(NotCutError):
        follower.replay(cast(Run, run), SPARK, until=lambda: False)


@pytest.mark.parametrize("busy", [False, True], ids=["between two passes", "in a round"])
def test_a_replay_that_is_ended_where_nothing_is_under_way_releases_its_leases(
    busy: bool, left: list[bool], ledger: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: after Ctrl-C the next command waited 50 s for requests that nobody had sent."""

    def interrupted(*_: object) -> bool:
        raise RunEndedError("the replay of move-1 was interrupted")

    round_of = interrupted if busy else lambda *_: Round(1, 0, 0, 0, 0, 0, 0, 0, 0)
    monkeypatch.setattr(follower, "wait_while_paused", lambda _: None)
    monkeypatch.setattr(follower, "run_round", round_of)
    monkeypatch.setattr(follower, "way_of", lambda _: SimpleNamespace(let_go=lambda _: None))
    run = cast(Run, SimpleNamespace(spec=SimpleNamespace(follow=False, max_lag=30), ledger=ledger))
    with pytest.raises(RunEndedError, match="was interrupted"):
        follower.replay(run, SPARK, until=interrupted)
    assert left == [not busy]


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come")
