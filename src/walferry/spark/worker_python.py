"""`walferry-worker-python`: the interpreter of Spark's Python workers, which takes PySpark as it is installed.

Spark puts the pyspark.zip of its own folder first on their path. What is imported from an archive is compiled anew in
each process: half a second for the daemon of each executor and of each planning step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

COMMAND = "walferry-worker-python"


def worker_python() -> str:
    """The interpreter for the workers of a local session: this command if it is installed, else plain Python."""
    command = Path(sys.executable).with_name(COMMAND)
    return str(command) if command.exists() else sys.executable


def without_archive(path: str) -> str:
    """A PYTHONPATH without the archive of PySpark."""
    return os.pathsep.join(part for part in path.split(os.pathsep) if os.path.basename(part) != "pyspark.zip")


def main() -> None:
    """Become Python with the same arguments."""
    os.environ["PYTHONPATH"] = without_archive(os.environ.get("PYTHONPATH", ""))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
