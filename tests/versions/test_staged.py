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
from integration.migration.moves import fill, spec_keys, unique, visible
from integration.migration.test_cli import left_behind, phase_of, running, wait_until
from versions.test_migration import under_load
from walferry.embedded.cluster import Cluster
from walferry.embedded.environment import Environment, Settings
from walferry.hbase.client import HBaseClient
from walferry.ledger import Ledger
from walferry.storage import WebHdfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
HURRIED = {
    "hbase.replication": "false",  # of 1.x
    "hbase.master.logcleaner.ttl": "15000",
    "hbase.master.cleaner.interval": "3000",
}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A source that keeps closed logs for 15 s, whoever needs them."""
    with laid_out(tmp_path_factory.mktemp("servers"), Settings()) as environment:
        environment.source.hbase_site = {**environment.source.hbase_site, **HURRIED}
        yield environment


def in_archive(source: Cluster) -> set[str]:
    return {status.name for status in WebHdfs(str(source.address.webhdfs), source.address.user).list("/hbase/oldWALs")}


@contextmanager
def ledger_of(folder: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", create=False) as ledger:
        yield ledger


def test_logs_that_the_cleaner_has_deleted_are_applied_from_their_copies(
    source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    table = unique()
    files = WebHdfs(str(source.address.webhdfs), source.address.user)
    stage = str(source.address.webhdfs).replace("http://", "webhdfs://") + "/copies"
    keys = spec_keys(source, target, [table], write_stop="readonly", max_lag=60, protect="stage", stage=stage)
    name = keys["name"]
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {"VERSIONS": "50"}, "g": {"VERSIONS": "50"}}, [b"m"])
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
