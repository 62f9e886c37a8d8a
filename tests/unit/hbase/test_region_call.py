"""A call to a region that needs a right to be sent: it is asked for each attempt, and its loss is final."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import retry
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ConnectionFailedError, RegionNotServedError


class LostError(TransientError):
    """The right to send is lost."""


class Pool:
    """Fails with these errors, one for each call; one whose fact `sent` is False, before anything is sent."""

    def __init__(self, *errors: TransientError) -> None:
        self._errors = list(errors)
        self.calls = 0

    def call(self, *_: Any, may_send: Callable[[], None], **__: Any) -> tuple[str, bytes]:
        self.calls += 1
        may_send()
        if self._errors:
            raise self._errors.pop(0)
        return "done", b""


def call(pool: Pool, may_send: Callable[[], None], sent: Callable[[], None]) -> str:
    client = HBaseClient.__new__(HBaseClient)
    region = SimpleNamespace(server=SimpleNamespace(address="rs:1"))
    client.__dict__ |= {
        "pool": pool, "timeout_s": 1.0, "locate": lambda *_: region, "location_failed": lambda *_: None,
    }  # fmt: skip
    made = client.region_call(
        "t", b"r", "AdminService", "CompactRegion", lambda _: pb.CompactRegionRequest(), cast(Any, str),
        may_send=may_send, sent=sent,
    )  # fmt: skip
    return str(made)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.0001)


def test_each_attempt_asks_and_only_what_may_have_been_carried_out_is_told() -> None:
    asked: list[int] = []
    sent: list[int] = []
    pool = Pool(RegionNotServedError("moved", sent=False), ConnectionFailedError("broke", sent=True))
    assert call(pool, lambda: asked.append(1), lambda: sent.append(1)) == "done"
    assert (len(asked), len(sent)) == (3, 2)


def test_a_right_that_is_lost_is_not_asked_for_again() -> None:
    def lost() -> None:
        raise LostError("somebody else has the lease")

    pool = Pool()
    with pytest.raises(LostError):
        call(pool, lost, lambda: None)
    assert pool.calls == 1
    pool = Pool(ConnectionFailedError("broke", sent=True))
    with pytest.raises(LostError):
        call(pool, lambda: None, lost)
    assert pool.calls == 1
