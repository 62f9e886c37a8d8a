"""The trigger of `hbase_wal_watch`: it lists a source's WAL files until there is something to record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from walferry.errors import TransientError

log = logging.getLogger(__name__)


class WalTrigger(BaseTrigger):
    """Fires when the listing differs from what the ledger has for the watch's run, and after `beat_seconds` at most.

    It writes nothing and keeps no state: a triggerer that takes it over reads the ledger again. New, sealed and
    vanished files fire at once; moved and grown ones wait for `beat_seconds`. It then fires in any case, so that the
    task measures lag and backlog even while nothing is sealed.
    """

    def __init__(
        self, run_id: str, webhdfs: str, user: str, root: str, poll_seconds: float = 5.0, beat_seconds: float = 60.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_id = run_id
        self.webhdfs = webhdfs
        self.user = user
        self.root = root
        self.poll_seconds = poll_seconds
        self.beat_seconds = beat_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to recreate it."""
        names = ("run_id", "webhdfs", "user", "root", "poll_seconds", "beat_seconds")
        return "walferry.airflow.triggers.WalTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until something changed. Yields one event with the number of files of each kind."""
        from walferry.watch.watch import changes_since

        deadline = time.monotonic() + self.beat_seconds
        known = await asyncio.to_thread(_known, self.run_id)
        while True:
            counts: dict[str, int] = {}
            pressing = False
            try:
                changes = await changes_since(known, self.webhdfs, self.user, self.root)
                counts, pressing = changes.counts(), changes.pressing
            except TransientError as error:
                # After `beat_seconds` the task lists the files itself, and fails visibly if that still fails.
                log.warning("%s; retrying in %.0f s", error, self.poll_seconds)
            if pressing or time.monotonic() >= deadline:
                yield TriggerEvent(counts)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll_seconds)


def _known(run_id: str) -> Any:
    from walferry.ledger import Ledger
    from walferry.watch.watch import known_wals

    with Ledger.open(create=False) as ledger:
        return known_wals(ledger, run_id)
