"""Work that is begun in another thread, and may be left behind there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
