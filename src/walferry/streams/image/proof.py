"""What no read point proves: tables and rows whose cells vanish by themselves, or that HBase shows in another way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import CellIndex, CellType, Int64s, index_cells
from walferry.formats.entries import index_entry_cells
from walferry.formats.resolve import expiring_after
from walferry.formats.wal import EntryBatch
from walferry.hbase.descriptors import Family, TableDescriptor

IN_MEMORY_COMPACTION = "hbase.hregion.compacting.memstore.type"
"""the site's default of a family's IN_MEMORY_COMPACTION; a table and a family may set it, too (HStore's constructor)"""
_DROPPING = ("EAGER", "ADAPTIVE")


def in_memory_of(settings: Iterable[Mapping[str, str]]) -> str:
    """The site's IN_MEMORY_COMPACTION, by the settings of some of its servers: the worst of them."""
    found = [one[IN_MEMORY_COMPACTION] for one in settings if IN_MEMORY_COMPACTION in one]
    return next((policy for policy in found if policy.upper() in _DROPPING), "NONE")


def may_be_exact(table: TableDescriptor, in_memory: str = "NONE") -> bool:
    """Whether rows of the past can be proved: no family has a TTL, drops versions in memory, or masks by arrival.

    `in_memory`: the site's IN_MEMORY_COMPACTION.
    """
    of_table = {**table.attributes, **{pair.name: pair.value for pair in table.schema.configuration}}
    given = {family.name.decode(): {pair.name: pair.value for pair in family.configuration}
             for family in table.schema.column_families}  # fmt: skip
    default = of_table.get(IN_MEMORY_COMPACTION, in_memory)
    return not any(
        family.ttl_ms is not None
        or family.new_version_behavior
        or _in_memory(family, given[name], default).upper() in _DROPPING
        for name, family in table.families.items()
    )


def _in_memory(family: Family, configuration: Mapping[str, str], default: str) -> str:
    default = configuration.get(IN_MEMORY_COMPACTION, family.attributes.get(IN_MEMORY_COMPACTION, default))
    return family.attributes.get("IN_MEMORY_COMPACTION", default)


def expiring_runs(blocks: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Which of these runs of cells have one with a TTL of its own."""
    ends = np.cumsum([0, *map(len, blocks)], dtype=np.int64)
    cells = index_cells(np.frombuffer(b"".join(blocks), np.uint8))
    numbers, _ = expiring_after(cells, -1)
    found = np.zeros(len(blocks), np.bool_)
    found[np.searchsorted(ends, cells.position[numbers], side="right") - 1] = True
    return found


def expiring_entries(batch: EntryBatch, picked: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Which of these entries put a cell with a TTL of its own."""
    cells, entry, _ = index_entry_cells(batch.take(picked))
    numbers, _ = expiring_after(cells, -1)
    return picked[np.unique(entry[numbers])]


def doubtful_rows(cells: CellIndex, row: Int64s) -> Int64s:
    """Of stored rows, each cell with the number of its row, those of which it is not certain what a reader sees: they
    have a cell with a TTL of its own, or a cell with an empty qualifier beside the marker of a family, which a scanner
    may skip then (docs/fine-print.md, deletes of a family below an empty qualifier)."""
    expiring, _ = expiring_after(cells, -1)
    of_family = np.isin(cells.type, (CellType.DELETE_FAMILY, CellType.DELETE_FAMILY_VERSION))
    empty = (cells.qualifier_length == 0) & ~of_family
    return np.union1d(row[expiring], np.intersect1d(row[of_family], row[empty]))
