"""A process's turn to stream: how it learns that another one has taken over, and what it says then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.streams.stream_ledger import opened
from walferry.errors import WalferryError
from walferry.ledger import Ledger
from walferry.run.run import RunEndedError
from walferry.run.turn import TakenOverError, Turn
from walferry.streams.fenced import FencedError, explaining_fences
from walferry.streams.stream_run import StreamRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StreamRun]:
    """A stream whose phase `stream` this process has begun."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as book:
        run_id = opened(book).record.run_id
        book.of(run_id).phases.start("stream")
        with StreamRun(book, run_id) as run:
            yield run


def fence(turn: Turn) -> None:
    with explaining_fences(turn):
        raise FencedError("another one writes as walferry-c1-changes-0", transactional_id="walferry-c1-changes-0")


def test_a_process_hears_from_the_ledger_and_from_kafka_in_the_same_words_that_it_was_overtaken(
    run: StreamRun,
) -> None:
    turn = Turn(run, "stream")
    turn.require()
    run.ledger.phases.start("stream")
    with pytest.raises(TakenOverError, match="another process has taken over changes-1") as by_ledger:
        turn.require()
    with pytest.raises(TakenOverError) as by_kafka:
        fence(turn)
    assert str(by_kafka.value) == str(by_ledger.value)
    assert by_kafka.value.exit_code == by_ledger.value.exit_code == 1


def test_the_last_process_of_a_run_that_has_ended_was_not_overtaken_by_the_next_run(run: StreamRun) -> None:
    turn = Turn(run, "stream")
    run.ledger.end("aborted", "kim", "no longer needed")
    with pytest.raises(RunEndedError, match="run changes-1 has ended as aborted"):
        fence(turn)


def test_a_stream_of_the_same_name_in_another_ledger_is_told_as_such(run: StreamRun) -> None:
    with pytest.raises(WalferryError, match=r"another ledger has a stream of this name .* another name") as told:
        fence(Turn(run, "stream"))
    assert not isinstance(told.value, TakenOverError)
    assert told.value.transactional_id == "walferry-c1-changes-0"
