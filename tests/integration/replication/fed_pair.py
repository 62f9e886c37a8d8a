"""A pair that HBase's own replication feeds, and another table that its peers replicate, on the same region server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.migration.moves import cluster_keys, spark, unique
from integration.replication.native import native_peer, table_at_both
from walferry.embedded.cluster import MiniCluster
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger, RepairedRow
from walferry.migration.pairs import pair_pass
from walferry.migration.pairs.pair_findings import findings, pass_line
from walferry.migration.pairs.pair_pass import open_pair, verify_pair
from walferry.migration.pairs.pair_repair import ask
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.run import Run

FAMILY = b"d"


@dataclass(frozen=True)
class Pair:
    """A table that peers replicate, and another one, on the same region server."""

    run: Run
    peer: str
    """of the source"""
    table: str
    beside: str
    at_source: HBaseClient
    at_target: HBaseClient

    def one_pass(self) -> dict[str, Any]:
        facts = verify_pair(self.run, spark)
        print(pass_line(facts))
        return facts | findings(self.run.ledger, 100)

    def differing(self) -> dict[str, str]:
        return {one["row"]: one["state"] for one in self.one_pass()["differences"]}

    def arrives(self, row: bytes, seconds: float) -> bool:
        """Whether a row of the source is at the target in time."""
        return _arrives(self.at_target, self.table, row, seconds)

    def comes_back(self, row: bytes, seconds: float) -> bool:
        """Whether a row of the target is at the source in time."""
        return _arrives(self.at_source, self.table, row, seconds)

    def repair(self, rows: Sequence[str] = ()) -> dict[str, RepairedRow]:
        found = ask(self.run, self.table, rows)
        print("\n".join(found.lines()))
        return {row.row.decode(): row for row in found.rows}


def spec_of_pair(source: MiniCluster, target: MiniCluster, table: str, **keys: Any) -> ResolvedPairSpec:
    clusters = {"source": cluster_keys(source), "target": cluster_keys(target)}
    return ResolvedPairSpec.model_validate(
        {"name": unique("pair_"), "tables": [table], "max_lag": 2, "spot_check": 0} | clusters | keys
    )


def _arrives(client: HBaseClient, table: str, row: bytes, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not any(client.scan(table, row, row + b"\0")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@contextmanager
def pair_of(
    source: MiniCluster, target: MiniCluster, at_source: HBaseClient, folder: Path, *, both_ways: bool = False
) -> Iterator[Pair]:
    """A pair with peers of its own; no pass over it was made. Its peers ship as long as a pass waits."""
    with ExitStack() as opened:
        at_target = opened.enter_context(HBaseClient(target.address))
        tables = [opened.enter_context(table_at_both(at_source, at_target, "d")) for _ in range(2)]
        for client in (at_source, at_target):
            (mine,), (its,) = map(client.regions, tables)
            assert mine.server is not None
            if its.server != mine.server:
                client.move_region(its, mine.server)
        keys = {"peer": opened.enter_context(native_peer(source, target, tables))}
        if both_ways:
            keys["peer_back"] = opened.enter_context(native_peer(target, source, tables))
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(pair_pass, "SETTLE_SECONDS", 0.1)
        ledger = opened.enter_context(Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="tester"))
        run = opened.enter_context(
            Run(ledger, open_pair(ledger, spec_of_pair(source, target, tables[0], **keys), "tester", 7).run_id)
        )
        yield Pair(run, keys["peer"], tables[0], tables[1], at_source, at_target)


def write(
    client: HBaseClient, table: str, row: bytes, value: bytes = b"v", timestamp: int | None = None,
    qualifier: bytes = b"q",
) -> None:  # fmt: skip
    client.put(table, [Cell(row, FAMILY, qualifier, value, timestamp)])
