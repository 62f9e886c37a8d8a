"""Kinds of refusal and of gap, and the wildcards for table and region, as appliers, ledger and board use them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ANY_REGION: Final = "*"
"""stands for an encoded region name: any region of the table, or all of them"""
ANY_TABLE: Final = "*"
"""stands for a table name: any table of the run, or all of them"""


class RefusalKind(StrEnum):
    """Why bytes of the log were not applied. The kind decides how the item can be released from quarantine."""

    REFUSED = "refused"
    """the target refuses the edit, or the writer cannot express it"""
    NOT_IN_LOG = "not in the log"
    """a marker of data that the log does not hold (a bulk load), or of an unknown kind"""
    LINEAGE = "lineage"
    """the table began a new history at the source: later edits do not belong to the history that was copied"""
    DAMAGE = "damage"
    """damaged bytes: the table and region of everything from here on are unknown"""


class GapKind(StrEnum):
    """Why bytes of the log count as not applied: column `kind` of the ledger's view `gaps`."""

    MISSING = "missing"
    """the file no longer exists at the source"""
    NOT_SEALED = "not sealed"
    """the file may hold more bytes than are known"""
    NOT_READ = "not read"
    NOT_APPLIED = "not applied"
    FENCE = "fence"
    """a fence is in a file that was never listed"""
    HELD = "held"
    """an item in quarantine, or a region held by one"""
