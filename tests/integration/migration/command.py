"""The `walferry` command as a process of its own, with a ledger in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "walferry.cli")


def environment(folder: Path) -> dict[str, str]:
    # Of a Spark session that an earlier test has started in this process: a decoder in the folder would not be found.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return inherited | {"WALFERRY_LEDGER": f"sqlite:///{folder / 'ledger.db'}", "SPARK_LOCAL_IP": "127.0.0.1"}


def walferry(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=600,
        check=False,
    )
