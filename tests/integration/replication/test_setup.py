"""HBase's own replication is set up under clients that write on, through kills, and put back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.migration.command import walferry
from integration.migration.moves import content, spark, spec_keys, unique
from integration.migration.test_cli import phase_of, running
from integration.replication.native import await_row, cluster_key, native_peer
from integration.replication.writing import writer
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.hbase.peers import PeerConfig, add_disabled_peer, enable_peer, peer_configs
from walferry.ledger import Ledger
from walferry.migration.pairs import pair_pass, pair_shipping
from walferry.migration.setup import put_back, teardown
from walferry.migration.setup.scopes import scopes_of
from walferry.migration.setup.setup import open_setup
from walferry.migration.setup.setup_look import look
from walferry.migration.setup.wanted_peer import PeerDiffersError, peer_to_add
from walferry.pipeline import PhaseContext, do, set_up
from walferry.replication import shipped
from walferry.run.phases import steps
from walferry.run.run import Run
from walferry.run.setup_spec import ResolvedSetupSpec

pytestmark = pytest.mark.cluster

SPLITS = [b"row3", b"row6"]
BANDWIDTH = 50_000_000


@dataclass(frozen=True)
class Sides:
    """Tables at the source, which a setup brings to the target."""

    source: MiniCluster
    target: MiniCluster
    here: HBaseClient
    there: HBaseClient
    tables: Sequence[str]
    keys: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.keys["name"])

    def scopes(self, client: HBaseClient) -> set[str]:
        return {scope for table in self.tables for scope in scopes_of(client.describe(table)).values()}

    def peer(self, client: HBaseClient, key: str = "peer") -> PeerConfig | None:
        return next((one for one in peer_configs(client) if one.id == self.keys[key]), None)

    def leftovers(self) -> list[str]:
        """Peers and snapshots of the setup at both clusters."""
        ids = {self.keys["peer"], self.keys.get("peer_back")}
        found = [one.id for client in (self.here, self.there) for one in peer_configs(client) if one.id in ids]
        return found + [
            one.name for client in (self.here, self.there) for one in client.snapshots() if self.name in one.name
        ]

    def require_equal(self) -> None:
        for table in self.tables:
            assert (there := content(self.target, table)) == content(self.source, table)
            assert there


@contextmanager
def sides(source: MiniCluster, target: MiniCluster, count: int = 1, **keys: Any) -> Iterator[Sides]:
    """New tables at the source; at the end they and the peers are gone."""
    tables = [unique("setup") for _ in range(count)]
    if keys.pop("both_ways", False):
        keys["peer_back"] = unique("back")
    keys |= {"peer": unique("peer"), "max_lag": 2, "spot_check": 0}
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        for table in tables:
            here.create_table(table, {"d": {"VERSIONS": "3"}, "e": {"VERSIONS": "1"}}, SPLITS)
        try:
            yield Sides(source, target, here, there, tables, spec_keys(source, target, tables, **keys))
        finally:
            for client, peer in ((here, keys["peer"]), (there, keys.get("peer_back"))):
                if peer is not None:
                    client.remove_peer(peer)
                for table in tables:
                    if client.table_exists(table):
                        client.disable_table(table)
                        client.delete_table(table)


@contextmanager
def setup_of(both: Sides, folder: Path) -> Iterator[Run]:
    """The run of a setup in this process."""
    spec = ResolvedSetupSpec.model_validate(both.keys)
    with ExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(pair_pass, "SETTLE_SECONDS", 0.1)
        patch.setattr(pair_shipping, "LEAST_SECONDS", 30)
        patch.setattr(shipped, "STAYS_SECONDS", 3)
        ledger = opened.enter_context(Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="tester"))
        yield opened.enter_context(Run(ledger, open_setup(ledger, spec, "tester").run_id))


def means(folder: Path) -> PhaseContext:
    return PhaseContext(spark, folder)


def up_to(run: Run, last: str, folder: Path) -> None:
    """Do the phases of a setup up to this one."""
    for phase, subject in steps("setup", [pair.source for pair in run.tables]):
        do(run, phase.name, subject, means(folder))
        if phase.name == last:
            return


def test_tables_are_set_up_under_a_writer_through_kills_and_put_back(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with sides(source, target, 2, bandwidth=BANDWIDTH) as both:
        (tmp_path / "setup.yaml").write_text(yaml.safe_dump(both.keys))
        dry = walferry(tmp_path, "replicate", "setup", "setup.yaml", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert f"would add peer {both.keys['peer']} at the source, disabled, to {cluster_key(target)}" in dry.stdout
        assert both.scopes(both.here) == {"0"}
        with beside(writer(both.here, both.tables), "writer"):
            time.sleep(1)
            for phase in ("scope", "peer", "clone", "ship"):
                with running(tmp_path, "replicate", "setup", "setup.yaml") as process:
                    deadline = time.monotonic() + 120
                    while phase_of(tmp_path, both.name) != phase:
                        assert process.poll() is None, (tmp_path / "err").read_text()
                        assert time.monotonic() < deadline, phase
                        time.sleep(0.05)
                assert process.returncode == -signal.SIGKILL
            done = walferry(tmp_path, "replicate", "setup", "setup.yaml")
            assert done.returncode == 0, done.stderr
            assert "replication is set up; both sides were equal" in done.stdout
            peer = both.peer(both.here)
            assert peer is not None
            assert (peer.enabled, peer.bandwidth, sorted(peer.tables)) == (True, BANDWIDTH, sorted(both.tables))
            assert both.scopes(both.here) == {"1"}
            assert both.scopes(both.there) == {"0"}
        looked = walferry(tmp_path, "replicate", "setup", "setup.yaml")
        assert looked.returncode == 0, looked.stderr
        assert "WRONG" not in looked.stdout
        for table in both.tables:
            both.here.put(table, [Cell(b"zlast", b"d", b"q", b"v")])
        down = walferry(tmp_path, "replicate", "teardown", both.name, "--json")
        assert down.returncode == 0, down.stderr
        facts = json.loads(down.stdout)
        assert [one["peer"] for one in facts["shipped"]] == [both.keys["peer"]]
        assert (facts["left"], facts["changed"], facts["stays"]) == ([], [], [])
        both.require_equal()
        assert both.leftovers() == []
        assert both.scopes(both.here) == {"0"}
        again = walferry(tmp_path, "replicate", "teardown", both.name)
        assert again.returncode == 0, again.stderr
        assert "was torn down by" in again.stdout


def test_both_ways_and_a_teardown_that_is_stopped_half_way_and_repeated(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with sides(source, target, both_ways=True) as both, setup_of(both, tmp_path) as run:
        (table,) = both.tables
        with beside(writer(both.here, both.tables, b"here "), "writer"):
            up_to(run, "enable", tmp_path)
            with beside(writer(both.there, both.tables, b"there "), "writer there"):
                await_row(source, table, b"there row001")
                set_up(run, means(tmp_path))
        assert run.ledger.record.state == "done"
        assert [one for one in look(run) if one.wrong] == []
        assert both.scopes(both.there) == both.scopes(both.here) == {"1"}

        with pytest.MonkeyPatch.context() as patch:  # as a kill would, once the peer at the source is removed
            patch.setattr(put_back, "_scopes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                teardown.tear_down(run, "a look")
        assert both.peer(both.here) is None
        assert both.peer(both.there, "peer_back") is not None
        assert both.scopes(both.here) == {"1"}
        with pytest.raises(UsageError, match="somebody has begun to tear"):
            open_setup(run.ledger.whole, ResolvedSetupSpec.model_validate(both.keys), "tester")

        done = teardown.tear_down(run, "a look")
        assert done.put_back.is_whole, done.lines()
        assert [one.peer for one in done.shipped] == [both.keys["peer_back"]]
        both.require_equal()
        assert both.leftovers() == []
        assert both.scopes(both.there) == both.scopes(both.here) == {"0"}
        assert teardown.tear_down(run, "again").lines() == []


def test_a_peer_that_somebody_has_changed_is_not_touched(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with sides(source, target) as both, setup_of(both, tmp_path) as run:
        up_to(run, "clone", tmp_path)
        enable_peer(both.here, both.keys["peer"])
        do(run, "back", "", means(tmp_path))
        with pytest.raises(PeerDiffersError, match="it was enabled"):
            do(run, "enable", "", means(tmp_path))

        both.here.remove_peer(both.keys["peer"])
        with pytest.raises(PeerDiffersError, match="it was removed"):
            do(run, "enable", "", means(tmp_path))
        add_disabled_peer(
            both.here, both.keys["peer"], peer_to_add(ResolvedSetupSpec.model_validate(both.keys), "source")
        )
        with pytest.raises(PeerDiffersError, match="removed and added again"):
            do(run, "enable", "", means(tmp_path))

        would = walferry(tmp_path, "abort", both.name, "--reason", "no", "--dry-run", "--json")
        assert would.returncode == 0, would.stderr
        assert run.ledger.record.state == "running"
        aborted = walferry(tmp_path, "abort", both.name, "--reason", "no", "--json")
        assert aborted.returncode == 1, aborted.stderr
        foreseen, facts = json.loads(would.stdout), json.loads(aborted.stdout)
        assert (foreseen["left"], foreseen["removed"]) == (facts["left"], facts["removed"])
        assert any("somebody has changed it" in one for one in facts["left"])
        assert any(f"peer {both.keys['peer']} needs it" in one for one in facts["stays"])
        assert both.peer(both.here) is not None
        assert both.scopes(both.here) == {"1"}

        both.here.remove_peer(both.keys["peer"])
        again = walferry(tmp_path, "abort", both.name, "--reason", "no")
        assert again.returncode == 0, again.stdout + again.stderr
        assert both.leftovers() == []
        assert both.scopes(both.here) == {"0"}
        assert both.there.table_exists(both.tables[0])


def test_some_families_are_replicated_and_what_would_also_be_shipped_is_refused(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with sides(source, target) as both:
        (table,) = both.tables
        both.keys["families"] = {table: ["d"]}
        with native_peer(source, target, {table: ["d"]}, enabled=False) as other:
            with setup_of(both, tmp_path) as run, pytest.raises(UsageError) as refused:
                up_to(run, "plan", tmp_path)
            assert f"peer {other} at the source" in str(refused.value)
            assert "would begin to ship d as well" in str(refused.value)
        both.here.put(table, [Cell(b"row", b"d", b"q", b"before"), Cell(b"row", b"e", b"q", b"before")])
        with setup_of(both, tmp_path) as run:
            set_up(run, means(tmp_path))
            assert run.ledger.record.outcome.startswith("replication is set up; not compared: only some families of")
            both.here.put(table, [Cell(b"row", b"d", b"q", b"after"), Cell(b"row", b"e", b"q", b"after")])
            both.here.put(table, [Cell(b"last", b"d", b"q", b"v")])
            await_row(target, table, b"last")
            seen = {key: cells[0][0] for key, cells in content(target, table).items()}  # type: ignore[index]
            assert seen["b'row' b'd:q'"] == b"after"
            assert seen["b'row' b'e:q'"] == b"before"
            with native_peer(source, target, {table: ["d"]}, enabled=False) as other:
                done = teardown.tear_down(run, "")
                assert [f"peer {other} needs it" in one for one in done.put_back.stays] == [True]
                assert scopes_of(both.here.describe(table)) == {"d": "1", "e": "0"}
            teardown.tear_down(run, "")
            assert both.scopes(both.here) == {"0"}


@pytest.mark.long
def test_a_serial_peer_ships_in_order_although_regions_move(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with sides(source, target, serial=True) as both, setup_of(both, tmp_path) as run:
        if both.here.release.since < (2, 2):
            pytest.skip("HBase 1.x knows no SERIAL")
        (table,) = both.tables
        with beside(writer(both.here, both.tables), "writer"):
            up_to(run, "clone", tmp_path)
            for region in both.here.regions(table):
                others = [server for server in both.here.servers() if server != region.server]
                both.here.move_region(region, others[0])
            set_up(run, means(tmp_path))
        peer = both.peer(both.here)
        assert peer is not None
        assert peer.serial
        assert teardown.tear_down(run, "").put_back.is_whole
        both.require_equal()
