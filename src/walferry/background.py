"""Starts work in other threads, which the process may abandon when it ends; and makes values that threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from queue import SimpleQueue
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


def begun(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start `work` in its own thread, called `name`. The process does not wait for the thread when it ends."""
    future: Future[Result] = Future()
    threading.Thread(target=_fulfil, args=(future, work), name=name, daemon=True).start()
    return future


class OneByOne:
    """A thread, called `name`, that makes calls one after the other: cheaper than `begun` for each call.

    The process does not wait for the thread when it ends.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._call_all, name=name, daemon=True).start()

    def begun(self, work: Callable[[], Result]) -> Future[Result]:
        """Start `work` when all earlier work is done."""
        future: Future[Result] = Future()
        self._calls.put(partial(_fulfil, future, work))
        return future

    def end(self) -> None:
        """End the thread when all its work is done."""
        self._calls.put(None)

    def _call_all(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _fulfil(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


@contextmanager
def beside(work: Callable[[threading.Event], object], name: str, end_seconds: float | None = None) -> Iterator[None]:
    """Run `work` in its own thread, called `name`, beside the block. When the block ends, set the event that `work` was
    called with, and wait for the thread, at most `end_seconds`."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=end_seconds)


def made_once(make: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
    """`make`, called once for the same arguments; `functools.cache` alone may call it once in each thread."""
    made: dict[tuple[object, ...], Result] = {}
    making = threading.Lock()

    @wraps(make)
    def get(*args: *Arguments) -> Result:
        with making:
            if args not in made:
                made[args] = make(*args)
            return made[args]

    return get
