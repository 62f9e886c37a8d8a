"""A finding about HBase's own replication."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from walferry.amounts import first_of
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


def families_text(names: Collection[str]) -> str:
    """Families of a table by name."""
    return f"{'family' if len(names) == 1 else 'families'} {first_of(sorted(names))}"
