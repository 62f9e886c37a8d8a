"""`make chaos SEED=n RUNS=n`: a series of runs, each of which must end with nothing lost.

A series that was interrupted goes on where it was; one that has ended begins anew. A run that fails keeps its folder.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from chaos.run import ChaosRun, Result
from chaos.schedule import Mode, Store, schedule
from chaos.world import World, booted
from walferry.embedded import jars
from walferry.errors import WalferryError

CHECKOUT = Path(__file__).parents[2]


@dataclass
class Series:
    """The results so far, in a file of the folder, one line for each run."""

    folder: Path
    mode: Mode
    store: Store
    first: int
    runs: int

    @property
    def file(self) -> Path:
        store = "" if self.store == "sqlite" else f"-{self.store}"
        return self.folder / f"{self.mode}{store}-{self.first}-{self.runs}.jsonl"

    @property
    def repeated(self) -> str:
        """What repeats a run, besides its seed."""
        return f"MODE={self.mode}" + ("" if self.store == "sqlite" else f" LEDGER={self.store}")

    def results(self) -> dict[int, Result]:
        """The last result of each seed."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {result.seed: result for result in (Result(**json.loads(line)) for line in lines)}

    def todo(self) -> list[int]:
        """The seeds that have not passed. All of them once every one has a result."""
        seeds, known = range(self.first, self.first + self.runs), self.results()
        if known.keys() == set(seeds):
            self.file.rename(self.file.with_suffix(f".{time.strftime('%Y%m%d-%H%M%S')}.jsonl"))
            return list(seeds)
        return [seed for seed in seeds if seed not in known or not known[seed].passed]

    def add(self, result: Result) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def chaos(
    seed: Annotated[int, typer.Option(help="of the first run; the next ones have the next seeds")] = 1,
    runs: Annotated[int, typer.Option(min=1)] = 1,
    mode: Annotated[str, typer.Option(help="mild, full, again, keep or stream")] = "mild",
    ledger: Annotated[str, typer.Option(help="where it is: sqlite or postgresql")] = "sqlite",
    folder: Annotated[Path, typer.Option(help="for the clusters, the runs and their results")] = CHECKOUT
    / ".run/chaos",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the schedules only")] = False,
) -> None:
    """Move, keep or stream tables under load while processes are killed and suspended: is anything lost?"""
    modes: dict[str, Mode] = {name: name for name in get_args(Mode)}
    if (kind := modes.get(mode)) is None:
        raise typer.BadParameter(f"the mode is {mode}: say {', '.join(modes)}")
    stores: dict[str, Store] = {name: name for name in get_args(Store)}
    if (store := stores.get(ledger)) is None:
        raise typer.BadParameter(f"the ledger is {ledger}: say {', '.join(stores)}")
    if dry_run:
        for number in range(seed, seed + runs):
            print("\n".join(schedule(number, kind, store).describe()))
        return
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # What the harness's own clients meet, such as regions on the move, is of no interest on the terminal.
    logging.basicConfig(filename=folder / "harness.log", format="%(asctime)s %(name)s: %(message)s")
    series = Series(folder, kind, store, seed, runs)
    todo = series.todo()
    if len(todo) < runs:
        say(f"this series goes on: {runs - len(todo)} of {runs} seeds have passed before")
    jars.java()
    failed = _run_all(series, todo)
    say(f"{len(todo) - len(failed)} of {len(todo)} runs passed; results: {series.file}")
    for result in failed:
        print(
            f"FAILED: seed {result.seed}: {result.folder}; make chaos SEED={result.seed} {series.repeated} repeats it"
        )
    sys.exit(1 if failed else 0)


def _run_all(series: Series, todo: list[int]) -> list[Result]:
    failed: list[Result] = []
    took: list[float] = []
    with ExitStack() as at_end:
        world: World | None = None
        for place, seed in enumerate(todo):
            began = time.monotonic()
            if world is None:  # the first one, or a run has failed: the next one has sound clusters again
                servers = series.folder / f"servers-{time.strftime('%Y%m%d-%H%M%S')}"
                say("booting source and target: about half a minute")
                at_end.callback(_remove, servers, failed)
                world = at_end.enter_context(booted(servers, series.store))
            result = _run_one(series, world, seed)
            series.add(result)
            took.append(time.monotonic() - began)
            if not result.passed:
                failed.append(result)
                at_end.close()
                world = None
            left = sum(took) / len(took) * (len(todo) - place - 1)
            say(f"{place + 1} of {len(todo)} runs, {len(failed)} failed, {left / 60:.0f} minutes left")
    return failed


def _run_one(series: Series, world: World, seed: int) -> Result:
    plan = schedule(seed, series.mode, series.store)
    for line in plan.describe():
        say(line)
    folder = series.folder / f"{series.mode}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = ChaosRun(plan, world, folder, say)
    try:
        result = run.do()
    except KeyboardInterrupt:
        say("interrupted: stopping everything; the same command goes on with the seeds that have not passed")
        shutil.rmtree(folder, ignore_errors=True)
        raise
    say(result.line())
    for sentence in result.wrong:
        say(f"  WRONG: {sentence}")
    if result.passed:
        run.drop_tables()
        shutil.rmtree(folder)
    else:
        (folder / "servers").symlink_to(world.source.directory.parent)
        say(f"  everything of it is in {folder}")
        say(f"  to repeat it: make chaos SEED={seed} {series.repeated}")
    return result


def _remove(servers: Path, failed: list[Result]) -> None:
    """Remove the clusters' folder once they have stopped, unless a run on them has failed."""
    if not any(Path(result.folder, "servers").resolve() == servers.resolve() for result in failed):
        shutil.rmtree(servers, ignore_errors=True)


if __name__ == "__main__":
    try:
        typer.run(chaos)
    except WalferryError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
