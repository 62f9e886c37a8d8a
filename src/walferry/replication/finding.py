"""A finding about HBase's own replication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from walferry.errors import WalferryError

BULK_LOADS = "bulk loads"
"""the subject of findings about files that are loaded in bulk"""
MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """`stop`: edits of the subject do not arrive; `warn`: something arrives otherwise than it was, or may stop; `note`:
    what it costs, or what cannot be asked."""

    level: Literal["stop", "warn", "note"]
    subject: str
    message: str


class NotReplicatedError(WalferryError):
    """Edits do not arrive; fact `findings`."""


def named(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    text, more = ", ".join(names[:MOST_NAMED]), len(names) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text
