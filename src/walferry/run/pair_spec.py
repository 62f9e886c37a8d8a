"""The spec of a pair: tables that something else keeps equal."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

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
    peer_back: str | None = Field(
        default=None,
        min_length=1,
        title="Peer back to the source",
        description="Id of the target's replication peer that feeds the source, if clients write to both clusters: "
        "rows are judged once both peers have shipped. null: nothing is replicated to the source.",
    )

    @model_validator(mode="after")
    def _peer_there_first(self) -> Self:
        if self.peer_back is not None and self.peer is None:
            raise ValueError("peer_back needs peer: the source's peer that feeds the target")
        return self


class PairSpec(_PairKeys, Spec):
    """A migration's keys, and those that only a pair has. Unknown keys are errors."""


class ResolvedPairSpec(_PairKeys, ResolvedSpec):
    """A spec with its connections resolved."""
