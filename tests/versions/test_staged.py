"""A source that takes no peer: its logs are copied before its cleaner, which is in a hurry here, deletes them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from booting import laid_out
from integration.migration.command import walferry
from integration.migration.moves import (
    as_if_copied,
    begin,
    fill,
    make_spec,
    run_of,
    spark,
    spec_keys,
    unique,
    visible,
)
from integration.migration.test_cli import left_behind, phase_of, running, wait_until
from versions.test_migration import TTL_MS, under_load
from walferry.cutover.gates import before_cutover
from walferry.embedded.cluster import MiniCluster, boot, shut_down
from walferry.errors import GateShutError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger
from walferry.replay.keeping import by_copies
from walferry.replay.log.cut import cut_log
from walferry.replay.rounds.follower import replay
from walferry.run.progress.missing_numbers import faults
from walferry.run.run import Run
from walferry.settings import EmbeddedServers
from walferry.storage import WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
HURRIED = {
    "hbase.replication": "false",  # of 1.x
    "hbase.master.logcleaner.ttl": "15000",
    "hbase.master.cleaner.interval": "3000",
}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MiniCluster, MiniCluster]]:
    """A source that keeps closed logs for 15 s, whoever needs them, and a target."""
    with laid_out(tmp_path_factory.mktemp("servers"), EmbeddedServers.read()) as environment:
        source, target = environment.source, environment.target
        source.hbase_site = {**source.hbase_site, **HURRIED}
        boot(source, target)
        yield source, target
        shut_down(source, target)


@pytest.fixture(scope="module")
def source(clusters: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    return clusters[0]


@pytest.fixture(scope="module")
def target(clusters: tuple[MiniCluster, MiniCluster]) -> MiniCluster:
    return clusters[1]


def in_archive(source: MiniCluster) -> set[str]:
    return {status.name for status in WebHdfs(str(source.address.webhdfs), source.address.user).list("/hbase/oldWALs")}


@contextmanager
def ledger_of(folder: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", create=False) as ledger:
        yield ledger


def test_logs_that_the_cleaner_has_deleted_are_applied_from_their_copies(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    files = WebHdfs(str(source.address.webhdfs), source.address.user)
    stage = str(source.address.webhdfs).replace("http://", "webhdfs://") + "/copies"
    keys = spec_keys(source, target, [table], write_stop="readonly", max_lag=60, protect="stage", stage=stage)
    name = keys["name"]
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, [b"h", b"m"])
        here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
        fill(here, table)
        plan = json.loads(walferry(tmp_path, "plan", "move.yaml", "--json").stdout)
        assert [finding for finding in plan["findings"] if finding["level"] == "refuse"] == []
        assert files.status("/copies") is None, "the plan changes nothing"

        def gone_and_not_applied() -> set[str]:
            """Files of which only copies exist, and which replay has still to read."""
            with ledger_of(tmp_path) as ledger:
                run = ledger.of(f"{name}-1")
                staged = {file.name for file in run.staged.there()}
                live = {f.name for server in files.list("/hbase/WALs") for f in files.list(server.path)}
                return staged - run.log.applied(staged) - in_archive(source) - live

        with under_load(source, table) as load:
            with running(tmp_path, "start", "move.yaml", "--yes") as process:
                wait_until(lambda: phase_of(tmp_path, name) == "copy", process)
                walferry(tmp_path, "pause", name)
                deadline = time.monotonic() + 120
                while not gone_and_not_applied():
                    assert process.poll() is None, (tmp_path / "err").read_text()
                    assert time.monotonic() < deadline
                    for server in here.servers():
                        here.roll_wal(server)
                    here.flush_table(table)
                    time.sleep(3)
            assert process.returncode == -signal.SIGKILL
            lost = gone_and_not_applied()
            with running(tmp_path, "resume", name, "--yes") as process:
                process.wait(timeout=900)
                assert process.returncode == 0, (tmp_path / "err").read_text()
        assert load.errors == []
        assert lost

        time.sleep(max(0.0, load.ended + TTL_MS / 1000 + 1 - time.monotonic()))
        seen = visible(target, table)
        assert len(seen) > 30
        assert seen == visible(source, table)
        assert left_behind(here, f"{name}-1") == left_behind(there, f"{name}-1") == []
        assert files.list("/copies") == []
        facts = json.loads(walferry(tmp_path, "report", name, "--json").stdout)
        assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
        with ledger_of(tmp_path) as ledger:
            run = ledger.of(f"{name}-1")
            assert run.log.applied(lost) == lost
            assert [o.state for o in run.objects.all() if o.kind == "folder"] == ["removed"]


def require_missed(run: Run, table: str, folder: Path) -> None:
    """The 30 entries of the lost log are missed by their numbers; a person accepts that if it shuts the gate."""
    if run.source.release.skips_numbers:  # nothing follows from what is missing there
        (hint,) = run.ledger.numbers.counted()
        assert (hint.table, hint.numbers >= 30, hint.accepted_by) == (table, True, None)
    else:
        (gap,) = run.ledger.numbers.gaps()
        assert (gap.table, gap.last - gap.first + 1 >= 30) == (table, True)
        with pytest.raises(GateShutError, match=f"region {gap.region} of {table} has no entries {gap.first} to"):
            before_cutover(run)
        answer = walferry(folder, "accept-numbers", run.run_id, "--table", table, "--reason", "a test")
        assert answer.stdout.startswith(f"missing numbers of {table} are accepted"), answer.stderr


def until_deleted(run: Run, source: MiniCluster, names: set[str], *, copying: bool) -> None:
    """Wait until HBase has deleted these logs."""
    deadline = time.monotonic() + 120
    while names & (in_archive(source) | {file.name for file in run.wal_listing.live()}):
        assert time.monotonic() < deadline
        if copying:  # also what the flush has just written
            by_copies.tend(run)
        time.sleep(1)


def test_a_lost_log_that_no_list_knows_is_missed_by_its_numbers_and_a_copied_one_is_applied(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    """Nothing copies here unless the test says so."""
    table = unique()
    stage = str(source.address.webhdfs).replace("http://", "webhdfs://") + "/copies"
    with run_of(make_spec(source, target, [table], protect="stage", stage=stage), tmp_path) as run:
        here = run.source
        here.create_table(table, {"f": {}})
        begin(run)
        as_if_copied(run, table)

        def write(value: bytes) -> None:
            for number in range(30):  # more than flushes of an empty table would explain
                here.put(table, [Cell(b"r%d" % number, b"f", value, value)])

        def closed() -> set[str]:
            """Logs past the fence that are closed, all that was written until now among them."""
            newest = cut_log(run, whole=True).current
            live = [file for file in run.wal_listing.live() if run.fences().starts_by(file)]
            return {file.name for file in live if file.number < newest[file.group]}

        def let_go(names: set[str], *, copying: bool) -> None:
            here.flush_table(table)
            closed()
            until_deleted(run, source, names, copying=copying)

        write(b"1")
        replay(run, spark(), until=lambda: True)
        for _ in range(2):  # numbers without entries, as a snapshot of an idle table takes them
            here.flush_table(table)
        write(b"2")
        replay(run, spark(), until=lambda: True)
        assert faults(run.ledger) == []

        known = closed()
        by_copies.tend(run)
        write(b"3")
        lost = closed() - known
        assert lost
        let_go(lost, copying=False)
        write(b"4")
        replay(run, spark(), until=lambda: True)
        require_missed(run, table, tmp_path)
        assert faults(run.ledger) == []
        counted = run.ledger.numbers.counted()

        write(b"5")
        copied = closed()
        by_copies.tend(run)
        assert copied <= by_copies.kept(run)
        let_go(copied, copying=True)
        write(b"6")
        replay(run, spark(), until=lambda: True)
        assert faults(run.ledger) == []
        assert run.source.release.skips_numbers or run.ledger.numbers.counted() == counted, "nothing more is missing"
        columns = {column for _, column, _ in visible(target, table)}
        assert columns == {b"f:1", b"f:2", b"f:4", b"f:5", b"f:6"}
