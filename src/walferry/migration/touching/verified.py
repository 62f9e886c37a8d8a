"""How far each table's comparison still counts, from the ledger, for `walferry ready`, the gate and the board.

The process that compares ahead records what each look finds.
"""

from __future__ import annotations

from collections import Counter

from walferry.amounts import amount, rows_differ
from walferry.clock import duration, now_ms, shown_utc
from walferry.hbase.server_pages import COUNTED_LATE_MS
from walferry.ledger import ComparedTable, RunLedger
from walferry.migration.touching.equality import Equality, why_void
from walferry.migration.touching.touched import Seen
from walferry.run.notes.last_comparison import whole_comparison
from walferry.run.notes.looks import fault_now, last_look
from walferry.run.progress.comparing_ahead import compared_so_far, why_failing
from walferry.run.recorded_spec import options_of, source_tables

SHOWN_TABLES = 5


Advised = tuple[str, str]
"""a reason against a cutover, and what to do about it"""


def verified(ledger: RunLedger) -> tuple[str, list[Advised]]:
    """What is known about each table since it was found equal as a whole, and the reasons against a cutover."""
    if not options_of(ledger.record).compare_ahead:
        return "what is touched after a comparison is not followed (`compare_ahead: false`)", []
    seen, texts = Seen.of(ledger), list[str]()
    reasons = list[Advised]()
    repaired = ledger.repairs.counts()
    for table in source_tables(ledger.record):
        whole = whole_comparison(ledger, table)
        if whole is None:
            texts.append(
                compared_so_far(ledger, table)
                or f"{table} has no whole comparison yet that names all rows which differ"
            )
            continue
        if why := why_void(ledger, whole):
            again = f"{table} is to be compared as a whole again: {why}"
            texts.append("; ".join(filter(None, (again, compared_so_far(ledger, table)))))
            if seen.void.get(table):
                seconds = (whole.ended_ms - whole.began_ms) / 1000
                reasons.append((texts[-1], f"wait for it; the last comparison took {seconds:.0f} s"))
            continue
        text, reason = _of_table(ledger, seen, whole, repaired.get(table, Counter()).total())
        texts.append(text)
        reasons += [reason] if reason else []
    shown = texts[:SHOWN_TABLES] + ([f"and {len(texts) - SHOWN_TABLES} more tables"] if texts[SHOWN_TABLES:] else [])
    if seen.skipped:
        shown.append(
            f"writes skipped the log (SKIP_WAL) at the source: the write stop takes {COUNTED_LATE_MS // 1000} s, after "
            "which all of them are counted"
        )
    if why := why_failing(ledger):
        shown.append(f"comparing fails now and is tried again automatically: {why}")
    return "; ".join([*shown, *unseen(ledger)]), reasons


def _of_table(ledger: RunLedger, seen: Seen, whole: ComparedTable, repaired: int) -> tuple[str, Advised | None]:
    """For a table whose comparison counts: a text, and a reason against the cutover if there is one."""
    table, parts = whole.table, [f"{whole.table} was compared as a whole at {shown_utc(whole.ended_ms)}"]
    reason: Advised | None = None
    if (look := last_look(ledger, table)) is not None and look.at_ms >= whole.ended_ms:
        parts.append(
            f"what was touched since was last read at {shown_utc(look.at_ms)}, "
            f"{duration(max(0, now_ms() - look.at_ms) / 1000)} ago: {amount(look.rows, 'row')}, "
            f"{look.read_bytes / 1e3:.0f} kB of both sides"
        )
        if look.under_way:
            parts.append(f"{look.under_way} of them are under way")
        if look.suspected:
            parts.append(
                f"{look.suspected} of these have no explanation so far, which the next look will confirm or refute"
            )
        if look.unexamined:
            found = rows_differ(look.unexamined)
            reason = f"{table}: {found}, and the reason has not been looked for yet", "wait for the next looks"
            parts.append(f"{found}, and the next looks will find out why")
        if fault := fault_now(ledger, table, look):
            name = ledger.record.name
            reason = (
                f"{table}: {fault}",
                f"`walferry repair {name} --dry-run` shows what can be done, `walferry accept {name} --table {table} "
                "--row ROW --reason …` leaves a row as it is",
            )
            parts.append(fault)
    if repaired:
        parts.append(f"{amount(repaired, 'row was', 'rows were')} repaired so far")
    waiting = seen.pending.get(table, ())
    if len(waiting):
        spans = sum(not span.is_row for span in waiting)
        parts.append(f"still to be read again: {amount(len(waiting) - spans, 'row')} and {amount(spans, 'range')}")
    if equal := Equality.find(ledger, whole):
        rows, ranges = len(equal.fragile.rows), len(equal.fragile.ranges)
        if rows or ranges:
            parts.append(
                f"a compaction or the end of a TTL would touch {amount(rows, 'row')} and {amount(ranges, 'range')}"
            )
    return ", ".join(parts), reason


def unseen(ledger: RunLedger) -> list[str]:
    """Changes that looks at touched rows miss, so that only whole comparisons find them, as clauses."""
    seen, found = Seen.of(ledger), []
    if seen.unread:
        found.append(f"what others write at the target cannot be seen: {seen.unread}")
    if options_of(ledger.record).unlogged_writes == "ignore":
        found.append("writes that skip the log (SKIP_WAL) are not looked for (`unlogged_writes: ignore`)")
    if text := _seen_by_time(ledger, seen):
        found.append(text)
    for side, servers in seen.uncounted.items():
        if servers:
            who = amount(len(servers), f"server of the {side} does", f"servers of the {side} do")
            found.append(
                f"{who} not report writes that skip the log (SKIP_WAL), for example {servers[0]}: let walferry's "
                "host read http://SERVER:PORT/jmx without a login or TLS, where PORT is that server's "
                "`hbase.regionserver.info.port`"
            )
    if found:
        age = options_of(ledger.record).max_comparison_age
        found.append(
            f"tables are compared as a whole again before their comparison is {age} s old"
            if age
            else "`max_comparison_age` makes walferry compare tables as a whole again"
        )
    return found


def _seen_by_time(ledger: RunLedger, seen: Seen) -> str:
    """The tables in which walferry looked only for new timestamps after servers had counted writes that skip the log,
    with the age of the tables' whole comparisons; "" if those comparisons came later."""
    whole = {table: whole_comparison(ledger, table) for table in seen.recent_ms}
    ages = {
        table: "never" if made is None else f"{duration(max(0, now_ms() - made.began_ms) / 1000)} ago"
        for table, made in whole.items()
        if made is None or made.began_ms <= seen.recent_ms[table]
    }
    if not ages:
        return ""
    shown = ", ".join(f"{table} {age}" for table, age in list(ages.items())[:SHOWN_TABLES])
    more = f" and {len(ages) - SHOWN_TABLES} more tables" if len(ages) > SHOWN_TABLES else ""
    return (
        "servers have counted writes that skip the log (SKIP_WAL); only those with a timestamp of their own moment "
        "are looked for (`unlogged_writes: recent`), and older timestamps are seen only by whole comparisons, the "
        f"last of which began: {shown}{more}"
    )
