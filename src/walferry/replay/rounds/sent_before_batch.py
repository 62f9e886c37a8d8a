"""What was sent of a batch's files before the batch began, while the files were open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from walferry.apply.prefix import Sent
from walferry.replay.log.cut import Cut
from walferry.run.notes.sent_early import sent_early
from walferry.run.run import Run
from walferry.wal.files import parse_wal_name


@dataclass(frozen=True)
class Early:
    """What was sent of a batch's files before the batch began, so that the batch can leave it out."""

    sent: Mapping[str, Sent]
    """by file"""
    followed: frozenset[str] = frozenset()
    """regions that moved, but whose edits before their last opening were all sent"""
    logs: Collection[str] = ()
    """names of the logs to compare, once the batch is applied, with the bytes they had shown"""


def sent_before(run: Run, cut: Cut) -> Early:
    """What another process may have sent of the files before a cut, while these files were open."""
    sent = sent_earlier(run)
    seen = run.ledger.log.known(sent)

    def is_sealed(name: str) -> bool:
        place = parse_wal_name(name)
        if place is None or cut.is_before(place.group, place.number):
            return True
        return place.group not in cut.groups and name in seen  # logs of a new server are in no list yet

    return Early(sent, logs={name for name in sent if is_sealed(name)})


def sent_earlier(run: Run) -> dict[str, Sent]:
    """By file, what another process may have sent while the file was open. Names no regions."""
    return {
        name: Sent(0, sent.shown, frozenset(sent.tables), frozenset()) for name, sent in sent_early(run.ledger).items()
    }
