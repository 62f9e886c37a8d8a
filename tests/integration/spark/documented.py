"""The code of docs/dataframes.md, to be run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "dataframes.md"
FENCE = re.compile(r"^```(?:python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented_block(has: str, **instead: str) -> str:
    """The only block of code that has this text, with each key of `instead` replaced by its value."""
    (block,) = (block for block in FENCE.findall(PAGE.read_text(encoding="utf-8")) if has in block)
    for text, other in instead.items():
        assert text in block
        block = block.replace(text, other)
    return str(block)


def documented(has: str) -> dict[str, Any]:
    """The names that a block of Python defines."""
    names: dict[str, Any] = {}
    exec(documented_block(has), names)
    return names
