"""The error of a process that another one has displaced where the stream's changes go."""

from __future__ import annotations

from walferry.errors import WalferryError


class FencedError(WalferryError):
    """Another process writes to the stream's destination now; this one must end. Fact `stream`; of Kafka also
    `transactional_id`, of a folder `folder`."""
