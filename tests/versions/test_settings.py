"""Sources whose logs are laid out or written otherwise: each step on them, beside the whole main job."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from posixpath import basename, dirname

import pytest

from integration.migration.command import walferry
from integration.migration.moves import (
    as_if_copied,
    begin,
    content,
    copy_tables,
    make_spec,
    run_of,
    skip,
    spark,
    taken_away,
    unique,
)
from versions.sites import ENCRYPTED, SPREAD, STORE_URI
from walferry.cutover import cluster_answers, gates
from walferry.embedded.cluster import MiniCluster
from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, put
from walferry.ledger import Ledger
from walferry.migration.plan import make_plan, require
from walferry.pipeline import retry_work
from walferry.refusals import RefusalKind
from walferry.replay import quarantine
from walferry.replay.log import cut
from walferry.replay.rounds.follower import replay
from walferry.replay.rounds.rounds import drain
from walferry.replay.windows.window import open_window, replay_window
from walferry.run.run import Run
from walferry.wal.files import Place, list_live
from walferry.wal.keys import KEY_NAME, KEY_STORE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
SPLITS = [b"b", b"c", b"d", b"e", b"f"]
ROWS = [b"a1", b"b1", b"c1", b"d1", b"e1", b"f1"]
FAMILIES = {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}


def write(client: HBaseClient, table: str, rows: Collection[bytes], value: bytes, family: bytes = b"f") -> None:
    """The same column and timestamp each time: the order decides."""
    client.put(table, [Cell(row, family, b"q", value, 1) for row in rows])


@pytest.mark.parametrize("servers", [SPREAD], indirect=True)
def test_every_group_of_a_server_is_fenced_rolled_and_followed_into_its_own_folder(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, FAMILIES, SPLITS)
        write(here, table, ROWS, b"before")
        with_key = make_spec(source, target, [table])
        without = with_key.model_copy(update={"source": with_key.source.model_copy(update={"waldir": None})})
        with pytest.raises(UsageError, match="/hbase/WALs has no folder of a live region server") as caught:
            require(make_plan(without, 24))
        assert str(caught.value).endswith(f"its hbase.wal.dir is {source.address.waldir}: set `waldir` to it")
        with run_of(with_key, tmp_path) as run:
            begin(run)
            as_if_copied(run, table)
            live = [file for file in list_live(run.source_files, "/wal") if file.place is Place.LIVE]
            groups = defaultdict(set)
            for file in live:
                groups[file.server].add(file.group)
            assert max(map(len, groups.values())) > 1
            fences = run.fences()
            assert set(fences.start) >= {file.group for file in live}
            write(here, table, ROWS[:1], b"of one group")
            later = cut.cut_log(run)
            # Groups without an edit are rolled as well: nobody waits for them.
            assert set(later.current) == {file.group for file in live}
            assert all(number > fences.start[group][0] for group, number in later.current.items())
            here.flush_table(table)
            archived = {basename(path) for path in wait_for_archive(run)}
            assert archived & {file.name for file in live}
            dead = crash(source, here, table)
            retry_work(lambda: replay(run, spark(), until=lambda: True))
            drain_all(run)
            logs = [file for file in run.ledger.log.files() if file.server == dead and file.length]
            assert len({file.group for file in logs}) > 1
            assert content(target, table) == content(source, table)
            assert len(content(source, table)) == len(ROWS)


def crash(source: MiniCluster, here: HBaseClient, table: str) -> str:
    """Kill a region server with edits in all its groups, and write on. Returns its name."""
    port = source.ports.region_servers[1]
    victim = next(server for server in here.servers() if server.port == port)
    for value in (b"one", b"two"):
        write(here, table, ROWS, value)
    source.kill_region_server(1)
    source.start_region_server(1)
    write(here, table, ROWS, b"three")
    source.await_ready("regionserver-1")
    return victim.name


def drain_all(run: Run) -> None:
    """Apply the rest of the log."""
    skip(run, "replay", "write_stop")
    cut.end_fence(run)
    drain(run, spark())
    gates.after_drain(run)


@pytest.mark.parametrize("servers", [SPREAD], indirect=True)
def test_tuning_that_the_target_refuses_is_left_out_and_shuts_no_gate(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    with (
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
        run_of(make_spec(source, target, [table]), tmp_path) as run,
    ):
        here.create_table(table, FAMILIES)
        here.modify_table(here.describe(table).with_attribute("MAX_FILESIZE", "1048576"))
        write(here, table, ROWS, b"v")
        begin(run)
        (finding,) = (finding for finding in run.done("plan")["findings"] if finding["subject"] == table)
        assert finding["level"] == "warn"
        assert finding["message"].startswith("the target table will not have MAX_FILESIZE, which the target refuses: ")
        assert "is too small" in finding["message"]
        copy_tables(run)
        assert "MAX_FILESIZE" not in there.describe(table).attributes
        assert cluster_answers.schema_differences(run) == []
        assert content(target, table) == content(source, table)


def wait_for_archive(run: Run) -> list[str]:
    """Paths of archived files of the run, each in the folder of its server."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = cut.see(run, cut.cut_log(run, whole=True))
        if found := [file for file in files if file.place is Place.ARCHIVED]:
            assert all(dirname(file.path) == f"/wal/oldWALs/{file.server}" for file in found)
            return [file.path for file in found]
        time.sleep(0.5)
    raise AssertionError("no log was archived within a minute")


@pytest.mark.parametrize("servers", [SPREAD, ENCRYPTED], indirect=True)
def test_quarantine_windows_and_the_command_read_such_logs(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "0.3")
    table = unique()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, FAMILIES, [b"m"])
        with run_of(make_spec(source, target, [table]), tmp_path) as run:
            begin(run)
            as_if_copied(run, table)
            families_missing(run, there, here, table)
            damaged_file(run, here, table)
            drain_all(run)
            assert content(target, table) == content(source, table) != {}
            folder = f"webhdfs://{source.address.webhdfs.removeprefix('http://')}{run.wal_root}/WALs"  # type: ignore[union-attr]
        window(source, target, here, there, tmp_path)
    stat = json.loads(walferry(tmp_path, "wal", "stat", folder, "--json").stdout)
    (counted,) = [item for item in stat["tables"] if item["table"] == table]
    assert counted["cells"] > 5
    printed = walferry(tmp_path, "wal", "cat", *(file["path"] for file in stat["files"])).stdout
    assert b"refused".hex() in printed


def families_missing(run: Run, there: HBaseClient, here: HBaseClient, table: str) -> None:
    """An entry that the target refuses waits, shown with its cells, and is applied once the family is back."""
    whole, without = there.describe(table), there.describe(table)
    kept = [family for family in without.schema.column_families if family.name != b"g"]
    del without.schema.column_families[:]
    without.schema.column_families.extend(kept)
    there.modify_table(without)
    write(here, table, [b"a", b"x"], b"old")
    write(here, table, [b"a"], b"refused", b"g")
    write(here, table, [b"a", b"x"], b"new")
    replay(run, spark(), until=lambda: True)
    (item,) = run.ledger.quarantine.items()
    assert b"refused" in item.data  # plain, whatever it is in the log
    there.modify_table(whole)
    quarantine.release(run, item.quarantine_id, "retry", "the family is back")
    replay(run, spark(), until=lambda: True)
    assert not run.ledger.quarantine.items("held")


def damaged_file(run: Run, here: HBaseClient, table: str) -> None:
    """What may be in a damaged file waits, and is read again from the source."""
    write(here, table, [b"a", b"b"], b"one")
    write(here, table, [b"a", b"b"], b"two")
    home = next(region for region in here.regions(table) if region.holds(b"a"))
    hurt = None
    for file in cut.see(run, cut.cut_log(run)):
        if home.server and file.server == home.server.name and not run.ledger.log.applied([file.name]):
            with suppress(FileNotFoundError):  # archived meanwhile: one with these edits stays, they are not flushed
                raw = bytearray(b"".join(run.source_files.read(file.path)))
                if (at := raw.rfind(table.encode())) > 0:
                    raw[at - 30 : at] = b"\xff" * 30
                    hurt = file.path, bytes(raw)
    assert hurt is not None
    with taken_away(run.source_files, hurt[0]):
        run.source_files.write(hurt[0], [hurt[1]])
        replay(run, spark(), until=lambda: True)
    (item,) = run.ledger.quarantine.items("held")
    assert item.file == basename(hurt[0])
    assert item.kind is not RefusalKind.NOT_IN_LOG
    quarantine.release(run, item.quarantine_id, "reread", "the disk lost bytes")


def window(source: MiniCluster, target: MiniCluster, here: HBaseClient, there: HBaseClient, folder: Path) -> None:
    """A window gives exactly its edits."""
    table = unique()
    here.create_table(table, FAMILIES, [b"m"])
    there.create_table(table, FAMILIES)
    edges = [moment()]
    write(here, table, [b"a", b"x"], b"first")
    edges.append(moment())
    write(here, table, [b"a"], b"second")
    here.mutate(table, [delete_column(b"x", b"f", b"q", 1), put(b"y", [Cell(b"y", b"g", b"q", b"third", 2)])])
    edges.append(moment())
    time.sleep(0.5)
    with Ledger.open(f"sqlite:///{folder / 'windows.db'}", actor="tester") as ledger:
        for start, end in ((1, 2), (0, 1)):
            edge = {"from": edges[start], "to": edges[end]}
            spec = make_spec(source, target, [table], window=edge).model_copy(update={"name": "replay"})
            with Run(ledger, open_window(ledger, spec, "tester").run_id) as run:
                replay_window(run, spark)
    assert content(target, table) == content(source, table)
    assert len(content(source, table)) == 2


def moment() -> str:
    """A moment with no edit within some milliseconds of it."""
    time.sleep(0.05)
    at = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    return at


def refuse_an_encrypted_family(source: MiniCluster, target: MiniCluster) -> None:
    """The target has no key store: it could hold no table with such a family, and says so before anything is copied."""
    table = unique()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {"ENCRYPTION": "AES"}})
        before = there.tables(), there.snapshots()
        with pytest.raises(UsageError, match="the target would not create such a table: ") as caught:
            require(make_plan(make_spec(source, target, [table]), 24))
        assert "\n" not in str(caught.value)
        assert "hbase:meta" not in str(caught.value)
        assert (there.tables(), there.snapshots()) == before


@pytest.mark.parametrize("servers", [ENCRYPTED], indirect=True)
def test_without_the_key_nothing_begins_and_no_secret_is_shown(
    source: MiniCluster, target: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, FAMILIES)
        write(here, table, [b"a"], b"v")
    spec = make_spec(source, target, [table]).model_dump(mode="json", exclude_none=True)
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(spec))
    assert walferry(tmp_path, "plan", "move.yaml").returncode == 0
    refuse_an_encrypted_family(source, target)
    wrong = {
        "no key is configured": {KEY_STORE: ""},
        "does not open the key store": {KEY_STORE: STORE_URI.replace("=fixture", "=wr0ng")},
        "No such file": {KEY_STORE: "jceks:///nowhere/keys.jceks?password=s3cret"},
        "open no key other": {KEY_NAME: "other"},
    }
    for message, variables in wrong.items():
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            answer = walferry(tmp_path, "start", "move.yaml", "--yes")
        assert answer.returncode == 2, answer.stderr
        said = answer.stdout + answer.stderr
        assert message in said
        assert not any(secret in said for secret in ("fixture?", "=fixture", "wr0ng", "s3cret"))
    assert b"password=" not in (tmp_path / "ledger.db").read_bytes()
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        assert [name for name in here.peers() if spec["name"] in name] == []
        assert not there.table_exists(table)
