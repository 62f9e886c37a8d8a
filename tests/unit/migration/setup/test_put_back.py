"""What a setup has set is put back, however often that is interrupted, and nothing that is somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unit.migration.setup.conftest import KEYS, TABLE, here, setup_run, there
from unit.migration.setup.test_wanted_peer import added, changed
from walferry import pipeline
from walferry.errors import UsageError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.peers import PINNING_ENDPOINT, add_disabled_peer
from walferry.ledger import Ledger
from walferry.migration.copying import copy
from walferry.migration.setup import put_back as put_back_module
from walferry.migration.setup import scopes
from walferry.migration.setup.put_back import made, put_back
from walferry.migration.setup.setting import ScopeChangedError, enable, require_scopes, set_scopes
from walferry.migration.setup.setup import clone, open_setup, require_own_pair
from walferry.migration.setup.teardown import abort, tear_down
from walferry.replay.keeping.objects import plan_own, release
from walferry.run import moved
from walferry.run.heartbeat import beating
from walferry.run.notes import own_pair
from walferry.run.notes.teardown import teardown_begun
from walferry.run.run import Run, RunEndedError
from walferry.run.setup_spec import ResolvedSetupSpec


def set_all(run: Run) -> None:
    """Scopes and the peer of the source, as after these phases."""
    set_scopes(run, TABLE)
    plan_own(run, "source", "peer", "east", there=False)
    added(run)
    made(run, "source", "peer", "east")


def states(run: Run) -> dict[str, str]:
    return {item.kind: item.state for item in run.ledger.objects.all()}


def scopes_now(run: Run) -> dict[str, str]:
    return scopes.scopes_of(run.source.describe(TABLE))


def test_all_families_of_a_table_are_changed_at_once_and_put_back_at_once(run: Run) -> None:
    set_all(run)
    assert here(run).altered[-1] == (TABLE, {"d": "1", "e": "1"})
    count = len(here(run).altered)
    done = put_back(run)
    assert done.is_whole
    assert done.removed == ["peer east at the source", f"REPLICATION_SCOPE 1 of d, e of {TABLE} at the source"]
    assert here(run).altered[count:] == [(TABLE, {"d": "0", "e": "0"})]
    assert states(run) == {"scope": "removed", "peer": "removed"}
    assert put_back(run).removed == []


def test_what_was_before_is_recorded_once_and_the_table_is_always_altered_again(run: Run) -> None:
    here(run).add(TABLE, d="0", e="1")
    set_scopes(run, TABLE)
    count = len(here(run).altered)
    set_scopes(run, TABLE)
    assert len(here(run).altered) > count, "the change before may have been cut off before regions opened again"
    put_back(run)
    assert scopes_now(run) == {"d": "0", "e": "1"}


def test_only_the_named_families_get_a_scope(ledger: Ledger) -> None:
    run = setup_run(ledger, families={TABLE: ["e"]})
    set_scopes(run, TABLE)
    assert scopes_now(run) == {"d": "0", "e": "1"}


def test_a_change_counts_once_every_region_has_opened_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        here(run).reopens = True
        run.source.modify_table(run.source.describe(TABLE))

    here(run).reopens = False
    monkeypatch.setattr("walferry.migration.setup.scopes.time.sleep", sleep)
    set_scopes(run, TABLE)
    assert waits


@pytest.mark.parametrize("now", ["table gone", "family gone", "zero"])
def test_what_is_as_it_was_counts_as_put_back_without_a_change(run: Run, now: str) -> None:
    set_all(run)
    if now == "table gone":
        del here(run).descriptors[TABLE]
    elif now == "family gone":
        here(run).add(TABLE, other="1")
    else:
        here(run).add(TABLE, d="0", e="0")
    count = len(here(run).altered)
    assert put_back(run).is_whole
    assert len(here(run).altered) == count
    assert states(run) == {"scope": "removed", "peer": "removed"}


def test_a_peer_that_somebody_has_changed_stays_with_the_scopes_that_it_needs(run: Run) -> None:
    set_all(run)
    changed(bandwidth=5)(run)
    for dry_run in (True, False):
        done = put_back(run, dry_run=dry_run)
        assert done.changed == [
            "peer east at the source: somebody has changed it, so it is not touched: BANDWIDTH is 5, not 1000"
        ]
        assert [text.partition(": ")[2] for text in done.stays] == ["peer east needs it"] * 2
        assert not done.is_whole
    assert scopes_now(run) == {"d": "1", "e": "1"}
    run.source.remove_peer("east")
    assert put_back(run).is_whole
    assert scopes_now(run) == {"d": "0", "e": "0"}


def test_a_scope_that_another_peer_needs_stays_and_one_that_only_keeps_the_log_needs_none(run: Run) -> None:
    set_all(run)
    run.ledger.objects.plan("source", "peer", "walferry_x_1")
    keeper = pb.ReplicationPeer(clusterkey="a:1:/h", replicationEndpointImpl=PINNING_ENDPOINT)
    add_disabled_peer(run.source, "walferry_x_1", keeper)
    wants_d = pb.TableCF(table_name=pb.TableName(namespace=b"shop", qualifier=b"orders"), families=[b"d"])
    add_disabled_peer(run.source, "other", pb.ReplicationPeer(clusterkey="a:1:/h", table_cfs=[wants_d]))
    done = put_back(run)
    assert done.stays == [f"REPLICATION_SCOPE 1 of d of {TABLE} at the source: peer other needs it"]
    assert scopes_now(run) == {"d": "1", "e": "0"}


def test_a_scope_that_another_setup_needs_stays(ledger: Ledger) -> None:
    run = setup_run(ledger)
    set_all(run)
    other = setup_run(ledger, name="second", peer="north")
    done = put_back(run)
    assert [text.rpartition(": ")[2] for text in done.stays] == [f"setup {other.run_id} needs it"] * 2
    abort(other, "no", "test")
    assert put_back(run).stays == []
    assert scopes_now(run) == {"d": "0", "e": "0"}


def test_a_dry_run_says_the_same_and_changes_nothing(run: Run) -> None:
    set_all(run)
    before = states(run), scopes_now(run), len(here(run).altered)
    foreseen = put_back(run, dry_run=True)
    assert (states(run), scopes_now(run), len(here(run).altered)) == before
    assert put_back(run).removed == foreseen.removed


def test_a_target_that_is_away_does_not_keep_the_source_from_being_put_back(ledger: Ledger) -> None:
    run = setup_run(ledger, peer_back="west")
    set_all(run)
    run.ledger.objects.plan("target", "scope", scopes.object_name(TABLE, {"d": "0"}))
    run.ledger.objects.made("target", "scope", scopes.object_name(TABLE, {"d": "0"}))
    there(run).away = True
    done = put_back(run)
    assert done.left == [f"REPLICATION_SCOPE of {TABLE} at the target: there does not answer"]
    assert scopes_now(run) == {"d": "0", "e": "0"}
    there(run).away = False
    assert put_back(run).is_whole, "the table was never made"


def test_what_a_live_process_is_about_to_set_is_left_to_it_and_it_puts_it_back(run: Run) -> None:
    def aborted_meanwhile() -> None:
        here(run).before_alter = lambda: None
        facts = abort(run, "no", "test")
        assert facts["removed"] == []
        assert "the process at work on scope puts it back" in facts["left"][0]

    here(run).before_alter = aborted_meanwhile
    run.ledger.phases.start("scope")
    with beating(run.ledger, "scope", "test"), pytest.raises(RunEndedError):
        set_scopes(run, TABLE)
    assert scopes_now(run) == {"d": "0", "e": "0"}
    assert states(run) == {"scope": "removed"}


def test_the_release_of_other_runs_leaves_peers_and_scopes_of_a_setup_alone(run: Run) -> None:
    set_all(run)
    assert release(run) == {"removed": [], "left": []}
    assert states(run) == {"scope": "made", "peer": "made"}


def test_scopes_that_somebody_has_put_back_are_found_before_the_peer_is_enabled(run: Run) -> None:
    set_all(run)
    require_scopes(run, "source")
    here(run).add(TABLE, d="0", e="1")
    with pytest.raises(ScopeChangedError, match=f"REPLICATION_SCOPE of d of {TABLE} at the source to 0 again"):
        require_scopes(run, "source")


def test_a_teardown_ends_an_unfinished_setup_and_says_when_there_is_nothing_left(run: Run) -> None:
    set_all(run)
    done = tear_down(run, "moved")
    assert done.put_back.is_whole
    assert run.ledger.record.state == "aborted"
    again = tear_down(run, "moved")
    assert again.lines() == []
    assert again.before.startswith("both-1 was torn down by")


def test_a_table_that_is_made_while_the_run_is_aborted_loses_its_scopes_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = setup_run(ledger, peer_back="west")
    for phase, subject in (("scope", ""), ("peer", ""), ("snapshot", TABLE), ("copy", TABLE)):
        run.ledger.phases.start(phase, subject)
        run.ledger.phases.finish(phase, {"tables": [{"table": TABLE, "families": ["d"]}]}, subject)

    def cloned(run: Run, table: str) -> None:
        with beating(run.ledger, f"clone {table}", "test"):
            run.ledger.phases.start("clone", table)
            there(run).add(table, d="1")
            assert len(abort(run, "no", "test")["left"]) == 1
        raise RunEndedError("it was aborted")

    monkeypatch.setattr(copy, "clone", cloned)
    with pytest.raises(RunEndedError):
        clone(run, TABLE)
    assert there(run).altered == [(TABLE, {"d": "0"})]
    assert states(run) == {"scope": "removed"}


def test_a_change_that_may_still_wait_at_the_master_is_outdone_by_another_one(run: Run) -> None:
    run.ledger.objects.plan("source", "scope", scopes.object_name(TABLE, {"d": "0", "e": "0"}))
    assert put_back(run).is_whole
    assert here(run).altered == [(TABLE, {"d": "0", "e": "0"})]


def test_a_target_that_is_away_does_not_keep_a_teardown_from_the_source(run: Run) -> None:
    set_all(run)
    there(run).away = True
    assert tear_down(run, "moved").put_back.is_whole


def test_nothing_is_put_back_at_another_cluster(run: Run) -> None:
    set_all(run)
    before = states(run)
    here(run).name = "another"
    for dry_run in (True, False):
        done = put_back(run, dry_run=dry_run)
        assert done.left == [
            f"{name}: its address leads to another cluster: another"
            for name in ("peer east at the source", f"REPLICATION_SCOPE of {TABLE} at the source")
        ]
        assert (done.removed, done.is_whole) == ([], False)
    with pytest.raises(UsageError, match="source: its address leads to another cluster"):
        tear_down(run, "moved")
    assert states(run) == before
    assert scopes_now(run) == {"d": "1", "e": "1"}


@pytest.mark.parametrize("same", [True, False])
def test_other_addresses_of_a_done_setup_are_recorded_if_the_cluster_is_the_same(
    run: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    def required(*_: object) -> None:
        if not same:
            raise UsageError("another cluster")

    run.ledger.end("done", "test", "set up")
    monkeypatch.setattr(moved, "_require_same", required)
    there = KEYS["target"] | {"zookeeper": "moved:2181"}
    record = open_setup(ledger, ResolvedSetupSpec.model_validate(KEYS | {"target": there}), "other")
    assert record.spec["target"]["zookeeper"] == "moved:2181"
    recorded = run.ledger.record.spec["target"]["zookeeper"]
    assert recorded == ("moved:2181" if same else "there:2181")


def test_a_peer_that_somebody_has_removed_is_told_before_anything_is_put_back(run: Run) -> None:
    set_all(run)
    enable(run, "source")
    run.source.remove_peer("east")
    with pytest.raises(WalferryError, match="peer east at the source was removed by somebody"):
        tear_down(run, "moved")
    assert not teardown_begun(run.ledger)
    done = tear_down(run, "moved", unshipped=True)
    assert done.unshipped == ["peer east at the source"]
    assert done.put_back.is_whole
    assert tear_down(run, "moved").unshipped == []


@pytest.mark.parametrize("was", ["due", "made"])
def test_a_process_that_is_interrupted_after_an_abort_puts_back_what_the_abort_has_left_to_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str
) -> None:
    """`made`: the phase of an earlier process was cut off after its change."""
    if was == "made":
        set_scopes(run, TABLE)

    def aborted_and_interrupted() -> None:
        here(run).before_alter = lambda: None
        facts = abort(run, "no", "test")
        assert "the process at work on scope puts it back" in facts["left"][0]
        run.source.modify_table(run.source.describe(TABLE).with_scopes({"d": "1", "e": "1"}))
        raise KeyboardInterrupt

    here(run).before_alter = aborted_and_interrupted
    monkeypatch.setattr(pipeline, "open_clients", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        pipeline.set_up(run, pipeline.PhaseContext(pipeline.without_spark("setup"), tmp_path))
    assert scopes_now(run) == {"d": "0", "e": "0"}
    assert states(run) == {"scope": "removed"}


def test_a_family_that_is_added_between_look_and_change_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(run)
    run.source.remove_peer("east")
    needed = put_back_module._needed

    def added_meanwhile(*given: Any) -> Any:
        here(run).add(TABLE, d="1", e="1", new="1")
        return needed(*given)

    monkeypatch.setattr(put_back_module, "_needed", added_meanwhile)
    assert put_back(run).is_whole
    assert scopes_now(run) == {"d": "0", "e": "0", "new": "1"}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_teardown_ends_the_setups_own_pair(run: Run, ledger: Ledger, recorded: bool) -> None:
    require_own_pair(run)
    pair = ledger.open_run("both_pair", "me", {"tables": []}, "me", "pair").run_id
    if recorded:
        own_pair.opened(run.ledger, pair)
    require_own_pair(run)
    assert f"ended: pair {pair}" in tear_down(run, "moved").lines()
    assert ledger.of(pair).record.state == "aborted"


def test_another_pair_of_the_same_name_is_neither_used_nor_ended(run: Run, ledger: Ledger) -> None:
    pair = ledger.open_run("both_pair", "me", {"tables": []}, "me", "pair").run_id
    with pytest.raises(UsageError, match=f"the pair {pair} is not this setup's"):
        require_own_pair(run)
    assert abort(run, "no", "test")["removed"] == []
    assert ledger.of(pair).record.state == "running"


def test_a_scope_counts_as_put_back_once_the_schema_of_1_x_shows_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(run)
    monkeypatch.setattr(scopes, "_SCHEMA_SECONDS", -1.0)
    with monkeypatch.context() as patched:
        patched.setattr(run.source, "modify_table", lambda *_: None)
        done = put_back(run)
    assert "does not show yet" in done.left[0]
    assert states(run) == {"scope": "made", "peer": "removed"}
    assert put_back(run).is_whole


def test_a_table_of_many_regions_has_more_time_to_open_them_again(run: Run) -> None:
    here(run).opened[TABLE] *= 500
    set_scopes(run, TABLE)
    assert here(run).waited_s == 600 + 10 * 1000
    here(run).waited_s = 0
    put_back(run)
    assert here(run).waited_s == 600 + 10 * 1000
