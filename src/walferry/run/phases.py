"""The phases of each kind of run, as data: their order, what each one needs, and what it does.

The shell, the DAG, the status, the board and `Run.once` read them here; `walferry.pipeline` binds each to its function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from walferry.ledger.rows import RunKind

Waits = Literal["approval", "write stop"]
"""answers that a phase may wait for"""


@dataclass(frozen=True)
class Phase:
    """One phase of a run. It starts only when the phases that it `needs` are done (`needed` says for which tables)."""

    name: str
    what: str
    """what it does, for display"""
    needs: tuple[str, ...] = ()
    by_table: bool = False
    spark: bool = False
    """its work is a Spark job"""
    waits_for: Waits | None = None
    """the answer that it waits for"""
    repeats: bool = False
    """it is never over: it is done each time somebody requests it"""


_UP_TO_SNAPSHOT = (
    Phase("plan", "examine both clusters, refuse what cannot be moved"),
    Phase("protect", "let a disabled replication peer, or copies, keep the source's WALs", ("plan",)),
    Phase("fence", "roll all WALs: replay begins here", ("protect",)),
    Phase("snapshot", "take a FLUSH snapshot", ("fence",), by_table=True),
)
_UP_TO_COPY = (
    *_UP_TO_SNAPSHOT,
    Phase("copy", "copy the snapshot's files", ("snapshot",), by_table=True, spark=True),
    Phase("clone", "create the target table from the copied files", ("copy",), by_table=True),
    Phase("check_copy", "check files, bytes, checksums, schema, and that the regions have all rows", ("clone",)),
)

_PHASES: dict[RunKind, tuple[Phase, ...]] = {
    "migration": (
        *_UP_TO_COPY,
        Phase("replay", "apply the log round after round until writes have stopped", ("check_copy",), spark=True),
        Phase("approve", "ask whether to cut over", ("check_copy",), waits_for="approval"),
        Phase("write_stop", "stop the writes, or ask whether they have stopped", ("approve",), waits_for="write stop"),
        Phase("end_fence", "roll all WALs once more: replay ends here", ("replay", "write_stop")),
        Phase("drain", "apply the rest of the log up to the end fence", ("end_fence",), spark=True),
        Phase(
            "open_target",
            "compare what was written since the last comparison; if equal, clients may use the target",
            ("drain",),
        ),
        Phase("compare", "compare both sides, region by region", ("open_target",), by_table=True, spark=True),
        Phase("check_drain", "the last gate: any gap, late edit or unexplained difference?", ("drain", "compare")),
        Phase(
            "release",
            "remove the peer or the copies, and the snapshots",
            ("end_fence", "drain", "compare", "check_drain"),
        ),
    ),
    "copy": (*_UP_TO_COPY, Phase("release", "remove the peer and the snapshots", ("check_copy",))),
    "snapshot": (*_UP_TO_SNAPSHOT, Phase("release", "remove the peer and the snapshots", ("snapshot",))),
    "standby": (
        *_UP_TO_COPY,
        Phase("replay", "apply the log round after round until a person ends it", ("check_copy",), spark=True),
        Phase("write_stop", "end the replay after its present round", ("check_copy",), waits_for="write stop"),
        Phase("release", "remove the peer and the snapshots", ("replay", "write_stop")),
    ),
    "comparison": (
        Phase("fence", "roll all WALs: the log past this fence shows what was written during the comparison"),
        Phase("compare", "compare both sides, region by region", ("fence",), by_table=True, spark=True),
        Phase("release", "remove what the run made"),
    ),
    "window": (Phase("replay_window", "apply the edits of one window", spark=True),),
    "drain": (
        Phase("protect", "let a disabled replication peer keep the source's WALs"),
        Phase("fence", "roll all WALs: the drain begins here", ("protect",)),
        Phase("drain_sealed", "apply what is sealed and not yet applied", ("fence",), spark=True, repeats=True),
    ),
    "watch": (),
    "stream": (
        Phase("plan", "examine the source and where the stream goes, refuse what cannot be streamed"),
        Phase("protect", "let a disabled replication peer keep the source's WALs", ("plan",)),
        Phase("fence", "roll all WALs: the stream begins here", ("protect",)),
        Phase("stream", "send every change until a person ends it", ("fence",)),
    ),
    "keep": (
        Phase("plan", "examine the source and the folder, refuse what cannot be kept"),
        Phase("protect", "copy the source's WALs to the folder from now on", ("plan",)),
        Phase("keep", "take bases, copy the log and the ends of open logs, until a person ends it", ("protect",)),
    ),
    "restore": (
        Phase("plan", "choose the base and the part of the log, refuse what cannot be restored"),
        Phase("end", "find where the log of each region ends at that moment", ("plan",), spark=True),
        Phase("copy", "copy the base's files, unless they are on that cluster", ("end",), by_table=True, spark=True),
        Phase("clone", "create the new table from the base", ("copy",), by_table=True),
        Phase("apply", "apply the log from the base up to that end", ("clone",), spark=True),
        Phase("verify", "compare the new table with base and log as read from their files", ("apply",), spark=True),
        Phase("release", "remove what the run made, except the new table", ("verify",)),
    ),
    "replication": (),
    "receive": (),
    "setup": (
        Phase("plan", "examine both clusters, refuse what cannot be set up"),
        Phase(
            "scope", "set REPLICATION_SCOPE of the tables' families, and wait until regions have reopened", ("plan",)
        ),
        Phase("peer", "add the peer disabled, roll all WALs: it keeps every edit from here on", ("scope",)),
        Phase("snapshot", "take a FLUSH snapshot", ("peer",), by_table=True),
        Phase("copy", "copy the snapshot's files", ("snapshot",), by_table=True, spark=True),
        Phase("clone", "create the target table from the copied files", ("copy",), by_table=True),
        Phase("back", "add the peer that leads back to the source, if both sides have one", ("clone",)),
        Phase("enable", "enable the peer, which ships what it has kept", ("back",)),
        Phase("ship", "wait until all is shipped that was written before", ("enable",)),
        Phase("verify", "compare both sides by a pass over a pair", ("ship",), spark=True),
    ),
    "pair": (
        Phase("pass", "compare whole regions, or what was written since the last pass", spark=True, repeats=True),
    ),
}
assert _PHASES.keys() == set(get_args(RunKind))


def phases_of(kind: RunKind) -> tuple[Phase, ...]:
    """The phases of a kind of run, in order."""
    return _PHASES[kind]


def phase_of(kind: RunKind, name: str) -> Phase:
    """A phase by its name. Raises KeyError when this kind of run has no such phase."""
    for phase in _PHASES[kind]:
        if phase.name == name:
            return phase
    raise KeyError(f"a run of kind {kind} has no phase {name}")


def subjects(phase: Phase, tables: Sequence[str]) -> list[str]:
    """What a phase is done for: each source table, or "" for the whole run."""
    return list(tables) if phase.by_table else [""]


def steps(kind: RunKind, tables: Sequence[str]) -> Iterator[tuple[Phase, str]]:
    """Every phase with each of its subjects, in order."""
    for phase in _PHASES[kind]:
        for subject in subjects(phase, tables):
            yield phase, subject


def needed(phase: Phase, kind: RunKind, subject: str, tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(phase, subject) of everything that must be done before a phase may start.

    If both phases are by table, only the same table counts; otherwise all tables do.
    """
    for name in phase.needs:
        before = phase_of(kind, name)
        own = [subject] if before.by_table and phase.by_table else subjects(before, tables)
        yield from ((name, one) for one in own)
