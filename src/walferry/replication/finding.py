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


NO_PEER = Finding(
    "stop", "source", "it has no replication peer that leads to a cluster: nothing is replicated. In HBase's shell: "
    "add_peer",
)  # fmt: skip


def disabled(peer_id: str) -> Finding:
    """That a peer is."""
    message = f"it is disabled, and keeps each log since: enable_peer '{peer_id}' in HBase's shell"
    return Finding("stop", peer_subject(peer_id), message)


def peer_subject(peer_id: str) -> str:
    """The subject of findings about a peer itself."""
    return f"peer {peer_id}"
