"""Which tables have snapshots that cannot be read as files."""

from __future__ import annotations

from walferry.hbase.descriptors import TableDescriptor

_WHY = {"IS_MOB": "keeps values elsewhere", "ENCRYPTION": "is encrypted"}


def why_unreadable(table: TableDescriptor) -> str:
    """Why a table's snapshot cannot be read, as part of a sentence; "" if it can."""
    for family in table.families.values():
        for attribute, why in _WHY.items():
            if family.attributes.get(attribute, "FALSE").upper() not in ("FALSE", ""):
                return f"family {family.name} {why} ({attribute})"
    return ""
