"""What went wrong on an HBase server, by the Java class that it names.

Transient classes (below TransientError) may be tried again, the others are final. All carry the facts
`exception_class` (Java), `server`, `method` and `reason` (the telling line of the remote stack trace).
"""

from __future__ import annotations

import re

from walferry.errors import TransientError, WalferryError


class RemoteError(WalferryError):
    """The server refused the call for good."""


class RemoteTransientError(TransientError):
    """The server could not serve the call at this moment."""


class ConnectionFailedError(TransientError):
    """No connection, or it broke before the answer: whether the call took place is not known.

    Fact `sent` is False when the request never left, so that it certainly did not take place.
    """


class RequestTimeoutError(TransientError):
    """No answer within the deadline: whether the call took place is not known."""


class ZooKeeperError(TransientError):
    """ZooKeeper does not answer; the call was repeated by kazoo already."""


class RegionNotServedError(RemoteTransientError):
    """The region is not on that server, or not open: its location has to be looked up again."""


class ScannerLostError(RemoteTransientError):
    """The server does not know the scanner any more: open another one after the last row seen."""


class ServerGoneError(RemoteTransientError):
    """The server is starting, stopping, or not the active master."""


class ServerBusyError(RemoteTransientError):
    """The server asks for fewer calls: wait longer before the next one."""


class TableNotFoundError(RemoteError):
    """There is no such table."""


class TableExistsError(RemoteError):
    """The table is there already."""


class TableStateError(RemoteError):
    """The table is enabled, or disabled, where the call wants the other."""


class ReadOnlyTableError(RemoteError):
    """The table refuses writes because it is READONLY."""


class NoSuchFamilyError(RemoteError):
    """The table has no such column family."""


class NamespaceExistsError(RemoteError):
    """The namespace is there already."""


class NamespaceNotFoundError(RemoteError):
    """There is no such namespace."""


class SnapshotExistsError(RemoteError):
    """A snapshot of that name is there already."""


class SnapshotNotFoundError(RemoteError):
    """There is no such snapshot."""


class SnapshotInProgressError(RemoteTransientError):
    """A snapshot of that table is being taken right now."""


class CallQueueFullError(ServerBusyError):
    """The request does not fit beside those that wait (`hbase.ipc.server.max.callqueue.size`, bytes): a large one may
    never fit."""


class RequestTooBigError(RemoteError):
    """The request has more bytes than the server takes (`hbase.ipc.max.request.size`); it was not carried out."""


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
    "AccessDeniedException": AccessDeniedError,
}
# What HBase says in words only, in exceptions of a general class.
_REASONS: dict[str, type[RemoteError] | type[RemoteTransientError]] = {
    "is read only": ReadOnlyTableError,
    # What a client that does not tell its version gets instead of RequestTooBigException (NettyRpcFrameDecoder).
    "is greater than max allowed": RequestTooBigError,
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

    A known class decides; for any other the best known class named in the stack trace (servers wrap
    what their own clients met), then the server's `do_not_retry`.
    """
    lines = [line for line in stack_trace.split("\n") if line and not line.lstrip().startswith("at ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    reason = lines[0] if lines else exception_class
    if causes and "RetriesExhausted" in exception_class:
        reason = causes[-1]  # the first line says no more than that there were failures
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
    """`lines` are those of the stack trace that name what happened, the innermost cause first."""
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
