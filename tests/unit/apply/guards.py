"""Guards for tests of what writes under one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from walferry.apply.writer_protocol import Rows


def _pass(tables: Collection[str]) -> None: ...


@dataclass
class Guard:
    """Asks `answer`, which may raise, and keeps what was marked. Without one it lets everything pass."""

    answer: Callable[[Collection[str]], None] = _pass
    dirty: list[Rows] = field(default_factory=list)
    attempts: list[tuple[str, int]] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    """cells and bytes of each request"""
    slowed: int = 0

    def __call__(self, tables: Collection[str]) -> None:
        self.answer(tables)

    def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
        self.turns.append((cells, size))

    def slow_down(self) -> None:
        self.slowed += 1

    def of_attempt(self, task: str, number: int) -> Guard:
        self.attempts.append((task, number))
        return self

    def mark_dirty(self, rows: Rows, why: str = "") -> None:
        self.dirty.append(rows)
