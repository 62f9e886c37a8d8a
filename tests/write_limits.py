"""What a writer sends at a time, for tests of parts that get it from a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from walferry.apply.writer_protocol import WriteLimits
from walferry.apply.writers import limits_of
from walferry.hbase.writer_kind import WriterKind
from walferry.settings import Writing


def write_limits(**changes: Any) -> WriteLimits:
    """The limits by the environment, with some changes."""
    return replace(limits_of(WriterKind.RPC, Writing.read()), **changes)
