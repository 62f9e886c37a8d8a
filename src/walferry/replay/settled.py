"""What of other runs the target tables have already: a window's edits must agree with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from walferry.apply.by_row import Span
from walferry.errors import UsageError
from walferry.ledger import RunRecord
from walferry.ledger.database import now_ms
from walferry.replay import window_log
from walferry.replay.window_log import window_of
from walferry.run.run import Run
from walferry.run.spec import Cluster, ResolvedSpec


def reads(run: RunRecord, source: Cluster) -> bool:
    """Whether a run reads the log of this cluster."""
    there = run.spec.get("source") or {}
    return (there.get("zookeeper"), there.get("znode", source.znode)) == (source.zookeeper, source.znode)


def appliers(run: Run) -> list[RunRecord]:
    """Other runs that had the lease on one of this run's target tables."""
    ledger = run.ledger.whole
    cluster = run.target.cluster_id()
    runs = {
        lease.run_id
        for pair in run.tables
        for lease in ledger.leases(f"{cluster} {pair.target}")
        if lease.run_id != run.run_id
    }
    return [ledger.run(run_id) for run_id in sorted(runs)]


def settled_spans(run: Run, others: Sequence[RunRecord]) -> list[Span]:
    """When edits were written that other runs have applied to this run's target tables, or may have.

    Raises UsageError when they came from another source: their order among this one's edits is not known.
    """
    ledger = run.ledger.whole
    window = window_of(run)
    # Clocks differ, and a row's order does not follow them: edits of the minute before may be the later ones.
    begins = window.start_ms - window_log.SKEW_MS
    spans = []
    for other in others:
        spec = ResolvedSpec.model_validate(other.spec)
        if not reads(other, run.spec.source):
            raise UsageError(
                f"run {other.run_id} applied edits of another source ({spec.source.zookeeper}) to a target table of "
                "this window; their order is not known. Replay into a table of its own",
                run=other.run_id,
            )
        if spec.window is not None:
            spans.append(Span(max(begins, spec.window.start_ms), spec.window.end_ms))
        elif (fence := ledger.of(other.run_id).phases.facts("fence")) is not None:
            # A migration: what it has not replayed came with its snapshot; what it has not come to, it applies later.
            ends = now_ms() if other.state == "running" else other.ended_ms
            if other.state in ("aborted", "failed"):
                rounds = ledger.of(other.run_id).rounds.all()
                ends = (rounds[-1].covered_ms if rounds else int(fence["at_ms"])) + window_log.SKEW_MS
            spans.append(Span(begins, ends or now_ms()))
    return [
        span
        for span in merged(span for span in spans if span.end_ms > begins)
        if span.start_ms < window.start_ms or span.end_ms > window.end_ms
    ]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that neither touch nor overlap, in order."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_ms):
        if result and span.start_ms <= result[-1].end_ms:
            result[-1] = Span(result[-1].start_ms, max(result[-1].end_ms, span.end_ms))
        else:
            result.append(span)
    return result
