"""The pipeline binds each phase to a function, and asks a person while replay goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest

from unit.migration.filled_ledger import SPEC
from walferry import pipeline
from walferry.cutover import approval
from walferry.errors import GapError, GateShutError, TransientError, UsageError
from walferry.ledger import Ledger, QuarantineItem
from walferry.ledger.rows import RunKind
from walferry.moments.keeping.keep import WORK as KEEP_WORK
from walferry.pipeline import WORK, PhaseContext, do, migrate, retry_work
from walferry.refusals import RefusalKind
from walferry.replay.keeping import protect
from walferry.replay.rounds import follower
from walferry.run.notes.answers import Word, keep_word
from walferry.run.phases import phases_of, steps
from walferry.run.progress.state import state_of
from walferry.run.run import PhaseNotReadyError, Run
from walferry.spark.fan_out import SparkGoneError
from walferry.streams.stream import WORK as STREAM_WORK


class Session:
    """As much of a Spark session as the pipeline itself asks for."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.cancelled = False

    def cancelAllJobs(self) -> None:
        self.cancelled = True


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def means(session: Session, tmp_path: Path) -> PhaseContext:
    return PhaseContext(lambda: session, tmp_path)  # type: ignore[arg-type, return-value]


@pytest.fixture
def order(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The phases in the order in which they were done; their work is left out, their places in the ledger are not."""
    done: list[str] = []

    def quick(name: str) -> Callable[[Run, str, PhaseContext], object]:
        def work(run: Run, subject: str, means: PhaseContext) -> object:
            done.append(name)
            return run.once(name, lambda: {"at_ms": None} if name == "open_target" else {}, subject)

        return work

    def follow(run: Run, spark: object, look: Callable[[], object] = lambda: None, *_: object) -> None:
        def until_stopped() -> dict[str, Any]:
            done.append("replay")
            while run.ledger.phases.facts("write_stop") is None:
                look()
                time.sleep(0.01)
            return {}

        run.once("replay", until_stopped)

    monkeypatch.setattr(pipeline, "WORK", {name: quick(name) for name in WORK})
    monkeypatch.setattr(follower, "follow", follow)
    for module in (pipeline, approval):
        monkeypatch.setattr(module, "before_cutover", lambda run: None)
    monkeypatch.setattr(pipeline, "compared_ahead", lambda run, spark, standstill: nullcontext())
    monkeypatch.setattr(pipeline, "ASK_AGAIN_SECONDS", 0)
    return done


def test_each_phase_of_each_kind_of_run_has_one_function_and_no_function_is_left_over() -> None:
    kinds = set(get_args(RunKind)) - {"stream", "keep", "restore"}
    assert WORK.keys() == {phase.name for kind in kinds for phase in phases_of(kind)}
    assert [*STREAM_WORK] == [phase.name for phase in phases_of("stream")]
    assert [*KEEP_WORK] == [phase.name for phase in phases_of("keep")]


def test_a_phase_that_the_kind_of_run_does_not_have_is_refused(run: Run, means: PhaseContext) -> None:
    with pytest.raises(KeyError, match="a run of kind migration has no phase replay_window"):
        do(run, "replay_window", "", means)


def test_release_is_refused_by_the_ledger_whoever_asks_for_it(run: Run, means: PhaseContext) -> None:
    with pytest.raises(PhaseNotReadyError, match="check_drain is not done in the ledger"):
        do(run, "release", "", means)
    assert run.ledger.record.state == "running"


def test_a_migration_does_its_phases_in_order(run: Run, means: PhaseContext, order: list[str]) -> None:
    migrate(run, lambda question, at_work: True, means)
    expected = [phase.name for phase, _ in steps("migration", [pair.source for pair in run.tables])]
    assert order == [name for name in expected if name not in ("approve", "write_stop")]
    assert {p.phase: p.attempts for p in run.ledger.phases.all()} == dict.fromkeys(expected, 1)
    # Done again, nothing is left to do and nobody is asked.
    migrate(run, lambda question, at_work: pytest.fail("asked again"), means)


@pytest.mark.parametrize("fails", [False, True])
def test_in_the_write_stop_tables_are_compared_beside_each_other(
    fails: bool, tmp_path: Path, means: PhaseContext, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [{"source": name, "target": name} for name in "abcdef"]
    together, ended = threading.Barrier(pipeline.TABLES_AT_ONCE), list[str]()

    def compare(run: Run, table: str, means: PhaseContext) -> object:
        if table in "abcd":
            together.wait(20)
        if fails and table == "b":
            raise UsageError("b cannot be compared")
        time.sleep(0.1)
        ended.append(table)
        return run.once("compare", dict, table)

    monkeypatch.setitem(pipeline.WORK, "compare", compare)
    with Ledger.open(f"sqlite:///{tmp_path / 'more.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC | {"tables": tables}, "test").run_id)
        if not fails:
            migrate(run, lambda question, at_work: True, means)
            assert sorted(ended) == list("abcdef")
            return
        with pytest.raises(UsageError, match="b cannot be compared"):
            migrate(run, lambda question, at_work: True, means)
        assert sorted(ended)[:3] == list("acd"), "nothing is at work any more"
        assert run.ledger.phases.facts("check_drain") is None


def test_who_interrupts_the_comparisons_in_the_write_stop_is_not_kept_waiting_and_no_other_one_begins(
    tmp_path: Path, means: PhaseContext, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [{"source": name, "target": name} for name in "abcdef"]
    together, may_end = threading.Barrier(pipeline.TABLES_AT_ONCE), threading.Event()
    begun, ended = list[str](), threading.Semaphore(0)

    def compare(run: Run, table: str, means: PhaseContext) -> object:
        def work() -> dict[str, Any]:
            begun.append(table)
            together.wait(20)
            if table == "a":
                os.kill(os.getpid(), signal.SIGINT)
            may_end.wait(20)
            raise RuntimeError("shutdown")

        try:
            return run.once("compare", work, table)
        finally:
            ended.release()

    monkeypatch.setitem(pipeline.WORK, "compare", compare)
    with Ledger.open(f"sqlite:///{tmp_path / 'more.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC | {"tables": tables}, "test").run_id)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        try:
            with pytest.raises(KeyboardInterrupt):
                migrate(run, lambda question, at_work: True, means)
        finally:
            signal.signal(signal.SIGINT, before)
        may_end.set()
        for _ in range(pipeline.TABLES_AT_ONCE):
            assert ended.acquire(timeout=20)
        time.sleep(0.1)
        assert sorted(begun) == list("abcd")
        errors = {p.subject: p.error for p in run.ledger.phases.all() if p.phase == "compare"}
        assert errors == dict.fromkeys("abcd", "KeyboardInterrupt: ")
        state = state_of(run.ledger)
        assert (state.name, state.next_step) == ("interrupted", "`walferry resume move`")


def test_replay_goes_on_while_a_question_waits_and_each_question_is_seen_as_a_phase_that_waits(
    run: Run, means: PhaseContext, order: list[str]
) -> None:
    seen = []

    def ask(question: str, at_work: Callable[[], None]) -> bool:
        while "replay" not in (states := {p.phase: p.state for p in run.ledger.phases.all()}):
            at_work()
        seen.append((question.split("?")[0].split(". ")[-1], states["replay"], states.get("write_stop")))
        return True

    migrate(run, ask, means)
    assert seen == [
        ("Cut over move-1", "running", None),
        ("Have all writes to the source stopped", "running", "running"),
    ]


def test_the_write_stop_counts_from_the_answer(run: Run, means: PhaseContext, order: list[str]) -> None:
    answered = []

    def ask(question: str, at_work: Callable[[], None]) -> bool:
        time.sleep(0.05)
        answered.append(time.time() * 1000)
        return True

    migrate(run, ask, means)
    facts = run.done("write_stop")
    assert answered[1] <= facts["at_ms"] + 1
    assert facts["by"] == run.actor


def test_who_says_no_is_asked_again(run: Run, means: PhaseContext, order: list[str]) -> None:
    answers = iter([False, True, False, True])
    migrate(run, lambda question, at_work: next(answers), means)
    assert list(answers) == []
    assert order[-1] == "release"


def waiting(question: str, at_work: Callable[[], None]) -> bool:
    """Nobody answers."""
    while True:
        at_work()
        time.sleep(0.01)


def interrupted(question: str, at_work: Callable[[], None]) -> bool:
    raise KeyboardInterrupt


def test_a_replay_that_fails_ends_the_question(
    run: Run, means: PhaseContext, session: Session, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(run: Run, spark: object, look: Callable[[], object], *_: object) -> None:
        raise GapError("a file is gone", file="f")

    monkeypatch.setattr(follower, "follow", follow)

    with pytest.raises(GapError, match="a file is gone"):
        migrate(run, waiting, means)
    assert "end_fence" not in order


def test_who_interrupts_a_question_interrupts_the_replay(
    run: Run, means: PhaseContext, session: Session, order: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        migrate(run, interrupted, means)
    assert session.cancelled
    assert "replay" not in {thread.name for thread in threading.enumerate()}
    assert {p.phase: p.state for p in run.ledger.phases.all()}["replay"] == "failed"


def test_a_jvm_that_has_ended_is_named_and_hides_no_other_error(
    run: Run, means: PhaseContext, session: Session, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")  # as Py4J says it, outside of jobs

    monkeypatch.setattr(session, "cancelAllJobs", refused)
    with pytest.raises(KeyboardInterrupt):
        migrate(run, interrupted, means)
    monkeypatch.setattr(follower, "follow", refused)
    with pytest.raises(SparkGoneError, match="replay: the JVM of Spark's driver ended"):
        migrate(run, waiting, means)


def test_failures_of_long_work_count_anew_when_it_has_come_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    tries: list[int] = []

    def work() -> None:
        tries.append(len(tries))
        if len(tries) < 12:
            raise TransientError("a region moved")

    retry_work(work, progress=lambda: len(tries) // 2)
    assert len(tries) == 12
    tries.clear()
    with pytest.raises(TransientError):
        retry_work(work)
    assert len(tries) == 4


def test_edits_in_quarantine_keep_their_logs(run: Run) -> None:
    run.ledger.quarantine.put(
        [QuarantineItem("f", 0, 9, "shop:orders", "r1", 1, "refused", b"", RefusalKind.REFUSED)]
    )  # fmt: skip
    with pytest.raises(GateShutError, match="edits wait in quarantine"):
        protect.finish(run, "over")
    assert run.ledger.record.state == "running"


def say(run: Run) -> None:
    run.once("approve", dict)
    keep_word(run.ledger, "write_stop", Word("airflow ann", 7))


def ready_to_replay(run: Run) -> None:
    for phase, subject in steps("migration", [pair.source for pair in run.tables]):
        if phase.name == "replay":
            return
        run.once(phase.name, dict, subject)


def test_one_process_goes_on_from_the_replay_to_the_last_check(run: Run, means: PhaseContext, order: list[str]) -> None:
    ready_to_replay(run)
    say(run)
    pipeline.WORK["replay"] = lambda run, _, means: follower.follow(  # type: ignore[index]
        run, means.spark(), lambda: approval.heed_word(run)
    )
    pipeline.do_through(run, "replay", "check_drain", means)
    assert order == ["replay", "end_fence", "drain", "open_target", "compare", "check_drain"]
    assert run.done("write_stop") == {"at_ms": 7, "how": "confirm", "by": "airflow ann"}


def test_what_fails_after_the_replay_is_left_to_others(
    run: Run, means: PhaseContext, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_to_replay(run)
    say(run)
    run.once("write_stop", dict)

    def drain(run: Run, subject: str, means: PhaseContext) -> object:
        raise GapError("a file is gone", file="f")

    monkeypatch.setitem(pipeline.WORK, "drain", drain)
    pipeline.do_through(run, "replay", "check_drain", means)
    assert run.ledger.phases.facts("replay") is not None
    assert order == ["replay", "end_fence"]


def test_a_word_counts_only_after_the_approval_and_while_nobody_else_records_it(run: Run) -> None:
    keep_word(run.ledger, "write_stop", Word("airflow ann", 7))
    approval.heed_word(run)
    assert run.ledger.phases.find("write_stop") is None
    ready_to_replay(run)
    run.once("approve", dict)
    run.ledger.phases.start("write_stop")
    approval.heed_word(run)
    assert run.ledger.phases.find("write_stop").attempts == 1  # type: ignore[union-attr]
