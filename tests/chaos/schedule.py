"""What happens in a run: a pure function of its seed.

Moments are those of the run, as the ledger and the command's questions show them, since no two runs are equally fast:
the same seed always gives the same faults at the same moments, with the same pauses, and the same load.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Mode = Literal["mild", "full", "again", "keep", "stream"]
"""`mild`: no timestamps of the past, so the rows that readers see never depend on flushes and compactions; `again`: as
`full`, and a table is copied again on the way; `keep` and `stream`: nothing is moved, the log is kept or streamed"""
Act = Literal["kill", "suspend", "lock", "lose"]
"""`lose`: a region server and the data node are killed, and the end of the server's log is gone; only by hand, and in
clusters each of whose servers has a process of its own"""
Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = get_args(Side)
Store = Literal["sqlite", "postgresql"]
"""of the ledger"""

MOMENTS: Mapping[str, tuple[int, float]] = {
    "protect": (1, 1.0),
    "fence": (1, 1.0),
    "snapshot": (1, 1.0),
    "copy": (2, 4.0),
    "clone": (1, 2.0),
    "check_copy": (1, 1.0),
    "replay": (1, 2.0),
    "round": (4, 4.0),
    "asked": (1, 2.0),
    "approved": (2, 2.0),
    "stop asked": (2, 2.0),
    "write_stop": (2, 1.0),
    "end_fence": (1, 0.5),
    "drain": (4, 1.5),
    "open_target": (2, 1.0),
    "compare": (3, 3.0),
    "check_drain": (1, 0.3),
    "release": (1, 0.5),
}
"""of a migration: moment -> how often it is chosen, and the longest pause (seconds) before the fault. A moment is the
beginning of the phase; `round`: the first one is over; `asked` and `stop asked`: a question waits; `approved`: the
first is answered."""
_OF_KEEP: Mapping[str, tuple[int, float]] = {
    "protect": (1, 1.0),
    "keep": (2, 3.0),
    "bases": (2, 4.0),
    **{f"moment {number}": (3, 6.0) for number in range(1, 4)},
    **{f"restoring {number}": (3, 10.0) for number in range(1, 4)},
}
"""of a run that keeps moments. `bases`: each table has one; `moment 1`: it was copied, and the writer goes on;
`restoring 1`: all tables are being restored to it"""
_OF_STREAM: Mapping[str, tuple[int, float]] = {
    "protect": (1, 1.0),
    "fence": (1, 1.0),
    "stream": (2, 3.0),
    **{f"moment {number}": (3, 6.0) for number in range(1, 5)},
    "stopped": (2, 2.0),
}
"""of a stream. `moment 1`: the writer has written for some seconds; `stopped`: it has ended"""

_ACTS: Mapping[tuple[Act, str], tuple[int, float, float]] = {
    # The command: `walferry` is all of its processes, `driver` the Python process alone, which writes the ledger.
    ("kill", "walferry"): (6, 0.0, 3.0),
    ("kill", "driver"): (3, 0.0, 1.0),
    ("kill", "jvm"): (3, 0.0, 1.0),
    ("kill", "worker"): (4, 0.0, 0.0),
    ("suspend", "walferry"): (3, 2.0, 20.0),
    ("suspend", "driver"): (3, 2.0, 20.0),
    ("suspend", "jvm"): (2, 2.0, 12.0),
    ("suspend", "worker"): (3, 2.0, 20.0),
    # `restore`: one of the commands that restore tables.
    ("kill", "restore"): (4, 0.0, 0.0),
    ("suspend", "restore"): (3, 2.0, 20.0),
    ("lock", "ledger"): (3, 2.0, 12.0),
    ("kill", "postgresql"): (6, 0.5, 3.0),
    ("suspend", "postgresql"): (4, 2.0, 15.0),
    # `server`: a region server of its own process; `hbase`: ZooKeeper, master and a region server; `hdfs`: name node
    # and data node; `all` is a power cut of the cluster.
    ("kill", "source server"): (3, 1.0, 6.0),
    ("suspend", "source server"): (3, 2.0, 15.0),
    ("kill", "target server"): (3, 1.0, 6.0),
    ("suspend", "target server"): (3, 2.0, 15.0),
    ("kill", "source hbase"): (1, 0.5, 2.0),
    ("suspend", "source hbase"): (2, 1.0, 6.0),
    ("kill", "target hbase"): (1, 0.5, 2.0),
    ("suspend", "target hbase"): (2, 1.0, 6.0),
    ("kill", "source hdfs"): (1, 0.5, 2.0),
    ("suspend", "source hdfs"): (1, 1.0, 6.0),
    ("kill", "target hdfs"): (1, 0.5, 2.0),
    ("suspend", "target hdfs"): (1, 1.0, 6.0),
    ("kill", "source all"): (1, 0.5, 2.0),
    ("kill", "target all"): (1, 0.5, 2.0),
}
"""what is done to whom -> how often it is chosen, and for how long (seconds) at least and at most: a suspended process
goes on after them, a killed server is started again, a killed command is resumed"""
VICTIMS = tuple(dict.fromkeys(victim for _, victim in _ACTS))
_SOURCE = tuple(victim for victim in VICTIMS if victim.startswith("source"))


@dataclass(frozen=True)
class Kind:
    """What may happen in the runs of a mode."""

    moments: Mapping[str, tuple[int, float]]
    victims: tuple[str, ...]
    first: tuple[str, ...]
    """whom the first fault hits"""
    faults: tuple[int, int]
    """at least and at most"""


_MOVING = Kind(
    MOMENTS, tuple(one for one in VICTIMS if one != "restore"), ("walferry", "driver", "jvm", "worker"), (2, 4)
)
KINDS: Mapping[Mode, Kind] = {
    "mild": _MOVING,
    "full": _MOVING,
    "again": _MOVING,
    "keep": Kind(
        _OF_KEEP, ("walferry", "restore", "ledger", "postgresql", *_SOURCE, "target hdfs"), ("walferry",), (4, 7)
    ),
    "stream": Kind(_OF_STREAM, ("walferry", "ledger", "postgresql", *_SOURCE, "target hdfs"), ("walferry",), (3, 6)),
}
_OF_STORE: Mapping[Store, str] = {"sqlite": "ledger", "postgresql": "postgresql"}
OPERATIONS = ("move", "move", "move", "split", "flush", "flush", "compact", "major compact")
AT_TARGET = ("move", "split", "flush", "flush", "compact", "major compact")


@dataclass(frozen=True)
class Fault:
    """At a moment of the run, `after_s` seconds later: one act on one victim, for `seconds`."""

    moment: str
    after_s: float
    act: Act
    victim: str
    seconds: float
    pick: float
    """in [0, 1): which of several, such as Spark's Python workers or the commands that restore tables"""

    def describe(self) -> str:
        what = {
            "kill": "kill -9",
            "suspend": f"SIGSTOP for {self.seconds} s",
            "lock": f"locked for {self.seconds} s",
            "lose": "kill -9, and the end of its log is lost",
        }
        return f"{self.moment} + {self.after_s} s: {self.victim}: {what[self.act]}"


@dataclass(frozen=True)
class Operation:
    """What an operator of a cluster does next, `pause_s` seconds after the last thing."""

    what: str
    pause_s: float
    pick: float
    """in [0, 1): which region"""
    row: int
    """where a region is split: the first byte of a row"""


@dataclass(frozen=True)
class Moving:
    """What else is random in a migration."""

    approve_after_s: float
    stop_after_s: float
    protect: Literal["peer", "stage"]

    def describe(self) -> str:
        cutover = f"approval after {self.approve_after_s} s, write stop after {self.stop_after_s} s"
        return f"protect by {self.protect}; {cutover}"


@dataclass(frozen=True)
class Keeping:
    """What else is random in a run that keeps moments."""

    writes_s: tuple[float, ...]
    """for how long is written before each moment"""
    base_seconds: float
    """between two bases"""
    tail_seconds: float
    copy_bases: bool
    end: Literal["truncate", "power cut", "none"]
    """what happens right after the last moment: a table is truncated, or the source and the command are killed"""
    elsewhere: int
    """the number of the table that is restored on the target"""

    def describe(self) -> str:
        written = ", ".join(f"{seconds}" for seconds in self.writes_s)
        bases = f"a base every {self.base_seconds} s{', copied' if self.copy_bases else ''}"
        return f"moments after {written} s; {bases}; ends every {self.tail_seconds} s; after the last: {self.end}"


@dataclass(frozen=True)
class Streaming:
    """What else is random in a stream."""

    writes_s: tuple[float, ...]
    """for how long is written before each moment"""
    snapshot: bool
    """whether it begins with the tables' rows, while they are written"""
    commit_seconds: float
    truncated: int | None
    """the number of the table that is truncated at the second moment"""

    def describe(self) -> str:
        written = ", ".join(f"{seconds}" for seconds in self.writes_s)
        rows = "rows first; " if self.snapshot else ""
        truncated = "" if self.truncated is None else "; a table is truncated"
        return f"{rows}moments after {written} s; a commit every {self.commit_seconds} s{truncated}"


@dataclass(frozen=True)
class Schedule:
    """All that is random in a run but the writer's edits, which follow from the seed too."""

    seed: int
    mode: Mode
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    """at the source"""
    at_target: tuple[Operation, ...]
    """none but with `full` and `again`"""
    own: Moving | Keeping | Streaming

    def describe(self) -> list[str]:
        """The schedule for people, a line each."""
        sides = (("operator", self.operations), ("target's operator", self.at_target))
        told = [(who, ", ".join(one.what for one in what[:8])) for who, what in sides if what]
        return [
            f"seed {self.seed}, {self.mode}: {self.own.describe()}",
            *(f"  {fault.describe()}" for fault in self.faults),
            *(f"  the {who}, one after the other: {operations}, …" for who, operations in told),
        ]

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, mode: Mode, store: Store = "sqlite", victims: Collection[str] = VICTIMS) -> Schedule:
    """The schedule of a seed, on clusters that have these `victims`."""
    rng, kind = random.Random(f"{mode} {seed}"), KINDS[mode]
    others = {victim for name, victim in _OF_STORE.items() if name != store}
    acts = {key: value for key, value in _ACTS.items() if key[1] in kind.victims and key[1] in victims}
    acts = {key: value for key, value in acts.items() if key[1] not in others}
    order, often = list(kind.moments), [often for often, _ in kind.moments.values()]
    moments = sorted(_some(rng, order, often, rng.randint(*kind.faults)), key=order.index)
    faults = []
    for place, moment in enumerate(moments):
        is_restoring = moment.startswith("restoring")
        own = {
            key: value
            for key, value in acts.items()
            if (place or key[1] in kind.first) and (is_restoring or key[1] != "restore")
        }
        act, victim = rng.choices(list(own), [often for often, _, _ in own.values()])[0]
        _, least, most = own[act, victim]
        after = round(rng.uniform(0, kind.moments[moment][1]), 2)
        faults.append(Fault(moment, after, act, victim, round(rng.uniform(least, most), 1), rng.random()))
    operations = _operations(rng, OPERATIONS)
    is_moved_there = mode in ("full", "again")
    at_target = _operations(random.Random(f"{mode} {seed} target"), AT_TARGET) if is_moved_there else ()
    return Schedule(seed, mode, tuple(faults), operations, at_target, _own(rng, mode))


def _own(rng: random.Random, mode: Mode) -> Moving | Keeping | Streaming:
    if mode == "keep":
        return Keeping(
            writes_s=tuple(round(rng.uniform(4, 14), 1) for _ in range(3)),
            base_seconds=round(rng.uniform(8, 60), 1),
            tail_seconds=round(rng.uniform(0.5, 3), 1),
            copy_bases=rng.random() < 0.5,
            end=rng.choice(["truncate", "power cut", "power cut", "none"]),
            elsewhere=rng.randrange(3),
        )
    if mode == "stream":
        return Streaming(
            writes_s=tuple(round(rng.uniform(5, 12), 1) for _ in range(4)),
            snapshot=rng.random() < 0.5,
            commit_seconds=round(rng.uniform(0.2, 6), 1),
            truncated=rng.choice([None, None, 0, 1, 2]),
        )
    return Moving(
        approve_after_s=round(rng.uniform(0, 4), 1),
        stop_after_s=round(rng.uniform(0, 4), 1),
        protect="stage" if rng.random() < 0.15 else "peer",
    )


def _operations(rng: random.Random, choice: Sequence[str]) -> tuple[Operation, ...]:
    return tuple(
        Operation(rng.choice(choice), round(rng.uniform(0.5, 4), 1), rng.random(), rng.randrange(256))
        for _ in range(200)
    )


def _some(rng: random.Random, names: Sequence[str], weights: Sequence[int], count: int) -> list[str]:
    """`count` different names."""
    found: list[str] = []
    while len(found) < count:
        (name,) = rng.choices(names, weights)
        if name not in found:
            found.append(name)
    return found
