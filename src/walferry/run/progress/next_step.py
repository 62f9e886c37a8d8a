"""What a person can do next about a run: the commands of the shell, or the tasks of Airflow."""

from __future__ import annotations

from collections.abc import Sequence

from walferry.clock import shown_utc
from walferry.ledger import RunLedger, RunRecord
from walferry.run.facts import opened_ms
from walferry.run.recorded_spec import setup_spec_of

DO_WHAT_IT_SAYS = "do what the cause says; `walferry ready NAME` shows every reason"
OPEN_STAYS = "the target, which is open to clients, stays as it is"


def way_on_if_rows_differ(ledger: RunLedger, explained: Sequence[str]) -> str:
    """What a person can do about rows that differ at the end. `explained`: the tables whose differing rows all have a
    known reason, so they can be accepted together."""
    run, opened = ledger.record, opened_ms(ledger)
    if run.kind == "setup":
        pair = setup_spec_of(run).pair_name
        return f"`walferry report {pair}` names the rows, and `walferry repair {pair}` makes the target's equal"
    shown = f"`walferry report {run.name}` shows the rows with the cells of both sides"
    together = " and ".join(accept_command(run, table) for table in explained)
    if run.kind != "migration":
        return f"{shown}; {together} accepts them" if together else shown
    if opened is not None:
        return (
            f"the target has been open to clients since {shown_utc(opened)}, and stays so: {shown}. `walferry repair "
            f"{run.name}` makes rows equal that no client has written to and that need no compaction; "
            f"{together or f'`walferry accept {run.name} --table TABLE --row ROW --reason …`'} leaves "
            f"{'them as they are' if together else 'a row as it is'}"
        )
    back = f"`walferry withdraw {run.name}` lets the writers go on"
    if together:
        return f"`walferry repair {run.name}` makes them equal, {together} leaves them as they are, or {back}"
    return f"do not let clients in; {shown}. `walferry repair {run.name}` makes them equal, or {back}"


def accept_command(run: RunRecord, table: str) -> str:
    """The command by which a person accepts a table's rows that differ."""
    return f"`walferry accept {run.name} --table {table} --all --reason …`"


def in_airflow(run: RunRecord) -> bool:
    """Whether Airflow works on the run."""
    return run.owner.startswith("airflow")


_TASKS = {"approve": "how_to_stop_writes", "write_stop": "stop_writes"}
"""tasks of the DAG hbase_migrate whose names differ from their phases'"""


def again_by(run: RunRecord, phase: str) -> str:
    """How a person has a phase repeated."""
    if in_airflow(run):
        return f"clear the task `{_TASKS.get(phase, phase)}` in Airflow"
    if run.kind == "pair":
        return "run `walferry verify --pair SPEC` again, or wait for the next run of `hbase_verify`"
    if run.kind == "setup":
        return "run `walferry replicate setup SPEC` again"
    if run.kind == "window":
        return "run `walferry replay SPEC --from … --to …` again"
    return f"`walferry resume {run.name}`"
