"""Delivers changes to a history: all of them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Int32s
from walferry.formats.wal import EntryBatch
from walferry.streams.delivery import Fitting
from walferry.streams.history.rows import Changes, changes_of, event_row
from walferry.streams.history.sink import HistorySink
from walferry.streams.message.changes import Form
from walferry.streams.message.events import Message
from walferry.streams.ordering.stays import Opened, Taken


class HistoryDelivery:
    """Delivers rows of history to a sink. A `Destination`."""

    def __init__(self, sink: HistorySink) -> None:
        self._sink = sink

    def parts(self, passed: Sequence[Taken | Opened]) -> Iterable[Sequence[Taken | Opened]]:
        """All of it at once."""
        return [passed]

    def make(self, form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> Changes:
        """The rows of edits."""
        return changes_of(form, batch, picked, incarnation)

    def fit(self, form: Form, batch: EntryBatch, made: Changes) -> Fitting:
        """A history takes rows of any size: only those are refused that cannot be made."""
        return Fitting({}, made.refused)

    def send(self, batch: EntryBatch, made: Changes, claims: Mapping[int, bytes]) -> None:
        """Add the rows to the next commit."""
        self._sink.add(made.cells)

    def to_all(self, table: str, message: Message) -> int:
        """Add an event to the next commit."""
        self._sink.add_event(event_row(message.value))
        return 1
