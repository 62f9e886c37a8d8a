"""What a run came to, found by other readers than walferry's: happybase, plain SQL, ZooKeeper, WebHDFS.

Each check gives sentences about what is wrong; none, and the run has passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import happybase
from kazoo.client import KazooClient

from chaos import hdfs, journal
from chaos.book import Book, Reader
from chaos.writer import OLD
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient

SHOWN = 5
VERSIONS = 1000
AGED = "changed-since-opening"
ONCE = b"j:once"
"""is written once, so a scan shows all of it"""

Cells = list[tuple[bytes, int]]
Content = dict[tuple[bytes, bytes], Cells]
"""(row, column) -> (value, timestamp) of each version, the newest first"""


@dataclass
class Verdict:
    """`wrong`: why the run has failed. The numbers say how much was looked at."""

    wrong: list[str] = field(default_factory=list)
    cells: int = 0
    decided: int = 0
    unsure: int = 0
    repaired: int = 0
    """rows that differed on the way, and that walferry repaired"""
    aged: int = 0
    """rows of old timestamps that were equal at the opening, and that a compaction has changed since"""
    restored: int = 0
    """tables"""
    bases: int = 0
    logged: int = 0
    """cells of the source's log, as HBase prints it"""


def judge(
    source: MiniCluster, target: MiniCluster, tables: Mapping[str, str], folder: Path, ledger: Book, lost: bool = False
) -> Verdict:
    """Judge a run that has ended: both sides, the journal in `folder`, the ledger, and what is left on the clusters.

    `lost`: the source itself has lost edits that it had acknowledged. Then the journal says nothing about them, and
    rows must have been repaired; both sides must be equal all the same.
    """
    verdict = Verdict()
    with ledger.reader() as book:
        verdict.wrong += ledger_faults(book)
        repaired = _repaired(book)
        aged = {(table, bytes.fromhex(row)) for table, row, kind in _differences(book) if kind == AGED}
    verdict.repaired = len(repaired)
    aged = {(table, row) for table, row in aged if row.endswith(OLD)}
    verdict.aged = len(aged)
    # A repair must not hide what replay lost: once writes have stopped, nothing is under way that may look so. Rows of
    # old timestamps differ for reasons of their own.
    verdict.wrong += some(
        [f"row {row!r} of {table} had to be repaired: {kind or 'no class'}"
         for table, row, kind, stopped in repaired
         if stopped and not row.endswith(OLD) and kind != "history-dependent" and not lost]
    )  # fmt: skip
    if lost and not repaired:
        verdict.wrong.append("nothing was repaired, so nothing was taken back: the fault was none")
    for here, there in tables.items():
        left, right = content(source, here), content(target, there)
        verdict.cells += sum(map(len, left.values()))
        known = {row for table, row in aged if table == here}
        verdict.wrong += some(differing(here, left, right, ("at the source", "at the target"), known))
        verdict.wrong += [] if lost else some(against_journal(right, here, folder, verdict))
    verdict.wrong += [
        f"{what} is left at the {side}"
        for side, cluster in (("source", source), ("target", target))
        for what in left_behind(cluster, written=side == "target")
    ]
    return verdict


def content(cluster: MiniCluster, table: str) -> Content:
    """All that HBase's Thrift server shows of a table."""
    host, _, port = str(cluster.address.thrift).rpartition(":")
    with closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        rows = connection.table(table)
        found: Content = {}
        for row, columns in rows.scan(include_timestamp=True, batch_size=500):
            found.update({(row, column): [cell] for column, cell in columns.items()})
        for row, column in found:
            if column != ONCE:
                found[row, column] = rows.cells(row, column, versions=VERSIONS, include_timestamp=True)
    return found


def differing(
    table: str, left: Content, right: Content, where: tuple[str, str], known: Collection[bytes] = ()
) -> list[str]:
    """The rows of a table that differ, but these. `where`: left and right."""
    rows = {key[0] for key in left.keys() | right.keys() if left.get(key) != right.get(key)}
    return [
        f"{table}: row {row!r} differs: {_row(left, row)} {where[0]}, {_row(right, row)} {where[1]}"
        for row in sorted(rows) if row not in known
    ]  # fmt: skip


def against_journal(seen: Content, table: str, folder: Path, verdict: Verdict) -> list[str]:
    """What the target shows otherwise than the writer's acknowledged edits allow."""
    wrong = []
    for column, may in journal.allowed(folder).items():
        if column.table != table:
            continue
        cells = seen.get((column.row, column.name), [])
        value = cells[0][0] if cells else None
        verdict.decided += len(may) == 1
        verdict.unsure += len(may) > 1
        if value not in may:
            said = " or ".join(sorted(map(repr, may)))
            wrong.append(f"{table}: {column.row!r} {column.name!r} is {value!r} at the target, by the journal {said}")
    for column, (least, most) in journal.counters(folder).items():
        if column.table != table:
            continue
        cells = seen.get((column.row, column.name), [])
        count = int.from_bytes(cells[0][0], "big") if cells else 0
        verdict.decided += 1
        if not least <= count <= most:
            wrong.append(f"{table}: the counter {column.row!r} is {count}, by the journal {least} to {most}")
    return wrong


def ledger_faults(book: Reader) -> list[str]:
    """What the ledger says that it must not say at the end of a run."""
    wrong = []
    runs = book.execute("SELECT run_id, state, outcome FROM runs")
    if [state for _, state, _ in runs] != ["done"]:
        wrong.append(f"the ledger has the runs {runs}, instead of one that is done")
    gaps = book.execute("SELECT * FROM gaps")
    wrong += some([f"gap in the ledger: {gap}" for gap in gaps])
    held = book.execute("SELECT COUNT(*) FROM quarantine")[0][0]
    if held:
        wrong.append(f"{held} edits went into quarantine, although the target can take all of them")
    late = book.execute("SELECT COUNT(*) FROM late_edits")[0][0]
    if late:
        wrong.append(f"{late} late edits were found, although writes had stopped")
    applied = book.execute("SELECT COUNT(*) FROM wal_files WHERE applied")[0][0]
    if not applied:
        wrong.append("no file of the log counts as applied")
    unfinished = book.execute("SELECT phase, subject, state FROM phases WHERE state <> 'done'")
    wrong += some([f"phase {phase} {subject} is {state} at the end" for phase, subject, state in unfinished])
    left = book.execute(
        "SELECT cluster, kind, name FROM objects WHERE state <> 'removed' AND kind NOT IN ('table', 'durability')"
    )
    wrong += some([f"in the ledger, {kind} {name} at the {cluster} is not removed" for cluster, kind, name in left])
    wrong += audit_faults(book)
    wrong += some(
        [f"walferry's own comparison: {table} row {row} is {kind}"
         for table, row, kind in _differences(book) if kind not in ("in-flight", AGED)]
    )  # fmt: skip
    return wrong


def audit_faults(book: Reader) -> list[str]:
    """Where the audit trail's chain is broken; the chain is computed here, as its description says."""
    before, count = "0" * 64, 0
    for values in book.execute("SELECT * FROM audit ORDER BY sequence"):
        line: dict[str, Any] = dict(values._mapping)
        count += 1
        stored = line.pop("hash")
        body = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()
        if line["sequence"] != count or stored != before:
            return [f"the audit trail is broken at line {count}"]
    return [] if count else ["the audit trail is empty"]


def left_behind(cluster: MiniCluster, *, written: bool) -> list[str]:
    """What walferry has left on a cluster: peers, snapshots, leases, marks, staged files. `written`: whether it has
    written to tables there."""
    found: list[str] = []
    with HBaseClient(cluster.address) as client:
        found += [f"peer {name}" for name in client.peers()]
        found += [f"snapshot {snapshot.name}" for snapshot in client.snapshots()]
    zookeeper = KazooClient(hosts=cluster.address.zookeeper)
    zookeeper.start(timeout=30)
    try:
        # The count of a written table's leases stays: later runs go on from it, and then remove what its last holder
        # noted below `superseded`.
        left = [path for path in _tree(zookeeper, "/walferry") if not (written and _stays(path))]
        found += [f"ZooKeeper's node {path}" for path in left]
    finally:
        zookeeper.stop()
        zookeeper.close()
    staged = hdfs.listed(cluster, "/hbase/staging/walferry")
    found += [f"staging folder {entry['pathSuffix']}" for entry in staged]
    return found


def _stays(path: str) -> bool:
    parts = path.strip("/").split("/")
    return len(parts) < 3 or (parts[1] == "leases" and parts[3:4] in ([], ["superseded"]))


def _tree(zookeeper: KazooClient, path: str) -> Iterator[str]:
    if zookeeper.exists(path):
        yield path
        for name in zookeeper.get_children(path):
            yield from _tree(zookeeper, f"{path}/{name}")


def _differences(book: Reader) -> list[tuple[str, str, str]]:
    """(table, row in hex, class) of the last comparison of each table."""
    found = book.execute(
        "SELECT d.table_name, d.row_key, d.kind FROM differences d WHERE d.attempt = (SELECT MAX(c.attempt)"
        " FROM compared_tables c WHERE c.run_id = d.run_id AND c.table_name = d.table_name)"
    )
    return [(table, row, kind) for table, row, kind in found]


def _repaired(book: Reader) -> list[tuple[str, bytes, str, bool]]:
    """(table, row, class, whether writes had stopped) of each row that was repaired, or could not be."""
    (stop,) = book.execute("SELECT finished_ms FROM phases WHERE phase = 'write_stop'")[0]
    rows = book.execute("SELECT table_name, row_key, kind, at_ms FROM repaired_rows")
    return [(table, bytes.fromhex(row), kind, at_ms >= stop) for table, row, kind, at_ms in rows]


def _row(cells: Content, row: bytes) -> str:
    return str({column.decode(): found for (one, column), found in cells.items() if one == row} or "nothing")


def some(sentences: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = len(sentences) - SHOWN
    return [*sentences[:SHOWN], *([f"and {more} more like this"] if more > 0 else [])]
