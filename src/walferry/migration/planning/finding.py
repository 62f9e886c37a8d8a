"""A finding of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A finding of the plan: `refuse` stops the run, `warn` is for the operator to judge."""

    level: Literal["refuse", "warn"]
    subject: str
    message: str
