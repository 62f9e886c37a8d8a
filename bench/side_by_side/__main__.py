"""walferry beside HBase's own tools, on two real clusters: `make bench`.

Both contenders work on the same data in one run, in turn, several rounds; each result is checked. Prints medians and
ratios and writes them to bench/results/latest.json.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from bench.side_by_side import data as data_sets
from bench.side_by_side import table
from bench.side_by_side.clusters import booted
from bench.side_by_side.data import Data
from bench.side_by_side.rows import ROWS, Bench, Row, Work
from bench.side_by_side.table import Result
from bench.side_by_side.timing import Timed

from walferry.errors import UsageError

RESULTS = Path(__file__).parents[1] / "results"
SWEEP_CELLS = (130_000, 1_300_000, 4_000_000, 10_000_000, 40_000_000)
STARTUP_ROUNDS = 2


def main(
    rows: Annotated[str, typer.Option(help="names of rows, separated by commas; default: all")] = "",
    rounds: Annotated[int, typer.Option(help="how often each contender runs", min=1)] = 3,
    size: Annotated[float, typer.Option(help="factor for the size of all data", min=0.0001)] = 1.0,
    sweep: Annotated[bool, typer.Option(help="replay logs of several sizes instead, into results/sweep.json")] = False,
) -> None:
    """Measure and print a table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # contenders and servers are ended then
    wanted = sizes() if sweep else chosen(rows)
    path = RESULTS / ("sweep.json" if sweep else "latest.json")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="walferry-bench-") as folder, booted(Path(folder)) as clusters:
        bench = Bench(clusters, size)
        for row in wanted:
            results.append(measure(bench, row, rounds))
            table.write(results, path)
            table.show(results)
    print(f"all numbers: {os.path.relpath(path)}")


def chosen(names: str) -> list[Row]:
    """The rows of these names. Raises UsageError for a name that is none."""
    known = {row.name: row for row in ROWS}
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(known)
    for name in wanted:
        if name not in known:
            raise UsageError(f"there is no row {name}; choose of {', '.join(known)}")
    return [known[name] for name in wanted]


def sizes() -> list[Row]:
    """The row of the replay, with logs of several sizes."""
    (replay,) = chosen("replay-1.3m")
    return [replace(replay, name=f"replay-{cells / 1e6:g}m", cells=cells) for cells in SWEEP_CELLS]


def measure(bench: Bench, row: Row, rounds: int) -> Result:
    """All rounds of a row: first with one cell, then with its data."""
    rounds = min(rounds, row.most_rounds)
    contenders: Mapping[str, Work] = {"walferry": row.ours, **row.rivals}
    small = in_turn(bench, row, bench.data(1), contenders, STARTUP_ROUNDS)
    startup = {name: min(one.seconds for one in all_) for name, all_ in small.items()}
    data = bench.data(row.cells)
    times = in_turn(bench, row, data, contenders, rounds)
    seconds = {name: [round(one.seconds, 2) for one in all_] for name, all_ in times.items()}
    medians = {name: median(all_) for name, all_ in seconds.items()}
    rival = min(row.rivals, key=lambda name: medians[name])
    ours, theirs = medians["walferry"], medians[rival]
    megabytes = data_sets.log_bytes(bench.clusters, data) / 1e6
    return Result(
        name=row.name,
        what=row.what,
        size=f"{data.cells / 1e6:.3g}M cells, {megabytes:.0f} MB",
        megabytes=round(megabytes, 1),
        walferry_s=ours,
        rival=rival,
        rival_s=theirs,
        ratio=round(theirs / ours, 2),
        goal=row.goal,
        walferry_startup_s=round(startup["walferry"], 2),
        rival_startup_s=round(startup[rival], 2),
        ratio_without_startup=ratio_beyond(theirs - startup[rival], ours - startup["walferry"]),
        goal_without_startup=row.goal_without_startup,
        walferry_cpu_s=round(median(one.cpu_seconds for one in times["walferry"]), 1),
        rival_cpu_s=round(median(one.cpu_seconds for one in times[rival]), 1),
        rounds=rounds,
        walferry_all_s=seconds["walferry"],
        rival_all_s={name: seconds[name] for name in row.rivals},
        walferry_peak_mib=max(one.python_bytes for one in times["walferry"]) >> 20,
        load_average=round(os.getloadavg()[0], 1),
    )


def ratio_beyond(theirs: float, ours: float) -> float | None:
    """The ratio of what is left without the start-up; None where nothing is."""
    return round(theirs / ours, 2) if ours > 0 and theirs > 0 else None


def in_turn(bench: Bench, row: Row, data: Data, contenders: Mapping[str, Work], rounds: int) -> dict[str, list[Timed]]:
    """What every round of each contender took; who begins changes from round to round."""
    times: dict[str, list[Timed]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in order:
            row.prepare(bench, data)
            taken = contenders[name](bench, data)
            row.check(bench, data, name, taken)
            times[name].append(taken)
            told = f"{taken.seconds:.2f} s, {taken.cpu_seconds:.2f} s of processors, load {os.getloadavg()[0]:.1f}"
            print(f"{row.name} {data.table} {name}: {told}", file=sys.stderr, flush=True)
    row.tidy(bench, data)
    return times


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
