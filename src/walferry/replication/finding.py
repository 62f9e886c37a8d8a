"""A finding about HBase's own replication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from walferry.errors import WalferryError

BULK_LOADS = "bulk loads"
"""the subject of findings about files that are loaded in bulk"""


@dataclass(frozen=True)
class Finding:
    """`stop`: edits of the subject do not arrive; `warn`: something arrives otherwise than it was, or may stop; `note`:
    what it costs, or what cannot be asked."""

    level: Literal["stop", "warn", "note"]
    subject: str
    message: str


class NotReplicatedError(WalferryError):
    """Edits do not arrive; fact `findings`."""


def peer_subject(peer_id: str) -> str:
    """The subject of findings about a peer itself."""
    return f"peer {peer_id}"
