"""What the ledger recorded of a run's spec, as every room reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord
from walferry.run.given_spec import parse_spec, resolve
from walferry.run.progress.status import status
from walferry.run.recorded_spec import options_of, source_of, source_tables, spec_of, target_of, target_tables
from walferry.run.run import Run
from walferry.run.spec import Cluster, Options

CLUSTER = {"zookeeper": "zk:2181", "webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
GIVEN = {"name": "move", "source": CLUSTER, "target": CLUSTER, "tables": ["shop:b", {"source": "a", "target": "c"}]}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger


def recorded(ledger: Ledger, **changes: Any) -> RunRecord:
    """A run with this spec, as a process reads it that did not open it."""
    return ledger.run(ledger.open_run("move", "me", GIVEN | changes, "me").run_id)


def connection(name: str) -> Cluster:
    raise AssertionError(f"no connection is asked for, not even {name}")


def test_what_was_given_is_what_is_read(ledger: Ledger) -> None:
    given = resolve(parse_spec(GIVEN | {"max_lag": 5, "throttle": {"write_bytes": "20MB"}}, origin="here"), connection)
    run = ledger.run(ledger.open_run("move", "me", given.as_recorded(), "me").run_id)
    assert spec_of(run) == given
    assert (options_of(run).max_lag, options_of(run).throttle.write_bytes) == (5, 20e6)
    assert (source_of(run), target_of(run)) == (given.source, given.target)
    assert list(target_tables(run).items()) == [("a", "c"), ("shop:b", "shop:b")]
    assert source_tables(run) == ["a", "shop:b"]


def test_a_key_that_an_older_walferry_did_not_record_has_the_models_default(ledger: Ledger) -> None:
    run = recorded(ledger)
    assert options_of(run) == Options()
    assert spec_of(run).max_lag == Options().max_lag
    assert target_of(run) == Cluster.model_validate(CLUSTER)


def test_an_address_that_is_refused_today_does_not_stop_a_run_that_has_it(ledger: Ledger) -> None:
    run = recorded(ledger, source=CLUSTER | {"webhdfs": "http://kim@nn:9870"})
    assert spec_of(run).source.webhdfs == "http://kim@nn:9870"


def test_a_watch_has_a_source_and_no_tables(ledger: Ledger) -> None:
    run = ledger.open_run("watch", "me", {"source": CLUSTER, "tables": []}, "me", "watch")
    assert (source_of(run), target_of(run), source_tables(run)) == (Cluster.model_validate(CLUSTER), None, [])


@pytest.mark.parametrize(
    ("wrong", "read", "fault"),
    [
        ({"max_lag": "soon"}, options_of, "max_lag: "),
        ({"max_lag": "soon"}, spec_of, "max_lag: "),
        ({"max_lagg": 3}, spec_of, "max_lagg: unknown key; did you mean max_lag?"),
        ({"source": {"zookeeper": "zk:2181"}}, source_of, r"source\.webhdfs: Field required"),
        ({"target": {"zookeeper": "zk:2181"}}, target_of, r"target\.webhdfs: Field required"),
        ({"tables": ["shop:b", "a b"]}, source_tables, r"tables\.1"),
    ],
)
def test_what_cannot_be_read_is_refused_by_run_and_key(
    ledger: Ledger, wrong: dict[str, Any], read: Any, fault: str
) -> None:
    run = RunRecord("move-1", "move", "me", GIVEN | wrong, "running", False, "", 0, None)
    with pytest.raises(UsageError, match=f"the spec that the ledger has of run move-1 cannot be read: {fault}"):
        read(run)


def test_the_status_and_a_process_of_a_run_refuse_a_spec_that_cannot_be_read(ledger: Ledger) -> None:
    run = RunRecord("move-1", "move", "me", GIVEN | {"throttle": {"write_bytes": -1}}, "running", False, "", 0, None)
    with pytest.raises(UsageError, match=r"run move-1 cannot be read: throttle\.write_bytes: give a number above 0"):
        Run(ledger, run)
    opened = recorded(ledger, throttle={"write_bytes": -1})
    with pytest.raises(UsageError, match=r"run move-1 cannot be read: throttle\.write_bytes: give a number above 0"):
        status(ledger.of(opened.run_id))
