"""How a run fares to which a source replicates: its processes, its tables, its state. It has no phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from walferry.amounts import amount, first_of
from walferry.clock import now_ms, shown_utc
from walferry.ledger import ReceivedTotal, Receiver, RunLedger, RunRecord
from walferry.run.heartbeat import ticket_faults
from walferry.run.notes.history import History, histories
from walferry.run.notes.left_out import LeftOut, left_out
from walferry.run.notes.loads import loads_under_way
from walferry.run.progress.lag import lag_of
from walferry.run.progress.states import State, StateName, meaning
from walferry.run.recorded_spec import is_into_kafka, options_of, receive_spec_of, target_tables, topics_of

IDLE_MS = 600_000
"""without a call of the source for this long, the run is idle"""
REFUSING_MS = 60_000
RATE_MS = 300_000
_DAY = "%Y-%m-%d "


class ReceiverShown(BaseModel):
    """A process that serves the run, or has served it within the last day."""

    model_config = ConfigDict(frozen=True)

    server: str = Field(description="host, port and start code")
    state: Literal["serving", "left", "gone"] = Field(
        description="`serving`, `left`, or `gone`: without a heartbeat for a minute"
    )
    since_ms: int = Field(description="when it began, in ms since 1970 (UTC)")
    at_ms: int = Field(description="its newest heartbeat, in ms since 1970 (UTC)")
    tables: tuple[str, ...] = Field(
        description="target tables that it writes; of a run into Kafka, the tables whose topics it writes"
    )
    calls: int = Field(description="calls that it has answered")
    refused: int = Field(description="calls that it has refused")
    held_bytes: int = Field(description="bytes of calls under way")
    last_refusal: str = Field(description="why it refused a call the last time; empty: it has refused none")
    last_refusal_ms: int | None = Field(description="when, in ms since 1970 (UTC); null: never")
    text: str = Field(description="the same in words")


class TableReceived(BaseModel):
    """What came of a table so far."""

    model_config = ConfigDict(frozen=True)

    table: str = Field(description="the source table")
    target: str = Field(description="its name at the target; of a run into Kafka, its topic")
    calls: int = Field(description="calls that had entries of it, beside those left out")
    entries: int = Field(description="entries that were applied")
    cells: int = Field(description="cells of these entries")
    bytes: int = Field(description="bytes of these entries")
    repeated: int = Field(description="entries that had been applied before")
    history: str = Field(
        description="how far the copy of what the table had already is, in words; empty: nothing is to be copied"
    )
    late: int = Field(description="entries that came after newer ones of their region")
    left_out: int = Field(
        description="entries that were left out, since they were written before `receive.start`, or before the copy of "
        "what the table had, which has them; those of a call that is sent again count again, and those of the last "
        "second of a killed process may not count"
    )
    newest_ms: int | None = Field(
        description="the newest write time that was applied, in ms since 1970 (UTC); null: none was"
    )
    last_call_ms: int | None = Field(
        description="the last call with entries of it, beside those left out, in ms since 1970 (UTC); null: none"
    )
    text: str = Field(description="the same in words")


class ReceivingShown(BaseModel):
    """What a run of kind `receive` was sent, and the processes that serve it."""

    model_config = ConfigDict(frozen=True)

    into_kafka: bool = Field(description="whether the run has Kafka in place of a target")
    processes: tuple[ReceiverShown, ...] = Field(description="by name of the server")
    tables: tuple[TableReceived, ...] = Field(description="every table of the run, by name")
    left: tuple[str, ...] = Field(
        description="nodes in ZooKeeper that an abort has not removed; repeat the abort to remove them"
    )

    def lines(self) -> list[str]:
        """The same in words: tables, then processes, then what is left."""
        shown = [table.text for table in self.tables] + [process.text for process in self.processes]
        return shown + [f"not removed: {node} in ZooKeeper; abort the run again to remove it" for node in self.left]


def receiving_state(ledger: RunLedger, run: RunRecord) -> State:
    """Whether processes serve, whether one refuses, and whether anything comes."""
    now, known = now_ms(), ledger.received.receivers()
    serving = [one for one in known if one.serves(now)]
    if not serving:
        return _without_processes(run, known)
    refusing = [one for one in serving if one.last_refusal_ms and now - one.last_refusal_ms < REFUSING_MS]
    if refusing:
        return _refusing(run, refusing)
    if faults := ticket_faults(ledger):
        return _state(run, "ticket ending", "; ".join(faults), min(one.since_ms for one in serving))
    if pending := pending_histories(ledger):
        return _copying(run, pending, min(one.since_ms for one in serving))
    totals, began = ledger.received.totals(), min(one.since_ms for one in serving)
    loads = loads_under_way(ledger)
    older = [one.at_ms for one in left_out(ledger).values()]
    last = max([*(total.last_call_ms for total in totals), *older], default=None)
    if now - max(last or 0, began) >= IDLE_MS and not loads:
        came = "the source has sent nothing yet"
        since = began if last is None else last
        if last is not None:
            came = f"the source has sent nothing since {shown_utc(last, _DAY)}"
        return _state(run, "idle", came, since)
    going = [_how_it_goes(ledger, run, serving, totals)] if totals or not loads else []
    return _state(run, "receiving", "; ".join([*going, *loads]), began)


def pending_histories(ledger: RunLedger) -> dict[str, History]:
    """By source table, what is still to be copied of what the tables had already, and how far that is."""
    run = ledger.record
    if is_into_kafka(run) or receive_spec_of(run).receive.history is None:
        return {}
    known = histories(ledger)
    found = {table: known.get(table, History()) for table in target_tables(run)}
    return {table: one for table, one in found.items() if not one.is_done}


def _copying(run: RunRecord, pending: Mapping[str, History], since_ms: int) -> State:
    """What is in the way comes first, then what is under way."""
    told = sorted(pending.items(), key=lambda item: (not item[1].waits, not item[1].peer, item[0]))
    table, first = told[0]
    more = f"; {amount(len(told) - 1, 'other table')} to be copied, too" if told[1:] else ""
    return _state(run, "copying", f"{table}: {first.describe()}{more}", since_ms)


def _without_processes(run: RunRecord, known: Sequence[Receiver]) -> State:
    if not known:
        return _state(run, "no receiver", "no process has served yet", run.created_ms)
    last = max(known, key=lambda one: one.at_ms)
    did = "ended" if last.state == "left" else "sent its last heartbeat"
    cause = f"no process serves: the last one, {_short(last.server)}, {did} at {shown_utc(last.at_ms, _DAY)}"
    return _state(run, "no receiver", cause, last.at_ms)


def _refusing(run: RunRecord, refusing: Sequence[Receiver]) -> State:
    refusing = sorted(refusing, key=lambda one: one.last_refusal_ms or 0, reverse=True)
    first = refusing[0]
    more = f"; so have {first_of([_short(one.server) for one in refusing[1:]])}" if refusing[1:] else ""
    at = shown_utc(first.last_refusal_ms or 0)
    cause = f"{_short(first.server)} refused a call at {at}: {first.last_refusal}{more}"
    return _state(run, "refusing", cause, first.last_refusal_ms or 0)


def _how_it_goes(
    ledger: RunLedger, run: RunRecord, serving: Sequence[Receiver], totals: Sequence[ReceivedTotal]
) -> str:
    lag, most = lag_of(ledger), options_of(run).max_lag
    by = f"{amount(len(serving), 'process serves', 'processes serve')}"
    if not totals:
        came = sum(one.calls for one in serving)
        return f"{by}; the source has sent nothing {'that was to be applied ' if came else ''}yet"
    if lag.seconds is None:
        return f"{by}; {lag.unknown}"
    above = f", above `max_lag` ({most} s): the source sends what has piled up, or edits are slow to be applied"
    return f"{by}; the newest edits were {lag.seconds:.0f} s old when applied{above if lag.seconds > most else ''}"


def _state(run: RunRecord, name: StateName, cause: str, since_ms: int) -> State:
    return State(name, cause, meaning(name, run).next_step.replace("NAME", run.name), "", since_ms)


def receiving_shown(ledger: RunLedger) -> ReceivingShown | None:
    """What the status and the report show; None for a run of another kind."""
    run, now = ledger.record, now_ms()
    if run.kind != "receive":
        return None
    totals, topics = {total.table: total for total in ledger.received.totals()}, topics_of(run)
    copies, older = histories(ledger) | pending_histories(ledger), left_out(ledger)
    return ReceivingShown(
        into_kafka=is_into_kafka(run),
        processes=tuple(_process(one, now) for one in ledger.received.receivers()),
        tables=tuple(
            _table(table, target, topics.get(table), totals.get(table), copies.get(table), older.get(table))
            for table, target in target_tables(run).items()
        ),
        left=() if run.state == "running" else tuple(item.name for item in ledger.objects.left("sink")),
    )


def received_per_second(ledger: RunLedger) -> float:
    """Cells per second over the last five minutes; calls whose rows were folded do not count."""
    return ledger.received.cells_since(now_ms() - RATE_MS) * 1000 / RATE_MS


def _process(one: Receiver, now: int) -> ReceiverShown:
    state: Literal["serving", "left", "gone"] = one.state
    if state == "serving" and not one.serves(now):
        state = "gone"
    did = {
        "serving": f"serves since {shown_utc(one.since_ms, _DAY)}",
        "left": f"ended at {shown_utc(one.at_ms, _DAY)}",
        "gone": f"gone: its last heartbeat was at {shown_utc(one.at_ms, _DAY)}",
    }[state]
    writes = f", writes {first_of(sorted(one.tables))}" if one.tables and state == "serving" else ""
    refused = f", {one.refused} refused" if one.refused else ""
    why = ""
    if one.last_refusal_ms is not None:
        why = f", the last at {shown_utc(one.last_refusal_ms, _DAY)}: {one.last_refusal}"
    return ReceiverShown(
        **{
            name: getattr(one, name)
            for name in ("server", "since_ms", "at_ms", "calls", "refused", "held_bytes", "last_refusal")
        },
        state=state,
        tables=tuple(sorted(one.tables)),
        last_refusal_ms=one.last_refusal_ms,
        text=f"{_short(one.server)}: {did}{writes}; {amount(one.calls, 'call')}{refused}{why}",
    )


def _table(
    table: str,
    target: str,
    topic: str | None,
    total: ReceivedTotal | None,
    copied: History | None,
    older: LeftOut | None,
) -> TableReceived:
    sums = total or ReceivedTotal(table, 0, 0, 0, 0, 0, 0, None, None, 0)
    newest = "nothing was applied yet"
    if sums.newest_ms is not None:
        newest = f"newest write {shown_utc(sums.newest_ms, _DAY)}"
    more = [f"{count} {what}" for count, what in ((sums.repeated, "repeated"), (sums.late, "out of order")) if count]
    before = "" if older is None else f", {older.entries} left out as older"
    place = target if topic is None else f"topic {topic}"
    counts = ", ".join([amount(sums.entries, "entry", "entries"), *more])
    return TableReceived(
        **{
            name: getattr(sums, name)
            for name in ("table", "calls", "entries", "cells", "bytes", "repeated", "late", "newest_ms")
        },
        left_out=0 if older is None else older.entries,
        target=topic or target,
        history="" if copied is None else copied.describe(),
        last_call_ms=None if total is None else total.last_call_ms,
        text=f"{table} -> {place}: {counts} in {amount(sums.calls, 'call')}{before}; {newest}"
        f"{'' if copied is None else f'; {copied.describe()}'}",
    )


def _short(server: str) -> str:
    """A server's name for people: host:port."""
    host, port, _ = (*server.split(","), "", "")[:3]
    return f"{host}:{port}" if port else host
