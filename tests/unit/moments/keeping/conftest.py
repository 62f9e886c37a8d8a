from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import CLUSTER
from unit.moments.keeping.a_source import CLOSED, OPEN, Source, write
from unit.replay.keeping.test_by_copies import LIVE
from walferry.hbase.address import ClusterAddress
from walferry.ledger import Ledger
from walferry.moments.keeping.keep import begin
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.start import start_keep
from walferry.replay.keeping import by_copies
from walferry.run.spec import Cluster
from walferry.storage import Local
from walferry.wal.copies import with_copies

ME = ClusterAddress("none:1", user="me")


class OfLog(Local):
    """A file system of logs, which has nothing of the root folder."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if path.endswith("hbase.id"):
            raise FileNotFoundError(path)
        return super().read(path, offset, length)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeepRun]:
    """A run that has begun to copy, while file 10 was written."""
    monkeypatch.setattr(by_copies, "log_files_of", lambda _: OfLog())
    cluster = Cluster.model_validate(CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"})
    params = {"name": "moments", "tables": ["a", "b"], "folder": f"{tmp_path}/copies", "copy_bases": True}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = KeepRun(ledger, start_keep(ledger, params, lambda _: cluster, "test"))
        source = Source(tmp_path / "hbase")
        run.__dict__.update(source=source, source_files=with_copies(Local(), run.staged_folders, ME))
        for table in ("a", "b"):
            source.add(table, "aa", "bb")
        write(run, LIVE, 9, CLOSED)
        write(run, LIVE, 10, OPEN)
        run.ledger.phases.start("plan")
        run.ledger.phases.finish("plan", {"cluster_id": "its id"})
        begin(run)
        yield run
