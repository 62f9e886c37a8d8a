"""walferry's commands, as a user gives them. Each run has a ledger of its own: nothing is known from the one before."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import yaml
from bench.side_by_side.clusters import Clusters, in_spec
from bench.side_by_side.data import SKEW_SECONDS, Data
from bench.side_by_side.timing import Timed, timed
from pyspark.sql import SparkSession

from walferry.errors import SidesDifferError, WalferryError
from walferry.ledger import Ledger
from walferry.ledger.rows import RunKind
from walferry.moments.keeping.start import start_keep
from walferry.pipeline import PhaseContext, do
from walferry.replay.keeping import objects
from walferry.run.given_spec import resolve
from walferry.run.run import Run
from walferry.run.spec import Cluster as ClusterInSpec
from walferry.run.spec import Spec

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
        return self._run(folder, [str(_PROGRAM), *arguments])

    def print_columns(self, paths: Sequence[Path]) -> Timed:
        """`walferry wal cat` of files of this machine as Arrow, to nowhere."""
        arguments = ["wal", "cat", "--format", "arrow", *map(str, paths)]
        return self._run(self._folder(), [str(_PROGRAM), *arguments], keep_output=False)

    def copy_and_open(self, data: Data) -> Timed:
        """Copy, clone and check of a snapshot that is there: three phases of a migration, which have no command."""
        folder = self._folder()
        with Ledger.open(_ledger(folder)) as book:
            run_id = self._begin(book, data.table, "copy")
            with Run(book, run_id) as run:
                means = PhaseContext(spark=_no_spark, docs=folder / "docs")
                for phase in ("plan", "protect", "fence"):
                    do(run, phase, "", means)
                do(run, "snapshot", data.table, means)
                try:
                    command = [sys.executable, "-m", "bench.side_by_side.copying", run_id, data.table]
                    return self._run(folder, command)
                finally:
                    do(run, "release", "", means)

    def restore(self, data: Data, new: str) -> Timed:
        """`walferry restore` at the source, from the base to the moment after the last edit, with its check."""
        folder = self._folder()
        source = in_spec(self._clusters.source.address)
        with Ledger.open(_ledger(folder)) as book:
            keys = {"name": "bench", "source": source, "tables": [data.table], "folder": str(folder / "kept")}
            run_id = start_keep(book, keys, _no_connection, "bench")
            book.of(run_id).bases.record(data.base)
        return self._run(folder, [str(_PROGRAM), "restore", data.table, "--at", _iso(data.end_ms), "--as", new])

    def copy_again(self, data: Data) -> Timed:
        """`walferry copy-again` of a table whose first copy counts as done, while nothing is replayed."""
        folder = self._folder()
        with Ledger.open(_ledger(folder)) as book:
            run_id = self._begin(book, data.table, "migration")
            phases = book.of(run_id).phases
            phases.start("check_copy")
            phases.finish("check_copy", {})
            try:
                options = ["--table", data.table, "--reason", "bench"]
                return self._run(folder, [str(_PROGRAM), "copy-again", run_id, *options])
            finally:
                with Run(book, run_id) as run:
                    objects.release(run)

    def receive_history(self, data: Data) -> Timed:
        """`walferry receive` up to the moment at which the rows that the table has already are copied."""
        folder = self._folder()
        path = folder / "receive.yaml"
        path.write_text(yaml.safe_dump(self._spec(data.table) | {"receive": {"history": "scan"}}))
        return self._run(folder, [sys.executable, "-m", "bench.side_by_side.receiving", str(path)])

    def stat_snapshot(self, snapshot: str) -> Timed:
        """`walferry snapshot stat`; `output` is the number of rows."""
        root, webhdfs = self._source_root()
        command = [str(_PROGRAM), "snapshot", "stat", root, snapshot, "--webhdfs", webhdfs, "--json"]
        done = self._run(self._folder(), command)
        return replace(done, output=str(json.loads(done.output)["total"]["rows"]))

    def count_snapshot(self, snapshot: str) -> Timed:
        """A Spark job over the source `hbase_snapshot`; `output` is the number of rows."""
        command = [sys.executable, "-m", "bench.side_by_side.counting", *self._source_root(), snapshot]
        return self._run(self._folder(), command)

    def _source_root(self) -> tuple[str, str]:
        """HBase's root folder, and the name node's HTTP address."""
        source = self._clusters.source.address
        assert source.webhdfs is not None
        return f"{source.name_node}{source.root_path}", source.webhdfs

    def compare(self, data: Data) -> Timed:
        """`walferry verify`; `output` is the number of rows that differ."""
        folder = self._folder()
        with Ledger.open(_ledger(folder)) as book:
            run_id = self._begin(book, data.table, "comparison")
            with Run(book, run_id) as run:
                do(run, "fence", "", PhaseContext(spark=_no_spark, docs=folder / "docs"))
        done = self._run(folder, [str(_PROGRAM), "verify", run_id, "--json"], expected=(0, SidesDifferError.exit_code))
        (facts,) = json.loads(done.output)
        return replace(done, output=str(facts["differing_rows"]))

    def pair(self, data: Data, peer: str) -> Path:
        """A folder with the spec of a pair that a peer of the source feeds. Its ledger knows of no pass yet."""
        folder = self._folder()
        _pair_in(folder).write_text(yaml.safe_dump(self._spec(data.table) | {"peer": peer}))
        return folder

    def verify_pair(self, folder: Path, *, whole: bool) -> Timed:
        """`walferry verify --pair`: one pass; `output` is the number of rows that are not equal.

        `whole`: whether the pass must read every region whole, or none. Raises WalferryError if it does not.
        """
        command = [str(_PROGRAM), "verify", "--pair", str(_pair_in(folder)), "--json"]
        done = self._run(folder, command, expected=(0, SidesDifferError.exit_code))
        facts = json.loads(done.output)
        if facts["whole_regions"] != (facts["regions"] if whole else 0):
            raise WalferryError(f"the pass read {facts['whole_regions']} of {facts['regions']} regions whole: {facts}")
        return replace(done, output=str(facts["differing_rows"] + facts["under_way_rows"]))

    def _begin(self, book: Ledger, table: str, kind: RunKind) -> str:
        spec = resolve(Spec.model_validate(self._spec(table)), _no_connection)
        return book.open_run(spec.name, "bench", spec.as_recorded(), "bench", kind).run_id

    def _spec(self, table: str) -> dict[str, object]:
        return {
            "name": "bench",
            "source": in_spec(self._clusters.source.address),
            "target": in_spec(self._clusters.target.address),
            "tables": [table],
        }

    def _folder(self) -> Path:
        folder = self._clusters.folder / "walferry" / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder

    def _run(
        self, folder: Path, command: Sequence[str], *, keep_output: bool = True, expected: Collection[int] = (0,)
    ) -> Timed:
        environment = {
            "WALFERRY_LEDGER": _ledger(folder),
            "WALFERRY_REPORTS": str(folder / "reports"),
            "WALFERRY_CLOCK_SKEW_SECONDS": str(SKEW_SECONDS),
        }
        return timed(
            command, self._clusters.log("walferry"), self._clusters.servers, environment,
            keep_output=keep_output, expected=expected,
        )  # fmt: skip


def _ledger(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


def _pair_in(folder: Path) -> Path:
    return folder / "pair.yaml"


def _no_spark() -> SparkSession:
    raise WalferryError("this phase needs no Spark")


def _no_connection(name: str) -> ClusterInSpec:
    raise WalferryError(f"the spec has no connection {name}")


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
