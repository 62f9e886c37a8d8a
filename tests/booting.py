"""How the tests' servers are set up: for short lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from walferry.embedded.environment import Environment
from walferry.hbase import procedures
from walferry.settings import EmbeddedServers

SETTLE_SECONDS = 4
CHEAP_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""what a JVM that lives for seconds or minutes needs: a third less CPU time of the whole machine"""
QUICK = {
    "WALFERRY_JVM_FLAGS": CHEAP_JVM,
    "SPARK_SUBMIT_OPTS": CHEAP_JVM,
    "WALFERRY_REQUEST_SECONDS": "8",
    "WALFERRY_SETTLE_SECONDS": str(SETTLE_SECONDS),
    "WALFERRY_CLAIM_SECONDS": "2",
    "WALFERRY_ZOOKEEPER_SESSION_SECONDS": "10",
}
"""for the tests' own process and every one that they start; also how long requests and sessions of a killed process are
waited out"""
QUICK_SITE = {
    # A server ends a request before its sender takes it for ended.
    "replication.sink.client.ops.timeout": str(SETTLE_SECONDS * 1000),
    # Procedures of the master (open, close, snapshot) wait this long for others to go along in one request.
    "hbase.procedure.remote.dispatcher.delay.msec": "10",
    # What was compacted is archived by a chore; a region whose split left references cannot be merged before.
    "hbase.hfile.compaction.discharger.interval": "2000",
}


@contextmanager
def laid_out(folder: Path, settings: EmbeddedServers) -> Iterator[Environment]:
    """What `make up` boots, laid out in a folder of the tests' own; nothing is started."""
    environment = Environment.lay_out(folder, settings)
    for cluster in (environment.source, environment.target):
        cluster.hbase_site = {**cluster.hbase_site, **QUICK_SITE}
    with quick(), pytest.MonkeyPatch.context() as patch:
        if environment.kdc:
            patch.setenv("KRB5_CONFIG", str(environment.kdc.config))
        yield environment


@contextmanager
def quick() -> Iterator[None]:
    """Settings for servers with short lives, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setenv(name, value)
        patch.setattr(procedures, "MAX_POLL_S", 0.1)  # hundreds of procedures, of half a second each
        yield
