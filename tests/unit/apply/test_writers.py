"""Every kind of writer can be asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast, get_args

import pytest
from pyspark import TaskContext

from unit.apply.guards import Guard
from walferry.apply.route import Route
from walferry.apply.thrift_writer import ThriftWriter
from walferry.apply.writers import WRITERS, writer_to
from walferry.hbase.address import ClusterAddress
from walferry.hbase.writer_kind import WriterKind
from walferry.run.spec import Spec
from write_limits import write_limits


def test_every_kind_has_a_writer_and_can_be_asked_for() -> None:
    assert WRITERS.keys() == set(WriterKind)
    assert WriterKind in get_args(Spec.model_fields["apply"].annotation)


def test_a_writer_sends_under_the_claims_of_its_own_attempt_at_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    here, guard = ClusterAddress("zk:1", thrift="there:9090"), Guard()
    route = Route(here, "/hbase", (1, 2), here, {}, guard, write_limits(), writer_kind=WriterKind.THRIFT)
    writer_to(route)
    assert guard.attempts == [], "the driver has none"
    task = SimpleNamespace(stageId=lambda: 7, partitionId=lambda: 3, attemptNumber=lambda: 1)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    monkeypatch.setattr(Guard, "of_attempt", lambda self, *attempt: Guard(attempts=[attempt]))
    assert cast(ThriftWriter, writer_to(route)).guard == Guard(attempts=[("7-3", 1)])


@pytest.mark.parametrize("kind", WriterKind)
def test_a_spec_reads_back_with_its_kind_of_writer(kind: WriterKind) -> None:
    spec = Spec.model_validate({"name": "move", "tables": ["t"], "apply": kind.value})
    assert spec.apply is kind
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec
