"""What a plan refuses, and what it says of versions."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.migration.planning.versions import of_version
from walferry.errors import UsageError, as_printed
from walferry.migration import plan as plan_module
from walferry.migration.plan import Plan, _first_findings, _require_roots, _version, require
from walferry.migration.planning.finding import Finding
from walferry.run.spec import ResolvedSpec
from walferry.storage import Local


def plan(*findings: Finding) -> Plan:
    return Plan("2.6", "2.6", "a", "b", [], [], 0, 0, list(findings))


def test_every_refusal_is_in_the_one_error_and_warnings_are_not() -> None:
    refusals = [Finding("refuse", "a", "is disabled"), Finding("refuse", "b", "is not there")]
    with pytest.raises(UsageError) as caught:
        require(plan(refusals[0], Finding("warn", "c", "is large"), refusals[1]))
    assert str(caught.value) == "the plan refuses: a: is disabled; b: is not there"
    assert as_printed(caught.value) == "the plan refuses:\n  a: is disabled\n  b: is not there"
    assert len(caught.value.findings) == 2
    with pytest.raises(UsageError) as one:
        require(plan(refusals[0]))
    assert as_printed(one.value) == "the plan refuses: a: is disabled"
    require(plan(Finding("warn", "c", "is large")))


@pytest.mark.parametrize("version", ["1.7.2", "2.2.3", "2.5.7-hadoop3", "2.6.3"])
def test_a_version_that_the_tests_boot_is_no_finding(version: str) -> None:
    assert list(_version(of_version(version), "source")) == []


def test_a_target_to_which_no_test_migrates_is_a_warning() -> None:
    (found,) = _version(of_version("2.5.7"), "target")
    assert (found.level, found.message) == ("warn", "HBase 2.5.7 was never tried as a target, only as a source")
    for version in ("1.7.2", "2.2.3", "2.6.3"):
        assert list(_version(of_version(version), "target")) == []


def test_a_version_that_was_never_tried_is_a_warning_that_names_what_is_assumed() -> None:
    (found,) = _version(of_version("1.2.0-cdh5.16.2"), "source")
    assert (found.level, found.subject) == ("warn", "source")
    assert found.message == (
        "HBase 1.2.0-cdh5.16.2 was never tried with walferry. It is assumed to be like 1.4: peers and states of tables "
        "by ZooKeeper, changes without procedures, replication queues in ZooKeeper"
    )


def test_where_servers_log_is_looked_at_on_both_sides_by_the_tables_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, str, list[str]]] = []

    def look(side: str, cluster: Any, tables: list[str]) -> Iterator[Finding]:
        looked.append((side, cluster.address, tables))
        yield from ()

    for name in (
        "hbase_findings",
        "file_findings",
        "foreign_log_findings",
        "root_findings",
        "staging_findings",
        "name_node_findings",
    ):
        monkeypatch.setattr(plan_module, name, lambda *_: [])
    monkeypatch.setattr(plan_module, "wal_folder_findings", look)
    spec = ResolvedSpec.model_validate(SPEC | {"tables": [{"source": "t", "target": "copy"}]})
    source, target = SimpleNamespace(address="source's"), SimpleNamespace(address="target's")
    assert _first_findings(spec, source, target) == []  # type: ignore[arg-type]
    assert looked == [("source", "source's", ["t"]), ("target", "target's", ["copy"])]


def test_two_clusters_with_one_root_folder_are_refused() -> None:
    spec = ResolvedSpec.model_validate(SPEC)
    with pytest.raises(UsageError, match="source and target have the same root folder"):
        _require_roots(spec, Local(), Local())
    spec = ResolvedSpec.model_validate(SPEC | {"target": CLUSTER | {"rootdir": "hdfs://127.0.0.1:1/nowhere"}})
    with pytest.raises(UsageError, match="source: /hbase does not exist"):
        _require_roots(spec, Local(), Local())
