"""A target table under its lease, and how long a call's requests to it may take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from walferry.apply.route import Route
from walferry.apply.writer_protocol import Guard, Rows
from walferry.clock import steady_s
from walferry.receive.holding import Holding, OutOfTimeError

LEAST_REQUEST_SECONDS = 5.0
"""that a request may take, however little time its call has left"""


@dataclass
class TargetTable(Holding):
    """A target table under its lease."""

    route: Route

    def route_until(self, deadline: float) -> Route:
        """The route for one call: in one lane, since a table's regions depend on each other when one is split; by which
        no request begins after a moment of `clock.steady_s`, and those before are soon given up."""
        limits = self.route.limits
        seconds = min(limits.request_seconds, max(LEAST_REQUEST_SECONDS, deadline - steady_s()))
        return replace(
            self.route,
            guard=_Until(self.route.guard, deadline),
            limits=replace(limits, lanes=1, request_seconds=seconds),
        )

    def route_while_held(self) -> Route:
        """The route for what takes longer than a call: no request begins once the lease is being given back."""
        return replace(self.route_until(math.inf), guard=_Until(self.route.guard, math.inf, self.require))


@dataclass(frozen=True)
class _Until:
    """A guard by which no request begins after a deadline. What is under way then is the guard's own matter."""

    guard: Guard
    deadline: float
    require: Callable[[], None] = lambda: None
    """raises once no request is to begin for another reason"""

    def __call__(self, tables: Collection[str]) -> None:
        self.guard(tables)

    def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
        self.guard.wait_turn(tables, cells, size)
        self.require()
        if steady_s() > self.deadline:
            raise OutOfTimeError(f"the edits of {', '.join(sorted(tables))} were not all applied in time")

    def slow_down(self) -> None:
        self.guard.slow_down()

    def of_attempt(self, task: str, number: int) -> Guard:
        return self.guard.of_attempt(task, number)

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        self.guard.mark_dirty(rows, why)
