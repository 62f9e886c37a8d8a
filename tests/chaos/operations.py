"""An operator of a cluster, who moves, splits, flushes and compacts regions all the time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from chaos.schedule import Operation
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient

MOST_REGIONS = 8
TIMEOUT_S = 8.0
CLOSE_S = 15.0


class Operator:
    """A thread that does the operations of a schedule, one after the other; one that fails, fails."""

    def __init__(self, cluster: MiniCluster, tables: Sequence[str], operations: Sequence[Operation]) -> None:
        self._cluster, self._tables, self._operations = cluster, tables, operations
        self._ended = threading.Event()
        self.did: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. What it is doing may last: that is not waited for beyond some seconds."""
        self._ended.set()
        self._thread.join(timeout=CLOSE_S)

    def _work(self) -> None:
        with HBaseClient(self._cluster.address, timeout_s=TIMEOUT_S) as client:
            for operation in self._operations:
                if self._ended.wait(operation.pause_s):
                    return
                try:
                    self._do(client, operation)
                    self.did[operation.what] += 1
                except WalferryError:  # a fault is under way, or a snapshot, or the region splits just then
                    self.failed[operation.what] += 1

    def _do(self, client: HBaseClient, operation: Operation) -> None:
        table = self._tables[int(operation.pick * 997) % len(self._tables)]
        regions = client.regions(table)
        if not regions:
            return  # the table is still to be created
        region = regions[int(operation.pick * len(regions))]
        if operation.what == "move":
            others = [server for server in client.servers() if server != region.server]
            if others:
                client.move_region(region, others[int(operation.pick * 31) % len(others)])
        elif operation.what == "split":
            row = bytes([operation.row])
            holder = next(region for region in regions if region.holds(row))
            if len(regions) < MOST_REGIONS and holder.start != row:
                client.split_region(holder, row)
        elif operation.what == "flush":
            client.flush_table(table)
        else:
            client.compact_table(table, major=operation.what == "major compact")
