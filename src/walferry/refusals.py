"""Kinds of refusal and of gap, and the wildcards for table and region: words of appliers, ledger and board alike."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ANY_REGION: Final = "*"
"""in place of an encoded region name: any, or all, of the table's regions"""
ANY_TABLE: Final = "*"
"""in place of a table name: any, or all, of the run's tables"""


class RefusalKind(StrEnum):
    """Why bytes of the log were not applied; decides how the item can be released from quarantine."""

    REFUSED = "refused"
    """the target does not take the edit, or the writer cannot express it"""
    NOT_IN_LOG = "not in the log"
    """a marker of data that the log does not hold (a bulk load), or of an unknown kind"""
    LINEAGE = "lineage"
    """the table began a new history at the source: later edits do not belong to the history that was copied"""
    DAMAGE = "damage"
    """nobody can tell which table or region the bytes from here on belong to"""


class GapKind(StrEnum):
    """Why bytes of the log count as not applied: column `kind` of the ledger's view `gaps`."""

    MISSING = "missing"
    """the file no longer exists at the source"""
    NOT_SEALED = "not sealed"
    """it may hold more than is known of it"""
    NOT_READ = "not read"
    NOT_APPLIED = "not applied"
    FENCE = "fence"
    """a fence is in a file that was never listed"""
    HELD = "held"
    """an item in quarantine, or a region held by one"""
