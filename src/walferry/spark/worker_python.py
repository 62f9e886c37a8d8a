"""`walferry-worker-python`: the interpreter of Spark's Python workers, which imports the installed PySpark.

Spark puts its own pyspark.zip first on the workers' path. Python compiles modules from an archive again in each
process: half a second for the daemon of each executor and of each planning step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

COMMAND = "walferry-worker-python"


def worker_python() -> str:
    """The interpreter for a local session's workers: this command if it is installed, otherwise plain Python."""
    command = Path(sys.executable).with_name(COMMAND)
    return str(command) if command.exists() else sys.executable


def without_archive(path: str) -> str:
    """Remove PySpark's archive from a PYTHONPATH."""
    return os.pathsep.join(part for part in path.split(os.pathsep) if os.path.basename(part) != "pyspark.zip")


def main() -> None:
    """Replace this process by Python with the same arguments."""
    os.environ["PYTHONPATH"] = without_archive(os.environ.get("PYTHONPATH", ""))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
