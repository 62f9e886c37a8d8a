"""What happens in a run: a pure function of its seed.

Moments are those of the run, as the ledger and the command's questions show them, since no two runs are equally fast:
the same seed always gives the same faults at the same moments, with the same pauses, and the same load.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Mode = Literal["mild", "full", "again"]
"""`mild`: no timestamps of the past, so the rows that readers see never depend on flushes and compactions; `again`: as
`full`, and a table is copied again on the way"""
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
"""moment -> how often it is chosen, and the longest pause (seconds) before the fault. A moment is the beginning of the
phase; `round`: the first one is over; `asked` and `stop asked`: a question waits; `approved`: the first is answered."""

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
    """in [0, 1): which of several, such as Spark's Python workers"""

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
class Schedule:
    """All that is random in a run but the writer's edits, which follow from the seed too."""

    seed: int
    mode: Mode
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    """at the source"""
    at_target: tuple[Operation, ...]
    """none with `mild`"""
    approve_after_s: float
    stop_after_s: float
    protect: Literal["peer", "stage"]

    def describe(self) -> list[str]:
        """The schedule for people, a line each."""
        cutover = f"approval after {self.approve_after_s} s, write stop after {self.stop_after_s} s"
        sides = (("operator", self.operations), ("target's operator", self.at_target))
        told = [(who, ", ".join(one.what for one in what[:8])) for who, what in sides if what]
        return [
            f"seed {self.seed}, {self.mode}: protect by {self.protect}; {cutover}",
            *(f"  {fault.describe()}" for fault in self.faults),
            *(f"  the {who}, one after the other: {operations}, …" for who, operations in told),
        ]

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, mode: Mode, store: Store = "sqlite", victims: Collection[str] = VICTIMS) -> Schedule:
    """The schedule of a seed, on clusters that have these `victims`."""
    rng = random.Random(f"{mode} {seed}")
    others = {victim for name, victim in _OF_STORE.items() if name != store}
    acts = {key: value for key, value in _ACTS.items() if key[1] in victims and key[1] not in others}
    order = list(MOMENTS)
    moments = sorted(_some(rng, order, [often for often, _ in MOMENTS.values()], rng.randint(2, 4)), key=order.index)
    faults = []
    for place, moment in enumerate(moments):
        own = {key: value for key, value in acts.items() if place or key[1] in ("walferry", "driver", "jvm", "worker")}
        act, victim = rng.choices(list(own), [often for often, _, _ in own.values()])[0]
        _, least, most = own[act, victim]
        after = round(rng.uniform(0, MOMENTS[moment][1]), 2)
        faults.append(Fault(moment, after, act, victim, round(rng.uniform(least, most), 1), rng.random()))
    operations = _operations(rng, OPERATIONS)
    at_target = _operations(random.Random(f"{mode} {seed} target"), AT_TARGET) if mode != "mild" else ()
    return Schedule(
        seed=seed,
        mode=mode,
        faults=tuple(faults),
        operations=operations,
        at_target=at_target,
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
