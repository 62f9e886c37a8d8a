"""Work that is begun in another thread, and may be left behind there; and what threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


def begun(work: Callable[[], Result], name: str) -> Future[Result]:
    """Begin it in a thread of its own, which bears the name. A process that ends meanwhile does not wait for it."""
    future: Future[Result] = Future()

    def fulfil() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=fulfil, name=name, daemon=True).start()
    return future


@contextmanager
def beside(work: Callable[[threading.Event], object], name: str, end_seconds: float | None = None) -> Iterator[None]:
    """Do it in a thread of its own, which bears the name, until the block ends: then the event that it is given is set,
    and it is waited for, at most for so long."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=end_seconds)


def made_once(make: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
    """`make`, called once for the same arguments; `functools.cache` alone calls it for each thread that asks then."""
    made: dict[tuple[object, ...], Result] = {}
    making = threading.Lock()

    @wraps(make)
    def get(*args: *Arguments) -> Result:
        with making:
            if args not in made:
                made[args] = make(*args)
            return made[args]

    return get
