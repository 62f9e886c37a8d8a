"""The spec of a setup: tables that HBase's own replication is to keep equal from now on."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, field_validator, model_validator

from walferry.run.spec import ResolvedSpec, Spec

PEER_ID = r"^[A-Za-z0-9_]{1,100}$"
"""HBase takes what follows a "-" in a queue's name for the name of a dead server"""
LONGEST_NAME = 35
"""the run of the pair, by which the tables are compared, has a longer one"""


class _SetupKeys(BaseModel):
    peer: str = Field(
        pattern=PEER_ID,
        title="Peer",
        description="Id of the replication peer that is added at the source.",
    )
    peer_back: str | None = Field(
        default=None,
        pattern=PEER_ID,
        title="Peer back to the source",
        description="Id of the peer that is added at the target and leads back to the source, for clients at both "
        "clusters. null: nothing is replicated to the source.",
    )
    serial: bool = Field(
        default=False,
        title="Serial",
        description="Whether the peers keep the order of a row's edits when its region moves, at a price.",
    )
    bandwidth: int = Field(
        default=0,
        ge=0,
        title="Bandwidth",
        description="Bytes per second that each region server ships to a peer at most; 0: no limit.",
    )
    families: dict[str, list[str]] = Field(
        default={},
        title="Families",
        description="Only these families of a table are replicated, by the table's name; of tables that are not named, "
        "all. Such tables are not compared at the end.",
    )
    namespaces: bool = Field(
        default=False,
        title="Namespaces",
        description="The peers name the namespaces of the tables instead of the tables: what is created there later "
        "with REPLICATION_SCOPE 1, at both clusters, is replicated, too.",
    )
    ship_minutes: float = Field(
        default=60,
        gt=0,
        title="Minutes to ship",
        description="How long a call waits until the peers have shipped what was written meanwhile; the next call goes "
        "on waiting.",
    )

    @field_validator("families")
    @classmethod
    def _plain_names(cls, families: dict[str, list[str]]) -> dict[str, list[str]]:
        return {table.removeprefix("default:"): names for table, names in families.items()}

    def names_of(self, table: str) -> list[str] | None:
        """The families of a table that are replicated; None: all of them."""
        return self.families.get(table)


def _require_whole(spec: _SetupKeys) -> None:
    """Raise ValueError for keys that do not go together. `spec` has a migration's keys, too."""
    assert isinstance(spec, Spec)
    if len(spec.name) > LONGEST_NAME:
        raise ValueError(f"name: a setup's name has at most {LONGEST_NAME} characters")
    if renamed := [pair.source for pair in spec.tables if pair.source != pair.target]:
        raise ValueError(f"tables: HBase replicates a table to the same name, so {renamed[0]} cannot have another one")
    if unknown := sorted(spec.families.keys() - {pair.source for pair in spec.tables}):
        raise ValueError(f"families: {unknown[0]} is none of the tables")
    for table, families in spec.families.items():
        if not families or len(set(families)) < len(families):
            raise ValueError(f"families: name each family of {table} once, or leave the table out for all of them")
    if spec.families and spec.namespaces:
        raise ValueError("families: a peer cannot name both a namespace and families of its tables")
    if spec.history != "clone" or spec.protect != "peer":
        key = "protect" if spec.history == "clone" else "history"
        raise ValueError(f"{key}: a setup clones snapshots, and its peer keeps the log: leave this out")


class SetupSpec(_SetupKeys, Spec):
    """A migration's keys, and those that only a setup has. Unknown keys are errors."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        _require_whole(self)
        return self


class ResolvedSetupSpec(_SetupKeys, ResolvedSpec):
    """A spec with its connections resolved."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        _require_whole(self)
        return self

    @property
    def pair_name(self) -> str:
        """The name of the pair by which the tables are compared."""
        return f"{self.name}_pair"
