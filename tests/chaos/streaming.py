"""A stream into Parquet files. What they have is judged by the journal, by the source's log as HBase's own printer
shows it, and by the tables as Thrift shows them."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import requests
import yaml

from chaos import journal
from chaos.hdfs import Mirror
from chaos.journal import Edit
from chaos.moments import progress
from chaos.printed import Logged, source_log
from chaos.scene import HEAL_SECONDS, Scene, cluster_keys, seen_by_thrift
from chaos.schedule import SIDES, Streaming
from chaos.verdict import Verdict, audit_faults, left_behind, some

PAGE = Path(__file__).parents[2] / "docs" / "history.md"
CATCH_UP_S = 150.0
FIRST_SNAPSHOT_INDEX = 65280
"""from here on the index of a row is one of a snapshot's rows (docs/history.md)"""
_KINDS = {
    "put": "Put",
    "delete_version": "Delete",
    "delete_column": "DeleteColumn",
    "delete_family": "DeleteFamily",
    "delete_family_version": "DeleteFamilyVersion",
}
"""the names of the files and those of HBase"""


@dataclass(frozen=True)
class Kept:
    """What the files have."""

    changes: list[Logged]
    """of each row in the order of its versions; no rows of snapshots"""
    repeated: list[str]
    """versions that are there twice"""


def stream(scene: Scene) -> Verdict:
    """Stream the tables until everything is there. Raises StuckError if the stream does not get that far."""
    own, verdict = scene.schedule.own, Verdict()
    assert isinstance(own, Streaming)
    began_ms = time.time_ns() // 1_000_000
    history = Mirror(scene.world.target, f"/chaos/{scene.folder.name}/history", scene.folder / "history")
    _prepare(scene, own, history)
    with scene.at_work({"source": scene.tables}):
        if own.snapshot:
            scene.load()
            scene.start_writer()
        scene.attempt("walferry", lambda: ["stream", "stream.yaml"], lambda _: scene.state() == "aborted",
                      lambda: progress(scene.ledger))  # fmt: skip
        scene.wait(lambda: _follows(scene), "the stream does not begin")
        if own.snapshot:
            scene.wait(lambda: _snapshots(history) == len(scene.tables), "the rows of the tables are not sent")
        else:
            scene.load()
            scene.start_writer()
        since_ms = time.time_ns() // 1_000_000
        for number, seconds in enumerate(own.writes_s, 1):
            scene.go_on_for(seconds)
            if number == 2 and own.truncated is not None:
                scene.pause_writing()
                scene.truncate(scene.tables[own.truncated])
                scene.go_on_writing()
            scene.moments.has_come(f"moment {number}")
        scene.stop_writing()
        scene.moments.has_come("stopped")
        due = [one for one in journal.read(scene.folder) if not own.snapshot or one.began_ms > since_ms]
        scene.wait(lambda: _is_there(history, due), "what was acknowledged does not come", CATCH_UP_S)
        scene.wait(lambda: not scene.faults.under_way(), "a fault does not end", CATCH_UP_S)
        scene.wait(lambda: scene.world.healthy("source"), "the source does not recover")
        scene.abort()
    verdict.wrong += _judged(scene, own, history, began_ms, due, verdict)
    return verdict


def _prepare(scene: Scene, own: Streaming, history: Mirror) -> None:
    spec = {
        "name": scene.name, "source": cluster_keys(scene.world.source), "tables": list(scene.tables),
        "snapshot": own.snapshot, "parquet": {"folder": history.url, "commit_seconds": own.commit_seconds},
    }  # fmt: skip
    (scene.folder / "stream.yaml").write_text(yaml.safe_dump(spec))
    scene.create_tables()


def _follows(scene: Scene) -> bool:
    return bool(scene.ledger.asked("SELECT * FROM phases WHERE phase = 'stream'"))


# ------------------------------------------------------------------ the files


def _looked(history: Mirror) -> bool:
    """Look at the folder, unless HDFS does not answer."""
    with suppress(requests.RequestException):
        history.look(without="_begun/")
        return True
    return False


def _snapshots(history: Mirror) -> int:
    """How many tables' rows were sent."""
    if not _looked(history) or not list(history.local.glob("_events/date=*/*.parquet")):
        return 0
    query = (
        f"SELECT count(DISTINCT \"table\") FROM '{history.local}/_events/date=*/*.parquet' WHERE kind = 'snapshot_ends'"
    )
    ((count,),) = duckdb.execute(query).fetchall()
    return int(count)


def _read(history: Path) -> Kept:
    """All changes of the files, by DuckDB."""
    if not list(history.glob("table=*/*/*/*.parquet")):
        return Kept([], [])
    found = duckdb.execute(
        f"""SELECT "table", region, sequence_number, row, family, qualifier, _change_type, timestamp, value, "index",
        _commit_version, cell FROM read_parquet('{history}/table=*/date=*/hour=*/*.parquet', hive_partitioning = false)
        ORDER BY "table", row, _commit_version, cell"""
    ).fetchall()
    places = Counter((line[0], line[3], line[10], line[11]) for line in found)
    repeated = [f"{place} is there {count} times" for place, count in places.items() if count > 1]
    changes = [
        Logged(table, region, sequence, row, family, qualifier, _KINDS[kind], timestamp, value or b"")
        for table, region, sequence, row, family, qualifier, kind, timestamp, value, index, _, _ in found
        if index < FIRST_SNAPSHOT_INDEX
    ]
    return Kept(changes, repeated)


def _is_there(history: Mirror, due: list[journal.Entry]) -> bool:
    """Whether the files have each acknowledged edit of these."""
    time.sleep(0.5)
    there = set(_edits(_read(history.local).changes)) if _looked(history) else set()
    return all(there.issuperset(journal.edits(entry)) for entry in due if entry.outcome == "acked")


def _edits(cells: list[Logged]) -> list[Edit]:
    return [
        Edit.of(cell.table, cell.row, cell.family, cell.qualifier, cell.kind, cell.timestamp, cell.value)
        for cell in cells if cell.qualifier != b"loaded"
    ]  # fmt: skip


# ------------------------------------------------------------------ the verdict


def _judged(
    scene: Scene, own: Streaming, history: Mirror, began_ms: int, due: list[journal.Entry], verdict: Verdict
) -> list[str]:
    scene.wait(lambda: _looked(history), "the target's HDFS does not answer")
    kept, source = _read(history.local), scene.world.source
    log = source_log(source, scene.folder / "log", began_ms, scene.tables)
    verdict.logged, verdict.decided = len(log), len(due)
    wrong = some(kept.repeated)
    wrong += some(_against_source(kept.changes, log, all_of_it=not own.snapshot))
    edits = _edits(kept.changes)
    wrong += some(journal.against_log(list(journal.read(scene.folder)), edits, {*due}))
    wrong += some(journal.out_of_order(due, edits))
    for table in scene.tables:
        wrong += some(_against_table(scene, history, table, verdict))
    for side in SIDES:
        scene.world.await_healthy(side, time.monotonic() + HEAL_SECONDS)
    wrong += scene.processes_left() + scene.tracebacks()
    with scene.ledger.reader() as book:
        left = book.execute("SELECT kind, name FROM objects WHERE state <> 'removed'")
        wrong += [f"in the ledger, {kind} {name} is not removed" for kind, name in left]
        wrong += [f"gap in the ledger: {gap}" for gap in book.execute("SELECT * FROM gaps")]
        wrong += audit_faults(book)
    return wrong + [f"{what} is left at the source" for what in left_behind(source, written=False)]


def _against_source(changes: list[Logged], log: list[Logged], *, all_of_it: bool) -> list[str]:
    """Which cells the files have otherwise than the source's log. `all_of_it`: those that a snapshot may have instead
    are missing, too."""
    here, there = Counter(changes), Counter(log)
    wrong = [f"in the files {count} times, in the source's log {there[cell]} times: {cell}"
             for cell, count in here.items() if count > there[cell]]  # fmt: skip
    if all_of_it:
        wrong += [f"in the source's log, and not in the files: {cell}" for cell in there if cell not in here]
    return wrong


def _against_table(scene: Scene, history: Mirror, table: str, verdict: Verdict) -> list[str]:
    """Where the documentation's query of the current state shows otherwise than Thrift."""
    named = re.search(r"```sql\n-- current state\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert named is not None
    query = named[1].replace("/history/orders", str(history.local)).replace("shop:orders", table)
    shown = {
        (row, f"{family}:".encode() + qualifier): (value, timestamp)
        for row, family, qualifier, timestamp, value in duckdb.execute(query).fetchall()
    }
    seen = {key: cells[0] for key, cells in seen_by_thrift(scene, "source", table).items() if cells}
    verdict.cells += len(seen)
    return [
        f"{table}: {key} is {shown.get(key)} by the query of the current state, {seen.get(key)} in the table"
        for key in sorted(shown.keys() | seen.keys()) if shown.get(key) != seen.get(key)
    ]  # fmt: skip
