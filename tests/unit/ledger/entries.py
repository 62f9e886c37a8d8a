"""Runs, files and ranges for the ledger's tests."""

from __future__ import annotations

import pytest

from walferry.ledger import Ledger, RunRecord, SeenFile, WalRange

SPEC = {"name": "move", "tables": ["shop:orders"]}
TABLE = "shop:orders"


@pytest.fixture
def run(ledger: Ledger) -> RunRecord:
    return ledger.open_run("move", "dag-run-1", SPEC, "alice")


def sealed(name: str, length: int, group: str = "rs1") -> SeenFile:
    return SeenFile(name, group, "rs1,16020,1", int(name.split(".")[-1]), f"/hbase/oldWALs/{name}", length, True)


def opened(name: str, length: int, group: str = "rs1") -> SeenFile:
    return SeenFile(name, group, "rs1,16020,1", int(name.split(".")[-1]), f"/hbase/WALs/rs1/{name}", length, False)


def span(file: str, start: int, end: int, state: str = "sealed", table: str = TABLE) -> WalRange:
    return WalRange(file, start, end, table, 2, 5, 1_000, 2_000, state)  # type: ignore[arg-type]


def apply(ledger: Ledger, run: RunRecord, *files: SeenFile) -> None:
    """Record every byte of the files as applied."""
    ledger.of(run.run_id).log.see_files(files)
    ledger.of(run.run_id).log.set_ranges([span(file.name, 0, file.length, "applied") for file in files])
