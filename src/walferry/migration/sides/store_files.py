"""Which store files the regions of a table have on both sides, and whether a row may show something else because HBase
dropped cells between two moments.

A flush, a bulk load, and a compaction of some files of a store keep the store's delete markers. They drop masked puts
and surplus versions, and the remaining cells hide these for good. The exception is a marker in another file that hides
a single version (Delete, DeleteFamilyVersion): if that marker hides a newer version, readers would have seen a version
that was dropped as surplus. A compaction of all files drops the markers, too. Files leave a store only through a
compaction, and a compaction of all files replaces every file: if one file is still there, no such compaction happened
(SortedCompactionPolicy, `isAllFiles`). That holds for HBase's DefaultStoreEngine without coprocessors and without
KEEP_DELETED_CELLS; in any other store, each change counts as a compaction of all files.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from walferry.errors import WalferryError
from walferry.hbase.descriptors import Range, Region, TableDescriptor
from walferry.ledger.rows import ClusterSide
from walferry.migration.sides.fragile_rows import RowSpan, RowSpans
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, name_at

_ASKED_AT_ONCE = 8
_ENGINE, _DEFAULT_ENGINE = "hbase.hstore.engine.class", "org.apache.hadoop.hbase.regionserver.DefaultStoreEngine"
_COPROCESSOR = "coprocessor$"
_BYTES = 6
"""length of a digest: two sets of ten files have a digest in common once in 10^12 times"""

_AS_ONE = "="
"""prefix of the digest over all files of a store in which each change counts"""

Store = frozenset[str]
"""the files of one family: a digest of each name, or one digest of all names"""
Change = Literal["none", "some", "all"]
"""some: files were added, or some files of a store were compacted; all: all files of a store may have been compacted"""


@dataclass(frozen=True)
class RegionFiles:
    """The store files of a region at one moment."""

    range: Range
    region: str
    """a digest of its name and side"""
    stores: Mapping[str, Store] | None
    """by family; None: unknown now, for example because the region is being moved"""

    def changed_since(self, before: Stores) -> Change:
        """What may have happened to the region's store files."""
        known = before.of.get(self.region)
        if known is None or self.stores is None or known.keys() != self.stores.keys():
            return "all"
        if known == self.stores:
            return "none"
        both = [(known[family], now) for family, now in self.stores.items()]
        return "all" if any(then != now and not then & now for then, now in both) else "some"

    def as_json(self) -> list[Any]:
        """As plain values."""
        start, stop = self.range
        return [start.hex(), stop.hex(), self.region, None if self.stores is None else _listed(self.stores)]

    @classmethod
    def from_json(cls, kept: Sequence[Any]) -> RegionFiles:
        """The inverse of `as_json`."""
        start, stop, region, stores = kept
        return cls((bytes.fromhex(start), bytes.fromhex(stop)), region, None if stores is None else _sets(stores))


Files = Sequence[RegionFiles]


@dataclass(frozen=True)
class Stores:
    """The store files of regions at one moment, by region, to compare later ones with."""

    of: Mapping[str, Mapping[str, Store]]

    @classmethod
    def among(cls, files: Files, fragile: RowSpans) -> Stores:
        """The known store files of regions that have fragile rows with markers."""
        marked = fragile.marked
        return cls({one.region: one.stores for one in files if one.stores is not None and marked.meet(one.range)})

    @property
    def each_change_counts(self) -> bool:
        """Whether there is a store in which each change counts, so that even a flush may change what a row shows."""
        stores = (store for of_region in self.of.values() for store in of_region.values())
        return any(name.startswith(_AS_ONE) for store in stores for name in store)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {region: _listed(stores) for region, stores in sorted(self.of.items())}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Stores:
        """The inverse of `as_json`."""
        return cls({region: _sets(stores) for region, stores in kept.items()})


NO_STORES = Stores({})


@dataclass(frozen=True)
class Changed:
    """The regions whose store files have changed."""

    some: RowSpans
    """regions in which no store can have been compacted as a whole; `all` has the others"""
    all: RowSpans

    @classmethod
    def between(cls, before: Stores, now: Files) -> Changed:
        """The changes from one moment to another."""
        found = [(one.changed_since(before), RowSpan(*one.range)) for one in now]
        some, whole = (RowSpans.of(span for change, span in found if change == which) for which in ("some", "all"))
        return cls(some, whole)

    def may_show(self, span: RowSpan) -> bool:
        """Whether the changes may affect what the rows of a span show."""
        rows = (span.start, span.stop)
        return (span.marked and self.all.meet(rows)) or (span.by_version and self.some.meet(rows))


def stood_still(moments: Sequence[Files], after: Files, fragile: RowSpans) -> bool:
    """Whether fragile rows must still show what they showed at each of the earlier moments."""
    marked = fragile.marked
    now = {one.region: one for one in after if marked.meet(one.range)}
    before = [[one for one in files if marked.meet(one.range)] for files in moments]
    if {one.region for files in before for one in files} != now.keys():
        return False
    changed = [Changed.between(Stores.among(of, marked), [now[one.region] for one in of]) for of in before]
    return not any(one.may_show(span) for one in changed for span in marked)


def store_files(run: Run, table: str, of: RowSpans | None = None) -> list[RegionFiles]:
    """The store files of a table's regions on both sides: of all regions, or of those that have rows of the spans
    `of`."""
    return [file for side in SIDES for file in store_files_at(run, side, table, of)]


def store_files_at(run: Run, side: ClusterSide, table: str, of: RowSpans | None = None) -> list[RegionFiles]:
    """The store files of a table's regions on one side, as `store_files`."""
    if of is not None and not of:
        return []
    client, name = client_at(run, side), name_at(run, side, table)
    described = client.describe(name)
    families = [family.encode() for family in described.families]
    as_one = {name for name in described.families if _each_change_counts(described, name)}

    def stores(region: Region) -> Mapping[str, Store] | None:
        try:
            paths = client.store_files(region, *families)
        except WalferryError:  # for example, the region is being moved
            return None
        return _by_family(paths, described.families, as_one)

    regions = [region for region in client.regions(name) if of is None or of.meet((region.start, region.end))]
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="store files") as at_once:
        found = zip(regions, at_once.map(stores, regions), strict=True)
        return [RegionFiles((r.start, r.end), _digest(f"{side} {r.encoded}"), files) for r, files in found]


def _by_family(paths: Iterable[str], families: Iterable[str], as_one: Container[str]) -> dict[str, Store]:
    """Store files by family, from whole paths as HBase reports them, which end with family and name."""
    names: dict[str, list[str]] = {family: [] for family in families}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder.rpartition("/")[2], []).append(name)
    return {
        family: frozenset([_AS_ONE + _digest(" ".join(sorted(found)))] if family in as_one else map(_digest, found))
        for family, found in names.items()
    }


def _each_change_counts(table: TableDescriptor, family: str) -> bool:
    """Whether a partial compaction of a store may drop markers or keep the cells that they hide."""
    of_family = table.families[family].attributes
    configured = [one.configuration for one in table.schema.column_families if one.name.decode() == family]
    stated = {pair.name: pair.value for pairs in (table.schema.configuration, *configured) for pair in pairs}
    stated |= {**table.attributes, **of_family}
    return (
        stated.get(_ENGINE, _DEFAULT_ENGINE) != _DEFAULT_ENGINE
        or of_family.get("KEEP_DELETED_CELLS", "FALSE").upper() != "FALSE"
        or any(name.startswith(_COPROCESSOR) for name in stated)
    )


def _digest(name: str) -> str:
    return base64.b64encode(hashlib.sha256(name.encode()).digest()[:_BYTES]).decode()


def _listed(stores: Mapping[str, Store]) -> dict[str, list[str]]:
    return {family: sorted(store) for family, store in stores.items()}


def _sets(kept: Mapping[str, Sequence[str]]) -> dict[str, Store]:
    return {family: frozenset(names) for family, names in kept.items()}
