"""Failures of an HBase server, by the Java class of its exception.

Subclasses of TransientError may be retried; the others are final. All carry the facts `exception_class` (Java),
`server`, `method` and `reason` (the most informative line of the remote stack trace).
"""

from __future__ import annotations

import re

from walferry.errors import TransientError, WalferryError
from walferry.security.kerberos import AuthenticationError


class RemoteError(WalferryError):
    """The server refused the call for good."""


def unknown_there(error: RemoteError) -> bool:
    """Whether the server lacks the method, or the coprocessor that would answer it."""
    return "UnsupportedOperationException" in f"{error.facts['exception_class']} {error}"


class RemoteTransientError(TransientError):
    """The server could not serve the call at this moment."""


class ConnectionFailedError(TransientError):
    """No connection, or it broke before the answer: the server may or may not have carried out the call.

    If the request never left, the fact `sent` is False: the server certainly did not carry it out.
    """


class LoginRefusedError(AuthenticationError):
    """The server does not accept the login of a connection; facts `server`, `principal`, `reason`."""


class RequestTimeoutError(TransientError):
    """No answer within the deadline: the server may or may not have carried out the call."""


class ZooKeeperError(TransientError):
    """ZooKeeper does not answer, although kazoo has already repeated the call."""


def may_be_under_way(error: BaseException) -> bool:
    """Whether the server may still carry out the request: not if it answered, or if the request was not sent."""
    if isinstance(error, (RemoteError, RemoteTransientError)):
        return False
    return not isinstance(error, WalferryError) or bool(error.facts.get("sent", True))


class RegionNotServedError(RemoteTransientError):
    """The region is not on that server, or not open: look up its location again."""


class ScannerLostError(RemoteTransientError):
    """The server no longer knows the scanner: open another one after the last row seen."""


class ServerGoneError(RemoteTransientError):
    """The server is starting, stopping, or not the active master."""


class ServerBusyError(RemoteTransientError):
    """The server asks for fewer calls: wait longer before the next one."""


class TableNotFoundError(RemoteError):
    """The table does not exist."""


class TableExistsError(RemoteError):
    """The table already exists."""


class TableStateError(RemoteError):
    """The table is enabled but the call needs it disabled, or the other way round."""


class ReadOnlyTableError(RemoteError):
    """The table refuses writes because it is READONLY."""


class NoSuchFamilyError(RemoteError):
    """The table has no such column family."""


class NamespaceExistsError(RemoteError):
    """The namespace already exists."""


class NamespaceNotFoundError(RemoteError):
    """The namespace does not exist."""


class SnapshotExistsError(RemoteError):
    """A snapshot of that name already exists."""


class SnapshotNotFoundError(RemoteError):
    """The snapshot does not exist."""


class SnapshotInProgressError(RemoteTransientError):
    """Another snapshot of that table is in progress."""


class SnapshotFailedError(RemoteError):
    """The snapshot started and then failed. Before 2.6 this happens when one of its regions moves. Take it again."""


class CallQueueFullError(ServerBusyError):
    """The server's call queue (`hbase.ipc.server.max.callqueue.size`, bytes) has no room for the request beside those
    that wait. A large request may never fit."""


class RequestTooBigError(RemoteError):
    """The request has more bytes (`hbase.ipc.max.request.size`) or more mutations than the server accepts; the server
    did not carry it out."""


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
    "UnsupportedOperationException": RemoteError,  # a method that this version lacks
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
    "AccessControlException": AccessDeniedError,  # HDFS's, to the server
}
# Failures that only their message identifies: their class is too general.
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

    If the exception's class is unknown, the first known class in the stack trace decides, innermost cause first
    (servers wrap the failures of their own clients); if there is none, the server's `do_not_retry` decides.
    """
    lines = [line for line in stack_trace.split("\n") if line and not line.lstrip().startswith("at ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    reason = lines[0] if lines else exception_class
    if causes and "RetriesExhausted" in exception_class:
        reason = causes[-1]  # the first line says only that something failed
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
