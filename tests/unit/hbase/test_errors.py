"""Which of HBase's exceptions are tried again, and which are final."""

from __future__ import annotations

import pickle

import pytest

from walferry.errors import TransientError
from walferry.hbase import errors

HBASE = "org.apache.hadoop.hbase"
# As HBase 2.6.3's replication sink answered, frames left out.
EXHAUSTED = f"""{HBASE}.client.RetriesExhaustedException: Failed after attempts=2, exceptions:
2026-11-21T04:08:30.931Z, h,36531,1, {HBASE}.NotServingRegionException: t is not online

\tat {HBASE}.client.AsyncBatchRpcRetryingCaller.failAll(AsyncBatchRpcRetryingCaller.java:1)
Caused by: {HBASE}.regionserver.NoSuchColumnFamilyException: Column family nof does not exist in region t
\tat {HBASE}.TableNotFoundException.never(TableNotFoundException.java:1)
\t... 35 more
"""


def error(name: str, trace: str = "", do_not_retry: bool = False) -> Exception:
    return errors.remote_error(name, trace or name, server="h:1", method="S.M", do_not_retry=do_not_retry)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NotServingRegionException", errors.RegionNotServedError),
        ("exceptions.RegionMovedException", errors.RegionNotServedError),
        ("exceptions.RegionOpeningException", errors.RegionNotServedError),
        ("RegionTooBusyException", errors.ServerBusyError),
        ("CallQueueTooBigException", errors.CallQueueFullError),
        ("regionserver.RegionServerStoppedException", errors.ServerGoneError),
        ("ipc.ServerNotRunningYetException", errors.ServerGoneError),
        ("UnknownScannerException", errors.ScannerLostError),
        ("exceptions.ScannerResetException", errors.ScannerLostError),
        ("PleaseHoldException", errors.ServerGoneError),
    ],
)
def test_what_passes_by_itself_is_transient(name: str, kind: type[Exception]) -> None:
    found = error(f"{HBASE}.{name}")
    assert type(found) is kind
    assert isinstance(found, TransientError)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TableNotFoundException", errors.TableNotFoundError),
        ("TableExistsException", errors.TableExistsError),
        ("TableNotEnabledException", errors.TableStateError),
        ("regionserver.NoSuchColumnFamilyException", errors.NoSuchFamilyError),
        ("snapshot.SnapshotDoesNotExistException", errors.SnapshotNotFoundError),
        ("security.AccessDeniedException", errors.AccessDeniedError),
        ("DoNotRetryIOException", errors.RemoteError),
        ("exceptions.RequestTooBigException", errors.RequestTooBigError),
    ],
)
def test_what_another_try_cannot_mend_is_final(name: str, kind: type[Exception]) -> None:
    found = error(f"{HBASE}.{name}")
    assert type(found) is kind
    assert not isinstance(found, TransientError)


def test_an_unknown_exception_is_transient_unless_the_server_says_do_not_retry() -> None:
    assert type(error("java.io.IOException")) is errors.RemoteTransientError
    assert type(error("com.example.MyException", do_not_retry=True)) is errors.RemoteError


def test_the_innermost_cause_decides_over_what_was_met_on_the_way() -> None:
    found = error(f"{HBASE}.client.RetriesExhaustedException", EXHAUSTED)
    assert type(found) is errors.NoSuchFamilyError
    assert "Column family nof does not exist" in str(found)


def test_classes_in_stack_frames_do_not_count() -> None:
    trace = f"java.io.IOException: broken\n\tat {HBASE}.TableNotFoundException.x(X.java:1)"
    assert type(error("java.io.IOException", trace)) is errors.RemoteTransientError


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("DoNotRetryIOException", "region is read only", errors.ReadOnlyTableError),
        (
            "snapshot.SnapshotCreationException",
            "Rejected taking s because we are already running another snapshot on the same table",
            errors.SnapshotInProgressError,
        ),
        (
            "snapshot.SnapshotCreationException",
            "Table 'nope' doesn't exist, can't take snapshot.",
            errors.TableNotFoundError,
        ),
    ],
)
def test_what_hbase_says_in_words_only_is_understood(name: str, words: str, kind: type[Exception]) -> None:
    assert type(error(f"{HBASE}.{name}", f"{HBASE}.{name}: {words}\n\tat x")) is kind


def test_an_error_keeps_its_facts_when_it_is_pickled() -> None:
    found = pickle.loads(pickle.dumps(error(f"{HBASE}.TableNotFoundException")))
    assert type(found) is errors.TableNotFoundError
    assert (found.server, found.method) == ("h:1", "S.M")


def test_a_request_that_is_too_big_is_known_by_its_words_where_the_server_does_not_know_our_version() -> None:
    """As HBase 2.6.3 answered a request of 1,000,085 bytes."""
    trace = (
        f"{HBASE}.DoNotRetryIOException: RPC data length of 1000085 received from 127.0.0.1 is greater than max "
        'allowed 300000. Set "hbase.ipc.max.request.size" on server to override this limit (not recommended)'
    )
    assert type(error(f"{HBASE}.DoNotRetryIOException", trace, do_not_retry=True)) is errors.RequestTooBigError
