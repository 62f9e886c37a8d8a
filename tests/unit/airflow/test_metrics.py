"""What is measured of a run, and the gauges as a StatsD server gets them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from walferry.airflow.metrics import emit, emit_replication
from walferry.ledger import Ledger, LogPosition, PeerLook, Round, RunRecord, SeenFile, StagedFile, WalRange
from walferry.ledger.rows import RunKind
from walferry.replication.watching import Seen
from walferry.run.notes.kept_moments import CopiedEnds, note_ends
from walferry.run.progress.lag import LagSplit
from walferry.run.spec import Cluster
from walferry.wal.files import Place, WalFile
from walferry.watch import watch as watching
from walferry.watch.listing import Listing
from walferry.watch.watch import RunFacts, look_into_open, record, run_facts, runs_on, watch_run

FACTS = RunFacts(
    run_id="move-1",
    lag_seconds=4.5,
    lag_split=LagSplit("rs1,1,1", "g1", 4.5, 3.0, 0.5, 1.0, 0.2),
    lag_by_server=(
        LagSplit("rs1,1,1", "g1", 4.5, 3.0, 0.5, 1.0, 0.2),
        LagSplit("rs1,1,1", "g2", 2.5, 1.0, 0.5, 1.0, None),
        LagSplit("rs2,1,1", "g3", 0.5, 0.0, 0.5, 0.0, None),
    ),
    backlog_bytes=1234,
    edits_per_second=250.0,
    requests_per_second={"namenode": 1.5, "zookeeper": 0.25},
    gaps=1,
    quarantine=2,
    time_to_loss_seconds=321.0,
    log_kept_bytes=5678,
    loss_seconds=12.5,
    max_lag=30,
    lost=("file",),
    held=(7, 8),
)


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A UDP socket that Airflow's metrics go to, as airflow.cfg would say it."""
    pytest.importorskip("statsd", reason="Airflow sends to StatsD with the package statsd only")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        settings = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(server.getsockname()[1])}
        for key, value in (settings | {"STATSD_INFLUXDB_ENABLED": "True"}).items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{key}", value)
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
        yield server
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


def received(server: socket.socket, count: int) -> dict[str, str]:
    """Name with tags -> value of each gauge."""
    lines = [server.recv(1024).decode() for _ in range(count)]
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.recv(1024)
    return dict(line.rsplit(":", 1) for line in lines)


def test_every_number_of_a_run_arrives_with_its_run_and_source(statsd: socket.socket) -> None:
    emit(FACTS, "hbase_source")
    tags = "run=move-1,source=hbase_source"
    assert received(statsd, 15) == {
        f"airflow.walferry.lag_part_seconds,{tags},part=discovery": "3.0|g",
        f"airflow.walferry.lag_part_seconds,{tags},part=read": "0.5|g",
        f"airflow.walferry.lag_part_seconds,{tags},part=apply": "1.0|g",
        f"airflow.walferry.server_lag_seconds,{tags},server=rs1_1": "4.5|g",
        f"airflow.walferry.server_lag_seconds,{tags},server=rs2_1": "0.5|g",
        f"airflow.walferry.lag_seconds,{tags}": "4.5|g",
        f"airflow.walferry.backlog_bytes,{tags}": "1234|g",
        f"airflow.walferry.edits_per_second,{tags}": "250.0|g",
        f"airflow.walferry.gaps,{tags}": "1|g",
        f"airflow.walferry.quarantine,{tags}": "2|g",
        f"airflow.walferry.time_to_loss_seconds,{tags}": "321.0|g",
        f"airflow.walferry.log_kept_bytes,{tags}": "5678|g",
        f"airflow.walferry.loss_seconds,{tags}": "12.5|g",
        f"airflow.walferry.requests_per_second,{tags},service=namenode": "1.5|g",
        f"airflow.walferry.requests_per_second,{tags},service=zookeeper": "0.25|g",
    }


def test_what_a_run_does_not_have_is_not_sent(statsd: socket.socket) -> None:
    missing = ("lag_seconds", "lag_split", "time_to_loss_seconds", "log_kept_bytes", "loss_seconds")
    unknown = dict.fromkeys(missing)
    emit(replace(FACTS, **unknown, lag_by_server=()), "hbase_source")  # type: ignore[arg-type]
    names = {name.split(",")[0].removeprefix("airflow.walferry.") for name in received(statsd, 6)}
    assert names == {"backlog_bytes", "edits_per_second", "gaps", "quarantine", "requests_per_second"}


# ------------------------------------------------------------------ what is measured

CLUSTER = Cluster(zookeeper="zk:2181", webhdfs="http://nn:9870", rootdir="hdfs://nn:8020/hbase", user="hbase")
SERVER = "rs.example,16020,1700000000000"
GROUP = SERVER.replace(",", "%2C")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        yield ledger


@pytest.fixture
def run(ledger: Ledger) -> RunRecord:
    """A run whose fence stands at file 2, with file 2 applied and file 3 sealed."""
    return begun(ledger, "migration")


def begun(ledger: Ledger, kind: RunKind) -> RunRecord:
    cluster, tables = CLUSTER.model_dump(), [{"source": "t", "target": "t"}]
    spec = {"name": "move", "source": cluster, "target": cluster, "tables": tables, "max_lag": 30}
    run = ledger.open_run("move", "me", spec, "me", kind)
    ledger.of(run.run_id).log.set_fence("start", [LogPosition(GROUP, name(2), 2, 0)])
    ledger.of(run.run_id).log.see_files(
        [SeenFile(name(n), GROUP, SERVER, n, f"/{n}", 100, sealed=True) for n in (2, 3)]
    )
    ledger.of(run.run_id).log.set_ranges([WalRange(name(2), 0, 100, "t", 1, 1, 1, 1, "applied")])
    return run


def name(number: int) -> str:
    return f"{GROUP}.{number}"


def listing(*numbers: int, age_seconds: float = 0, place: Place = Place.ARCHIVED, length: int = 100) -> Listing:
    at_ms = int((time.time() - age_seconds) * 1000)
    files = {name(n): WalFile(name(n), GROUP, SERVER, n, f"/hbase/oldWALs/{name(n)}", place, length) for n in numbers}
    return Listing(files, dict.fromkeys(files, at_ms))


def measured(
    ledger: Ledger, run: RunRecord, seen: Listing, *, kept: bool = False, watch: RunRecord | None = None
) -> RunFacts:
    return run_facts(ledger, run, seen, watch=watch, kept=kept, cleaner_ttl=600)


def test_the_backlog_is_what_stands_behind_the_fence_and_is_not_applied(ledger: Ledger, run: RunRecord) -> None:
    facts = measured(ledger, run, listing(1, 2, 3, 4))
    assert facts.backlog_bytes == 200
    assert (facts.gaps, facts.lost, facts.quarantine) == (0, (), 0)


def test_the_time_to_loss_counts_from_the_oldest_archived_file_that_is_not_applied(
    ledger: Ledger, run: RunRecord
) -> None:
    assert measured(ledger, run, listing(2, 3, age_seconds=500)).time_to_loss_seconds == pytest.approx(100, abs=5)
    assert measured(ledger, run, listing(2, 3, age_seconds=900)).time_to_loss_seconds == 0


def test_there_is_no_time_to_loss_while_the_peer_keeps_the_files_or_none_is_archived(
    ledger: Ledger, run: RunRecord
) -> None:
    assert measured(ledger, run, listing(2, 3), kept=True).time_to_loss_seconds is None
    assert measured(ledger, run, listing(2, 3, place=Place.LIVE)).time_to_loss_seconds is None
    assert measured(ledger, run, listing(2)).time_to_loss_seconds is None


def test_a_file_that_is_gone_before_it_was_applied_is_a_gap_and_an_applied_one_is_not(
    ledger: Ledger, run: RunRecord
) -> None:
    facts = measured(ledger, run, listing(4))
    assert facts.lost == (name(3),)
    assert facts.gaps == 1


def test_a_file_that_only_the_watch_saw_is_missed_too(ledger: Ledger, run: RunRecord) -> None:
    watch = watch_run(ledger, "hbase_source", CLUSTER)
    record(ledger, watch.run_id, listing(1, 2, 3, 4, 5))
    assert measured(ledger, run, listing(3, 5), watch=watch).lost == (name(4),)


def test_a_log_that_never_held_a_byte_may_go_with_its_server(ledger: Ledger, run: RunRecord) -> None:
    ledger.of(run.run_id).log.see_files([SeenFile(name(4), GROUP, SERVER, 4, "/4", 0, sealed=False)])
    assert measured(ledger, run, listing(3)).lost == ()


def test_a_log_that_the_run_or_the_watch_saw_holding_something_is_missed_when_it_goes(
    ledger: Ledger, run: RunRecord
) -> None:
    watch = watch_run(ledger, "hbase_source", CLUSTER)
    for run_id, length in ((run.run_id, 0), (watch.run_id, 300)):
        ledger.of(run_id).log.see_files([SeenFile(name(4), GROUP, SERVER, 4, "/4", length, sealed=False)])
    assert measured(ledger, run, listing(3), watch=watch).lost == (name(4),)


def test_a_log_of_a_living_server_is_missed_though_it_may_have_been_empty(ledger: Ledger, run: RunRecord) -> None:
    ledger.of(run.run_id).log.see_files([SeenFile(name(4), GROUP, SERVER, 4, "/4", 0, sealed=False)])
    assert measured(ledger, run, listing(3, place=Place.LIVE)).lost == (name(4),)


def test_an_open_log_is_looked_into_for_a_listing_does_not_tell_what_it_holds(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_run(ledger, "hbase_source", CLUSTER)
    looks: list[str] = []

    def held(files: object, root: str, file: WalFile) -> int:
        looks.append(file.name)
        return 300

    monkeypatch.setattr(watching, "bytes_held", held)
    for _ in range(2):
        seen = listing(3, 4, place=Place.LIVE, length=0)
        record(ledger, watch.run_id, look_into_open(ledger, watch.run_id, seen, CLUSTER))
    assert looks == [name(4)], "only the one that is written to, and once it holds something no more"
    assert {file.name: file.length for file in ledger.of(watch.run_id).log.files()} == {name(3): 0, name(4): 300}


def test_lag_and_rate_come_from_the_rounds(ledger: Ledger, run: RunRecord) -> None:
    assert measured(ledger, run, listing(3)).lag_seconds is None
    now = int(time.time() * 1000)
    ledger.of(run.run_id).rounds.record(Round(1, now - 20_000, now - 10_000, 1, 100, 5, 1000, 15_000, 0))
    facts = measured(ledger, run, listing(3))
    assert facts.lag_seconds == pytest.approx(25, abs=3)
    assert facts.edits_per_second == pytest.approx(50, rel=0.2)


def test_only_unfinished_runs_on_the_same_cluster_are_measured(ledger: Ledger, run: RunRecord) -> None:
    watch_run(ledger, "hbase_source", CLUSTER)
    other = CLUSTER.model_copy(update={"zookeeper": "other:2181", "webhdfs": "http://other:9870"})
    ledger.open_run("elsewhere", "me", {"source": other.model_dump(), "tables": ["t"]}, "me")
    renamed = CLUSTER.model_copy(update={"zookeeper": "zk-1:2181,zk-2:2181"})
    assert [found.run_id for found in runs_on(ledger, renamed)] == [run.run_id]
    ledger.of(run.run_id).end("done", "me")
    assert runs_on(ledger, CLUSTER) == []


def test_the_lag_of_a_drain_is_how_long_sealed_edits_wait(ledger: Ledger) -> None:
    run = begun(ledger, "drain")
    rested = int((time.time() - 9000) * 1000)
    ledger.of(run.run_id).rounds.record(Round(1, rested, rested, 1, 100, 5, 1000, 0, 0))
    assert measured(ledger, run, listing(2)).lag_seconds == pytest.approx(0, abs=5)
    waiting = listing(2, 3, age_seconds=70, length=5000)
    assert measured(ledger, run, waiting).lag_seconds == pytest.approx(70, abs=5)


def test_a_stream_has_the_gauges_of_a_run(ledger: Ledger, statsd: socket.socket) -> None:
    run = begun(ledger, "stream")
    now = int(time.time() * 1000)
    ledger.of(run.run_id).rounds.record(Round(1, now - 20_000, now - 10_000, 1, 100, 5, 1000, 15_000, 0))
    assert [found.run_id for found in runs_on(ledger, CLUSTER)] == [run.run_id]
    facts = measured(ledger, run, listing(3, 4), kept=True)
    assert (facts.kind, facts.lost) == ("stream", ())
    emit(facts, "hbase_source")
    sent = {name.split(",")[0].removeprefix("airflow.walferry."): value for name, value in received(statsd, 8).items()}
    assert sent.keys() == {
        "lag_seconds", "backlog_bytes", "edits_per_second", "gaps", "quarantine", "requests_per_second",
    }  # fmt: skip
    assert float(sent["lag_seconds"].removesuffix("|g")) == pytest.approx(25, abs=3)
    assert sent["backlog_bytes"] == "200|g"


def test_a_run_that_keeps_moments_misses_no_log_that_it_has_copied_even_if_the_copy_went_since(
    ledger: Ledger,
) -> None:
    run = begun(ledger, "keep")
    part = ledger.of(run.run_id)
    watch = watch_run(ledger, "hbase_source", CLUSTER)
    record(ledger, watch.run_id, listing(3, 4, 5))
    for number in (3, 4):
        part.staged.record(StagedFile(name(number), 100, "", 1))
    part.staged.removed([name(3)])
    now = int(time.time() * 1000)
    note_ends(part, CopiedEnds(covered_ms=now - 5_000, at_ms=now, files=1, bytes=1))
    assert measured(ledger, run, listing(6), watch=watch).lost == (name(5),)
    facts = measured(ledger, run, listing(4, 5), watch=watch)
    assert (facts.lost, facts.backlog_bytes) == ((), 100)
    assert facts.loss_seconds == pytest.approx(5, abs=3)


def test_what_is_seen_of_each_peer_arrives_with_its_run_and_peer(statsd: socket.socket) -> None:
    looks = (PeerLook("east", 1, 61_500, 900, 80, 7, 1, 2), PeerLook("west", 1, None, 0, 0, 0, 0, 0))
    emit_replication("pair-1", Seen((), True, looks, stops=3, canary_seconds=4.25))
    names = ("unshipped_bytes", "pinned_bytes", "waiting_files", "lost_logs", "stuck_queues")
    of_peers = {
        f"airflow.walferry.replication_{name},run=pair-1,peer={peer}": f"{value}|g"
        for peer, values in (("east", (900, 80, 7, 1, 2)), ("west", (0,) * 5))
        for name, value in zip(names, values, strict=True)
    }
    assert received(statsd, 13) == of_peers | {
        "airflow.walferry.replication_stops,run=pair-1": "3|g",
        "airflow.walferry.replication_canary_seconds,run=pair-1": "4.25|g",
        "airflow.walferry.replication_lag_seconds,run=pair-1,peer=east": "61.5|g",
    }
    emit_replication("pair-1", Seen((), looked=False))
    with pytest.raises(TimeoutError):
        statsd.recv(1024)
