"""A source whose logs are on another HDFS than its tables, and a target whose logs are in another folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from booting import laid_out
from integration.migration.command import walferry
from integration.migration.moves import (
    begin,
    cluster_keys,
    content,
    copy_tables,
    make_spec,
    run_of,
    skip,
    spark,
    spec_keys,
    unique,
)
from integration.moments.writing import KEPT, Writer, now
from walferry.cutover import gates
from walferry.embedded import jars
from walferry.embedded.cluster import HOST, MiniCluster, Ports
from walferry.embedded.environment import Environment
from walferry.errors import TransientError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_row
from walferry.ledger import Ledger
from walferry.migration.pairs import pair_pass
from walferry.migration.pairs.pair_findings import findings
from walferry.migration.pairs.pair_pass import open_pair, verify_pair
from walferry.migration.touching import touched
from walferry.migration.touching.touched import Seen
from walferry.moments.keeping.bases import take
from walferry.moments.keeping.keep import begin as begin_keeping
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.keep_spec import parse_keep_spec, resolve_keep
from walferry.moments.keeping.plan import plan_keep
from walferry.moments.keeping.start import open_keep
from walferry.moments.restoring import restore as restoring
from walferry.moments.restoring.restore_run import RestoreRun, chosen, open_restore, planned
from walferry.pipeline import retry_work
from walferry.replay.keeping import by_copies, objects
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.replay.windows.window import open_window, plan_window
from walferry.run.run import Run
from walferry.run.spec import Cluster
from walferry.settings import EmbeddedServers
from walferry.wal.files import Place, list_archive, list_live, list_wals

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
TTL_S = 3
"""so long HBase keeps an archived log that nobody needs"""
CLEANING = {"hbase.master.logcleaner.ttl": str(TTL_S * 1000), "hbase.master.cleaner.interval": "1000"}


@pytest.fixture(scope="session", params=[f"{version}-elsewhere" for version in (jars.NEWEST, "1.7.2")])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Source and target; beside them an HDFS that has nothing but the source's logs."""
    folder = tmp_path_factory.mktemp("servers")
    settings = EmbeddedServers.read().model_copy(update={"source_version": request.param.partition("-")[0]})
    with laid_out(folder, settings) as environment:
        logs = MiniCluster(folder / "logs", Ports.free(1), with_thrift=False)
        with closing(Stopping(logs)):
            logs.start_hdfs()
            logs.await_ready("hdfs")
            source, target = environment.source, environment.target
            at_logs = f"hdfs://{HOST}:{logs.ports.namenode}/logs/wal"
            source.hbase_site = {**source.hbase_site, **CLEANING, "hbase.wal.dir": at_logs}
            source.wal_webhdfs = logs.address.webhdfs
            own = f"hdfs://{HOST}:{target.ports.namenode}/wal"
            target.hbase_site = {**target.hbase_site, "hbase.wal.dir": own}
            yield environment


class Stopping:
    def __init__(self, cluster: MiniCluster) -> None:
        self.close = cluster.stop


def wait_until(done: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def table_of(client: HBaseClient, name: str) -> str:
    """A table of two regions that has something in files, and something only in the log."""
    client.create_table(name, {"f": KEPT, "g": KEPT}, [b"m"])
    writer = Writer(client, name)
    for _ in range(30):
        writer.edit()
    client.flush_table(name)
    for _ in range(30):
        writer.edit()
    return name


def test_a_table_is_moved_with_its_history_through_rolls_and_a_kill_and_the_peer_keeps_the_log(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with (
        HBaseClient(source.address) as here,
        run_of(make_spec(source, target, [table := table_of(here, unique())]), tmp_path) as run,
    ):
        assert run.wal_files is not run.source_files
        writer = Writer(here, table)
        begin(run)
        copy_tables(run)
        for _ in range(3):
            writer.edit()
            replay(run, spark(), until=lambda: True)
        here.flush_table(table)
        cut.cut_log(run)
        wait_until(lambda: list_archive(run.wal_files, run.wal_root), "nothing is archived")
        dead = crash(source, here, run, writer)
        kept = {file.name for file in list_archive(run.wal_files, run.wal_root)}
        time.sleep(TTL_S + 3)
        assert kept <= {file.name for file in list_archive(run.wal_files, run.wal_root)}
        assert run.source_files.status(f"{run.source_root}/oldWALs") is None or not list_wals(
            run.source_files, run.source_root
        ), "logs are also below the root folder"
        write_at_target(run, table)
        retry_work(lambda: replay(run, spark(), until=lambda: True))
        skip(run, "replay", "write_stop")
        cut.end_fence(run)
        drain(run, spark())
        gates.after_drain(run)
        assert any(file.server == dead and file.length for file in run.ledger.log.files())
        assert content(target, table) == content(source, table)
        objects.release(run)
        wait_until(lambda: not kept & {file.name for file in list_archive(run.wal_files, run.wal_root)}, "they stay")


def crash(source: MiniCluster, here: HBaseClient, run: Run, writer: Writer) -> str:
    """Kill a region server with edits in its log, and write on. Returns its name."""
    port = source.ports.region_servers[1]
    victim = next(server for server in here.servers() if server.port == port)
    for region in here.regions(writer.table):
        here.move_region(region, victim)
    for _ in range(20):
        writer.edit()
    source.kill_region_server(1)
    splitting = f"{run.wal_root}/WALs/{victim.name}-splitting"
    wait_until(lambda: run.wal_files.status(splitting), "its log is not split on the HDFS of the logs")
    assert any(file.place is Place.SPLITTING for file in list_live(run.wal_files, run.wal_root))
    for _ in range(20):
        writer.edit()
    source.start_region_server(1)
    source.await_ready("regionserver-1")
    return victim.name


def write_at_target(run: Run, table: str) -> None:
    """What others write there is seen in its log."""
    touched.look(run)
    row = b"by somebody else"
    run.target.put(table, [Cell(row, b"f", b"q", b"v", 1)])
    touched.look(run)
    assert Seen.of(run.ledger).pending[table].rows == [row]
    run.target.mutate(table, [delete_row(row)])


@pytest.mark.parametrize(
    ("side", "wrong", "said"),
    [
        ("source", {"waldir": None, "wal_webhdfs": None}, "source: /hbase/WALs has no folder of a live region server"),
        ("source", {"waldir": "hdfs://{logs}/nowhere"}, "/nowhere/WALs (WebHDFS: "),
        ("target", {"waldir": None}, "target: /hbase/WALs has no folder of a live region server"),
        ("source", {"wal_webhdfs": None}, "source.wal_webhdfs: waldir is on another file system than rootdir"),
    ],
)
def test_a_plan_without_the_right_place_is_refused_with_what_to_put(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, side: str, wrong: dict[str, Any], said: str
) -> None:
    keys = spec_keys(source, target, ["t"])
    here = source.address if side == "source" else target.address
    assert here.waldir is not None
    netloc = here.waldir.split("/")[2]
    changed = {name: value and value.replace("{logs}", netloc) for name, value in wrong.items()}
    keys[side] = {name: value for name, value in {**keys[side], **changed}.items() if value is not None}
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    answer = walferry(tmp_path, "plan", "move.yaml")
    assert answer.returncode == 2
    assert said in answer.stderr
    if "live region server" in said:
        assert f"its hbase.wal.dir is {here.waldir}: set `waldir` to it" in answer.stderr
        assert ("and `wal_webhdfs` to the HTTP address" in answer.stderr) == (side == "source")
    assert "Traceback" not in answer.stderr


def test_what_has_no_plan_refuses_a_folder_that_no_live_server_logs_to(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    """Such a folder is left when hbase.wal.dir is set later: its log looks like one without edits."""
    edges = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
    spec = make_spec(source, target, ["t"], window=edges)
    old = spec.source.model_copy(update={"waldir": None, "wal_webhdfs": None})
    with Ledger.open(f"sqlite:///{tmp_path / 'l.db'}", actor="test") as ledger:
        record = open_window(ledger, spec.model_copy(update={"source": old}), "test")
        with Run(ledger, record.run_id) as run:
            run.source_files.delete(f"{run.source_root}/WALs", recursive=True)
            with pytest.raises(UsageError, match="there is no folder /hbase/WALs, so this is not HBase's root"):
                cut.cut_log(run)
            run.source_files.mkdirs(f"{run.source_root}/WALs")
            misplaced = "source: /hbase/WALs has no folder of a live region server"
            with pytest.raises(TransientError, match=misplaced):
                cut.cut_log(run)
            with pytest.raises(UsageError, match=misplaced):  # no plan has found the address to be right
                plan_window(run)


def test_moments_are_kept_and_restored(source: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")
    spec = {"name": unique("kept_"), "source": cluster_keys(source), "folder": str(tmp_path / "kept")}
    with HBaseClient(source.address) as here, Ledger.open(f"sqlite:///{tmp_path / 'l.db'}", actor="test") as ledger:
        table = table_of(here, unique("restored"))
        found = resolve_keep(
            parse_keep_spec({**spec, "tables": [table]}, origin="test"), lambda _: Cluster(**cluster_keys(source))
        )
        with KeepRun(ledger, open_keep(ledger, found, "test")) as run:
            plan_keep(run)
            begin_keeping(run)
            take(run, by_copies.stage_of(run), table)
            writer = Writer(here, table)
            for _ in range(30):
                writer.edit()
            at_ms, then = now(), content(source, table)
            for _ in range(30):
                writer.edit()
            assert content(source, table) != then
            by_copies.tend(run)
            time.sleep(0.5)
            kept, _ = chosen(ledger, table, at_ms, None)
            record = planned(ledger, table, at_ms, unique("new"), kept, None)
            with RestoreRun(ledger, open_restore(ledger, record, kept, "test")) as restored:
                restoring.restore(restored, spark)
                assert content(source, restored.new_table) == then
            objects.release(run)


def test_a_pair_reads_both_logs(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_pass, "SETTLE_SECONDS", 0.1)
    table = unique("pair_")
    spec = make_spec(source, target, [table], max_lag=2)
    with (
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
        Ledger.open(f"sqlite:///{tmp_path / 'l.db'}", actor="test") as ledger,
    ):
        for client in (here, there):
            client.create_table(table, {"f": {"VERSIONS": "3"}}, [b"m"])
            client.put(table, [Cell(row, b"f", b"q", b"v", 1) for row in (b"a", b"x")])
        with Run(ledger, open_pair(ledger, spec, "test", 7).run_id) as run:
            assert verify_pair(run, spark)["differing_rows"] == 0
            here.put(table, [Cell(b"a", b"f", b"q", b"new", 2)])
            there.put(table, [Cell(b"x", b"f", b"q", b"other", 2)])
            found = verify_pair(run, spark) | findings(ledger.of(run.run_id), 10)
            assert (found["written_rows"], found["differing_rows"]) == (2, 2)
