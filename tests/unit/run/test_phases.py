"""The table of phases is what people read, too."""

from __future__ import annotations

from pathlib import Path

from walferry.run.phases import phases_of

PAGE = Path(__file__).parents[3] / "docs" / "first-migration.md"


def phases_table() -> str:
    """The table of docs/first-migration.md. `python tests/unit/run/test_phases.py` prints it."""
    rows = [f"| {p.name}{', for each table' if p.by_table else ''} | {p.what} |" for p in phases_of("migration")]
    return "\n".join(["| phase | what it does |", "|---|---|", *rows])


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    assert phases_table() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(phases_table())
