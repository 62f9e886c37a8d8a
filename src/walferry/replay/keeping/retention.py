"""How long the source keeps a WAL that nothing holds back, by the master's settings.

The cleaner (CleanerChore with TimeToLiveLogCleaner) deletes an archived file `hbase.master.logcleaner.ttl` after its
last modification, which is its close. The cleaner runs every `hbase.master.cleaner.interval`.
"""

from __future__ import annotations

from dataclasses import dataclass

from walferry.clock import now_ms
from walferry.hbase.client import HBaseClient
from walferry.hbase.server_pages import number, some_settings
from walferry.run.run import LogRun

TTL = "hbase.master.logcleaner.ttl"
INTERVAL = "hbase.master.cleaner.interval"
DEFAULT_MS = 600_000
"""HBase's default for both settings"""
ASK_SECONDS = 600.0
_NOTE = "retention of the source's log"


@dataclass(frozen=True)
class Retention:
    """The cleaner's settings, by default HBase's."""

    ttl_seconds: float = DEFAULT_MS / 1000
    interval_seconds: float = DEFAULT_MS / 1000
    assumed: bool = False
    """whether the values are only HBase's defaults, because no server shows its settings"""


def retention_of(source: HBaseClient) -> Retention:
    """The settings from region servers' web pages (/conf): the shortest among the servers that are asked."""
    answers = some_settings(source)
    if not answers:
        return Retention(assumed=True)
    return Retention(
        min(number(found, TTL, DEFAULT_MS) for found in answers) / 1000,
        min(number(found, INTERVAL, DEFAULT_MS) for found in answers) / 1000,
    )


def retention_now(run: LogRun) -> Retention:
    """The settings of a run's source, read again every ten minutes."""
    kept = run.ledger.notes.get(_NOTE)
    if kept is not None and now_ms() - kept["at_ms"] < ASK_SECONDS * 1000:
        return Retention(kept["ttl"], kept["interval"], kept["assumed"])
    found = retention_of(run.source)
    facts = {"ttl": found.ttl_seconds, "interval": found.interval_seconds, "assumed": found.assumed}
    run.ledger.notes.keep(_NOTE, facts | {"at_ms": now_ms()})
    return found
