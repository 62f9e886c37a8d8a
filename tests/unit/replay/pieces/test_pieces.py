"""Pieces of a batch: the oldest first, those of one group in order, each recorded as soon as it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from walferry.errors import TransientError
from walferry.ledger import Piece
from walferry.replay.pieces.pieces import run_pieces


def piece(number: int, group: str) -> Piece:
    return Piece(number, "group", group, "", 1)


PIECES = [piece(0, "b"), piece(1, "a"), piece(2, "a"), piece(3, "b")]


class Recorded:
    """What was begun and recorded, in order."""

    def __init__(self, work: Callable[[Piece], int] = lambda piece: piece.number) -> None:
        self.begun: list[int] = []
        self.done: list[tuple[int, int]] = []
        self.cancelled = False
        self.may_begin = True
        self._work = work

    def begin(self, piece: Piece) -> Callable[[], int]:
        self.begun.append(piece.number)
        return partial(self._work, piece)

    def record(self, piece: Piece, result: int) -> None:
        self.done.append((piece.number, result))

    def cancel(self) -> None:
        self.cancelled = True

    def run(self, at_once: int) -> None:
        run_pieces(
            PIECES, self.begin, self.record, at_once=at_once, may_begin=lambda: self.may_begin, cancel=self.cancel
        )


def test_one_at_a_time_they_go_by_age() -> None:
    recorded = Recorded()
    recorded.run(1)
    assert recorded.begun == [0, 1, 2, 3]
    assert recorded.done == [(number, number) for number in range(4)]


def test_a_slow_piece_holds_only_those_after_it_in_its_group() -> None:
    others = threading.Event()

    def work(piece: Piece) -> int:
        if piece.number == 0:
            assert others.wait(10)
        if piece.number == 2:
            others.set()
        return 0

    recorded = Recorded(work)
    recorded.run(4)
    assert recorded.begun == [0, 1, 2, 3]
    order = [number for number, _ in recorded.done]
    assert order.index(1) < order.index(0) < order.index(3)


def test_after_a_failure_nothing_begins_and_what_ran_is_recorded() -> None:
    failed = threading.Event()

    def work(piece: Piece) -> int:
        if piece.number == 1:
            failed.set()
            raise TransientError("lost")
        assert failed.wait(10)
        return 7

    recorded = Recorded(work)
    with pytest.raises(TransientError, match="lost"):
        recorded.run(2)
    assert recorded.begun == [0, 1]
    assert recorded.done == [(0, 7)]
    assert not recorded.cancelled


def test_a_piece_that_cannot_be_recorded_counts_as_failed() -> None:
    recorded = Recorded()

    def refuse(piece: Piece, result: int) -> None:
        raise TransientError("the ledger is gone")

    recorded.record = refuse  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="the ledger is gone"):
        recorded.run(1)
    assert recorded.begun == [0]


def test_an_interrupted_process_ends_what_runs() -> None:
    recorded = Recorded()

    def interrupt(piece: Piece, result: int) -> None:
        raise KeyboardInterrupt

    recorded.record = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        recorded.run(1)
    assert recorded.cancelled


def test_an_interrupted_process_does_not_wait_for_what_it_cannot_end() -> None:
    may_end = threading.Event()
    ended = []

    def work(piece: Piece) -> int:
        if piece.number == 0:
            may_end.wait(20)
            ended.append(piece.number)
        return 0

    def interrupt(piece: Piece, result: int) -> None:
        raise KeyboardInterrupt

    recorded = Recorded(work)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_pieces(PIECES, recorded.begin, interrupt, at_once=2, may_begin=lambda: True, cancel=None)
        assert (recorded.begun, ended) == ([0, 1], [])
    finally:
        may_end.set()


def test_while_the_run_is_paused_what_runs_goes_on_and_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()

    def pause(piece: Piece, result: int) -> None:
        recorded.done.append((piece.number, result))
        recorded.may_begin = False

    def resume(seconds: float) -> None:
        assert sorted(recorded.begun) == sorted(number for number, _ in recorded.done), "what ran was recorded"
        recorded.may_begin = True

    recorded.record = pause  # type: ignore[method-assign]
    monkeypatch.setattr(time, "sleep", resume)
    recorded.run(2)
    assert sorted(number for number, _ in recorded.done) == [0, 1, 2, 3]
