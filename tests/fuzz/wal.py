"""Damages real WALs in thousands of ways and reads them: `make fuzz`, or `python -m fuzz.wal` in `tests`.

Each file must give the entries that a second, slow reader finds in its bytes (`reference`), no other and no more, and
then say truly how it ends: whole, unfinished or damaged at the end of the last one. Reading must be quick, within
bounded memory, and raise no other error than those that are promised, in batches and chunks of any size, read at once
or continued, as entries, as columns and as counts.

A case is a kind of file and a number, from which all that is random in it follows. A failure names its case:
`python -m fuzz.wal --kind dictionary --first 4711 --cases 1` repeats it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Annotated

import typer

from fuzz.mutations import Base, Mutant, beginning, mutant
from fuzz.reference import EMPTY_TRAILER, Entry, RefusedError, Taken, take_apart
from walferry.errors import (
    DamagedInputError,
    UnfinishedInputError,
    UnreadableInputError,
    WalferryError,
    WalKeyError,
)
from walferry.formats import wal_decoders
from walferry.formats.cells import decode_tags
from walferry.formats.entries import entry_cells, index_entry_cells
from walferry.formats.key_stores import secret_keys
from walferry.formats.resolve import FamilyRules, resolve
from walferry.formats.wal import Ending, EntryBatch, WalReader
from walferry.wal import stat

FIXTURES = Path(__file__).parents[1] / "fixtures" / "wal"
RECOVERED = "recovered.edits"
CASE_SECONDS = 60.0
START_SECONDS = 900.0
"""what compiling the kernels may take on a busy machine"""
PEAK_BYTES = 24 << 20
"""what reading one of these files may take"""
RSS_BYTES = 300 << 20
"""by how much a process may grow"""


class WrongError(AssertionError):
    """A damaged file was not read as it should be."""


@dataclass(frozen=True)
class Outcome:
    """What reading a file came to; `error` is None for a file without damage."""

    entries: list[tuple[int, int, bytes]]
    end: int
    ending: Ending | None
    error: WalferryError | None


def kinds() -> list[str]:
    """The kinds of file: the fixtures' names."""
    return sorted(str(path.relative_to(FIXTURES).with_suffix("")) for path in FIXTURES.rglob("*.wal"))


@cache
def key() -> bytes:
    """What wrapped the keys of encrypted files."""
    return secret_keys((FIXTURES / "keys.jceks").read_bytes(), "fixture")["hbase"]


@cache
def base_of(kind: str) -> Base:
    """A file that HBase wrote."""
    data = (FIXTURES / f"{kind}.wal").read_bytes()
    taken = take_apart(data, key(), recovered=RECOVERED in kind)
    assert taken.stop == "end", kind
    assert taken.entries, kind
    assert taken.end >= len(data) - len(EMPTY_TRAILER), kind
    return Base(kind, data, taken)


def read(data: bytes, rng: random.Random, *, recovered: bool, cuts: Sequence[int] = ()) -> Outcome:
    """Read a file in chunks and batches of any size; with `cuts`, in parts."""
    size, batch_bytes = rng.choice((100, 5000, 1 << 20)), rng.choice((64, 3000, 1 << 20))
    found: list[tuple[int, int, bytes]] = []
    end, ending = 0, None
    error: WalferryError | None = None
    try:
        reader = WalReader(
            chunks(data[: [*cuts, len(data)][0]], size),
            "file",
            batch_bytes=batch_bytes,
            recovered=recovered,
            keys=lambda: {"hbase": key()},
        )
        end = reader.end
        for part, until in enumerate([*cuts, len(data)]):
            if part:
                reader.resume(chunks(data[reader.needs : until], size))
            for batch in reader:
                found += entries_of(batch)
                end = reader.end
        ending = reader.ending
        if reader.length != len(data):
            raise WrongError(f"it has {len(data)} bytes, {reader.length} were seen")
    except (DamagedInputError, UnfinishedInputError, WalKeyError) as raised:
        error = raised
    return Outcome(found, end, ending, error)


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def entries_of(batch: EntryBatch) -> list[tuple[int, int, bytes]]:
    plain = batch.buffer.tobytes()
    return [
        (offset, offset_end, plain[start:end])
        for offset, offset_end, start, end in zip(
            batch.offset.tolist(), batch.offset_end.tolist(), batch.start.tolist(), batch.end.tolist(), strict=True
        )
    ]


def check(kind: str, number: int) -> None:
    """Run one case. Raises WrongError."""
    rng = random.Random(f"{kind} {number}")
    base = beginning(base_of(kind), rng)
    others = [base, base_of(kind), base_of(rng.choice(kinds()))]
    damaged = mutant(base, others, rng)
    recovered = RECOVERED in kind
    try:
        check_mutant(base, damaged, rng, recovered)
    except WrongError as error:
        raise WrongError(f"{kind} {number} ({damaged.what}; {len(damaged.data)} bytes): {error}") from None


def check_mutant(base: Base, damaged: Mutant, rng: random.Random, recovered: bool) -> None:
    data = damaged.data
    watched = rng.random() < 0.1
    if watched:
        tracemalloc.start()
    outcome = read(data, rng, recovered=recovered)
    if watched:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > PEAK_BYTES:
            raise WrongError(f"reading it took {peak} bytes")
    try:
        said = take_apart(data, key(), recovered=recovered)
    except RefusedError:
        if outcome.entries or outcome.error is None:
            raise WrongError(f"its header is refused, yet {outcome} came of it") from None
        return
    if damaged.same >= base.taken.first:
        # What ends like a trailer is taken for one, even if its first bytes are an entry's.
        intact = min(damaged.same, len(data) - 8) if said.trailer else damaged.same
        kept = [(one.start, one.end, one.plain) for one in base.taken.entries if one.end <= intact]
        if outcome.entries[: len(kept)] != kept:
            raise WrongError(f"of {len(kept)} entries before the damage {same(kept, outcome.entries)} were read")
    check_outcome(base, data, damaged, said, outcome)
    if rng.random() < 0.2:
        check_continued(data, said, outcome, rng, recovered)
    if rng.random() < 0.2:
        check_views(data, said, outcome, recovered)


def check_continued(data: bytes, said: Taken, outcome: Outcome, rng: random.Random, recovered: bool) -> None:
    """Read in up to five parts, some without new bytes, it gives what it gives at once."""
    cuts = sorted(rng.randrange(said.first, max(len(data), said.first) + 1) for _ in range(rng.randrange(1, 4)))
    cuts = sorted([*cuts, rng.choice(cuts)]) if rng.random() < 0.5 else cuts
    continued = read(data, rng, recovered=recovered, cuts=cuts)
    parts = [read(data[:cut], rng, recovered=recovered) for cut in cuts]
    known = max([outcome.entries, *(part.entries for part in parts)], key=len)
    if continued.entries != known[: len(continued.entries)]:
        raise WrongError(f"continued at {cuts}, it gives other entries")
    # An entry that was whole before what looks like a trailer came, and took its last bytes, was given out.
    if any(part.error is not None for part in parts) or (said.trailer and len(known) > len(outcome.entries)):
        return
    if continued.entries != outcome.entries:
        raise WrongError(f"continued at {cuts}, it gives {len(continued.entries)} entries, not {len(outcome.entries)}")
    then = [(one.end, one.ending, type(one.error)) for one in (outcome, continued)]
    if then[0] != then[1]:
        raise WrongError(f"continued at {cuts}, it ends with {then[1]}, not {then[0]}: {continued.error}")


def same(expected: Sequence[object], found: Sequence[object]) -> int:
    """How many are equal from the first on."""
    pairs = enumerate(zip(expected, found, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(expected), len(found)))


def check_outcome(base: Base, data: bytes, damaged: Mutant, said: Taken, outcome: Outcome) -> None:
    expected = [(one.start, one.end, one.plain) for one in said.entries]
    found = outcome.entries
    if same(expected, found) < len(found):
        raise WrongError(f"entry {same(expected, found)} of {len(found)} is not what the bytes say")
    damage = outcome.error if isinstance(outcome.error, DamagedInputError) else None
    if outcome.error is not None and (damage is None or isinstance(damage, UnreadableInputError)):
        raise WrongError(f"it raises {outcome.error!r}, though its header is whole")
    if damage is not None and damage.offset != outcome.end:
        raise WrongError(f"{damage}, but entries end at {outcome.end}")
    if len(found) < len(expected):
        # Decompressors differ in what they still take for whole, but not in what no damage touched.
        touched = said.entries[len(found)].end > damaged.same and said.entries[len(found)].start <= damaged.until
        if not (said.uses_codec and touched and damage is not None and "decompressed" in damage.reason):
            then = outcome.error or outcome.ending
            raise WrongError(f"{len(found)} of {len(expected)} entries were read, then {then}")
        return
    if found and found[-1][1] != outcome.end:
        raise WrongError(f"it says that entries end at {outcome.end}")
    verdicts = allowed(base, data, damaged, said)
    verdict = "damaged" if damage is not None else str(outcome.ending and outcome.ending.value)
    if verdict not in verdicts:
        raise WrongError(f"it is {verdict} ({outcome.error}), not {' or '.join(sorted(verdicts))}; {said.stop}")


def allowed(base: Base, data: bytes, damaged: Mutant, said: Taken) -> set[str]:
    """What a reader may say of how the file ends."""
    if said.trailer:
        size = int.from_bytes(data[-8:-4], "big", signed=True)
        return {"whole"} if said.end == len(data) - 8 - size else {"damaged"}
    if EMPTY_TRAILER.startswith(data[said.end :]) or damaged.what == f"cut at {len(data)}":
        return {"unfinished"}
    if said.stop == "short" and damaged.shift is not None:
        places = [one.start + damaged.shift for one in base.taken.entries if one.cells]
        if any(start >= max(damaged.until, said.stopped) for start in places):
            return {"damaged"}
    # Something that runs past the end may be told from a file that was cut off, or not.
    return {"damaged"} if said.stop == "bad" else {"unfinished", "damaged"}


# ------------------------------------------------------------------ columns and counts


def fields_of(cell: bytes) -> tuple[bytes, bytes, bytes, int, int, bytes, bytes]:
    key_length, value_length = int.from_bytes(cell[4:8], "big"), int.from_bytes(cell[8:12], "big")
    row_end = 14 + int.from_bytes(cell[12:14], "big")
    family_end = row_end + 1 + cell[row_end]
    fixed = 12 + key_length - 9
    value_end = 12 + key_length + value_length
    timestamp, kind = int.from_bytes(cell[fixed : fixed + 8], "big"), cell[fixed + 8]
    names = cell[14:row_end], cell[row_end + 1 : family_end], cell[family_end:fixed]
    return (*names, timestamp, kind, cell[fixed + 9 : value_end], cell[value_end + 2 :])


def check_views(data: bytes, said: Taken, outcome: Outcome, recovered: bool) -> None:
    """Columns, fates and counts are those of the entries that were read."""
    entries = said.entries[: len(outcome.entries)]
    expected = [fields_of(cell) for entry in entries for cell in entry.cells]
    columns: list[tuple[object, ...]] = []
    try:
        for batch in WalReader([data], "file", recovered=recovered, keys=lambda: {"hbase": key()}):
            cells = entry_cells(batch, "file")
            names = ("row", "family", "qualifier", "timestamp", "type", "value", "tags")
            columns += zip(*(cells[name].to_pylist() for name in names), strict=True)
            index, _, _ = index_entry_cells(batch)
            rules = {family: FamilyRules(1, 0, None) for family in cells["family"].to_pylist()}
            if len(index) and len(resolve(index, rules, 1 << 50)) != len(index):
                raise WrongError("cells without a fate")
            for tags in cells["tags"].to_pylist():
                decode_tags(tags)
    except DamagedInputError:
        pass
    if columns != expected:
        raise WrongError("the columns are not those of the cells")
    check_counts(data, entries, outcome, recovered)


def check_counts(data: bytes, entries: Sequence[Entry], outcome: Outcome, recovered: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / (RECOVERED if recovered else "WALs") / "1"
        file.parent.mkdir()
        file.write_bytes(data)
        counted = stat.stat([str(file)])
    code = 0 if outcome.ending is Ending.WHOLE else 3
    if outcome.error is not None:
        code = outcome.error.exit_code
    if counted.exit_code != code:
        raise WrongError(f"its counts end with {counted.exit_code}, {counted.files[0].problem!r}; expected {code}")
    if sum(table.entries for table in counted.tables) != len(entries):
        raise WrongError(f"{sum(table.entries for table in counted.tables)} entries counted of {len(entries)}")
    held = [[fields_of(cell) for cell in entry.cells] for entry in entries]
    edits = [cell for cells in held if all(one[1] != b"METAFAMILY" for one in cells) for cell in cells]
    puts = sum(cell[4] == 4 for cell in edits)
    if (sum(table.cells for table in counted.tables), sum(t.puts for t in counted.tables)) != (len(edits), puts):
        raise WrongError("other cells counted than there are")


# ------------------------------------------------------------------ many cases


def set_up() -> None:
    """Thousands of readers of a few entries: large arrays would be made for each."""
    wal_decoders.ENTRIES_PER_BATCH = 1000
    wal_decoders.VALUES_AT_ONCE = 5
    stat._REMEMBERED = 1 << 10
    os.environ["WALFERRY_WAL_KEY_HEX"] = key().hex()


def run(kind: str, first: int, cases: int, current: Synchronized[int]) -> None:
    """Run cases in a process of its own; ends it with 1 when some are wrong, after saying which."""
    set_up()
    wrong = 0
    base, recovered = base_of(kind), RECOVERED in kind
    whole = read(base.data, random.Random(0), recovered=recovered)
    check_views(base.data, base.taken, whole, recovered)  # compiles the kernels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, first + cases):
        current.value = number
        try:
            check(kind, number)
        except WrongError as error:
            wrong += 1
            print(f"WRONG {error}", flush=True)
        except Exception as error:  # another error than those that are promised
            wrong += 1
            print(f"WRONG {kind} {number}: {error!r}", flush=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grown > RSS_BYTES:
        wrong += 1
        print(f"WRONG {kind}: the process grew by {grown} bytes", flush=True)
    sys.exit(1 if wrong else 0)


def main(
    kind: Annotated[list[str] | None, typer.Option(help="kinds of file; default: all")] = None,
    cases: Annotated[int, typer.Option(help="of each kind", min=1)] = 10_000,
    first: Annotated[int, typer.Option(help="number of the first case")] = 0,
    processes: Annotated[int, typer.Option(help="at the same time", min=1)] = os.cpu_count() or 1,
) -> None:
    """Exit code 1 when a case is wrong, hangs or crashes."""
    context = multiprocessing.get_context("spawn")
    waiting = list(kind or kinds())
    running: dict[str, tuple[SpawnProcess, Synchronized[int], list[float]]] = {}
    failed = []
    while waiting or running:
        while waiting and len(running) < processes:
            name = waiting.pop(0)
            current = context.Value("q", -1)
            process = context.Process(target=run, args=(name, first, cases, current))
            process.start()
            running[name] = (process, current, [-2, time.monotonic()])
        time.sleep(0.2)
        for name, (process, current, seen) in list(running.items()):
            if current.value != seen[0]:
                seen[:] = [current.value, time.monotonic()]
            patience = START_SECONDS if current.value < 0 else CASE_SECONDS
            if process.exitcode is None and time.monotonic() - seen[1] > patience:
                print(f"WRONG {name} {current.value}: no end after {patience:.0f} s", flush=True)
                process.kill()
                process.join()
            if process.exitcode is not None:
                del running[name]
                print(f"{name}: {cases} cases from {first} on, exit code {process.exitcode}", flush=True)
                if process.exitcode:
                    failed.append(name)
                if process.exitcode not in (0, 1):
                    print(f"WRONG {name} {current.value}: the process ended with {process.exitcode}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
