"""`walferry receive` until the rows that its tables have already are at the target: one process that receives, and a
disabled peer of the source that leads to it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.receivers import add_peer, command

from walferry.hbase.client import HBaseClient
from walferry.process import open_ledger
from walferry.run.given_spec import parse_keys, read_yaml
from walferry.run.notes.history import histories
from walferry.run.receive_spec import ResolvedReceiveSpec

LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 900.0
_BEGAN_S = time.monotonic()


def copy(path: Path) -> None:
    """Return once what the tables of a spec have already is copied."""
    spec = parse_keys(ResolvedReceiveSpec, read_yaml(path, ""), origin=str(path))
    process = subprocess.Popen(command(path), cwd=path.parent)
    try:
        with HBaseClient(spec.source.address()) as source, HBaseClient(spec.target.address()) as target:
            servers = f"{spec.path}/rs"
            while not (target.zk.exists(servers) and target.zk.get_children(servers)):
                _look_later(process)
            add_peer(source, spec.name, spec.cluster_key, spec.source_tables)
            try:
                _await_copied(process, set(spec.source_tables))
            finally:
                source.remove_peer(spec.name)
    finally:
        process.terminate()
        process.wait()


def _await_copied(process: subprocess.Popen[bytes], tables: set[str]) -> None:
    with open_ledger(create=False) as book:
        (run,) = book.runs()
        while {table for table, one in histories(book.of(run.run_id)).items() if one.is_done} != tables:
            _look_later(process)


def _look_later(process: subprocess.Popen[bytes]) -> None:
    time.sleep(LOOK_SECONDS)
    if process.poll() is not None or time.monotonic() > _BEGAN_S + PATIENCE_SECONDS:
        raise SystemExit("the receiver has ended, or copies nothing")


if __name__ == "__main__":
    copy(Path(sys.argv[1]))
