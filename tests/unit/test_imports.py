"""Rooms import downwards only: the order is the one of docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "walferry"
GROUND = {
    "errors",
    "amounts",
    "clock",
    "request_meter",
    "refusals",
    "formats",
    "security",
    "storage",
    "hbase",
    "wal",
    "ledger",
}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "amounts": set(),
    "clock": set(),
    "request_meter": {"clock"},
    "background": set(),
    "refusals": set(),
    "settings": {"errors"},
    "formats": {"errors"},
    "security": {"errors", "background"},
    "storage": {"errors", "request_meter", "background", "security"},
    "ledger": {"errors", "amounts", "clock", "refusals"},
    "hbase": {"errors", "clock", "request_meter", "background", "formats", "security"},
    "wal": {"errors", "settings", "formats", "security", "storage", "hbase"},
    "snapshots": {"errors", "background", "formats", "security", "storage", "hbase"},
    "run": GROUND - {"formats"} | {"background", "settings"},
    "spark": GROUND - {"ledger"} | {"snapshots", "background", "settings"},
    "apply": GROUND - {"ledger"} | {"spark", "background", "settings"},
    "replay": GROUND | {"background", "settings", "run", "spark", "apply"},
    "watch": GROUND | {"run", "spark", "apply", "replay"},
    "streams": GROUND | {"background", "settings", "snapshots", "run", "apply", "replay"},
    "replication": GROUND | {"background", "settings", "run"},
    "receive": GROUND | {"background", "settings", "snapshots", "run", "apply", "replay", "streams", "replication"},
    "migration": GROUND | {"background", "snapshots", "run", "spark", "apply", "replay", "replication"},
    "moments": GROUND | {"background", "settings", "snapshots", "run", "spark", "apply", "replay", "migration"},
    "checks": {"errors", "amounts", "background"},
    "cutover": GROUND | {"background", "run", "spark", "apply", "replay", "migration", "checks"},
    "process": {"errors", "settings", "ledger", "run"},
    "pipeline": {"errors", "amounts", "background", "run", "spark", "replay", "migration", "checks", "cutover"},
    "spark_app": {"errors", "run", "spark", "process", "pipeline"},
    "cli": {
        "errors",
        "amounts",
        "clock",
        "settings",
        "security",
        "ledger",
        "wal",
        "snapshots",
        "run",
        "spark",
        "replay",
        "streams",
        "migration",
        "moments",
        "replication",
        "receive",
    }
    | {"checks", "cutover", "process", "pipeline"},
    # ledger: the board
    "airflow": {
        "__init__",
        "errors",
        "amounts",
        "clock",
        "refusals",
        "settings",
        "hbase",
        "ledger",
        "replication",
        "receive",
        "run",
        "replay",
        "watch",
        "streams",
        "migration",
        "moments",
        "checks",
        "cutover",
        "process",
    }
    | {"process", "pipeline"},
    # the last three: the demo
    "embedded": {
        "errors",
        "amounts",
        "settings",
        "formats",
        "security",
        "storage",
        "hbase",
        "ledger",
        "run",
        "migration",
    },
    "__init__": set(),
}
"""For each room, and each module beside the rooms: what of walferry it may import."""
WHAT = {
    "errors": "the base errors: each carries its facts and an exit code; a TransientError may pass by itself",
    "amounts": "amounts in sentences for people: `1 row differs`, `3 rows differ`",
    "clock": "the clocks: one for recorded times, one for deadlines",
    "request_meter": "requests to a cluster: counted by service, and kept to the rates that the spec allows",
    "background": "work in other threads, and what threads share",
    "refusals": "the kinds of refusal, and the wildcards for table and region, for appliers, ledger and board",
    "settings": "every variable of the environment, by reader: type, default, range, description",
    "formats": "bytes to Arrow and back: WAL entries, HFiles, cells, markers, tags, resolution and digest of cells, "
    "protobuf messages, numba kernels. No I/O, no clock",
    "security": "who walferry is to a cluster with Kerberos, tickets, the exchange of tokens; whom it trusts by TLS; "
    "how it is told when they are refused",
    "storage": "one small file-system interface; HDFS (WebHDFS, and its data nodes directly) and local",
    "ledger": "the SQL ledger over `sql/`, by sections (phases, objects, log, quarantine, comparisons, …). "
    "Written by drivers and tasks, never by Spark workers",
    "hbase": "the client: RPC, authentication, ZooKeeper, locations, admin, mutate, multi, scan, Thrift, "
    "errors by Java class name; the server's side of the RPC",
    "wal": "WAL files as files: names, groups, where they are now, sealed or not, the one way to read them, "
    "how a stream follows them; `wal cat`, `wal stat`",
    "snapshots": "snapshots as files: the manifest, which store files have the cells of each region, and what they "
    "show; `snapshot stat`",
    "run": "a run as a process sees it: spec, phases, both clusters, state, lag, backlog, write stop",
    "spark": "only what is Spark: session, work fanned out to executors, the data sources `hbase_wal` "
    "and `hbase_changes` (batch and stream) and `hbase_snapshot`",
    "apply": "from entries to the target: route, by group, by row, in bulk, writers, the outcome of each file",
    "replay": "what is applied when: cuts, rounds, windows, drains, leases, the throttle, lineage, protection, "
    "quarantine",
    "watch": "watching a source's log without a migration: what is new, what has been announced",
    "streams": "every change as a message to Kafka or a row in Parquet: order by region, form, positions",
    "replication": "HBase's own replication, as somebody else has set it up: what stops it, how far it is, what is "
    "shipped",
    "receive": "a source replicates to walferry as to a cluster: what stops it, its calls, where they go, what is told",
    "migration": "a migration's own phases up to the cutover: plan, copy, compare, repair; its report; pairs",
    "moments": "any moment of a table: what must be kept for it, and how a table is restored to it",
    "checks": "Great Expectations suites over small frames",
    "cutover": "what must hold before the target opens, and how it opens: readiness, gates, approval, write stop, "
    "late edits, ways out",
    "process": "start and end of every process: logs, ledger, exit code",
    "pipeline": "each phase bound to its function; the order of a migration for a shell",
    "spark_app": "a phase as a Spark app, thin",
    "cli": "the command `walferry`, thin",
    "airflow": "connection types, hooks, operators, sensors, DAGs, the board",
    "embedded": "real HDFS, HBase, Thrift, Kafka, Spark and Airflow on one machine, for demo and tests",
}
FRAMEWORKS = {
    "pyspark": {"spark", "apply", "replay", "migration", "moments", "cutover", "pipeline"},
    "airflow": {"airflow"},
    "great_expectations": {"checks"},
}
"""Which rooms may import what the package can be installed without. (embedded drives Airflow from outside.)"""


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import of a file, inside functions and for type checks too."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> set[str]:
    """Every module that a file imports."""
    found = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module == "walferry":
            found |= {f"walferry.{alias.name}" for alias in node.names}
        else:
            assert node.level == 0, f"{path} imports relatively"
            found.add(str(node.module))
    return found


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def rooms_table() -> str:
    """The table of docs/architecture.md. `python tests/unit/test_imports.py` prints it."""
    lines = ["| place | what lives there | may import |", "|---|---|---|"]
    for name, what in WHAT.items():
        place = f"{name}/" if (SOURCE / name).is_dir() else f"{name}.py"
        below = [other for other in WHAT if other in MAY_IMPORT[name] - {"errors"}]
        lines.append(f"| `{place}` | {what} | {', '.join(below) or '-'} |")
    return "\n".join(lines)


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert rooms_table() in (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room(path) for path in modules()} == MAY_IMPORT.keys()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_rooms_below_its_own(path: Path) -> None:
    own = room(path)
    rooms = {[*name.split("."), "__init__"][1] for name in imports(path) if name.split(".")[0] == "walferry"}
    assert rooms - {own} <= MAY_IMPORT[own]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checks count, too; a package stands for its `__init__`."""
    names = {path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in modules()}
    known = {name.removesuffix(".__init__") for name in names.values()}
    graph = {name.removesuffix(".__init__"): imported_modules(path, known) for path, name in names.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


@pytest.mark.parametrize(
    "room", sorted({folder.parent.parent for folder in SOURCE.glob("*/*/__init__.py")}), ids=lambda room: room.name
)
def test_no_rooms_inside_a_room_import_each_other_in_a_circle(room: Path) -> None:
    """A folder in a room counts as one, and so does each module beside the folders."""
    own = f"walferry.{room.name}"
    graph: dict[str, set[str]] = {}
    for path in room.rglob("*.py"):
        within = path.relative_to(room).with_suffix("").parts[0]
        below = {name.split(".")[2] for name in qualified(path) if name.startswith(f"{own}.")}
        graph[within] = graph.get(within, set()) | below - {within}
    TopologicalSorter(graph).prepare()


def qualified(path: Path) -> set[str]:
    """Every module that a file imports, and every name that it imports from one, with the module's."""
    named = {
        f"{node.module}.{alias.name}"
        for node in import_nodes(path) if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    return imports(path) | named


def imported_modules(path: Path, known: Set[str]) -> set[str]:
    """Those of the known modules that a file imports: `from package import name` means the module of that name."""
    found = set(imports(path))
    for node in import_nodes(path):
        if isinstance(node, ast.ImportFrom) and {f"{node.module}.{alias.name}" for alias in node.names} & known:
            found.discard(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found & known


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_framework_is_imported_in_its_own_rooms_only(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert [name for name, rooms in FRAMEWORKS.items() if name in roots and room(path) not in rooms] == []


def test_command_client_and_log_reader_start_without_the_frameworks() -> None:
    wal = SOURCE.parents[1] / "tests" / "fixtures" / "wal" / "closed.wal"
    script = (
        "import sys, walferry.cli, walferry.hbase.client, walferry.ledger, walferry.run.spec\n"
        f"from walferry.wal.cat import cat; cat([{str(wal)!r}], sys.stdout, sys.stderr)\n"
        f"print(sorted({set(FRAMEWORKS)!r} & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


if __name__ == "__main__":
    print(rooms_table())


def test_dags_are_parsed_without_spark_and_great_expectations() -> None:
    """Airflow parses them all the time."""
    parse = "import sys, walferry.airflow.dags; print({'pyspark', 'great_expectations'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", parse], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "set()"
