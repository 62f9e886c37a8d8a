"""What a stream's topics are called, and how those are created that do not exist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Creation:
    """How change topics are created that do not exist: counts of partitions and of replicas."""

    partitions: int
    replication: int = -1
    """-1: as the cluster does by default"""


def positions_topic(stream: str) -> str:
    """The default name of a stream's position topic."""
    return f"walferry.{stream}.positions"
