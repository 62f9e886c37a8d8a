"""Copy, clone and check a table whose snapshot is taken: what `walferry start` does then, in a process of its own."""

from __future__ import annotations

import sys

from walferry.checks.validation import import_ahead
from walferry.pipeline import PhaseContext, do
from walferry.process import open_ledger, reports_folder
from walferry.run.run import Run
from walferry.spark.session import open_session

if __name__ == "__main__":
    run_id, table = sys.argv[1:]
    with open_ledger(create=False) as book, Run(book, run_id) as run:
        means = PhaseContext(spark=lambda: open_session(run_id), docs=reports_folder())
        do(run, "copy", table, means)
        import_ahead()  # a migration does so before its snapshots; here it would only compete with the copy
        do(run, "clone", table, means)
        do(run, "check_copy", "", means)
