"""walferry's commands, as a user gives them. Each run has a ledger of its own: nothing is known from the one before."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import yaml
from bench.side_by_side.clusters import Clusters
from bench.side_by_side.data import SKEW_SECONDS, Data
from bench.side_by_side.timing import Timed, timed

from walferry.hbase.address import ClusterAddress

_PROGRAM = Path(sys.executable).parent / "walferry"


class Ours:
    """The commands, run on a pair of clusters."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._numbers = count(1)

    def replay(self, data: Data, apply: str) -> Timed:
        """`walferry replay` of the window that the data was written in."""
        folder = self._folder()
        spec = folder / "spec.yaml"
        spec.write_text(yaml.safe_dump(self._spec(data.table) | {"apply": apply}))
        arguments = ["replay", str(spec), "--from", _iso(data.start_ms), "--to", _iso(data.end_ms)]
        return self._run(folder, arguments)

    def _spec(self, table: str) -> dict[str, object]:
        return {
            "name": "bench",
            "source": _connection(self._clusters.source.address),
            "target": _connection(self._clusters.target.address),
            "tables": [table],
        }

    def _folder(self) -> Path:
        folder = self._clusters.folder / "walferry" / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder

    def _run(self, folder: Path, arguments: list[str]) -> Timed:
        environment = {
            "WALFERRY_LEDGER": f"sqlite:///{folder / 'ledger.db'}",
            "WALFERRY_REPORTS": str(folder / "reports"),
            "WALFERRY_CLOCK_SKEW_SECONDS": str(SKEW_SECONDS),
        }
        log = self._clusters.folder / "logs" / "walferry.log"
        return timed([str(_PROGRAM), *arguments], log, self._clusters.servers, environment)


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _connection(address: ClusterAddress) -> dict[str, object]:
    found = {key: getattr(address, key) for key in ("zookeeper", "znode", "webhdfs", "rootdir", "user")}
    return {key: value for key, value in found.items() if value is not None}
