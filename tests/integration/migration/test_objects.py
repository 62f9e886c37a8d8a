"""What a run makes on the clusters is in the ledger before it is made (R6); a kill in between costs nothing (R7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.migration.moves import begin, copy_tables, fill, make_spec, run_of, skip, spark, unique, visible
from integration.migration.test_cli import left_behind
from walferry.cutover import approval
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.ledger.rows import ClusterSide, ObjectKind
from walferry.migration.copying import copy
from walferry.migration.plan import make_plan
from walferry.replay.keeping import objects, protect
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

Phase = Callable[[Run, str], object]
STEPS: list[tuple[str, str, tuple[ClusterSide, ObjectKind], Phase]] = [
    ("source", "add_peer", ("source", "peer"), lambda run, table: protect.protect(run)),
    ("source", "snapshot", ("source", "snapshot"), copy.snapshot),
    ("target_files", "write", ("target", "snapshot"), lambda run, table: copy.copy(run, spark, table)),
    ("target", "clone_snapshot", ("target", "table"), copy.clone),
    ("source", "set_read_only", ("source", "read-only table"), lambda run, table: approval.stop_writes(run, None)),
]
"""whose method makes an object, the method, what the ledger calls the object, and the phase that makes it"""


def killed_behind(method: Callable[..., object]) -> Callable[..., None]:
    """Does it, and then the process is killed."""

    def do(*arguments: Any, **options: Any) -> None:
        method(*arguments, **options)
        raise KeyboardInterrupt

    return do


def test_whatever_was_made_just_before_a_kill_is_known_and_taken_over_and_the_end_takes_it_away(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = unique()
    with run_of(make_spec(source, target, [table], write_stop="readonly"), tmp_path) as run:
        run.source.create_table(table, {"f": {}})
        fill(run.source, table)
        skip(run, "plan", "approve")
        for owner, method, made, phase in STEPS:
            maker = getattr(run, owner)
            with monkeypatch.context() as patch:
                patch.setattr(maker, method, killed_behind(getattr(maker, method)))
                with pytest.raises(KeyboardInterrupt):
                    phase(run, table)
            known = {(o.cluster, o.kind): o.state for o in run.ledger.objects.all()}
            assert known.get(made) == "planned", f"{method} came first"
            if method == "clone_snapshot":  # nothing is under way: do not wait for it
                run.target.zk.delete(f"/walferry/leases/{table}", recursive=True)
            phase(run, table)
            if method == "add_peer":
                cut.start_fence(run)
        assert {o.state for o in run.ledger.objects.all()} == {"made"}
        assert visible(target, table) == visible(source, table)
        assert run.source.describe(table).read_only

        objects.release(run)
        record = run.run_id
        assert left_behind(run.source, record) == left_behind(run.target, record) == []
        assert run.source.describe(table).read_only, "late writers are let in after a cutover"
        objects.release(run, aborted=True)
        assert not run.source.describe(table).read_only, "the source takes no writes after an abort"
        assert run.target.table_exists(table)


def test_an_object_of_another_ledger_is_neither_used_nor_removed(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    (tmp_path / "other").mkdir()
    spec = make_spec(source, target, [table])
    with run_of(spec, tmp_path) as first, run_of(spec, tmp_path / "other") as second:
        first.source.create_table(table, {"f": {}})
        for run in (first, second):
            skip(run, "plan", "fence")
        protect.protect(first)
        exists = f"peer {first.peer} already exists at the source, but this run did not create it"
        with pytest.raises(UsageError, match=exists):
            protect.protect(second)
        objects.release(second, aborted=True)
        protect.protect(first)
        assert first.source.peers()[first.peer][0] is False
        copy.snapshot(first, table)
        copy.copy(first, spark, table)
        skip(second, "snapshot")
        second.ledger.objects.plan("source", "snapshot", second.snapshot(table))  # of another source
        with pytest.raises(UsageError, match=f"snapshot {first.snapshot(table)} already exists at the target"):
            copy.copy(second, spark, table)


def test_a_table_that_its_owner_had_set_read_only_stays_so_after_an_abort(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    closed, written = unique(), unique()
    with run_of(make_spec(source, target, [closed, written], write_stop="readonly"), tmp_path) as run:
        for table in (closed, written):
            run.source.create_table(table, {"f": {}})
        run.source.set_read_only(closed, True)
        skip(run, "approve")
        approval.stop_writes(run, None)
        assert run.source.describe(written).read_only
        objects.release(run, aborted=True)
        assert run.source.describe(closed).read_only
        assert not run.source.describe(written).read_only


@pytest.mark.parametrize("durability", ["SKIP_WAL", "ASYNC_WAL"])
def test_a_target_table_that_acknowledges_too_early_is_durable_while_edits_are_applied(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, durability: str
) -> None:
    table = unique()
    with run_of(make_spec(source, target, [table]), tmp_path) as run:
        run.source.create_table(table, {"f": {}})
        run.source.modify_table(run.source.describe(table).with_attribute("DURABILITY", durability))
        (told,) = [f for f in make_plan(run.spec, 24).findings if "DURABILITY" in f.message]
        assert (told.level, told.subject) == ("warn", table)
        begin(run)
        copy_tables(run)
        assert run.target.describe(table).durability == durability, "the clone inherits it"
        fill(run.source, table)
        skip(run, "check_copy")

        def applied() -> bool:
            assert run.target.describe(table).durability == "USE_DEFAULT"
            return True

        replay(run, spark(), until=applied)
        if durability == "ASYNC_WAL":  # the log has the edits
            assert visible(target, table) == visible(source, table)
        objects.release(run, aborted=True)
        assert run.target.describe(table).durability == durability
