"""The triggers: of `hbase_wal_watch`, which lists a source's WAL files until there is something to record, and of
`hbase_migrate`, which hears a person's word that writes have stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from walferry.errors import TransientError

if TYPE_CHECKING:
    from walferry.ledger import RunLedger

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


ASKED = "asks whether writes have stopped"
ANSWER_SECONDS = 0.3
"""between two looks at the answer"""


def note_asked(ledger: RunLedger, task_instance: str) -> None:
    """Keep which task instance asks whether writes have stopped: a retry, which asks again, has another id."""
    ledger.notes.keep(ASKED, {"task_instance": task_instance})


class AnswerTrigger(BaseTrigger):
    """Fires when a person has said that writes have stopped, after leaving the word in the ledger, or when the phase
    `write_stop` is done otherwise."""

    def __init__(self, run_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_id = run_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to recreate it."""
        return "walferry.airflow.triggers.AnswerTrigger", {"run_id": self.run_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the answer until it is yes. Yields one event with what happened, as text."""
        while True:
            try:
                asked, over = await asyncio.to_thread(_asked, self.run_id)
                if over:
                    yield TriggerEvent("the write stop was recorded by the task stop_writes")  # type: ignore[no-untyped-call]
                    return
                if asked is not None:
                    found = await sync_to_async(get_hitl_detail_content_detail)(ti_id=UUID(asked))
                    if found.response_received and found.chosen_options == ["Approve"]:
                        said = await asyncio.to_thread(_keep_word, self.run_id, found)
                        yield TriggerEvent(said)  # type: ignore[no-untyped-call]
                        return
            except TransientError as error:
                log.warning("%s; looking again", error)
            await asyncio.sleep(ANSWER_SECONDS)


def _asked(run_id: str) -> tuple[str | None, bool]:
    """The task instance that asks, and whether nobody needs its answer any more."""
    from walferry.ledger import Ledger

    with Ledger.open(create=False) as whole:
        ledger = whole.of(run_id)
        note = ledger.notes.get(ASKED)
        over = ledger.phases.facts("write_stop") is not None or ledger.record.state != "running"
    return (None if note is None else note["task_instance"]), over


def _keep_word(run_id: str, answer: Any) -> str:
    from walferry.ledger import Ledger
    from walferry.run.write_stop import Word, note_word

    person = answer.responded_by_user.name if answer.responded_by_user else "nobody by name"
    word = Word(f"airflow {person}", round(answer.responded_at.timestamp() * 1000))
    with Ledger.open(create=False) as whole:
        note_word(whole.of(run_id), word)
    return f"{person} said at {answer.responded_at:%H:%M:%S} UTC that writes have stopped; the ledger has it"
