"""A ledger filled by hand: a run that watches native replication, brought to each state that it can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from unit.migration.filled_ledger import CLUSTER
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.ledger import Ledger, RunLedger
from walferry.replication import watching
from walferry.replication.canary import Arrival, Flown
from walferry.replication.finding import Finding
from walferry.replication.plan import PeerPlan, ReplicationPlan
from walferry.replication.sink import Sink
from walferry.replication.status import PeerStatus, QueueStatus, ReplicationStatus
from walferry.replication.unshipped import Edit
from walferry.replication.watching import Seen, begin, watch_once
from walferry.run.progress.states import StateName
from walferry.run.spec import Cluster

PARAMS: dict[str, Any] = {"name": "east", "source": "hbase_source", "tables": ["shop:*"], "target": None}
IN_AIRFLOW = "airflow manual__1"
STATES: tuple[StateName, ...] = (
    "not started", "following", "catching up", "stuck", "gap", "failed", "interrupted", "paused", "aborted",
)  # fmt: skip
"""those that such a run can be in"""
SERVER = "rs1,16020,1"
ROW = "customer-0815"
EDIT = Edit("rs1%2C16020%2C1.3", 812, "shop:orders", ROW, ("d",), 1_700_000_000_000)
IDLE = QueueStatus(
    SERVER, SERVER, "g", "live", 1, (), (), 0, False, None, None, True, None, None, 0, None, None, None, False,
    False, (),
)  # fmt: skip
OTHER = replace(IDLE, server="rs2,16020,2", writer="rs2,16020,2")
STOP = Finding("stop", "shop:orders", "family d has REPLICATION_SCOPE 0, so no edit of it is replicated")


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


def waiting(seconds: float, *causes: str) -> QueueStatus:
    """A queue whose oldest edit has waited for so long."""
    age = round(seconds * 1000)
    return replace(IDLE, bytes=4_000_000, oldest=EDIT, age_ms=age, stuck=age > 60_000, causes=causes)


def peer(*queues: QueueStatus, name: str = "east") -> PeerStatus:
    return PeerStatus(
        name, True, False, Sink("zk:2181/hbase", "0e1c", 2), 2, 9_000_000, sum(queue.bytes for queue in queues), True,
        7, 1, (), queues,
    )  # fmt: skip


def cluster(connection_id: str) -> Cluster:
    assert connection_id == "hbase_source"
    return Cluster.model_validate(CLUSTER)


def opened(book: Ledger, owner: str = IN_AIRFLOW, **keys: Any) -> RunLedger:
    """A run that has just been opened; `Clusters` are there."""
    return book.of(begin(book, PARAMS | keys, cluster, owner))


class Clusters:
    """What both clusters show from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.peers: Sequence[PeerStatus] = (peer(IDLE),)
        self.findings: list[Finding] = []
        self.flown: list[Flown] = []
        self.fault = ""
        self.plan_fault: Exception | None = None
        self.plans = 0
        patch.setattr(watching, "make_plan", lambda spec: self._plan())
        patch.setattr(watching, "look", lambda spec, seconds: self.status())
        patch.setattr(watching, "fly_all", lambda spec, stopped, wait_s: self.flown)

    def _plan(self) -> ReplicationPlan:
        self._answer()
        if self.plan_fault is not None:
            raise self.plan_fault
        self.plans += 1
        plan = PeerPlan("east", True, False, "zk:2181:/hbase", "2.6.3", "0e1c", "all tables")
        return ReplicationPlan("2.6.3", "0e1c", [plan], {}, self.findings)

    def status(self) -> ReplicationStatus:
        """What a look at the queues shows."""
        self._answer()
        return ReplicationStatus("zk:2181/hbase", "0e1c", "2.6.3", now_ms(), 5.0, tuple(self.peers))

    def _answer(self) -> None:
        if self.fault:
            raise TransientError(self.fault)

    def seen(self, run: RunLedger, *queues: QueueStatus) -> Seen:
        """Look once, at these queues of the only peer."""
        if queues:
            self.peers = (peer(*queues),)
        return watch_once(run)


def brought_to(run: RunLedger, name: StateName, clusters: Clusters) -> None:
    """Bring a run that was just opened to a state."""
    match name:
        case "following":
            clusters.seen(run, IDLE)
        case "catching up":
            clusters.seen(run, waiting(61))
        case "stuck":
            clusters.seen(run, waiting(301, "table shop:orders is missing at the sink"))
        case "gap":
            clusters.seen(run, replace(IDLE, lost_logs=("rs1%2C16020%2C1.2",)))
        case "failed":
            clusters.fault = "ZooKeeper at zk:2181 does not answer"
            clusters.seen(run)
        case "interrupted":
            clusters.seen(run)
            note = run.notes.get("replication now")
            assert note is not None
            run.notes.keep("replication now", note | {"awake_ms": now_ms() - 181_000})
        case "paused":
            clusters.seen(run)
            run.whole.set_paused(run.run_id, True, "kim")
        case "aborted":
            run.end("aborted", "kim", "no longer needed")


LOST_CANARY = Flown("east", [Arrival("rs1:16020", 1.5), Arrival("rs2:16020", None)])
