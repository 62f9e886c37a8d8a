"""Three sensors. That of `hbase_wal_watch` records changes of a source's WAL files and announces sealed edits; that of
`hbase_replicate` looks at what a source replicates by itself, that of `hbase_receive` at the processes that receive."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from walferry.airflow.links import BoardLink
from walferry.airflow.operators import ACTOR, final_errors
from walferry.airflow.triggers import NextLookTrigger, WalTrigger
from walferry.airflow.watch_alerts import alert_of_receiving, alert_of_troubles, alert_once
from walferry.errors import UsageError
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger, RunRecord
    from walferry.run.spec import Cluster
    from walferry.watch.watch import Listing, RunFacts

log = logging.getLogger(__name__)

CLEANER_TTL_SECONDS = 600
"""HBase's default of hbase.master.logcleaner.ttl"""


def wal_asset(connection: str) -> Asset:
    """The log of a connection's cluster as an asset; an event means that edits were sealed."""
    return Asset(name=f"hbase_wal_{connection}", uri=f"walferry://{connection}/wal")


class WalWatchSensor(BaseSensorOperator):
    """Succeeds, and so emits the asset's event, when logs that hold edits are sealed; waits in a trigger until then.

    Each time it wakes up, it lists the files, records them in the ledger, sends the metrics of all unfinished runs on
    this source, and alerts for gaps, quarantine and lag. The asset's newest event shows which files were announced. So
    if a worker is killed after it recorded files and before its task succeeded, the next one announces them.
    """

    template_fields = ("poll_seconds", "cleaner_ttl")

    def __init__(
        self,
        *,
        source: str,
        poll_seconds: float | str = 5,
        beat_seconds: float = 60,
        cleaner_ttl: float | str = CLEANER_TTL_SECONDS,
        **kwargs: Any,
    ) -> None:
        asset = wal_asset(source)
        super().__init__(inlets=[asset], outlets=[asset], **kwargs)
        self.source = source
        self.poll_seconds = poll_seconds
        self.beat_seconds = beat_seconds
        self.cleaner_ttl = cleaner_ttl

    def execute(self, context: Context) -> Any:
        """List the files now; wait in the trigger if there is nothing to announce."""
        return self.look(context)

    def look(self, context: Context, event: Any = None, moved: int = 0, grown: int = 0) -> dict[str, Any]:
        """Record and announce changes, or wait again. `moved` and `grown` count files that were recorded before."""
        from walferry.airflow.hook import airflow_connection
        from walferry.watch import watch as log_watch

        with final_errors(), open_ledger(actor=log_watch.WATCHER) as ledger:
            cluster = airflow_connection(self.source)
            address = cluster.address().of_log
            run = log_watch.watch_run(ledger, self.source, cluster)
            listing = log_watch.list_now(cluster)
            # Alert before recording: a file that has just vanished raises an alert for each run that lacks it.
            facts = measure(ledger, run, self.source, cluster, listing, float(self.cleaner_ttl))
            for one in facts:
                alert_once(ledger, run, self.source, one)
            changes = log_watch.record(
                ledger, run.run_id, log_watch.look_into_open(ledger, run.run_id, listing, cluster)
            )
            moved, grown = moved + len(changes.moved), grown + len(changes.grown)
            since = max(_last_announced(context, wal_asset(self.source)), log_watch.announced_ms(ledger, run))
            news = log_watch.news(ledger, run, cluster, since)
            if news.sealed and not news.with_edits:
                log_watch.nothing_to_announce(ledger, run, news.through_ms)
        log.info("%d WAL files; %s", len(listing.files), changes.counts())
        if news.with_edits:
            extra: dict[str, Any] = {
                "through_ms": news.through_ms, "sealed": news.sealed, "with_edits": news.with_edits, "new": news.new,
                "bytes": news.bytes, "moved": moved, "grown": grown, "run": run.run_id,
            }  # fmt: skip
            context["outlet_events"][wal_asset(self.source)].extra = dict(extra)
            return extra
        self.defer(
            trigger=WalTrigger(
                run_id=run.run_id,
                webhdfs=address.webhdfs or cluster.webhdfs,
                user=address.user,
                root=address.wal_path,
                poll_seconds=float(self.poll_seconds),
                beat_seconds=self.beat_seconds,
                security=asdict(address.security),
            ),
            method_name="look",
            kwargs={"moved": moved, "grown": grown},
        )
        raise AssertionError("defer does not return")


def _last_announced(context: Context, asset: Asset) -> int:
    """The asset's newest event announced the files that were sealed until this moment; 0 before the first event."""
    newest = context["inlet_events"][asset].ascending(False).limit(1)
    extras: list[Any] = [event.extra or {} for event in newest]
    return max((int(extra.get("through_ms", 0)) for extra in extras), default=0)


def measure(
    ledger: Ledger, watch: RunRecord | None, source: str, cluster: Cluster, listing: Listing, cleaner_ttl: float
) -> list[RunFacts]:
    """Measure every unfinished run on this source and send the gauges."""
    from walferry.airflow import metrics
    from walferry.hbase.client import HBaseClient
    from walferry.watch import watch as log_watch

    runs = log_watch.runs_on(ledger, cluster)
    if not runs:
        return []
    with HBaseClient(cluster.address()) as client:
        peers = log_watch.peers_that_keep(client)
    found = []
    for run in runs:
        kept = any(o.kind == "peer" and o.name in peers for o in ledger.of(run.run_id).objects.all())
        facts = log_watch.run_facts(ledger, run, listing, watch=watch, kept=kept, cleaner_ttl=cleaner_ttl)
        metrics.emit(facts, source)
        found.append(facts)
    return found


class ReplicationSensor(BaseSensorOperator):
    """Looks at what a source replicates by itself until a person ends the run; waits in a trigger between two looks.

    Each look is recorded in the ledger, sends its metrics, and alerts for what keeps edits from arriving. A look that
    fails is one of these, and the next one follows all the same. The task is skipped if another DAG run goes on with
    the run.
    """

    template_fields = ("run",)
    operator_extra_links = (BoardLink(),)

    def __init__(self, *, run: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def execute(self, context: Context) -> Any:
        """Look now."""
        return self.look(context)

    def look(self, context: Context, event: Any = None) -> str:
        """Look, and wait for the next look. Returns how the run ended."""
        from walferry.replication.spec import recorded_replicate_spec

        with final_errors(), open_ledger(actor=ACTOR) as ledger:
            run = ledger.run(self.run)
            if run.state == "running" and run.owner != f"airflow {context['run_id']}":
                raise AirflowSkipException(f"{run.run_id} belongs to {run.owner}, which goes on with it")
            if run.state == "running":
                _look_for(ledger, run)
            if (run := ledger.run(self.run)).state != "running":  # a person may have ended it meanwhile
                return f"{run.state}: {run.outcome}"
            seconds = recorded_replicate_spec(run).look_seconds
        self.defer(trigger=NextLookTrigger(run.run_id, seconds, run.paused), method_name="look")
        raise AssertionError("defer does not return")


def _look_for(ledger: Ledger, run: RunRecord) -> None:
    """Look once, unless the run is paused; send metrics and alerts."""
    from walferry.airflow import metrics
    from walferry.replication.watching import watch_once
    from walferry.run.heartbeat import beating
    from walferry.run.notes.watched_replication import WATCH, keep_awake
    from walferry.run.progress.state import state_of

    part = ledger.of(run.run_id)
    if run.paused:
        keep_awake(part)
        return
    before = state_of(part)
    try:
        with beating(part, WATCH, ACTOR):
            seen = watch_once(part)
        alert_of_troubles(ledger, run, seen)
    except UsageError:
        if part.record.state == "running":
            raise
        return
    metrics.emit_replication(run.run_id, seen)
    if (now := state_of(part)).name != before.name:  # not with each look: this log grows as long as the run goes on
        log.info("%s: %s", now.name, now.cause)


class ReceiveSensor(BaseSensorOperator):
    """Looks at a run of `walferry receive` until a person ends it; waits in a trigger between two looks.

    Each look sends its metrics, and alerts for what keeps edits from being received. It writes only what was announced,
    and when refusals began, so any number of tasks may watch a run.
    """

    template_fields = ("run", "look_seconds", "tolerated_seconds")
    operator_extra_links = (BoardLink(),)

    def __init__(
        self, *, run: str, look_seconds: float | str = 60, tolerated_seconds: float | str = 120, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.look_seconds = look_seconds
        self.tolerated_seconds = tolerated_seconds

    def execute(self, context: Context) -> Any:
        """Look now."""
        return self.look(context)

    def look(self, context: Context, event: Any = None, before: str = "") -> dict[str, Any]:
        """Look, and wait for the next look. Returns how the run ended. `before`: the state at the last look."""
        with final_errors(), open_ledger(create=False, actor=ACTOR) as ledger:
            run = ledger.run(self.run)
            if run.state == "running":
                before = _look_at_receivers(ledger, run, float(self.tolerated_seconds), before)
            if (run := ledger.run(self.run)).state != "running":  # a person may have ended it meanwhile
                return {"run": run.run_id, "state": run.state, "outcome": run.outcome}
        self.defer(
            trigger=NextLookTrigger(run.run_id, float(self.look_seconds), run.paused),
            method_name="look",
            kwargs={"before": before},
        )
        raise AssertionError("defer does not return")


def _look_at_receivers(ledger: Ledger, run: RunRecord, tolerated_seconds: float, before: str) -> str:
    """Look once, and send metrics and alerts. Returns the state."""
    from walferry.airflow import metrics
    from walferry.receive.watching import look

    seen = look(ledger.of(run.run_id), tolerated_seconds)
    metrics.emit_receiving(run.run_id, seen)
    alert_of_receiving(ledger, run, seen)
    if seen.state != before:  # not with each look: this log grows as long as the run goes on
        log.info("%s: %s", seen.state, seen.cause)
    return seen.state
