"""The order of calls: those of one region one after the other, as they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager


class InOrder:
    """Turns by key, such as a region. For one event loop."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Future[None]] = {}
        """by key, the turn that was asked for last; it is done once it, and all before it, have ended"""

    @asynccontextmanager
    async def turn(self, keys: Collection[str]) -> AsyncIterator[None]:
        """Wait until all who have asked before for one of these keys have ended. Who is cancelled while it waits, or in
        the block, lets nobody pass who must wait for those before."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = {last for key in keys if (last := self._last.get(key)) is not None}
        self._last.update(dict.fromkeys(keys, mine))
        try:
            if before:
                await asyncio.wait(before)
            yield
        finally:
            waiting = [one for one in before if not one.done()]
            if waiting:  # cancelled meanwhile
                left = asyncio.gather(*waiting)
                left.add_done_callback(lambda _: self._pass_on(keys, mine))
            else:
                self._pass_on(keys, mine)

    def _pass_on(self, keys: Collection[str], mine: asyncio.Future[None]) -> None:
        mine.set_result(None)
        for key in keys:
            if self._last.get(key) is mine:
                del self._last[key]
