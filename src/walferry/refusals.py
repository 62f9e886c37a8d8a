"""What could not be applied, in the words that the appliers, the ledger and the board share."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ANY_REGION: Final = "*"
"""in place of an encoded region: any, or all, of the table's"""
ANY_TABLE: Final = "*"
"""in place of a table: any, or all, of the run's"""


class RefusalKind(StrEnum):
    """Why bytes of the log were not applied; decides which ways out of the quarantine there are."""

    REFUSED = "refused"
    """the target does not take the edit, or the writer cannot express it"""
    NOT_IN_LOG = "not in the log"
    """a marker that stands for data which the log does not hold (a bulk load), or of an unknown kind"""
    LINEAGE = "lineage"
    """the table began a new history at the source: nothing that follows belongs to the copied one"""
    DAMAGE = "damage"
    """nobody can tell which table or region the bytes from here on belong to"""
