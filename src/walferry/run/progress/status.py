"""The status of a run, for the shell, the board and `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from walferry import clock
from walferry.ledger import RunLedger
from walferry.ledger.rows import RunKind
from walferry.run.notes.throttle import throttle_of, throttle_text
from walferry.run.notes.watched_replication import watched
from walferry.run.phases import steps
from walferry.run.progress.backlog import edits_per_second, eta_seconds, unapplied
from walferry.run.progress.batch_progress import batch_progress
from walferry.run.progress.exposure import Exposure, exposure_of, unwatched_times
from walferry.run.progress.lag import LagSplit, ahead_of, lag_by_group, lag_of, lag_split
from walferry.run.progress.missing_numbers import counted
from walferry.run.progress.moments import Moments, moments_of
from walferry.run.progress.receiving import received_per_second, receiving_shown
from walferry.run.progress.requests import requests_of
from walferry.run.progress.state import state_of
from walferry.run.progress.status_model import (
    LagParts,
    LogKept,
    MomentsKept,
    Status,
    ThrottleShown,
    UnwatchedTimeShown,
)
from walferry.run.progress.write_stop import write_stop_of
from walferry.run.recorded_spec import source_tables
from walferry.run.spec import Throttle

_WITHOUT_PHASES: Mapping[RunKind, str] = {"replication": "watch", "receive": "receive"}
"""what is shown for the phase of runs that have none"""
SLOWEST = 20
"""WAL groups whose lags are told, the longest ones"""


def status(ledger: RunLedger) -> Status:
    """The run's status now."""
    with ledger.one_moment():
        return _status(ledger)


def _status(ledger: RunLedger) -> Status:
    run = ledger.record
    state = state_of(ledger)
    lag = lag_of(ledger)
    groups = lag_by_group(ledger, lag)
    stop = write_stop_of(ledger)
    phases = ledger.phases.all()
    waiting = unapplied(ledger)
    backlog = sum(file.length for file in waiting) + (_not_shipped(ledger) if run.kind == "replication" else 0)
    total = len(list(steps(run.kind, source_tables(run))))
    done = sum(1 for phase in phases if phase.state == "done")
    window = ledger.phases.facts("replay_window") or {"cells": 0}
    batch, kept = batch_progress(ledger), exposure_of(ledger)
    eta = eta_seconds(ledger, backlog) if batch is None else batch.eta_seconds
    return Status(
        version=1,
        run=run.run_id,
        kind=run.kind,
        state=state.name,
        colour=state.colour,
        cause=state.cause,
        next_step=state.next_step,
        waits_for=state.waits_for,
        whom=state.whom,
        since_ms=state.since_ms,
        ended=run.state != "running",
        phase=state.phase or _WITHOUT_PHASES.get(run.kind, "not started"),
        error=state.error or None,
        error_class=state.error_class or None,
        percent=100.0 if run.state == "done" else round(100 * done / max(1, total), 1),
        edits_applied=_applied(ledger, window["cells"]),
        edits_per_second=_rate(ledger),
        backlog_bytes=backlog,
        open_logs=sum(1 for file in waiting if file.state == "open"),
        lag_seconds=lag.seconds,
        lag_unknown=lag.unknown,
        not_followed=_not_followed(ledger),
        longest_lag_seconds=lag.longest,
        lag_split=None if (split := lag_split(lag, groups)) is None else _lag_parts(split),
        lag_by_server=tuple(_lag_parts(one) for one in groups[:SLOWEST]),
        write_stop_seconds=stop.seconds() if stop else None,
        seconds_since_last_edit=stop.seconds_since_last_edit() if stop else None,
        write_stop_over=stop is not None and stop.until_ms is not None,
        target_open_ms=stop.until_ms if stop else None,
        elapsed_seconds=round(((run.ended_ms or clock.now_ms()) - run.created_ms) / 1000, 1),
        requests=requests_of(ledger),
        throttle=_throttle(ledger),
        late_edits=sum(not edit.decision for edit in ledger.late.all()),
        log=None if kept is None else _log_kept(kept),
        standstills=tuple(UnwatchedTimeShown(**asdict(time), text=time.describe()) for time in unwatched_times(ledger)),
        counted_numbers=tuple(counted(ledger)),
        moments=_moments(moments_of(ledger)) if run.kind == "keep" and run.state == "running" else None,
        batch=batch,
        receiving=receiving_shown(ledger),
        eta_seconds=eta if state.name in ("catching up", "draining") else None,
    )


def _applied(ledger: RunLedger, of_window: int) -> int:
    """Cells that were applied, or sent."""
    if ledger.record.kind == "receive":
        return sum(total.cells for total in ledger.received.totals())
    return ledger.rounds.totals().cells + of_window


def _rate(ledger: RunLedger) -> float:
    run = ledger.record
    if run.state != "running":
        return 0.0
    return round(received_per_second(ledger) if run.kind == "receive" else edits_per_second(ledger), 1)


def _not_shipped(ledger: RunLedger) -> int:
    """Bytes of log that HBase has not replicated, as of the newest look."""
    now = watched(ledger)
    return 0 if now is None else now.unshipped_bytes


def _lag_parts(split: LagSplit) -> LagParts:
    return LagParts(
        server=split.server,
        group=split.group,
        lag_seconds=round(split.seconds, 1),
        discovery_seconds=round(split.discovery, 3),
        read_seconds=round(split.read, 3),
        apply_seconds=round(split.apply, 3),
        shown_after_seconds=split.shown_after,
        text=f"lag: {split.describe()}; the slowest log is that of {split.server}",
    )


def _throttle(ledger: RunLedger) -> ThrottleShown:
    throttle = throttle_of(ledger)
    text = "" if throttle == Throttle() else f"writes {throttle_text(throttle)}"
    return ThrottleShown(**throttle.model_dump(), text=text)


def _log_kept(kept: Exposure) -> LogKept:
    now = clock.now_ms()
    seconds = kept.seconds_to_loss(now)
    return LogKept(
        kept_by=kept.kept_by,
        kept_files=kept.kept_files,
        kept_bytes=kept.kept_bytes,
        time_to_loss_seconds=None if seconds is None else round(seconds, 1),
        first_to_be_lost=kept.file,
        cleaner_ttl_seconds=kept.ttl_seconds,
        cleaner_ttl_assumed=kept.ttl_assumed,
        late=kept.is_late(now),
        text=kept.describe(now),
    )


def _moments(kept: Moments) -> MomentsKept:
    return MomentsKept(
        loss_seconds=kept.loss_seconds,
        too_much=kept.is_exposed,
        since_ms=kept.since_ms,
        bases=kept.bases,
        copied_bases=kept.copied_bases,
        folder_bytes=kept.folder_bytes,
        lost_ends=kept.lost_ends,
        troubles=kept.troubles,
        text=kept.text,
    )


def _not_followed(ledger: RunLedger) -> str:
    """Why open logs are not followed now; "" if they are, or nobody replays."""
    ahead = ahead_of(ledger)
    if ahead is None or not ahead.fault or ledger.record.state != "running":
        return ""
    return f"open logs are not followed until the next round: {ahead.fault}"


def status_line(now: Status) -> str:
    """One line, in gh-ost's format."""
    lag = f"N/A ({now.lag_unknown})" if now.lag_seconds is None else f"{now.lag_seconds:.1f}s"
    logs = {0: "", 1: " and 1 open log"}.get(now.open_logs, f" and {now.open_logs} open logs")
    eta = "N/A" if now.eta_seconds is None else f"{now.eta_seconds}s"
    pieces = ""
    if (batch := now.batch) is not None:
        again = f", {len(batch.repeated)} again" if batch.repeated else ""
        pieces = f"Pieces: {batch.done} of {batch.pieces}{again}; "
    if now.moments is not None:  # the last of its phases ends with the run, and it applies nothing
        loss = "N/A" if now.moments.loss_seconds is None else f"{now.moments.loss_seconds:.1f}s"
        size = "N/A" if now.moments.folder_bytes is None else f"{now.moments.folder_bytes / 1e6:.1f}MB"
        return (
            f"{now.phase}: Bases: {now.moments.bases}; Folder: {size}; Time: {now.elapsed_seconds:.0f}s; "
            f"State: {now.state}; Loss: {loss}"
        )
    if now.kind == "replication":  # which has no phases
        return (
            f"Not shipped: {now.backlog_bytes / 1e6:.1f}MB; Time: {now.elapsed_seconds:.0f}s; Lag: {lag}; "
            f"State: {now.state}"
        )
    if now.kind == "receive":
        return (
            f"Applied: {now.edits_applied}, {now.edits_per_second:.1f}/s; Time: {now.elapsed_seconds:.0f}s; "
            f"Lag: {lag}; State: {now.state}; ETA: {eta}"
        )
    if now.kind in ("restore", "setup"):  # which follow no log
        took = f"Time: {now.elapsed_seconds:.0f}s; State: {now.state}; ETA: {eta}"
        return f"{now.phase}: {now.percent:.1f}%; {pieces}{took}"
    if now.kind == "stream":  # the last of its phases ends with the run
        done = f"Sent: {now.edits_applied}, {now.edits_per_second:.1f}/s"
    else:
        done = f"{now.percent:.1f}%; {pieces}Applied: {now.edits_applied}"
    return (
        f"{now.phase}: {done}; "
        f"Backlog: {now.backlog_bytes / 1e6:.1f}MB{logs}; Time: {now.elapsed_seconds:.0f}s; "
        f"Lag: {lag}; State: {now.state}; ETA: {eta}"
    )
