"""The copy on real clusters: references, links, halves, archived files, other names, and the gate behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.migration.moves import begin, copy_tables, fill, make_spec, run_of, spark, unique, visible
from walferry.cutover.gates import check_copy
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.ledger.leases import FollowedTwiceError
from walferry.migration.copying import copy
from walferry.migration.plan import plan_run
from walferry.replay.rights.lease import resource
from walferry.run.run import archive_folder
from walferry.storage import FileSystem
from written import write_anew

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def here(source: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(source.address) as client:
        yield client


def hfiles(files: FileSystem, folder: str) -> list[str]:
    """Every file below a folder."""
    if files.status(folder) is None:
        return []
    found = []
    for entry in files.list(folder):
        found += hfiles(files, entry.path) if entry.is_dir else [entry.path]
    return found


def test_a_table_arrives_under_another_name_in_a_namespace_that_is_made(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    namespace, table, other = unique("n"), unique(), unique("o")
    here.create_namespace(namespace)
    here.create_table(f"{namespace}:{table}", {"f": {"VERSIONS": "3"}, "g": {"TTL": "86400"}}, [b"r05", b"r10"])
    fill(here, f"{namespace}:{table}")
    pair = {"source": f"{namespace}:{table}", "target": f"{other}:{table}"}
    with run_of(make_spec(source, target, [pair]), tmp_path) as run:
        begin(run)
        copy_tables(run)
        facts = check_copy(run, tmp_path / "docs")
        assert facts["rows"] == 3 + 3 + 1  # files, regions, the schema
        rows = copy.check_rows(run, pair["source"])
        checksums = [(row["source_checksum"], row["target_checksum"]) for row in rows if row["kind"] == "file"]
        assert checksums
        assert all(ours is not None and ours == theirs for ours, theirs in checksums)
        seen = visible(target, pair["target"])
        assert len(seen) == 20
        assert seen == visible(source, pair["source"])
        assert not run.target.describe(pair["target"]).read_only
        run.target.split_region(run.target.locate(pair["target"], b"r12"), b"r12")
        assert copy.check_rows(run, pair["source"])[:-1] == rows[:-1], "a split of the clone loses no row"


def test_a_table_into_which_another_run_follows_a_log_is_refused_before_anything_is_made(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    table = unique()
    here.create_table(table, {"f": {}})
    with run_of(make_spec(source, target, [table]), tmp_path) as run:
        other = run.ledger.whole.open_run("other", "tester", run.record.spec, "tester", "drain").run_id
        run.ledger.whole.of(other).leases.take(resource(run.target.cluster_id(), table), "tester", 1)
        with pytest.raises(FollowedTwiceError, match=f"run {other} follows a log into target table {table}"):
            plan_run(run)
        assert run.ledger.record.state == "failed"
        assert not run.ledger.objects.all()


def test_a_region_that_was_just_split_arrives_with_its_references(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    table = unique()
    here.create_table(table, {"f": {}})
    # Else a compaction may rewrite the references before the snapshot sees them.
    here.modify_table(here.describe(table).with_attribute("COMPACTION_ENABLED", "false"))
    fill(here, table)
    here.flush_table(table)
    with run_of(make_spec(source, target, [table]), tmp_path) as run:
        begin(run)
        here.split_region(here.regions(table)[0], b"r10")
        copy.snapshot(run, table)
        manifest = copy.manifest_of(run, table)
        names = [s.name for r in manifest.region_manifests for f in r.family_files for s in f.store_files]
        assert any("." in name for name in names), "the split was compacted before the snapshot"
        copy_tables(run)
        check_copy(run, tmp_path / "docs")
        assert len(run.target.regions(table)) == 2
        assert visible(target, table) == visible(source, table)


def test_a_table_that_was_cloned_itself_arrives_with_what_its_links_name(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    origin, table = unique(), unique("clone")
    here.create_table(origin, {"f": {}})
    fill(here, origin)
    here.snapshot(f"s{origin}", origin)
    here.clone_snapshot(f"s{origin}", table)
    try:
        with run_of(make_spec(source, target, [table]), tmp_path) as run:
            begin(run)
            copy_tables(run)
            check_copy(run, tmp_path / "docs")
            assert hfiles(run.target_files, archive_folder(run.target_root, origin))
            seen = visible(target, table)
            assert len(seen) == 20
            assert seen == visible(source, table)
    finally:
        here.delete_snapshot(f"s{origin}")


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_copy_that_was_cut_off_is_completed_also_from_the_archive(
    source: MiniCluster,
    target: MiniCluster,
    here: HBaseClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_spark: bool,
) -> None:
    if by_spark:
        monkeypatch.setenv("WALFERRY_HERE_BYTES", "1")
    table = unique()
    here.create_table(table, {"f": {}})
    fill(here, table)
    here.flush_table(table)
    fill(here, table, 5)
    with run_of(make_spec(source, target, [table]), tmp_path) as run:
        begin(run)
        copy.snapshot(run, table)
        first, second = copy.files_of(run, table, copy.manifest_of(run, table))
        content = b"".join(run.source_files.read(first.sources[0]))
        run.target_files.write(first.target, [content[: len(content) // 2]])
        run.target_files.write(second.target, run.source_files.read(second.sources[0]))

        here.compact_table(table, major=True)  # the source's files go to its archive
        deadline = time.monotonic() + 90
        while run.source_files.status(first.sources[0]) is not None:
            assert time.monotonic() < deadline, "the compacted file is not archived"
            time.sleep(2)
            here.move_region(here.regions(table)[0])  # a region that closes archives what it has compacted

        facts = copy.copy(run, spark, table)
        skipped = {file["target"]: file["skipped"] for file in facts["copied"]}
        assert skipped[first.target] is False
        copy.clone(run, table)
        check_copy(run, tmp_path / "docs")
        assert visible(target, table) == visible(source, table)
        assert copy.copy(run, spark, table) == facts  # done is done


def test_a_file_that_was_copied_wrong_shuts_the_gate(
    source: MiniCluster, target: MiniCluster, here: HBaseClient, tmp_path: Path
) -> None:
    table = unique()
    here.create_table(table, {"f": {}}, [b"r10"])
    fill(here, table)
    with run_of(make_spec(source, target, [table]), tmp_path) as run:
        begin(run)
        copy_tables(run)
        first = run.done("copy", table)["copied"][0]
        whole = b"".join(run.target_files.read(first["target"]))
        flipped = whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]
        write_anew(run.target_files, first["target"], [flipped])
        with pytest.raises(WalferryError, match=f"after_copy of {run.run_id} failed") as caught:
            check_copy(run, tmp_path / "docs")
        assert caught.value.regions == [f"{table} {first['region']}"]
