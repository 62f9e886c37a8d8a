"""A target table that acknowledges too early is durable while a run writes to it, and as before afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.replay.memory_zookeeper import MemoryZooKeeper
from unit.spark_stand_in import SPARK
from walferry.cutover.ways_out import abort
from walferry.errors import TransientError
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, Round
from walferry.ledger.rows import RunKind
from walferry.replay.rights import applying as applying_module
from walferry.replay.rights import lease
from walferry.replay.rights.applying import applying
from walferry.replay.rights.durability import make_durable, restore
from walferry.replay.rights.lease import LeaseHeldError
from walferry.replay.rounds import follower
from walferry.run.heartbeat import beating
from walferry.run.run import Run, RunEndedError

TABLE = "shop:orders"


class Target:
    """A target of one table, whose schema can be read and changed."""

    def __init__(self) -> None:
        self.table: TableDescriptor | None = new_table(TABLE, {"f": {}})
        self.before_change: Callable[[], object] = lambda: None
        self.after_change: Callable[[], object] = lambda: None
        self.zookeeper = MemoryZooKeeper()
        self.zk = self.zookeeper.session()

    def describe(self, name: str) -> TableDescriptor:
        assert self.table is not None
        return self.table

    def table_exists(self, name: str) -> bool:
        return self.table is not None

    def modify_table(self, descriptor: TableDescriptor) -> None:
        self.before_change()
        self.table = descriptor
        self.after_change()

    def set(self, durability: str) -> None:
        self.table = self.describe(TABLE).with_attribute("DURABILITY", durability)

    def cluster_id(self) -> str:
        return "target"

    def servers(self) -> list[Server]:
        return []

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr("time.sleep", lambda _: None)  # for requests of who failed to end: there are none
    monkeypatch.setattr(applying_module, "remove_staged", lambda run, pairs: None)  # there is no file system
    return Target()


@pytest.fixture
def run(tmp_path: Path, target: Target) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield opened(ledger, target, "move", "migration")


def opened(ledger: Ledger, target: Target, name: str, kind: RunKind) -> Run:
    """A run on the target's table."""
    run = Run(ledger, ledger.open_run(name, "test", SPEC | {"name": name}, "test", kind).run_id)
    run.__dict__.update(target=target, source=Source())
    return run


class Source:
    """A source whose id is known."""

    def cluster_uuid(self) -> UUID:
        return UUID(int=1)

    def close(self) -> None:
        """Nothing is open."""


def restored(run: Run) -> list[str]:
    """What the end of a run, on which nobody is at work, gives back."""
    done, _ = restore(run, at_work=False, wait_seconds=0)
    return done


def durability(target: Target) -> str:
    return target.describe(TABLE).durability


@contextmanager
def at_work(run: Run) -> Iterator[None]:
    """A phase is recorded as running, and this process gives signs of life."""
    run.ledger.phases.start("plan")
    with beating(run.ledger, "plan", "test"):
        yield


@pytest.mark.parametrize("durability", ["SKIP_WAL", "ASYNC_WAL"])
def test_it_is_durable_meanwhile_and_as_before_at_the_end(run: Run, target: Target, durability: str) -> None:
    target.set(durability)
    make_durable(run)
    make_durable(run)
    assert target.describe(TABLE).durability == "USE_DEFAULT"
    (item,) = run.ledger.objects.all()
    assert (item.cluster, item.kind, item.name, item.state) == ("target", "durability", f"{TABLE}={durability}", "made")
    assert restored(run) == [f"target durability {TABLE}={durability}"]
    assert restored(run) == []
    assert target.describe(TABLE).durability == durability


@pytest.mark.parametrize("durability", ["USE_DEFAULT", "SYNC_WAL", "FSYNC_WAL"])
def test_a_durable_table_is_left_as_it_is(run: Run, target: Target, durability: str) -> None:
    target.set(durability)
    make_durable(run)
    restored(run)
    assert target.describe(TABLE).durability == durability
    assert run.ledger.objects.all() == []


def test_a_kill_between_plan_and_change_costs_nothing(
    run: Run, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.set("SKIP_WAL")

    def killed(descriptor: TableDescriptor) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target, "modify_table", killed)
        with pytest.raises(KeyboardInterrupt):
            make_durable(run)
    restored(run)
    assert target.describe(TABLE).durability == "SKIP_WAL"
    make_durable(run)
    restored(run)
    assert target.describe(TABLE).durability == "SKIP_WAL"


def test_what_somebody_set_meanwhile_stays_and_a_table_that_was_dropped_is_no_error(run: Run, target: Target) -> None:
    target.set("SKIP_WAL")
    make_durable(run)
    target.set("FSYNC_WAL")
    restored(run)
    assert target.describe(TABLE).durability == "FSYNC_WAL"
    target.set("ASYNC_WAL")
    make_durable(run)
    target.table = None
    restored(run)
    assert {item.state for item in run.ledger.objects.all()} == {"removed"}


def test_a_change_that_was_cut_off_is_made_again_though_the_schema_shows_it(
    run: Run, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema changes at once, each region when it has been reopened: until then it acknowledges early."""
    target.set("ASYNC_WAL")
    changed: list[str] = []

    def cut_off(descriptor: TableDescriptor) -> None:
        target.table = descriptor
        changed.append(descriptor.durability)
        if len(changed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(target, "modify_table", cut_off)
    with pytest.raises(KeyboardInterrupt):
        make_durable(run)
    assert target.describe(TABLE).durability == "USE_DEFAULT"
    make_durable(run)
    assert changed == ["USE_DEFAULT", "USE_DEFAULT"]
    restored(run)
    assert target.describe(TABLE).durability == "ASYNC_WAL"


# ---- beside an abort


@pytest.mark.parametrize("moment", ["before_change", "after_change"])
def test_what_is_changed_beside_an_abort_is_given_back_by_who_changes_it(run: Run, target: Target, moment: str) -> None:
    target.set("ASYNC_WAL")
    told: list[object] = []
    once = iter([lambda: told.append(abort(run, "enough"))])
    setattr(target, moment, lambda: next(once, lambda: None)())
    with at_work(run), pytest.raises(RunEndedError, match="was aborted while"), applying(run):
        pytest.fail("edits were applied to the table of an aborted run")
    assert told == [{"removed": [], "left": [f"target durability {TABLE}=ASYNC_WAL"]}], "it waited for its own process"
    assert durability(target) == "ASYNC_WAL"
    assert {item.state for item in run.ledger.objects.all()} == {"removed"}


def test_a_run_that_is_aborted_while_it_applies_gives_back_as_soon_as_it_notices(
    run: Run, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.set("ASYNC_WAL")
    seen: list[str] = []

    def round_beside_an_abort(*_: object) -> Round:
        seen.append(durability(target))
        abort(run, "enough")
        seen.append(durability(target))  # a request may be under way
        return Round(1, 0, 0, 0, 0, 0, 0, 0, 0)

    monkeypatch.setattr(follower, "run_round", round_beside_an_abort)
    monkeypatch.setattr(follower, "lease_check_of", lambda *_: lambda _: None)
    monkeypatch.setattr(follower, "_let_go", lambda _: None)
    with at_work(run), pytest.raises(RunEndedError):
        follower.replay(
            run,
            SPARK,
            until=lambda: False,
        )
    assert [*seen, durability(target)] == ["USE_DEFAULT", "USE_DEFAULT", "ASYNC_WAL"]


@pytest.mark.parametrize("moment", ["before_change", "after_change"])
def test_what_a_killed_process_had_begun_to_change_goes_with_the_next_abort(
    run: Run, target: Target, moment: str
) -> None:
    target.set("ASYNC_WAL")

    def killed() -> None:
        setattr(target, moment, lambda: None)
        with at_work(run):
            abort(run, "enough")
        raise KeyboardInterrupt

    setattr(target, moment, killed)
    session = target.zk
    held = lease.held_leases(
        session, [TABLE], holder=lease.holder(run.run_id, "test"), request_seconds=0, wait_seconds=0
    )
    held.__enter__()
    with pytest.raises(KeyboardInterrupt):
        make_durable(run)
    assert durability(target) == ("USE_DEFAULT" if moment == "after_change" else "ASYNC_WAL")
    target.zookeeper.expire(session)
    assert abort(run, "enough")["removed"] == [f"target durability {TABLE}=ASYNC_WAL"]
    assert durability(target) == "ASYNC_WAL"
    assert {item.state for item in run.ledger.objects.all()} == {"removed"}


# ---- beside another run


@contextmanager
def window_and_drain(run: Run, target: Target) -> Iterator[tuple[Run, Run]]:
    """Two unfinished runs on the table: a window's that has changed it, and a drain that has applied edits since."""
    window = opened(run.ledger.whole, target, "window", "window")
    drain = opened(run.ledger.whole, target, "drain", "drain")
    target.set("ASYNC_WAL")
    with pytest.raises(TransientError), applying(window):
        raise TransientError("it is tried again later")
    with applying(drain):
        pass
    yield window, drain


def test_what_one_run_has_changed_is_no_original_value_to_another(run: Run, target: Target) -> None:
    with window_and_drain(run, target) as (window, drain):
        assert [item.name for item in window.ledger.objects.all()] == [f"{TABLE}=ASYNC_WAL"]
        assert drain.ledger.objects.all() == []


def test_a_run_that_ends_leaves_the_table_durable_to_the_one_that_goes_on(run: Run, target: Target) -> None:
    with window_and_drain(run, target) as (window, drain):
        with applying(window):
            pass
        window.ledger.end("done", "test")
        assert durability(target) == "USE_DEFAULT"
        with applying(drain):
            assert durability(target) == "USE_DEFAULT"
        assert abort(drain, "enough") == {"removed": [f"target durability {TABLE}=ASYNC_WAL"], "left": []}
        assert durability(target) == "ASYNC_WAL"
        assert [item.state for item in window.ledger.objects.all()] == ["removed"]


def test_a_pair_changes_no_table_that_it_repairs_and_nothing_is_left_to_it(run: Run, target: Target) -> None:
    """It has no end, at which it could give anything back."""
    target.set("ASYNC_WAL")
    with applying(opened(run.ledger.whole, target, "pair", "pair")):
        assert durability(target) == "ASYNC_WAL"
    with applying(opened(run.ledger.whole, target, "window", "window")):
        assert durability(target) == "USE_DEFAULT"
    assert durability(target) == "ASYNC_WAL"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "moved:2181"])
def test_what_a_run_that_has_ended_has_left_comes_back_with_the_next_run_also_if_the_cluster_has_moved_since(
    run: Run, target: Target, address: str
) -> None:
    spec = SPEC | {"name": "window", "target": CLUSTER | {"zookeeper": address}}
    window = Run(run.ledger.whole, run.ledger.whole.open_run("window", "test", spec, "test", "window").run_id)
    window.__dict__.update(target=target, source=Source())
    target.set("ASYNC_WAL")
    with pytest.raises(TransientError), applying(window):
        raise TransientError("it is killed")
    window.ledger.end("failed", "test", "its target does not answer")
    assert durability(target) == "USE_DEFAULT"
    assert restored(run) == [f"target durability {TABLE}=ASYNC_WAL"]
    assert durability(target) == "ASYNC_WAL"


def test_an_abort_beside_a_writing_run_leaves_the_table_to_it(run: Run, target: Target) -> None:
    with window_and_drain(run, target) as (window, drain):
        with applying(drain):
            told = abort(window, "enough")
            assert told == {"removed": [], "left": [f"target durability {TABLE}=ASYNC_WAL"]}
            assert durability(target) == "USE_DEFAULT"
        abort(drain, "enough")
        assert durability(target) == "ASYNC_WAL"


def test_the_table_of_a_run_in_another_ledger_is_left_alone_while_that_holds_the_lease(
    run: Run, target: Target
) -> None:
    target.set("ASYNC_WAL")
    make_durable(run)
    with lease.held_leases(target.zk, [TABLE], holder="run elsewhere-1 (kim)", request_seconds=0, wait_seconds=0):
        with pytest.raises(LeaseHeldError, match="elsewhere-1"):
            restored(run)
        assert durability(target) == "USE_DEFAULT"
    assert restored(run) == [f"target durability {TABLE}=ASYNC_WAL"]


def test_a_change_that_another_run_had_begun_is_made_whole_and_stays_that_runs(run: Run, target: Target) -> None:
    """The schema changes at once, its regions later: they may acknowledge early until somebody has made it whole."""
    other = opened(run.ledger.whole, target, "other", "drain")
    other.ledger.objects.plan("target", "durability", f"{TABLE}=ASYNC_WAL")
    changes: list[str] = []
    target.after_change = lambda: changes.append(durability(target))
    make_durable(run)
    assert (changes, run.ledger.objects.all()) == (["USE_DEFAULT"], [])


def test_of_two_values_that_the_owner_set_the_later_one_comes_back(run: Run, target: Target) -> None:
    for value in ("ASYNC_WAL", "SKIP_WAL"):
        target.set(value)
        make_durable(run)
    restored(run)
    assert durability(target) == "SKIP_WAL"
