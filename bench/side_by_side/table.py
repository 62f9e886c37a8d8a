"""From times to medians, ratios, a table and a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from walferry.embedded import jars

_COLUMNS = ("row", "size", "walferry", "rival", "", "ratio", "goal", "without start-up", "goal", "processors", "memory")


@dataclass(frozen=True)
class Result:
    """A row as measured: medians of all rounds in seconds, those of a one-cell input apart."""

    name: str
    what: str
    size: str
    megabytes: float
    """of the logs"""
    walferry_s: float
    rival: str
    rival_s: float
    ratio: float
    goal: float
    walferry_startup_s: float
    rival_startup_s: float
    ratio_without_startup: float | None
    """None: one of them took no longer than its start-up, by chance"""
    goal_without_startup: float | None
    walferry_cpu_s: float
    rival_cpu_s: float
    rounds: int
    walferry_all_s: list[float]
    rival_all_s: dict[str, list[float]]
    walferry_peak_mib: int
    """of the largest Python process: the command itself, or a worker of Spark"""
    load_average: float


def machine() -> dict[str, Any]:
    """What the numbers hold for."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": platform.platform(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": [round(value, 1) for value in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Of what ran."""
    told = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "walferry": version("walferry"),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "hbase": jars.NEWEST,
        "hbase-mapreduce": jars.MAPREDUCE[0].rpartition(":")[2],
        "java": told.splitlines()[0],
    }


def write(results: Sequence[Result], path: Path) -> None:
    """Write the results as JSON. Replaces the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "versions": versions(), "rows": [asdict(result) for result in results]}
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.rename(path)


def show(results: Sequence[Result]) -> None:
    """Print the results as a table."""
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("row", "rival") else "right")
    for row in results:
        table.add_row(
            row.name, row.size, f"{row.walferry_s:.1f} s", row.rival, f"{row.rival_s:.1f} s", f"{row.ratio:.2f}",
            f"{row.goal:g}", _number(row.ratio_without_startup),
            _number(row.goal_without_startup),
            f"{row.walferry_cpu_s:.0f} : {row.rival_cpu_s:.0f} s",
            f"{row.walferry_peak_mib} MiB" if row.walferry_peak_mib else "",
        )  # fmt: skip
    Console(width=180).print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
