"""A page of a list that can grow long, as the pages show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def page_of(rows: Sequence[Any], page: int, size: int) -> dict[str, Any]:
    """The rows of a page, counted from 0, and how many there are in all."""
    return {"total": len(rows), "page": page, "size": size, "rows": rows[page * size : (page + 1) * size]}
