"""Every state that a run can be in: its name, colour, general cause and next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from walferry.ledger import PhaseRecord, RunRecord
from walferry.ledger.rows import RunKind
from walferry.run.heartbeat import SILENT_SECONDS
from walferry.run.phases import Waits, phases_of

Colour = Literal["grey", "blue", "amber", "violet", "red", "green"]
StateName = Literal[
    "not started", "working", "between phases", "catching up", "following", "waiting for approval",
    "waiting for the write stop", "waiting for a decision", "draining", "comparing", "paused", "held", "gate shut",
    "ticket ending", "stuck", "gap", "exposed", "differing", "copying", "receiving", "idle", "refusing", "no receiver",
    "failed", "interrupted", "done", "aborted",
]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a state means in general. docs/board.md has this as tables."""

    colour: Colour
    cause: str
    next_step: str


STATES: Mapping[StateName, Kind] = {
    "not started": Kind(
        "grey",
        "no phase has begun",
        "wait; if nothing begins, check whether the DAG is paused or the shell has ended",
    ),
    "working": Kind(
        "blue",
        "a phase is running",
        "wait",
    ),
    "between phases": Kind(
        "blue",
        "a phase has ended and the next one has not begun",
        "wait a minute; then look at the DAG run, or `walferry resume NAME`",
    ),
    "catching up": Kind(
        "blue",
        "replay is running, and the lag is above `max_lag` or not measured yet",
        "wait; if the lag keeps growing, give Spark more cores",
    ),
    "following": Kind(
        "blue",
        "the target follows the log within `max_lag`",
        "none: replay goes on until a person ends it",
    ),
    "waiting for approval": Kind(
        "amber",
        "nobody has approved the cutover yet; replay goes on",
        "answer the question in the shell, or approve `approve_cutover` in Airflow",
    ),
    "waiting for the write stop": Kind(
        "amber",
        "the cutover is approved, but nobody has confirmed yet that writes have stopped; replay goes on",
        "stop the writers, then answer the question in the shell, or approve `confirm_writes_stopped` in Airflow",
    ),
    "waiting for a decision": Kind(
        "amber",
        "rows differ for a reason that is known, and nobody has decided yet whether to accept that",
        "`walferry repair NAME`, or `walferry accept NAME --table TABLE --all --reason …`; or, while the target is not "
        "open, `walferry withdraw NAME` lets the writers go on; then clear `compare`, or `walferry resume NAME`",
    ),
    "draining": Kind(
        "blue",
        "writes have stopped; the rest of the log is being applied",
        "wait: clients cannot write meanwhile",
    ),
    "comparing": Kind(
        "blue",
        "writes have stopped; both sides are being compared and checked",
        "wait: clients cannot write until the target is open",
    ),
    "paused": Kind(
        "violet",
        "an operator paused the run; no edits are sent to the target",
        "`walferry resume NAME`",
    ),
    "held": Kind(
        "violet",
        "edits in quarantine wait for a decision; others are still applied",
        "`walferry quarantine list NAME`, then release each item",
    ),
    "gate shut": Kind(
        "red",
        "a check found a reason not to go on",
        "fix what the cause names, then clear the task, or `walferry resume NAME`",
    ),
    "ticket ending": Kind(
        "amber",
        "a Kerberos ticket was not renewed in time; the run works on until the ticket ends",
        "do what the cause names; once a ticket is renewed, within a minute, this passes",
    ),
    "stuck": Kind(
        "red",
        "keeping or cutting the source's log has failed for a while; the run tries again",
        "mend what the cause names; once it succeeds again, this passes",
    ),
    "gap": Kind(
        "red",
        "a log file that was not applied is missing",
        "find out who removed the file. If you have it, put it into the source's oldWALs and clear the task, or "
        "`walferry resume NAME`; if it is lost and the target is not open, `walferry abort NAME`, drop the target "
        "tables and start over",
    ),
    "exposed": Kind(
        "red",
        "moments are kept, but a loss of the source now would cost more than a minute of changes",
        "look into the log of the run's process: the source or the folder does not answer, or copying is too slow",
    ),
    "differing": Kind(
        "red",
        "rows of a pair differed in its last pass",
        "find out who writes at one side only; mend the rows, and verify the pair again",
    ),
    "copying": Kind(
        "blue",
        "what source tables have already is being copied (`history: scan`); their edits wait in the source's log "
        "meanwhile",
        "wait; if the cause names something that is in the way, mend that",
    ),
    "receiving": Kind(
        "blue",
        "processes take what the source replicates, and apply it before they answer",
        "none: it goes on until `walferry abort NAME --reason …`",
    ),
    "idle": Kind(
        "blue",
        "processes serve, but the source has sent nothing for ten minutes",
        "if clients write to the tables at the source, see there why nothing is shipped: `walferry replicate status`, "
        "or `status 'replication'` in HBase's shell",
    ),
    "refusing": Kind(
        "red",
        "a process has refused a call of the source within the last minute; the source keeps its log and tries again",
        "do what the cause names; a minute after the last refusal, this passes",
    ),
    "no receiver": Kind(
        "red",
        "no process serves: none has sent a heartbeat for a minute. The source keeps its log meanwhile",
        "`walferry receive SPEC`, on as many machines as you like",
    ),
    "failed": Kind(
        "red",
        "a phase failed, or the run ended as failed",
        "fix what the cause names, then clear the task, or `walferry resume NAME`; start a new run if it has ended",
    ),
    "interrupted": Kind(
        "red",
        f"a phase is recorded as running, but its process has died, or sent no heartbeat for {SILENT_SECONDS:.0f} s",
        "`walferry resume NAME`; in Airflow the task is retried automatically, or clear it",
    ),
    "done": Kind(
        "green",
        "every check has passed",
        "none",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the run; target tables stay as they are",
        "start a new run",
    ),
}
"""Every state that a run can be in."""
OF_STREAMS: Mapping[StateName, Kind] = {
    "catching up": Kind(
        "blue",
        "changes are sent, and the lag is above `max_lag` or not measured yet",
        "wait; if the lag keeps growing, look whether its destination or the source is slow, or divide the tables "
        "among several streams",
    ),
    "following": Kind(
        "blue",
        "changes are sent within `max_lag`",
        "none: the stream goes on until `walferry abort NAME --reason …`",
    ),
    "paused": Kind(
        "violet",
        "an operator paused the run; nothing is sent, and the source's log is kept",
        "`walferry resume NAME`",
    ),
    "held": Kind(
        "violet",
        "changes in quarantine wait for a decision, and so do later ones of their regions; all others are sent",
        "`walferry quarantine list NAME`, then release each item",
    ),
    "gap": Kind(
        "red",
        "a log file that was not sent is missing",
        "find out who removed the file. If you have it, put it into the source's oldWALs and clear the task, or "
        "`walferry resume NAME`; if it is lost, so are its changes: `walferry abort NAME --reason …`, and start the "
        "stream again with a higher `epoch`",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the stream; its topics or files stay as they are",
        "start a stream of that name: it goes on where this one ended if the source still has that log; otherwise give "
        "a higher `epoch`",
    ),
}
"""What the states of a stream mean that differ from those of other runs."""

OF_KEEPING: Mapping[StateName, Kind] = {
    "catching up": Kind(
        "blue",
        "the log is copied, and some tables have no base yet",
        "wait; if a table's base fails, the cause says why",
    ),
    "following": Kind(
        "blue",
        "the log is copied within a minute, and each table has a base",
        "none: moments are kept until `walferry abort NAME --reason …`, which deletes what was kept",
    ),
    "paused": Kind(
        "violet",
        "an operator paused the run; the log is still copied, but no base is taken and nothing is deleted",
        "`walferry resume NAME`",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the run; what it had kept is deleted",
        "start a new run, which keeps the moments from then on",
    ),
}
"""What the states of a run of kind `keep` mean that differ from those of other runs."""

OF_REPLICATION: Mapping[StateName, Kind] = {
    "not started": Kind(
        "grey",
        "nobody has looked yet",
        "wait a minute; if nothing begins, check whether the DAG is paused",
    ),
    "catching up": Kind(
        "blue",
        "an edit waits for more than a minute, or how old the oldest one is could not be told",
        "none: an edit that waits for longer than `max_lag` is told; `walferry replicate status` shows each queue",
    ),
    "following": Kind(
        "blue",
        "every edit is shipped within a minute",
        "none: it is watched until `walferry abort NAME --reason …`, which changes no cluster",
    ),
    "paused": Kind(
        "violet",
        "an operator paused the run; nobody looks, and HBase replicates on",
        "`walferry resume NAME`",
    ),
    "stuck": Kind(
        "red",
        "edits do not arrive: a queue has not shipped one for longer than `max_lag`, a setting stops them, a canary "
        "has not arrived, or the settings cannot be looked at",
        "do what the cause names; `walferry replicate status` and `plan` show all of it. It passes once a look finds "
        "it mended, for a canary once the next one has arrived",
    ),
    "gap": Kind(
        "red",
        "a log that is not shipped is missing in HDFS: its edits are lost, or block the queue",
        "look for the file in the trash and the snapshots of HDFS; if it is gone, compare the tables, and copy what "
        "differs",
    ),
    "failed": Kind(
        "red",
        "the source cannot be looked at",
        "do what the cause names; it is tried again all the time",
    ),
    "interrupted": Kind(
        "red",
        "nobody has looked for three minutes, or three times `look_seconds`",
        "see whether the task `watch` of the DAG `hbase_replicate` waits in the triggerer; otherwise clear it",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the watch; what HBase replicates goes on",
        "start a new run",
    ),
}
"""What the states of a run that watches HBase's own replication mean."""
OF_SETUPS: Mapping[StateName, Kind] = {
    "between phases": Kind(
        "blue",
        "a phase has ended and the next one has not begun",
        "wait a minute; then `walferry replicate setup SPEC`, which goes on",
    ),
    "failed": Kind(
        "red",
        "a phase failed, or the run ended as failed",
        "fix what the cause names, then run `walferry replicate setup SPEC` again; or put back what it has set by "
        "`walferry abort NAME --reason …`",
    ),
    "interrupted": Kind(
        "red",
        f"a phase is recorded as running, but its process has died, or sent no heartbeat for {SILENT_SECONDS:.0f} s",
        "`walferry replicate setup SPEC` goes on",
    ),
    "done": Kind(
        "green",
        "HBase replicates the tables",
        "`walferry replicate setup SPEC` looks whether all is as it was set up; `walferry replicate teardown NAME` "
        "puts it back",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the setup; what it had set is put back, and target tables stay as they are",
        "set up again, once the target tables are dropped",
    ),
}
"""What the states of a run that sets up HBase's own replication mean that differ from those of other runs."""
OF_RECEIVING: Mapping[StateName, Kind] = {
    "ticket ending": Kind(
        "amber",
        "a Kerberos ticket was not renewed in time; its process serves until the ticket ends",
        "do what the cause names; once a ticket is renewed, within a minute, this passes",
    ),
    "aborted": Kind(
        "grey",
        "an operator ended the run; its peer at the source and the target tables stay as they are",
        "remove the peer at the source (remove_peer), which keeps each log since; or start a run of the same path",
    ),
}
"""What the states of a run to which a source replicates mean that differ from those of other runs."""
_OF_KIND: Mapping[RunKind, Mapping[StateName, Kind]] = {
    "stream": OF_STREAMS, "keep": OF_KEEPING, "replication": OF_REPLICATION,
    "setup": OF_SETUPS, "receive": OF_RECEIVING,
}  # fmt: skip


def meaning(name: StateName, run: RunRecord) -> Kind:
    """What a state of a run means."""
    return _OF_KIND.get(run.kind, STATES).get(name, STATES[name])


@dataclass(frozen=True)
class State:
    """The state of one run now."""

    name: StateName
    cause: str
    """the cause for this run; `STATES` has the general one"""
    next_step: str
    phase: str
    """the phase that the state is about, with its table; "" before the first phase"""
    since_ms: int
    waits_for: Waits | Literal["decision"] | None = None
    """the answer that the run waits for"""
    whom: str = ""
    """the person who must answer, and where the question is asked"""
    error: str = ""
    """message of the error with which the phase failed"""
    error_class: str = ""
    """class of that error, for programs"""

    @property
    def colour(self) -> Colour:
        """The state's colour."""
        return STATES[self.name].colour


def state_at(
    name: StateName,
    cause: str,
    phase: PhaseRecord | None,
    run: RunRecord,
    next_step: str = "",
    *,
    failed: bool = False,
) -> State:
    """A state that began when its phase ended, or started. The default next step is the state's general one."""
    since = run.created_ms if phase is None else phase.finished_ms or phase.started_ms
    step = (next_step or meaning(name, run).next_step).replace("NAME", run.name)
    error, error_class = (phase.message, phase.error_class) if failed and phase else ("", "")
    return State(name, cause, step, label(phase) if phase else "", since, error=error, error_class=error_class)


def label(phase: PhaseRecord) -> str:
    """A phase with its table."""
    return f"{phase.phase} {phase.subject}".strip()


def order_of(kind: RunKind) -> dict[str, int]:
    """Position of each phase in a kind of run."""
    return {phase.name: number for number, phase in enumerate(phases_of(kind))}


def superseded(phase: PhaseRecord) -> bool:
    """Whether a phase is to be done again because its basis has changed."""
    return phase.state == "failed" and phase.transient and not phase.error_class
