"""Work through the pieces of a batch: the oldest first, many at a time, each recorded as soon as it is done."""

from __future__ import annotations

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from walferry.ledger import Piece

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0

Result = TypeVar("Result")


def run_pieces(
    pieces: Sequence[Piece],
    begin: Callable[[Piece], Callable[[], Result]],
    done: Callable[[Piece, Result], None],
    *,
    at_once: int,
    may_begin: Callable[[], bool],
    cancel: Callable[[], None],
) -> None:
    """Apply pieces, `at_once` at a time; those of one subject one after the other, by number.

    `begin` and `done` are called in this thread, what `begin` returns in another. While `may_begin` is False, what runs
    goes on and nothing else begins. After an error nothing else begins either: what runs is waited for and recorded,
    then the first error is raised. `cancel` is called when this thread is interrupted: it ends what runs.
    """
    waiting = [(chain[0].number, chain) for chain in _chains(pieces)]
    heapq.heapify(waiting)
    running: dict[Future[Result], list[Piece]] = {}
    failure: Exception | None = None
    with ThreadPoolExecutor(at_once, thread_name_prefix="piece") as pool:
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
            cancel()
            raise
    if failure is not None:
        raise failure


def _chains(pieces: Iterable[Piece]) -> Iterable[list[Piece]]:
    chains: dict[str, list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda piece: piece.number):
        chains[piece.subject].append(piece)
    return chains.values()
