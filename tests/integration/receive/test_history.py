"""What tables had before the source replicates to receivers: it comes first, and nothing between is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.migration.moves import raw, visible
from integration.receive.receivers import Receivers, receivers
from integration.replication.native import native_peer
from integration.replication.writing import writer
from unit.receive.call_builder import REGION, Sent, call
from walferry.background import beside
from walferry.embedded.cluster import MiniCluster
from walferry.formats.cells import encode_cell
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column, delete_row, put
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.history import History, histories
from walferry.run.progress.state import state_of

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def clocks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each copy waits for two minutes."""
    monkeypatch.setenv("WALFERRY_CLOCK_SKEW_SECONDS", "5")


SCAN = {"receive": {"history": "scan"}}
SLOWLY = SCAN | {"source_requests": {"region_servers": 10}}
OLD = b"row0 old"


def rows(client: HBaseClient, tables: Sequence[str]) -> None:
    """Versions, deletes, a TTL and old timestamps, and 400 rows more."""
    for table in tables:
        for timestamp in (1, 2, 3, 4):
            client.put(table, [Cell(OLD, b"d", b"q", b"v%d" % timestamp, timestamp)])
        client.mutate(table, [put(b"row5 ttl", [Cell(b"row5 ttl", b"e", b"q", b"v")], ttl_ms=10**9)])
        client.put(table, [Cell(b"row8 gone", b"d", b"q", b"v")])
        client.mutate(table, [delete_row(b"row8 gone")])
        client.mutate(table, [delete_column(OLD, b"e", b"nothing")])
        for count in range(400):
            client.put(table, [Cell(b"row%d0 %03d" % (count % 10, count), b"d", b"large", b"x" * 100_000)])


def ledger_of(run: Receivers) -> RunLedger:
    ledger = Ledger.open(f"sqlite:///{run.folder / 'ledger.db'}", create=False)
    run.opened.callback(ledger.close)
    return ledger.of(next(one.run_id for one in ledger.runs() if one.name == run.name))


def until(run: Receivers, reached: str, deadline_s: float = 60.0) -> RunLedger:
    """Wait until the state's cause has that text."""
    ledger, deadline = ledger_of(run), time.monotonic() + deadline_s
    while reached not in (cause := state_of(ledger).cause):
        assert time.monotonic() < deadline, f"{cause}\n{run.said()[-2000:]}"
        time.sleep(0.1)
    return ledger


def copied(run: Receivers) -> dict[str, History]:
    return {table: one for table, one in histories(ledger_of(run)).items() if one.is_done}


def test_what_tables_have_comes_first_though_a_receiver_is_killed_and_clients_write_all_the_time(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    with (
        HBaseClient(source.address) as here,
        HBaseClient(target.address) as there,
        receivers(source, target, tmp_path, more=SLOWLY, before=rows) as two,
    ):
        with beside(writer(here, two.tables), "writer"):
            ledger = until(two, "is being copied")
            assert state_of(ledger).name == "copying"
            deadline = time.monotonic() + 60
            while not any(0 < one.size < 30e6 for one in histories(ledger).values()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            two.processes[0].send_signal(signal.SIGKILL)
            two.start()
            here.split_region(here.regions(two.tables[0])[1], b"row4")
            until(two, "serve", 240)
            time.sleep(3)
        two.equal()
        for table in two.tables:
            for row in (OLD, b"row8 gone", b"row5 ttl"):
                assert raw(there, table, row) == raw(here, table, row)
        assert set(copied(two)) == set(two.tables)
        first = ledger.received.totals()
        two.stop()
        two.start()
        here.put(two.tables[0], [Cell(b"row9 last", b"d", b"q", b"v")])
        two.equal()
        assert sum(total.entries for total in two.totals().values()) == sum(one.entries for one in first) + 1


def test_nothing_is_copied_before_a_peer_keeps_the_log_or_into_a_table_that_is_not_empty(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    def before(client: HBaseClient, tables: Sequence[str]) -> None:
        client.put(tables[0], [Cell(b"row1", b"d", b"q", b"before")])

    with (
        HBaseClient(target.address) as there,
        receivers(source, target, tmp_path, 0, 1, more=SCAN, before=before) as one,
        HBaseClient(source.address) as here,
    ):
        (table,) = one.tables
        here.remove_peer(one.peer)
        one.start()
        until(one, "waits: the source has no peer that leads here")
        there.put(table, [Cell(b"row2", b"d", b"q", b"somebody's")])
        key = f"{target.host}:{target.ports.zookeeper}:/walferry/receive/{one.name}"
        with native_peer(source, target, [table], enabled=False, key=key) as peer:
            until(one, f"target table {table} is not empty: truncate it")
            there.disable_table(table)
            there.truncate_table(table)
            ledger = until(one, "the source has sent nothing ")
            one.equal()
            assert ledger.received.totals() == []
            assert copied(one)[table].peer == peer
            since, clusters = copied(one)[table].since_ms, [divmod(here.cluster_uuid().int, 1 << 64)]
            for number, time_ms in ((7, since - 1), (8, since)):
                cell = encode_cell(b"edit%d" % number, b"d", b"q", 7, 4, b"v")
                one.send(*call([Sent([cell], REGION, table, number, time_ms, clusters)]))
            assert {row for row, _, _ in visible(target, table)} == {b"row1", b"edit8"}
