"""Requests suit the target's settings."""

from __future__ import annotations

from typing import cast

import pytest

from walferry.apply.sink_settings import CHUNK, REPLICATION, TIMEOUT, SinkSettings, limits_of, sink_settings
from walferry.apply.writer_protocol import Limits
from walferry.hbase.client import HBaseClient
from walferry.hbase.settings import MOST_ASKED
from walferry.hbase.versions import release_of
from walferry.hbase.writer_kind import WriterKind


class Target:
    """Region servers with these settings; None: one does not tell."""

    def __init__(self, *servers: dict[str, str] | None, version: str = "2.6.3") -> None:
        self._servers = servers
        self.release = release_of(version)
        self.asked = 0

    def servers(self) -> list[int]:
        return list(range(len(self._servers)))

    def settings(self, server: int) -> dict[str, str] | None:
        self.asked += 1
        return self._servers[server]


def settings_of(*servers: dict[str, str] | None) -> SinkSettings | None:
    return sink_settings(cast(HBaseClient, Target(*servers)))


def test_the_strictest_of_the_servers_counts() -> None:
    servers = {CHUNK: "5000"}, None, {CHUNK: "800", TIMEOUT: "60000"}, {TIMEOUT: "20000"}
    assert settings_of(*servers) == SinkSettings(800, 60.0)


def test_what_a_server_does_not_set_is_the_default() -> None:
    assert settings_of({"some.other": "1"}) == SinkSettings(5000, 10.0)
    assert settings_of({CHUNK: "many"}) == SinkSettings(5000, 10.0)


def test_servers_that_do_not_tell_leave_it_unknown() -> None:
    assert settings_of(None, None) is None
    assert settings_of() is None


@pytest.mark.parametrize(("version", "replicates"), [("1.7.2", False), ("2.2.3", True)])
def test_only_1_x_can_have_replication_off(version: str, replicates: bool) -> None:
    target = Target({}, {REPLICATION: "false"}, version=version)
    assert sink_settings(cast(HBaseClient, target)) == SinkSettings(replicates=replicates)


def test_a_large_cluster_is_not_asked_server_by_server() -> None:
    target = Target(*[{CHUNK: "5000"}] * 100)
    sink_settings(cast(HBaseClient, target))
    assert target.asked == MOST_ASKED


@pytest.mark.parametrize(
    ("sink", "mutations", "settle_seconds"),
    [
        (None, 5000, 10),
        (SinkSettings(), 5000, 10),
        (SinkSettings(800, 60), 800, 60),
        (SinkSettings(20_000, 1), 5000, 10),
        (SinkSettings(0, 10), 1, 10),
    ],
)
def test_requests_are_cut_and_awaited_to_suit_the_target(
    sink: SinkSettings | None, mutations: int, settle_seconds: float
) -> None:
    assert limits_of(WriterKind.RPC, sink) == Limits(mutations=mutations, settle_seconds=settle_seconds)
