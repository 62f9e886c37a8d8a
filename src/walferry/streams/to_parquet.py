"""A folder of Parquet files as the destination of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walferry.storage import FileSystem, open_file_system
from walferry.streams.history.commits import Commits, Owner
from walferry.streams.history.delivery import HistoryDelivery
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.opened import OpenedDestination
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import Parquet, ResolvedStreamSpec


def examine(spec: ResolvedStreamSpec, cluster_id: str) -> dict[str, Any]:
    """Examine the folder for a spec, and change nothing. Raises UsageError for one that is not the stream's.

    Facts: folder, and commits: the number of its last commit.
    """
    last = _commits(spec, cluster_id).last()
    return {"folder": _parquet(spec).folder, "commits": last.number if last else 0}


def plan(run: StreamRun) -> dict[str, Any]:
    """Examine the folder of a run, and make it. Raises UsageError for what stands in the way. Facts: as `examine`."""
    found = examine(run.spec, run.source.cluster_id())
    _commits(run.spec, run.source.cluster_id()).make_folders()
    return found


@contextmanager
def opened(run: StreamRun) -> Iterator[OpenedDestination]:
    """A sink for a run, and its delivery. The name of the stream is the spec's: a new run of that name goes on where
    the last one ended."""
    files, folder = _folder(run.spec)
    owner, wanted = Owner(run.source.cluster_id(), run.spec.name), _parquet(run.spec)
    limits = Limits(wanted.commit_seconds, wanted.commit_bytes)
    with HistorySink.open(files, folder, owner, run.spec.epoch, limits, expected=run.has_positions) as sink:
        yield OpenedDestination(sink, HistoryDelivery(sink), 0)


def _commits(spec: ResolvedStreamSpec, cluster_id: str) -> Commits:
    return Commits(*_folder(spec), Owner(cluster_id, spec.name), spec.epoch)


def _folder(spec: ResolvedStreamSpec) -> tuple[FileSystem, str]:
    """The folder's file system, and its path there without a trailing slash."""
    files, folder = open_file_system(_parquet(spec).folder, user=spec.log_address().user)
    return files, folder.rstrip("/")


def _parquet(spec: ResolvedStreamSpec) -> Parquet:
    assert spec.parquet is not None, "the stream goes to Kafka"
    return spec.parquet
