"""Whether a condition of the cutover holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True)
class Reason:
    """A reason against the cutover, and what a person can do about it."""

    why: str
    to_do: Annotated[str, Field(description="empty where a person can do nothing")]

    def __str__(self) -> str:
        return f"{self.why}: {self.to_do}" if self.to_do else self.why


@dataclass(frozen=True)
class Answer:
    """The situation now. The condition holds unless there are reasons against it."""

    text: str
    reasons: tuple[Reason, ...] = ()
