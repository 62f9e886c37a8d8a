"""Tells consumers up to which moment everything was sent."""

from __future__ import annotations

from collections.abc import Collection

from walferry.clock import steady_s
from walferry.streams.delivery import AnyDestination, Committer
from walferry.streams.message.changes import Form
from walferry.streams.message.events import resolved


class ResolvedTimes:
    """The moments, told in each partition from time to time."""

    def __init__(self, seconds: float, form: Form, delivery: AnyDestination, sink: Committer) -> None:
        """`seconds`: from one moment to the next; 0: none is told."""
        self._seconds = seconds
        self._form = form
        self._delivery = delivery
        self._sink = sink
        self._next_s = steady_s()

    @property
    def due(self) -> bool:
        """Whether it is time to tell a moment."""
        return bool(self._seconds) and steady_s() >= self._next_s

    def tell(self, moment_ms: int, tables: Collection[str]) -> None:
        """Everything that was written to these tables before a moment was sent and committed: tell it."""
        self._next_s = steady_s() + self._seconds
        for table in tables:
            self._delivery.to_all(table, resolved(self._form, table, moment_ms))
        self._sink.commit({})
