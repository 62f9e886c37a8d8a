"""docs/api.md is made from signatures and docstrings, and every public name exists and is documented."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from collections.abc import Iterator, Set
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from walferry import errors
from walferry.cli import app
from walferry.errors import WalferryError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "walferry"
FIXTURES = ROOT / "tests" / "fixtures"
EXPORTING = ("walferry.hbase", "walferry.formats", "walferry.wal")
"""packages whose `__all__` is public"""
AIRFLOW = {
    "operators": (
        "open_run", "step", "do_phase", "finish", "HBaseSnapshotOperator", "HBaseCopyOperator", "HBaseReplayOperator",
        "HBaseCutoverOperator", "HBaseCompareOperator", "WalferrySparkOperator",
    ),
    "hook": ("HBaseHook",),
    "sensors": ("wal_asset", "WalWatchSensor"),
    "triggers": ("WalTrigger", "AnswerTrigger"),
    "notifiers": ("WalferryNotifier",),
}  # fmt: skip
"""public names by module of walferry.airflow; read without importing Airflow"""
SPARK = {
    "hbase_wal": ("wal_source", {"cells": "walferry.formats.entries:WAL_CELL_SCHEMA",
                                 "entries": "walferry.spark.wal_query:ENTRY_SCHEMA"}),
    "hbase_wal as a stream": ("wal_stream", {}),
    "hbase_changes": ("changes_source", {"changes": "walferry.formats.changes:CHANGE_SCHEMA"}),
    "hbase_snapshot": ("snapshot_source", {"cells": "walferry.formats.cells:CELL_SCHEMA",
                                           "rows": "walferry.formats.resolve:ROW_SCHEMA"}),
}  # fmt: skip
"""by data source: its module of walferry.spark, whose docstring lists the options, and the columns of each view"""

HEAD = """\
# The public interface

`python tests/unit/test_api.py > docs/api.md` writes this page from signatures and docstrings; a test compares it.

## What is stable

From 0.1.0 on, walferry's version follows [semantic versioning](https://semver.org) for what this page lists. A break
raises the major version; while that is 0, it raises the minor version. [CHANGELOG.md](../CHANGELOG.md) names each one.

These are breaks:

- a name, argument, verb, option, column or key of `--json` is removed or renamed, or gets another type or unit
- a default, an exit code or a documented effect changes
- a method raises an error that is not a subclass of the documented one
- a version of Python, HBase, Airflow or Spark is no longer supported

These are not: a new name, verb, column, key of `--json` or argument with a default; another wording of a message or a
log line; a correction of behaviour that contradicts the documentation.

The JSON of `walferry status`, `ready` and `report` (`report.json` in the reports folder is the same) has a `version`
and a schema: [status.schema.json](json/status.schema.json), [ready.schema.json](json/ready.schema.json),
[report.schema.json](json/report.schema.json). `version` rises when a field is removed or renamed, or gets another
meaning or unit. A new field does not raise it, and neither does a new value of a field that names a state, a phase, a
condition or a class of difference: accept fields and values that you do not know.

The keys of the spec ([migration.example.yaml](../migration.example.yaml)), and the variables `WALFERRY_LEDGER` and
`WALFERRY_WAL_KEY_…`, are stable too. A newer walferry opens the ledger of an older one; the ledger's tables themselves
are not public.

Everything else may change in any version: modules, functions and attributes that this page does not list, names that
begin with `_`, protobuf messages beyond HBase's own fields, the board's pages, and what tasks pass to each other.
"""


def first_paragraph(text: str | None) -> str:
    """As one line, fit for a cell of a table."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split()).replace("|", "\\|")


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb of the command with its full name."""
    group: Any = typer.main.get_command(app)
    for name, verb in group.commands.items():
        for below, inner in getattr(verb, "commands", {}).items():
            yield f"{name} {below}", inner
        if not hasattr(verb, "commands"):
            yield name, verb


def command_page() -> Iterator[str]:
    yield "## The command\n\n| verb | what it does | `--json` |\n|---|---|---|"
    for name, verb in verbs():
        as_json = any("--json" in option.opts for option in verb.params)
        yield f"| `walferry {name}` | {first_paragraph(verb.help)} | {'yes' if as_json else '-'} |"
    yield "\n`walferry VERB --help` lists the options. Exit codes:\n\n| code | error | what it means |\n|---|---|---|"
    yield "| 0 | | done |"
    for kind in sorted(public_errors(), key=lambda one: one.exit_code):
        yield f"| {kind.exit_code} | `{kind.__name__}` | {first_paragraph(kind.__doc__)} |"
    yield "| 130 | | interrupted (Ctrl-C) |"


def public_errors() -> list[type[WalferryError]]:
    """Those with an exit code of their own; a subclass without one ends the command with that of its base."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WalferryError)]
    return [kind for kind in kinds if "exit_code" in vars(kind)]


def definitions(path: Path) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """The classes and functions of a file."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """How a class is made, or a function or method is called."""
    function: ast.AST | None = node
    if isinstance(node, ast.ClassDef):
        inner = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
        function = next(inner, None)
    if not isinstance(function, ast.FunctionDef):
        return node.name
    arguments = ast.unparse(function.args).removeprefix("self").removeprefix(", ")
    returns = f" -> {ast.unparse(function.returns)}" if function is node and function.returns is not None else ""
    return f"{node.name}({arguments}){returns}"


def described(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A signature and its whole docstring."""
    return f"`{signature(node)}`\n\n{ast.get_docstring(node)}\n"


def airflow_page() -> Iterator[str]:
    yield "## Airflow\n\nConnection, links, and how operators combine: [provider.md](provider.md).\n"
    for module, names in AIRFLOW.items():
        found = definitions(SOURCE / "airflow" / f"{module}.py")
        yield f"### `walferry.airflow.{module}`\n"
        for name in names:
            yield described(found[name])
            yield from methods(found[name]) if module == "hook" else ()


def methods(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The public methods and properties of a class."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            kinds = {ast.unparse(kind) for kind in one.decorator_list} & {"property", "cached_property"}
            named = f"{one.name}: {ast.unparse(one.returns)}" if kinds and one.returns else signature(one)
            yield f"#### `{named}`\n\n{ast.get_docstring(one)}\n"


def columns(place: str) -> str:
    module, _, name = place.partition(":")
    schema: pa.Schema = getattr(import_module(module), name)
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def spark_page() -> Iterator[str]:
    yield "## Spark\n\nSessions, clusters, and what a snapshot shows: [spark.md](spark.md).\n"
    for name, (module, views) in SPARK.items():
        tree = ast.parse((SOURCE / "spark" / f"{module}.py").read_text(encoding="utf-8"))
        yield f"### `{name}`\n\n```text\n{ast.get_docstring(tree)}\n```\n"
        yield from (f"Columns of the view `{view}`: {columns(place)}.\n" for view, place in views.items())


def client_page() -> Iterator[str]:
    yield "## The client: `walferry.hbase`\n"
    client = definitions(SOURCE / "hbase" / "client.py")["HBaseClient"]
    yield described(client)
    yield from methods(client)
    yield "### What else it exports\n"
    yield exported("walferry.hbase", without={"HBaseClient"})


def exported(package: str, without: Set[str] = frozenset()) -> str:
    """What a package exports: classes, errors and schemas as a table, then each function."""
    module = import_module(package)
    lines, functions = ["| name | what it is |", "|---|---|"], [""]
    for name in sorted(set(module.__all__) - without, key=str.lower):
        value = getattr(module, name)
        if inspect.isfunction(value):
            functions.append(described(definitions(Path(inspect.getfile(value)))[name]))
        else:
            text = columns(f"{package}:{name}") if isinstance(value, pa.Schema) else first_paragraph(value.__doc__)
            lines.append(f"| `{name}` | {text} |")
    return "\n".join([*(lines if len(lines) > 2 else []), *functions])


def files_page() -> Iterator[str]:
    for package in ("walferry.formats", "walferry.wal"):
        yield f"## Files: `{package}`\n"
        path = SOURCE / package.removeprefix("walferry.") / "__init__.py"
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
        yield text.partition("\n")[2].strip("\n") + "\n"
        yield exported(package)


def api_page() -> str:
    """docs/api.md"""
    parts = [HEAD, *command_page(), "", *airflow_page(), *spark_page(), *client_page(), *files_page()]
    return "\n".join(parts).rstrip("\n") + "\n"


def test_the_page_is_what_signatures_and_docstrings_say() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == api_page()


@pytest.mark.parametrize("package", EXPORTING)
def test_what_a_package_exports_exists_and_is_documented(package: str) -> None:
    module = import_module(package)
    undocumented = [
        name for name in module.__all__
        if not isinstance(value := getattr(module, name), pa.Schema) and not inspect.getdoc(value)
    ]  # fmt: skip
    assert undocumented == []
    with pytest.raises(AttributeError):
        _ = module.no_such_name


@pytest.mark.parametrize("package", EXPORTING)
def test_type_checkers_see_what_a_package_exports(package: str) -> None:
    """Names that are imported late are in the imports for type checkers too."""
    path = SOURCE / package.removeprefix("walferry.") / "__init__.py"
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    seen = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(import_module(package).__all__) <= seen


def test_each_public_method_of_the_client_has_a_docstring() -> None:
    from walferry.hbase import HBaseClient

    methods = {name: value for name, value in vars(HBaseClient).items() if not name.startswith("_")}
    assert [name for name, value in methods.items() if not value.__doc__] == []


@pytest.mark.parametrize("module", AIRFLOW)
def test_what_is_public_for_airflow_is_documented(module: str) -> None:
    found = definitions(SOURCE / "airflow" / f"{module}.py")
    assert [name for name in AIRFLOW[module] if not ast.get_docstring(found[name])] == []


@pytest.mark.parametrize("package", ["walferry.formats", "walferry.wal"])
def test_the_examples_run(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (FIXTURES / "wal" / "closed.wal", FIXTURES / "hfile" / "none.hfile"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(import_module(package))
    assert tried
    assert not failed


@pytest.mark.parametrize("package", EXPORTING)
def test_a_package_alone_imports_neither_numba_nor_arrow(package: str) -> None:
    """Its parts are imported when they are wanted."""
    script = f"import sys, {package}; print(sorted({{'numba', 'numpy', 'pyarrow', 'google'}} & sys.modules.keys()))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


if __name__ == "__main__":
    print(api_page(), end="")
