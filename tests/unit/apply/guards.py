"""Guards for tests of what writes under one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from walferry.apply.writer_protocol import Rows


@dataclass
class Guard:
    """Asks `answer`, which may raise, and keeps what was marked. Without one it lets everything pass."""

    answer: Callable[[Collection[str]], None] = lambda tables: None
    dirty: list[Rows] = field(default_factory=list)

    def __call__(self, tables: Collection[str]) -> None:
        self.answer(tables)

    def mark_dirty(self, rows: Rows) -> None:
        self.dirty.append(rows)
