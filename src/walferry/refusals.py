"""Kinds of refusal, and the wildcards for table and region: the words that appliers, ledger and board share."""

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
