"""One run writes to a target table at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from uuid import uuid4

import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.replay.rights.lease import (
    Attempt,
    LeaseHeldError,
    LeaseLostError,
    check,
    held_leases,
    holder_of,
    supersede,
)

pytestmark = pytest.mark.cluster


def test_the_second_run_is_told_who_holds_the_table(at_target: HBaseClient) -> None:
    table = f"ns:{uuid4().hex}"
    with (
        held_leases(at_target.zk, [table], holder="run one", request_seconds=1, wait_seconds=1),
        pytest.raises(LeaseHeldError, match="run one"),
        held_leases(at_target.zk, [table], holder="run two", request_seconds=1, wait_seconds=0.1),
    ):
        pass
    assert holder_of(at_target.zk, table) is None


def test_a_lost_session_loses_the_lease_and_its_requests_are_waited_out(
    at_target: HBaseClient, target: MiniCluster
) -> None:
    table = uuid4().hex
    other = HBaseClient(target.address)
    gone = held_leases(other.zk, [table], holder="run one", request_seconds=1.5, wait_seconds=1)
    held = gone.__enter__()[table]
    check(at_target.zk, held)
    other.close()  # the session ends, the lease is not given back
    started = time.monotonic()
    with held_leases(at_target.zk, [table], holder="run two", request_seconds=1, wait_seconds=30) as leases:
        assert time.monotonic() - started >= 1.5
        assert leases[table].number > held.number
        check(at_target.zk, leases[table])
        with pytest.raises(LeaseLostError, match="no longer held"):
            check(at_target.zk, held)


def test_the_lease_of_a_killed_process_is_taken_long_before_its_session_ends(
    at_target: HBaseClient, target: MiniCluster
) -> None:
    table = uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, target.address.zookeeper, table], stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    assert holder_of(at_target.zk, table) == "run one", "ZooKeeper keeps the session of who was killed"
    started = time.monotonic()
    with held_leases(at_target.zk, [table], holder="run two", request_seconds=1, wait_seconds=20) as leases:
        assert 1.5 <= time.monotonic() - started < 10
        check(at_target.zk, leases[table])


HOLDER = """
import sys, time
from walferry.hbase.zookeeper import ZooKeeper
from walferry.replay.rights.lease import held_leases

client = ZooKeeper(sys.argv[1], "/hbase", session_seconds=30).client
with held_leases(client, [sys.argv[2]], holder="run one", request_seconds=1.5, wait_seconds=1):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_holder_that_failed_leaves_requests_to_wait_for_and_the_wait_is_one_for_all_tables(
    at_target: HBaseClient,
) -> None:
    tables = [uuid4().hex for _ in range(3)]
    with (
        pytest.raises(ZeroDivisionError),
        held_leases(at_target.zk, tables, holder="run one", request_seconds=1.5, wait_seconds=1),
    ):
        raise ZeroDivisionError
    assert holder_of(at_target.zk, tables[0]) is None
    started = time.monotonic()
    with held_leases(at_target.zk, tables, holder="run two", request_seconds=1, wait_seconds=1):
        assert 1.5 <= time.monotonic() - started < 3
    started = time.monotonic()
    with held_leases(at_target.zk, tables, holder="run three", request_seconds=1, wait_seconds=1):
        assert time.monotonic() - started < 1


def test_an_attempt_is_superseded_by_the_next_and_told_at_once(at_target: HBaseClient, target: MiniCluster) -> None:
    table, told = uuid4().hex, threading.Event()
    with held_leases(at_target.zk, [table], holder="run one", request_seconds=1, wait_seconds=1) as leases:
        first, second = Attempt("7-3", 0), Attempt("7-3", 1)
        check(at_target.zk, leases[table], lambda event: told.set(), first)
        with HBaseClient(target.address) as elsewhere:
            supersede(elsewhere.zk, leases[table], second)
            supersede(elsewhere.zk, leases[table], second)  # an answer may be lost
        assert told.wait(5)
        with pytest.raises(LeaseLostError, match="gave up attempt 0"):
            check(at_target.zk, leases[table], attempt=first)
        check(at_target.zk, leases[table], attempt=second)
    with held_leases(at_target.zk, [table], holder="run two", request_seconds=1, wait_seconds=1):
        names = at_target.zk.get_children(f"/walferry/leases/{table}/superseded")
        assert [at_target.zk.get_children(f"/walferry/leases/{table}/superseded/{name}") for name in names] == [[]]
