"""What was sent of the files of a batch before it was begun: while they were being written (`replay.ahead`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from walferry.apply.prefix import Sent
from walferry.replay.cut import Cut
from walferry.run.run import Run
from walferry.run.sent_early import sent_early
from walferry.wal.files import parse_wal_name


@dataclass(frozen=True)
class Early:
    """What was sent of the files of a batch before it was begun, and can be left out."""

    sent: Mapping[str, Sent]
    """by file"""
    followed: frozenset[str] = frozenset()
    """regions that have moved, and all of whose edits before their last opening were sent"""
    logs: Collection[str] = ()
    """names of those to be compared with what they had shown, once the batch is applied"""


def sent_before(run: Run, cut: Cut) -> Early:
    """What another process may have sent of the files before a cut."""
    sent = sent_earlier(run)
    named = {name: parse_wal_name(name) for name in sent}
    later = {name for name, one in named.items() if one and one.number >= cut.current.get(one.group, one.number + 1)}
    groups, seen = {file.group for file in cut.files}, run.ledger.log.known(sent)
    # Those of a server that came after the cut are in no list yet.
    later |= {name for name, one in named.items() if one and one.group not in groups and name not in seen}
    return Early(sent, logs=sent.keys() - later)


def sent_earlier(run: Run) -> dict[str, Sent]:
    """By file, what another process may have sent while the file was open; no region is named."""
    return {
        name: Sent(0, sent.shown, frozenset(sent.tables), frozenset()) for name, sent in sent_early(run.ledger).items()
    }
