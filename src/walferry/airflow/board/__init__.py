"""The board: read-only pages about runs inside Airflow, behind its login. All their data comes from the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Board:
    """The board as an ASGI app that is built at its first request.

    Airflow imports plugins in every process, including those of tasks, but only the API server should load the modules
    that the pages need.
    """

    def __init__(self) -> None:
        self._app: App | None = None
        self._building = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with self._building:
            if self._app is None:
                self._app = await asyncio.to_thread(_build)
        await self._app(scope, receive, send)


def _build() -> App:
    from walferry.airflow.board.access import may_read
    from walferry.airflow.board.app import create_app

    return create_app(may_read)
