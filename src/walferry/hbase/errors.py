"""Failures of an HBase server, by the Java class that it names.

Subclasses of TransientError may be retried; the others are final. All carry the facts `exception_class` (Java),
`server`, `method` and `reason` (the line of the remote stack trace that says most).
"""

from __future__ import annotations

import re

from walferry.errors import TransientError, WalferryError


class RemoteError(WalferryError):
    """The server refused the call for good."""


def unknown_there(error: RemoteError) -> bool:
    """Whether the server does not know the method, or lacks the coprocessor that would answer it."""
    return "UnsupportedOperationException" in f"{error.facts['exception_class']} {error}"


class RemoteTransientError(TransientError):
    """The server could not serve the call at this moment."""


class ConnectionFailedError(TransientError):
    """No connection, or it broke before the answer: whether the call was carried out is unknown.

    Fact `sent` is False when the request never left: then it certainly was not.
    """


class RequestTimeoutError(TransientError):
    """No answer within the deadline: whether the call was carried out is unknown."""


class ZooKeeperError(TransientError):
    """ZooKeeper does not answer; kazoo has already repeated the call."""


def may_be_under_way(error: BaseException) -> bool:
    """Whether a request may still be carried out after this error: not if the server answered, or it was not sent."""
    if isinstance(error, (RemoteError, RemoteTransientError)):
        return False
    return not isinstance(error, WalferryError) or bool(error.facts.get("sent", True))


class RegionNotServedError(RemoteTransientError):
    """The region is not on that server, or not open: look its location up again."""


class ScannerLostError(RemoteTransientError):
    """The server no longer knows the scanner: open another one after the last row seen."""


class ServerGoneError(RemoteTransientError):
    """The server is starting, stopping, or not the active master."""


class ServerBusyError(RemoteTransientError):
    """The server asks for fewer calls: wait longer before the next one."""


class TableNotFoundError(RemoteError):
    """There is no such table."""


class TableExistsError(RemoteError):
    """The table already exists."""


class TableStateError(RemoteError):
    """The table is enabled where the call needs it disabled, or the other way round."""


class ReadOnlyTableError(RemoteError):
    """The table refuses writes because it is READONLY."""


class NoSuchFamilyError(RemoteError):
    """The table has no such column family."""


class NamespaceExistsError(RemoteError):
    """The namespace already exists."""


class NamespaceNotFoundError(RemoteError):
    """There is no such namespace."""


class SnapshotExistsError(RemoteError):
    """A snapshot of that name already exists."""


class SnapshotNotFoundError(RemoteError):
    """There is no such snapshot."""


class SnapshotInProgressError(RemoteTransientError):
    """A snapshot of that table is being taken right now."""


class SnapshotFailedError(RemoteError):
    """The snapshot was begun and failed, as it does before 2.6 when one of its regions moves: take it again."""


class CallQueueFullError(ServerBusyError):
    """The request does not fit into the server's call queue (`hbase.ipc.server.max.callqueue.size`, bytes) beside
    those that wait; a large one may never fit."""


class RequestTooBigError(RemoteError):
    """The request has more bytes than the server accepts (`hbase.ipc.max.request.size`), or more mutations; it was not
    carried out."""


class AccessDeniedError(RemoteError):
    """The user lacks a permission on the cluster."""


# Simple names: HBase moved some of these classes between packages.
_CLASSES: dict[str, type[RemoteError] | type[RemoteTransientError]] = {
    "NotServingRegionException": RegionNotServedError,
    "RegionMovedException": RegionNotServedError,
    "RegionOpeningException": RegionNotServedError,
    "RegionServerStoppedException": ServerGoneError,
    "RegionServerAbortedException": ServerGoneError,
    "ServerNotRunningYetException": ServerGoneError,
    "MasterNotRunningException": ServerGoneError,
    "MasterStoppedException": ServerGoneError,
    "PleaseHoldException": ServerGoneError,
    "NotAllMetaRegionsOnlineException": ServerGoneError,
    "RegionTooBusyException": ServerBusyError,
    "CallQueueTooBigException": CallQueueFullError,
    "CallDroppedException": ServerBusyError,
    "ServerTooBusyException": ServerBusyError,
    "RpcThrottlingException": ServerBusyError,
    "RequestTooBigException": RequestTooBigError,
    "UnsupportedOperationException": RemoteError,  # a method that this version does not know
    "UnknownScannerException": ScannerLostError,
    "OutOfOrderScannerNextException": ScannerLostError,
    "ScannerResetException": ScannerLostError,
    "LeaseException": ScannerLostError,
    "TableNotFoundException": TableNotFoundError,
    "TableExistsException": TableExistsError,
    "TableNotEnabledException": TableStateError,
    "TableNotDisabledException": TableStateError,
    "NoSuchColumnFamilyException": NoSuchFamilyError,
    "NamespaceExistException": NamespaceExistsError,
    "NamespaceNotFoundException": NamespaceNotFoundError,
    "SnapshotExistsException": SnapshotExistsError,
    "SnapshotDoesNotExistException": SnapshotNotFoundError,
    "UnknownSnapshotException": SnapshotNotFoundError,
    "HBaseSnapshotException": SnapshotFailedError,
    "CorruptedSnapshotException": SnapshotFailedError,
    "AccessDeniedException": AccessDeniedError,
}
# Failures that only the message identifies; the exception's class is a general one.
_REASONS: dict[str, type[RemoteError] | type[RemoteTransientError]] = {
    "is read only": ReadOnlyTableError,
    # A client that does not send its version gets this instead of RequestTooBigException (NettyRpcFrameDecoder).
    "is greater than max allowed": RequestTooBigError,
    # `hbase.rpc.rows.size.threshold.reject`: more mutations than `hbase.rpc.rows.warning.threshold`.
    "Rejecting large batch operation": RequestTooBigError,
    "because we are already running": SnapshotInProgressError,
    "doesn't exist, can't take snapshot": TableNotFoundError,
}
_GENERAL = ("DoNotRetryIOException", "IOException", "SnapshotCreationException", "RetriesExhaustedException")
MAX_REASON = 400
_CLASS_IN_TRACE = re.compile(r"\b(?:[a-z][\w]*\.)+([A-Z][\w]*Exception)\b")


def remote_error(
    exception_class: str, stack_trace: str, *, server: str, method: str, do_not_retry: bool = False
) -> RemoteError | RemoteTransientError:
    """The error for an exception that a server sent.

    A known class decides. For any other, the first known class named in the stack trace does, innermost cause first
    (servers wrap the failures of their own clients), and then the server's `do_not_retry`.
    """
    lines = [line for line in stack_trace.split("\n") if line and not line.lstrip().startswith("at ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    reason = lines[0] if lines else exception_class
    if causes and "RetriesExhausted" in exception_class:
        reason = causes[-1]  # the first line only says that there were failures
    reason = reason.strip()[:MAX_REASON]
    kind = _kind(exception_class, [*reversed(causes), *lines], do_not_retry)
    advice = "; grant it, or name another `user`" if kind is AccessDeniedError else ""
    return kind(
        f"{server} answered {method}: {reason}{advice}",
        exception_class=exception_class,
        server=server,
        method=method,
        reason=reason,
    )


def _kind(exception_class: str, lines: list[str], do_not_retry: bool) -> type[RemoteError] | type[RemoteTransientError]:
    """`lines` are the messages of the stack trace, the innermost cause first."""
    name = exception_class.rpartition(".")[2].rpartition("$")[2]
    if name in _CLASSES:
        return _CLASSES[name]
    if name in _GENERAL:
        for words, kind in _REASONS.items():
            if any(words in line for line in lines):
                return kind
    for line in lines:
        for named in _CLASS_IN_TRACE.findall(line):
            if named in _CLASSES:
                return _CLASSES[named]
    return RemoteError if do_not_retry or name == "DoNotRetryIOException" else RemoteTransientError
