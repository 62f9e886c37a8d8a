"""docs/architecture.md is true where a program can tell."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_file_that_the_docs_name_for_a_change_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### To change something\n")[2].partition("\n### ")[0]
    named = re.findall(r"^\| .* \| `(.*)` \|$", table, re.MULTILINE)
    assert len(named) >= 30
    assert [name for name in named if not (ROOT / "src" / "walferry" / name).is_file()] == []


def test_each_word_of_the_glossary_names_something_that_is_in_its_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### Glossary\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \| (.*?) \|$", table, re.MULTILINE)[1:]
    places = {word: re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", place) for word, _, place in rows}
    assert len(places) >= 40
    assert len(places) == len(rows), "each word once"
    assert [word for word, found in places.items() if not found] == []
    assert [place for found in places.values() for place in found if not is_in_file(*place)] == []


def is_in_file(name: str, path: str) -> bool:
    """Whether a module defines a class, function or constant, or a class of it a method or field: `Cut.is_quiet`."""
    file = ROOT / "src" / "walferry" / path
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    *owners, last = name.split(".")
    for owner in owners:
        body = next((one.body for one in body if isinstance(one, ast.ClassDef) and one.name == owner), [])
    made = {one.name for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    fields = {ast.unparse(one.target) for one in body if isinstance(one, ast.AnnAssign)}
    return last in made | fields


def test_a_word_whose_class_was_renamed_or_moved_is_missed() -> None:
    assert is_in_file("Cut.is_quiet", "replay/log/cut.py")
    assert is_in_file("Batch.calm", "replay/rounds/batch_work.py")
    assert is_in_file("SIDES", "run/sides.py")
    assert not is_in_file("Cut.is_loud", "replay/log/cut.py")
    assert not is_in_file("Cut", "replay/rounds/rounds.py")
    assert not is_in_file("Cut", "replay/log/none.py")


def test_each_rule_names_a_test_that_fails_when_it_is_broken_and_that_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### The test of each rule\n")[2].partition("\n## ")[0]
    named = {rule: re.findall(r"`(\S+)`", tests) for rule, tests in re.findall(r"^\| (R\d+) \| (.*) \|$", table, re.M)}
    assert list(named) == [f"R{number}" for number in range(1, 15)]
    assert [rule for rule, tests in named.items() if not tests] == []
    assert [test for tests in named.values() for test in tests if not exists(test)] == []


def exists(test: str) -> bool:
    """Whether a test that is named as pytest does is in its file: `file::Class::test`."""
    path, *names = test.split("::")
    if not names or not (ROOT / path).is_file():
        return False
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in names:
        found = [one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def test_a_test_that_was_renamed_is_missed() -> None:
    own = "tests/unit/test_architecture.py"
    assert exists(f"{own}::test_a_test_that_was_renamed_is_missed")
    assert not exists(f"{own}::test_that_has_another_name")
    assert not exists("tests/unit/test_none.py::test_a_test_that_was_renamed_is_missed")
    assert not exists(own)


def test_each_function_on_the_way_of_an_edit_is_in_the_code() -> None:
    """Those of the column *where*: `cut_log`, `by_peer.begin` of a module, `OpenLogs.settle` of a class."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## The life of one edit\n")[2].partition("\n## ")[0]
    where = re.findall(r"^\| \d+ \| .*? \| (.*?) \|", table, re.MULTILINE)
    named = {name for cell in where for name in re.findall(r"`([\w.]+)`", cell)}
    assert len(where) >= 16
    assert len(named) >= 30
    assert named - defined() == set()


def defined() -> set[str]:
    """The functions and classes of the package: by name, and behind the name of their module or class."""
    found = set()
    for path in (ROOT / "src" / "walferry").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        classes = [one for one in body if isinstance(one, ast.ClassDef)]
        for owner, inside in ((path.stem, body), *((one.name, one.body) for one in classes)):
            names = [one.name for one in inside if isinstance(one, ast.ClassDef | ast.FunctionDef)]
            found |= {f"{owner}.{name}" for name in names}
        found |= {one.name for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    return found
