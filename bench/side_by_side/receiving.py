"""`walferry receive` until the rows that its tables have already are at the target: one process that receives, and a
disabled peer of the source that leads to it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import table_name
from walferry.hbase.peers import add_disabled_peer
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
    walferry = str(Path(sys.executable).parent / "walferry")
    process = subprocess.Popen([walferry, "receive", str(path), "--host", "127.0.0.1", "--port", "0"], cwd=path.parent)
    try:
        with HBaseClient(spec.source.address()) as source, HBaseClient(spec.target.address()) as target:
            servers = f"{spec.path}/rs"
            while not (target.zk.exists(servers) and target.zk.get_children(servers)):
                _look_later(process)
            tables = [pb.TableCF(table_name=table_name(table)) for table in spec.source_tables]
            peer = pb.ReplicationPeer(clusterkey=spec.cluster_key, replicate_all=False, table_cfs=tables)
            add_disabled_peer(source, spec.name, peer)
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
