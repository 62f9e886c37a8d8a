"""Conditions of the cutover that need the log or the clusters. Only processes of the run check them."""

from __future__ import annotations

from walferry.cutover import late_edits
from walferry.cutover.answer import Answer, Reason
from walferry.cutover.ledger_answers import repeat
from walferry.migration.schema import family_differences
from walferry.replay.log.lineage import missing_tables
from walferry.replay.rights import dirty
from walferry.run.notes.copying_again import copying
from walferry.run.notes.last_comparison import comparisons_of_phase
from walferry.run.run import Run

SHOWN_MARKS = 10


def schemas_agree(run: Run) -> Answer:
    """Whether both sides have the same families with the same attributes."""
    name = run.record.name
    if missing := missing_tables(run):
        to_do = f"`walferry abort {name} --reason …`, and start a run without it"
        reasons = [Reason(f"table {table} no longer exists at the source", to_do) for table in missing]
        return Answer("a table is gone", tuple(reasons))
    reasons = [Reason(text, "alter one side, so that they agree") for text in schema_differences(run)]
    return Answer("families differ" if reasons else "the families of both sides agree", tuple(reasons))


def schema_differences(run: Run) -> list[str]:
    """Differences between both sides' families and family attributes; [] when the schemas agree.

    A target table that is just being emptied is left out: for a moment, the master knows no table of that name.
    """
    differences: list[str] = []
    emptied = {table for table, again in copying(run.ledger).items() if not again.emptied}
    for pair in run.tables:
        if pair.source in emptied:
            continue
        differences += family_differences(run.source.describe(pair.source), run.target.describe(pair.target))
    return differences


def no_dirty_rows(run: Run) -> Answer:
    """Whether all rows are free of old edits that a suspended process may have sent."""
    if run.spec.compare_ahead:
        to_do = "wait: the whole table is compared until both sides are equal"
    else:
        to_do = f"`walferry verify {run.record.name}` opens the gate if it finds both sides equal"
    reasons = tuple(Reason(rows.describe(), to_do) for rows in dirty.marks_of(run))
    text = "rows may hold old edits" if reasons else "no row can hold old edits of a suspended process"
    return Answer(text, reasons)


def dirty_rows_compared(run: Run) -> Answer:
    """Whether, for all dirty rows, a comparison of the phase started after they were sent."""
    new = dirty.uncovered(run, dirty.marks_of(run), comparisons_of_phase(run.ledger)[0])
    to_do = f"compare them again: {repeat(run.ledger, 'compare')}"
    reasons = tuple(Reason(rows.describe(), to_do) for rows in new[:SHOWN_MARKS])
    return Answer("rows may hold old edits" if reasons else "rows that may hold old edits are compared", reasons)


def no_late_edit(run: Run) -> Answer:
    """Whether a person has decided about every edit of the tables past the end fence."""
    late = late_edits.look(run)
    if not late:
        return Answer("nothing was written past the end fence")
    text = late_edits.late_edits_text(late)
    return Answer(text, (Reason(text, f"stop the writer, then decide: {late_edits.verbs(run.record.name)}"),))
