"""Cut files into pieces, and work through the pieces: oldest first, many at a time, each recorded when it is done."""

from __future__ import annotations

import heapq
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from walferry.apply.route import Route
from walferry.ledger import Piece
from walferry.ledger.batches import Change
from walferry.replay.rights.applying import is_paused
from walferry.replay.rights.throttle_share import sending
from walferry.run.run import Run
from walferry.spark.fan_out import AT_ONCE_HERE, cancel_jobs
from walferry.wal.files import WalFile

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0

Result = TypeVar("Result")


def cut_groups(files: Iterable[WalFile], piece_bytes: int, first: int = 0) -> list[Piece]:
    """Cut each group's files into pieces of consecutive files, each of at most `piece_bytes` or a single file.

    The pieces come oldest first, numbered from `first`. A piece's plan is a JSON list of its files' names.
    """
    runs: list[list[WalFile]] = []
    for file in sorted(files, key=lambda file: (file.group, file.number)):
        fits = runs and runs[-1][0].group == file.group
        if not fits or sum(other.length for other in runs[-1]) + file.length > piece_bytes:
            runs.append([])
        runs[-1].append(file)
    return [
        Piece(number, "group", some[0].group, json.dumps([file.name for file in some]), sum(f.length for f in some))
        for number, some in enumerate(sorted(runs, key=lambda some: some[0].number), first)
    ]


def repeated(pieces: Iterable[Piece]) -> int:
    """The number of attempts at these pieces, not counting each piece's first."""
    return sum(max(0, piece.attempts - 1) for piece in pieces)


def apply_pieces(
    run: Run,
    spark: SparkSession | None,
    route: Route,
    lease_check: Change,
    pieces: Sequence[Piece],
    begin: Callable[[Piece], Callable[[], Result]],
    done: Callable[[Piece, Result], None],
) -> None:
    """Use `run_pieces` to apply the pieces that are not done yet, one per core at a time, or `AT_ONCE_HERE` without
    Spark. Pausing the run pauses this too.

    Each piece is recorded as started, under `lease_check`, before `begin` is called. `done` is called only while the
    route's leases are held.
    """
    context = None if spark is None else spark.sparkContext

    def started(piece: Piece) -> Callable[[], Result]:
        run.ledger.batches.start(piece.number, lease_check)
        work = begin(piece)

        def in_a_process() -> Result:
            # With Spark, each piece is one task in a process of its own; without Spark, this process does all pieces.
            with nullcontext() if context is None else sending(run):
                return work()

        return in_a_process

    def ended(piece: Piece, result: Result) -> None:
        route.guard(list(route.tables.values()))
        done(piece, result)

    run_pieces(
        [piece for piece in pieces if piece.state != "done"],
        started,
        ended,
        at_once=AT_ONCE_HERE if context is None else max(1, context.defaultParallelism),
        may_begin=lambda: not is_paused(run),
        cancel=None if spark is None else partial(cancel_jobs, spark),
    )


def run_pieces(
    pieces: Sequence[Piece],
    begin: Callable[[Piece], Callable[[], Result]],
    done: Callable[[Piece, Result], None],
    *,
    at_once: int,
    may_begin: Callable[[], bool],
    cancel: Callable[[], None] | None,
) -> None:
    """Apply pieces, `at_once` at a time; those of one subject one after the other, by number.

    `begin` and `done` are called in this thread; the function that `begin` returns runs in another. While `may_begin`
    is False, running pieces go on but no piece starts. After an error no piece starts either: this waits for the
    running pieces, records them, and raises the first error. If this thread is interrupted, it calls `cancel`, which
    ends the running pieces. Without `cancel` it does not wait for them: their next requests fail, because the leases
    are released.
    """
    waiting = [(chain[0].number, chain) for chain in _chains(pieces)]
    heapq.heapify(waiting)
    running: dict[Future[Result], list[Piece]] = {}
    failure: Exception | None = None
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="piece")
    try:
        while running or (waiting and failure is None):
            while waiting and failure is None and len(running) < at_once and may_begin():
                chain = heapq.heappop(waiting)[1]
                try:
                    running[pool.submit(begin(chain[0]))] = chain
                except Exception as error:
                    failure = error
            if not running:
                time.sleep(POLL_SECONDS)
            for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                chain = running.pop(future)
                try:
                    done(chain[0], future.result())
                except Exception as error:
                    if failure is not None:
                        log.warning("%s failed too: %s", chain[0].subject, error)
                    failure = failure or error
                else:
                    if chain[1:]:
                        heapq.heappush(waiting, (chain[1].number, chain[1:]))
    except BaseException:
        if cancel is not None:
            cancel()
        pool.shutdown(wait=cancel is not None, cancel_futures=True)
        raise
    pool.shutdown()
    if failure is not None:
        raise failure


def _chains(pieces: Iterable[Piece]) -> Iterable[list[Piece]]:
    chains: dict[str, list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda piece: piece.number):
        chains[piece.subject].append(piece)
    return chains.values()
