"""The spec of a pair: tables that something else keeps equal."""

from __future__ import annotations

from pydantic import BaseModel, Field

from walferry.run.spec import ResolvedSpec, Spec


class _PairKeys(BaseModel):
    peer: str | None = Field(
        default=None,
        min_length=1,
        title="Peer",
        description="Id of the source's replication peer that feeds the target: rows that still differ after max_lag "
        "are judged once it has shipped what was written before, for which the source's logs are rolled. null: "
        "something else feeds it.",
    )


class PairSpec(_PairKeys, Spec):
    """A migration's keys, and those that only a pair has. Unknown keys are errors."""


class ResolvedPairSpec(_PairKeys, ResolvedSpec):
    """A spec with its connections resolved."""
