"""Calls to the server of the region that holds a row; a call follows the region when it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from walferry.clock import steady_s
from walferry.errors import TransientError, WalferryError
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.retry import REGION_ATTEMPTS, retry_call

M = TypeVar("M", bound=Message)


def region_call(
    client: Calls,
    table: str,
    row: bytes,
    service: str,
    method: str,
    request: Callable[[Region], Message],
    response_type: type[M],
    *,
    timeout_s: float | None,
    may_send: Callable[[], None],
    sent: Callable[[], None],
) -> M:
    """See `HBaseClient.region_call`."""
    final: list[BaseException] = []

    def asked(of: Callable[[], None]) -> None:
        try:
            of()
        except BaseException as error:
            final.append(error)
            raise

    def failed(error: TransientError, attempt: int) -> None:
        if any(error is own for own in final):
            raise error
        client.location_failed(table, error, attempt)

    def call() -> M:
        region = client.locate(table, row)
        assert region.server is not None
        begun = steady_s()  # before `may_send`: if the process is suspended after it, the call times out unsent
        try:
            answer, _ = client.pool.call(
                region.server.address, service, method, request(region), response_type,
                timeout_s=timeout_s or client.timeout_s, since=begun, may_send=lambda: asked(may_send),
            )  # fmt: skip
        except WalferryError as error:
            if error.facts.get("sent", True):
                asked(sent)
            raise
        asked(sent)
        return answer

    return retry_call(
        call,
        attempts=REGION_ATTEMPTS,
        on_failure=failed,
    )
