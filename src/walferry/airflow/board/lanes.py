"""The log as lanes, one for each WAL group. A lane has the group's files in order, drawn as blocks of one state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from walferry.ledger import Gap, Ledger, RecordedFile
from walferry.ledger.rows import RangeState
from walferry.refusals import GapKind
from walferry.run.fences import fences_of

State = Literal["gap", "held", "seen", "sealed", "applied", "verified", "outside"]
ORDER: tuple[State, ...] = ("gap", "held", "seen", "sealed", "applied", "verified", "outside")
"""States, worst first: a block of files in several states shows the worst one."""

Part = tuple[State, int, str]
"""a file of a lane: state, bytes, name"""

PER_PAGE = 20
MOST_BLOCKS = 120


@dataclass(frozen=True)
class Hole:
    """Bytes that are not applied, and why.

    gap: the bytes are lost, or were skipped (later bytes are applied). held: they wait for an operator's decision.
    waiting: a later round will apply them.
    """

    gap: Gap
    group: str
    kind: Literal["gap", "held", "waiting"]


@dataclass(frozen=True)
class Block:
    """Neighbouring files of a lane in one state; `first` and `last` are their names."""

    state: State
    files: int
    bytes: int
    first: str
    last: str


def find_holes(ledger: Ledger, run_id: str, drained: bool) -> list[Hole]:
    """The rows of the ledger's view `gaps`, classified. `drained`: everything should be applied by now."""
    gaps = ledger.of(run_id).log.gaps()
    known = ledger.of(run_id).log.known({gap.file for gap in gaps})
    reached = ledger.of(run_id).log.reached()
    fences = fences_of(ledger.of(run_id))
    held = {(hold.file, hold.table) for hold in ledger.of(run_id).quarantine.holds()}
    holes = []
    for gap in gaps:
        file = known.get(gap.file)
        group = file.group if file else gap.file.rpartition(".")[0]
        kind: Literal["gap", "held", "waiting"] = "waiting"
        if gap.kind is GapKind.HELD or (gap.file, gap.table) in held:
            kind = "held"
        elif file is None or file.state == "missing" or drained:
            kind = "gap"
        elif file.number < reached.get((group, gap.table), 0) or gap.end < fences.bytes_before_end(file):
            kind = "gap"  # later bytes are applied
        holes.append(Hole(gap, group, kind))
    return holes


def draw_lanes(ledger: Ledger, run_id: str, holes: Sequence[Hole], page: int) -> dict[str, Any]:
    """A page of lanes as plain values: those with gaps first, then those with held bytes, then by name.

    `holes` is the result of `find_holes`. Only the files of these lanes are read.
    """
    log = ledger.of(run_id).log
    troubles: dict[str, list[Hole]] = defaultdict(list)
    for hole in holes:
        troubles[hole.group].append(hole)
    kinds = {group: {hole.kind for hole in found} for group, found in troubles.items()}

    def worst_first(group: str) -> tuple[bool, bool, str]:
        return "gap" not in kinds.get(group, ()), "held" not in kinds.get(group, ()), group

    order = sorted(log.groups() | troubles.keys(), key=worst_first)
    shown = order[page * PER_PAGE : (page + 1) * PER_PAGE]
    by_group: dict[str, list[RecordedFile]] = defaultdict(list)
    for file in log.files(shown):
        by_group[file.group].append(file)
    reached = log.least_states(shown)
    fences = fences_of(ledger.of(run_id))
    lanes = []
    for group in shown:
        by_file: dict[str, list[Hole]] = {file.name: [] for file in by_group[group]}
        for hole in troubles[group]:
            by_file.setdefault(hole.gap.file, []).append(hole)
        parts: list[Part] = []
        for file in by_group[group]:
            found = by_file.pop(file.name)
            inside = bool(found) or fences.holds(file)
            state = file_state(file, reached.get(file.name), found) if inside else "outside"
            parts.append((state, file.length, file.name))
        parts += [("gap", 0, name) for name in by_file]  # never listed
        parts.sort(key=lambda part: _number(part[2]))
        lanes.append(
            {
                "group": group,
                "server": next((file.server for file in by_group[group]), group),
                "files": len(parts),
                "bytes": sum(length for _, length, _ in parts),
                "counts": {state: sum(part[0] == state for part in parts) for state in ORDER},
                "blocks": [vars(block) for block in merge(parts)],
            }
        )
    return {"total": len(order), "page": page, "size": PER_PAGE, "rows": lanes}


def file_state(file: RecordedFile, reached: RangeState | None, holes: Iterable[Hole]) -> State:
    """The state of a file. `reached`: the least state that any of the run's tables has reached in the file; None if a
    table has none yet."""
    kinds = {hole.kind for hole in holes}
    if "gap" in kinds:
        return "gap"
    if "held" in kinds:
        return "held"
    if reached is not None:
        return reached
    return "sealed" if file.state == "sealed" else "seen"


def merge(files: Sequence[Part]) -> list[Block]:
    """Join neighbours of one state. If a lane has too many blocks, cut it into pieces that show their worst state."""
    blocks = _join(Block(state, 1, length, name, name) for state, length, name in files)
    if len(blocks) <= MOST_BLOCKS:
        return blocks
    step = -(-len(files) // MOST_BLOCKS)
    pieces = [files[i : i + step] for i in range(0, len(files), step)]
    return _join(
        Block(
            min((state for state, _, _ in piece), key=ORDER.index),
            len(piece),
            sum(length for _, length, _ in piece),
            piece[0][2],
            piece[-1][2],
        )
        for piece in pieces
    )


def _join(blocks: Iterable[Block]) -> list[Block]:
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if last and last.state == block.state:
            files, length = last.files + block.files, last.bytes + block.bytes
            joined[-1] = replace(last, files=files, bytes=length, last=block.last)
        else:
            joined.append(block)
    return joined


def _number(name: str) -> tuple[int, str]:
    number = name.rpartition(".")[2]
    return (int(number) if number.isdigit() else 0, name)
