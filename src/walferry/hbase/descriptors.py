"""Tables, families and regions as HBase describes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.zookeeper import Server

DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "hbase"
_FOREVER_S = 2**31 - 1
_DEFAULTS = {
    "BLOCKCACHE": "TRUE",
    "BLOCKSIZE": "65536",
    "BLOOMFILTER": "ROW",
    "CACHE_BLOOMS_ON_WRITE": "FALSE",
    "CACHE_DATA_IN_L1": "FALSE",
    "CACHE_DATA_ON_WRITE": "FALSE",
    "CACHE_INDEX_ON_WRITE": "FALSE",
    "COMPRESSION": "NONE",
    "DATA_BLOCK_ENCODING": "NONE",
    "EVICT_BLOCKS_ON_CLOSE": "FALSE",
    "INDEX_BLOCK_ENCODING": "NONE",
    "IN_MEMORY": "FALSE",
    "KEEP_DELETED_CELLS": "FALSE",
    "MIN_VERSIONS": "0",
    "NEW_VERSION_BEHAVIOR": "FALSE",
    "PREFETCH_BLOCKS_ON_OPEN": "FALSE",
    "REPLICATION_SCOPE": "0",
    "TTL": str(_FOREVER_S),
    "VERSIONS": "1",
}
"""HBase's defaults for a family: each version stores some of them, in upper or lower case, and a clone adds those of
its own version"""


def table_name(name: str) -> pb.TableName:
    """HBase's message for "namespace:qualifier" or "qualifier"."""
    namespace, separator, qualifier = name.partition(":")
    if not separator:
        namespace, qualifier = DEFAULT_NAMESPACE, name
    return pb.TableName(namespace=namespace.encode(), qualifier=qualifier.encode())


def table_text(name: pb.TableName) -> str:
    """A table's name as HBase writes it: "qualifier" in the default namespace, else "namespace:qualifier"."""
    namespace, qualifier = name.namespace.decode(), name.qualifier.decode()
    return qualifier if namespace == DEFAULT_NAMESPACE else f"{namespace}:{qualifier}"


def name_text(name: bytes) -> str:
    r"""The name of a family or namespace for people: HBase lets it have any bytes but a few. What is not UTF-8 comes as
    "\xff"; a backslash itself no name can have (ColumnFamilyDescriptorBuilder.isLegalColumnFamilyName)."""
    return name.decode(errors="backslashreplace")


@dataclass(frozen=True)
class Family:
    """A column family. `attributes` are HBase's own strings (ColumnFamilyDescriptorBuilder); the properties parse them
    with HBase 2's defaults. `ttl_ms` is None if cells live forever."""

    name: str
    attributes: Mapping[str, str]

    @property
    def effective(self) -> dict[str, str]:
        """The attributes that differ from HBase's defaults: equal for equal families of different versions."""
        stated = {name: value.upper() if name in _DEFAULTS else value for name, value in self.attributes.items()}
        return {name: value for name, value in sorted(stated.items()) if _DEFAULTS.get(name) != value}

    @property
    def max_versions(self) -> int:
        """VERSIONS"""
        return int(self.attributes.get("VERSIONS", "1"))

    @property
    def min_versions(self) -> int:
        """MIN_VERSIONS: how many versions are kept even when expired"""
        return int(self.attributes.get("MIN_VERSIONS", "0"))

    @property
    def ttl_ms(self) -> int | None:
        """TTL in milliseconds (HBase keeps seconds)"""
        seconds = int(self.attributes.get("TTL", _FOREVER_S))
        return None if seconds == _FOREVER_S else seconds * 1000

    @property
    def is_mob(self) -> bool:
        """Whether values above a size are stored in MOB files"""
        return self.attributes.get("IS_MOB", "false").lower() == "true"

    @property
    def new_version_behavior(self) -> bool:
        """Whether deletes mask by order of arrival instead of by timestamp"""
        return self.attributes.get("NEW_VERSION_BEHAVIOR", "false").lower() == "true"

    @property
    def compression(self) -> str:
        """NONE, SNAPPY, ..."""
        return self.attributes.get("COMPRESSION", "NONE").upper()


@dataclass(frozen=True)
class TableDescriptor:
    """A table: HBase's complete TableSchema message (`schema`), and readable views of it."""

    schema: pb.TableSchema

    @property
    def name(self) -> str:
        """ "qualifier" or "namespace:qualifier" """
        return table_text(self.schema.table_name)

    @cached_property
    def families(self) -> dict[str, Family]:
        """The column families by name. Raises UsageError for a name that is not UTF-8, which no text can stand for in
        requests and files."""
        if unnamed := sorted(name for name in self.shown_families if "\\" in name):
            raise UsageError(
                f"table {self.name} has the family {unnamed[0]}, whose name is not UTF-8: walferry cannot work with it",
                table=self.name,
            )
        return self.shown_families

    @cached_property
    def shown_families(self) -> dict[str, Family]:
        """The column families by `name_text`."""
        families = {}
        for family in self.schema.column_families:
            # Not all are text: ENCRYPTION_KEY is a wrapped key.
            attributes = {pair.first.decode(): pair.second.decode("utf-8", "replace") for pair in family.attributes}
            families[name_text(family.name)] = Family(name_text(family.name), attributes)
        return families

    @property
    def attributes(self) -> dict[str, str]:
        """The table's own attributes."""
        return {pair.first.decode(): pair.second.decode("utf-8", "replace") for pair in self.schema.attributes}

    @property
    def read_only(self) -> bool:
        """READONLY: whether puts and deletes are refused"""
        return self.attributes.get("READONLY", "false").lower() == "true"

    @property
    def durability(self) -> str:
        """DURABILITY of edits that set none themselves: SKIP_WAL, ASYNC_WAL, SYNC_WAL, …"""
        return self.attributes.get("DURABILITY", "USE_DEFAULT").upper()

    def with_attribute(self, name: str, value: str) -> TableDescriptor:
        """The same table with one attribute set."""
        schema = without_attributes(self.schema, {name})
        schema.attributes.add(first=name.encode(), second=value.encode())
        return TableDescriptor(schema)

    def unreplicated(self) -> TableDescriptor:
        """The same table with REPLICATION_SCOPE 0 in every family: its edits are shipped to no peer."""
        schema = without_attributes(self.schema, ())
        for family in schema.column_families:
            for pair in family.attributes:
                if pair.first == b"REPLICATION_SCOPE":
                    pair.second = b"0"
        return TableDescriptor(schema)

    def with_scopes(self, scopes: Mapping[str, str]) -> TableDescriptor:
        """The same table with other values of REPLICATION_SCOPE, by family. Families that it does not have are left
        out."""
        schema = without_attributes(self.schema, ())
        for family in schema.column_families:
            if (scope := scopes.get(name_text(family.name))) is None:
                continue
            others = [pair for pair in family.attributes if pair.first != b"REPLICATION_SCOPE"]
            del family.attributes[:]
            family.attributes.extend(others)
            family.attributes.add(first=b"REPLICATION_SCOPE", second=scope.encode())
        return TableDescriptor(schema)


def without_attributes(schema: pb.TableSchema, names: Collection[str]) -> pb.TableSchema:
    """A copy of a table's schema without these attributes of the table."""
    copy = pb.TableSchema()
    copy.CopyFrom(schema)
    del copy.attributes[:]
    copy.attributes.extend(pair for pair in schema.attributes if pair.first.decode() not in names)
    return copy


def new_table(name: str, families: Mapping[str, Mapping[str, str]]) -> TableDescriptor:
    """A table to create: `families` maps a family's name to its attributes, such as {"VERSIONS": "3"}."""
    return TableDescriptor(
        pb.TableSchema(
            table_name=table_name(name),
            column_families=[
                pb.ColumnFamilySchema(
                    name=family.encode(),
                    attributes=[
                        pb.BytesBytesPair(first=key.encode(), second=value.encode())
                        for key, value in attributes.items()
                    ],
                )
                for family, attributes in families.items()
            ],
        )
    )


Range = tuple[bytes, bytes]
"""from a first row (included) to an end row (excluded); b"" as the end: to the end of the table"""


@dataclass(frozen=True)
class Region:
    """Rows from `start` (included) to `end` (excluded; b"" = no bound) of a table, and who serves them.

    `name` is the full region name, `encoded` its MD5 in hex (as in paths and WALs), `server` None while no server has
    the region open. `open_sequence` (info:seqnumDuringOpen) rises each time the region opens. `may_lag`: hbase:meta has
    no state of the region (before 2.0), so while the region is in transition, `server` and `open_sequence` are those of
    its previous opening. `changed_ms`: when the region's row in hbase:meta last changed, for example when it opened, by
    the writer's clock.
    """

    name: bytes
    encoded: str
    table: str
    start: bytes
    end: bytes
    server: Server | None
    region_id: int
    open_sequence: int = 0
    may_lag: bool = False
    changed_ms: int = field(default=0, compare=False)

    def holds(self, row: bytes) -> bool:
        """Whether the row is in this region."""
        return self.start <= row and (not self.end or row < self.end)

    @property
    def specifier(self) -> pb.RegionSpecifier:
        """The specifier for requests to the region's server."""
        return pb.RegionSpecifier(type=pb.RegionSpecifier.REGION_NAME, value=self.name)

    @property
    def encoded_specifier(self) -> pb.RegionSpecifier:
        """The specifier for requests to the master."""
        return pb.RegionSpecifier(type=pb.RegionSpecifier.ENCODED_REGION_NAME, value=self.encoded.encode())
