"""While a run writes to a target table, the table keeps what was acknowledged through a crash of its servers.

A clone inherits DURABILITY from the source's table. With SKIP_WAL or ASYNC_WAL a region server acknowledges edits that
stand in its memory only, and ReplicateWALEntry names no durability of its own: the table's counts.
"""

from __future__ import annotations

import logging

from walferry.run.run import Run

log = logging.getLogger(__name__)

NOT_DURABLE = ("SKIP_WAL", "ASYNC_WAL")
"""of org.apache.hadoop.hbase.client.Durability, those that acknowledge before the log is synced"""
MEANWHILE = "USE_DEFAULT"
"""SYNC_WAL, unless the cluster says otherwise"""


def make_durable(run: Run) -> None:
    """Give target tables that acknowledge too early the cluster's default; `restore` gives back what they had."""
    # A change that was cut off shows in the schema at once, in the regions only when each of them was reopened.
    unfinished = {o.name.partition("=")[0]: o.name for o in run.ledger.objects.all("planned") if o.kind == "durability"}
    for pair in run.tables:
        descriptor = run.target.describe(pair.target)
        if descriptor.durability in NOT_DURABLE or pair.target in unfinished:
            name = unfinished.get(pair.target, f"{pair.target}={descriptor.durability}")
            run.ledger.objects.plan("target", "durability", name)
            run.target.modify_table(descriptor.with_attribute("DURABILITY", MEANWHILE))
            run.ledger.objects.made("target", "durability", name)
            log.info("%s has DURABILITY %s at the target; it is %s while edits are applied",
                     pair.target, descriptor.durability, MEANWHILE)  # fmt: skip


def restore(run: Run) -> list[str]:
    """Give target tables back the DURABILITY that they had, unless somebody changed it since; what was done, as text.

    HBase flushes the regions when it opens them anew, so that what was applied stays.
    """
    done = []
    for item in run.ledger.objects.all():
        if item.kind == "durability" and item.state != "removed":
            table, _, before = item.name.partition("=")
            if run.target.table_exists(table) and (now := run.target.describe(table)).durability == MEANWHILE:
                run.target.modify_table(now.with_attribute("DURABILITY", before))
            run.ledger.objects.removed("target", "durability", item.name)
            done.append(f"target durability {item.name}")
    return done
