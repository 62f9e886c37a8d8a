"""docs/architecture.md is true where a program can tell."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_file_that_the_docs_name_for_a_change_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### To change something\n")[2].partition("\n### ")[0]
    named = re.findall(r"^\| .* \| `(.*)` \|$", table, re.MULTILINE)
    assert len(named) >= 30
    assert [name for name in named if not (ROOT / "src" / "walferry" / name).is_file()] == []
