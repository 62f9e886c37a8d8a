"""A destination that a process writes to."""

from __future__ import annotations

from dataclasses import dataclass

from walferry.streams.delivery import AnyDestination, Committer
from walferry.streams.image.rows import RowImages


@dataclass(frozen=True)
class OpenedDestination:
    """What `destination.open_destination` opens."""

    sink: Committer
    delivery: AnyDestination
    resolved: float
    """how often consumers are told up to which moment everything was sent, in seconds; 0: never"""
    images: RowImages | None = None
    """what reads the row after each change, for `delivery`; None: nothing does"""
