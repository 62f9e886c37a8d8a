"""What is written past the end fence is late; what servers left that had died before the run is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.cutover import late_edits
from walferry.formats.cells import encode_cell
from walferry.ledger import Ledger, LogPosition
from walferry.run.run import Run
from walferry.storage import Local
from written import write_anew

HOUR = 3_600_000
NOW = 1_790_000_000_000
LIVING, DEAD, OLDER, NEW = (f"rs%2C1%2C{start}" for start in (1, 2, 3, 4))


def write(run: Run, folder: str, group: str, number: int, row: bytes) -> None:
    cell = encode_cell(row, b"f", b"q", 1, 4)
    Path(f"{run.wal_root}/WALs").mkdir(parents=True, exist_ok=True)
    content = [header(), entry([cell], table_name=b"shop:orders"), TRAILER]
    write_anew(Local(), f"{run.wal_root}/{folder.format(unquote(group))}/{group}.{number}", content)


@pytest.mark.parametrize("folder", ["oldWALs", "WALs/{}-splitting"])
def test_logs_that_servers_left_before_the_run_hold_no_late_edits(tmp_path: Path, folder: str) -> None:
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(source=SimpleNamespace(close=lambda: None), wal_files=Local())
        positions = [LogPosition(LIVING, f"{LIVING}.{NOW}", NOW, 0), LogPosition(DEAD, "", NOW - HOUR + 1, 0)]
        run.ledger.log.set_fence("start", positions)
        run.ledger.log.set_fence("end", [LogPosition(LIVING, f"{LIVING}.{NOW + HOUR}", NOW + HOUR, 0)])
        write(run, folder, DEAD, NOW - HOUR, b"in the snapshot")
        write(run, folder, OLDER, NOW - 2 * HOUR, b"in the snapshot")
        write(run, "oldWALs", LIVING, NOW + HOUR, b"late")
        write(run, "oldWALs", NEW, NOW + 2 * HOUR, b"of a server that came later")
        assert [edit.row for edit in late_edits.look(run)] == [b"late", b"of a server that came later"]
