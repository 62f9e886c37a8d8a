"""Snapshots that fail because a region moved, which a version before 2.6 does not wait for; their deletion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import admin, procedures, retry
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import SnapshotFailedError, remote_error

MOVED = "Regions moved during the snapshot '{ ss=S table=t type=FLUSH }'. expected=2 snapshotted=1."


@dataclass
class Master:
    """Fails the first `failures` snapshots that it is asked for."""

    failures: int
    read_only: bool = False
    taken: int = 0
    refusal: str = f"org.apache.hadoop.hbase.snapshot.HBaseSnapshotException: had an error: {MOVED}"
    snapshots: list[pb.SnapshotDescription] = field(default_factory=list)

    def describe(self, table: str) -> TableDescriptor:
        return TableDescriptor(pb.TableSchema()).with_attribute("READONLY", str(self.read_only).lower())

    def master_call(self, method: str, request: Any, response_type: Any, **_: Any) -> Any:
        match method:
            case "GetCompletedSnapshots":
                return pb.GetCompletedSnapshotsResponse(snapshots=self.snapshots)
            case "Snapshot":
                self.taken += 1
                if self.taken > self.failures:
                    self.snapshots = [request.snapshot]
                return pb.SnapshotResponse(expected_timeout=1)
            case "IsSnapshotDone" if not self.snapshots:
                raise remote_error(self.refusal.partition(":")[0], self.refusal, server="m", method=method)
            case _:
                return pb.IsSnapshotDoneResponse(done=True)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedures, "MAX_POLL_S", 0.0)


def test_a_snapshot_that_failed_is_taken_again() -> None:
    master = Master(failures=2)
    assert admin.snapshot(cast(Calls, master), "S", "t").name == "S"
    assert master.taken == 3


@pytest.mark.parametrize("read_only", [True, False])
def test_only_regions_that_can_be_flushed_are_asked_to_be(read_only: bool) -> None:
    taken = admin.snapshot(cast(Calls, Master(failures=0, read_only=read_only)), "S", "t")
    assert taken.type == (pb.SnapshotDescription.SKIPFLUSH if read_only else pb.SnapshotDescription.FLUSH)


def test_a_snapshot_that_ended_with_its_master_is_taken_again() -> None:
    """Before 2.6 the next master does not know it."""
    name = "org.apache.hadoop.hbase.snapshot.UnknownSnapshotException"
    master = Master(failures=1, refusal=f"{name}: Snapshot S is not currently running or one of the known ones")
    assert admin.snapshot(cast(Calls, master), "S", "t").name == "S"
    assert master.taken == 2


def test_a_snapshot_that_always_fails_is_given_up() -> None:
    master = Master(failures=100)
    with pytest.raises(SnapshotFailedError, match="Regions moved"):
        admin.snapshot(cast(Calls, master), "S", "t")
    assert master.taken == admin.SNAPSHOT_ATTEMPTS


class Restarted:
    """A master whose HDFS has just been restarted: it lists no snapshot that it cannot read."""

    master_attempts = retry.ATTEMPTS

    def __init__(self, failures: int) -> None:
        self.left = failures

    def master_call(self, method: str, request: Any, response_type: Any, **_: Any) -> Any:
        if method == "GetCompletedSnapshots":
            return pb.GetCompletedSnapshotsResponse()
        self.left -= 1
        if self.left >= 0:
            name = "org.apache.hadoop.hbase.snapshot.CorruptedSnapshotException"
            raise remote_error(name, f"{name}: Couldn't read snapshot info", server="m", method=method)
        return pb.DeleteSnapshotResponse()


def test_a_snapshot_that_the_master_cannot_read_for_a_moment_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: after a kill of the target's HDFS it did not list them, and they counted as removed."""
    monkeypatch.setattr(retry, "pause_s", lambda error, attempt: 0.0)
    assert admin.delete_snapshot(cast(Calls, Restarted(failures=2)), "S")
    with pytest.raises(TransientError, match=r"snapshot S cannot be deleted now: .*Couldn't read snapshot info"):
        admin.delete_snapshot(cast(Calls, Restarted(failures=100)), "S")
