"""Waits for work that the master finishes after its answer: by the procedure in the answer, or by polling."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import table_name
from walferry.hbase.errors import remote_error

DEADLINE_S = 600.0
POLL_S = 0.05
MAX_POLL_S = 1.0


Nonce = tuple[int, int]
"""a group, and a number in it"""


def new_nonce() -> Nonce:
    """A nonce that nobody has used."""
    return random.getrandbits(63), random.getrandbits(63)


def with_nonce(request: Any, nonce: Nonce | None = None) -> Any:
    """The request with a nonce, by default a new one. The master answers a repeated nonce with the outcome of the first
    request."""
    request.nonce_group, request.nonce = nonce or new_nonce()
    return request


def procedure(
    client: Calls,
    method: str,
    request: Any,
    response_type: type[Any],
    thing: str,
    nonce: Nonce | None = None,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Call a method that starts a master procedure, and wait for the procedure."""
    answer = client.master_call(method, with_nonce(request, nonce), response_type)
    await_procedure(client, answer, f"{method} of {thing}", deadline_s)


def await_procedure(client: Calls, answer: Any, what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for the procedure that an answer names, if any. Raises the error with which the procedure ended."""
    if not answer.HasField("proc_id"):
        return
    request = pb.GetProcedureResultRequest(proc_id=answer.proc_id)

    def finished() -> bool:
        result = client.master_call("getProcedureResult", request, pb.GetProcedureResultResponse)
        if result.HasField("exception"):
            cause = result.exception.generic_exception
            raise remote_error(cause.class_name, cause.message, server="the master", method=what, do_not_retry=True)
        # NOT_FOUND: the procedure finished so long ago that the master has forgotten it.
        return result.state != pb.GetProcedureResultResponse.RUNNING

    wait(finished, what, deadline_s)


def wait(done: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Poll until `done`. Raises TransientError at the deadline, after which the work may still finish."""
    deadline = time.monotonic() + deadline_s
    pause = POLL_S
    while not done():
        if time.monotonic() > deadline:
            raise TransientError(f"{what} has not finished after {deadline_s:.0f} s; it may still finish", what=what)
        time.sleep(pause)
        pause = min(pause * 1.25, MAX_POLL_S)


def await_reopened(client: Calls, table: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until every region has reopened with the table's new schema. Only needed before 2.0."""
    request = pb.GetSchemaAlterStatusRequest(table_name=table_name(table))

    def reopened() -> bool:
        answer = client.master_call("GetSchemaAlterStatus", request, pb.GetSchemaAlterStatusResponse)
        return not answer.yet_to_update_regions

    wait(reopened, f"the change of {table}'s schema", deadline_s)


def await_restored(client: Calls, snapshot: pb.SnapshotDescription) -> None:
    """Wait until a snapshot is restored into its table, or cloned. Only needed before 2.0."""
    request = pb.IsRestoreSnapshotDoneRequest(snapshot=snapshot)

    def restored() -> bool:
        return client.master_call("IsRestoreSnapshotDone", request, pb.IsRestoreSnapshotDoneResponse).done

    wait(restored, f"snapshot {snapshot.name} into {snapshot.table}", DEADLINE_S)
