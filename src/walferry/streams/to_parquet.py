"""A folder of Parquet files as the destination of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from walferry.errors import UsageError
from walferry.storage import FileSystem, open_file_system
from walferry.streams.history.catalog import CatalogSettings
from walferry.streams.history.commits import Commits, Owner
from walferry.streams.history.delivery import HistoryDelivery
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.opened import OpenedDestination
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import Parquet, ResolvedStreamSpec, SecretConnections, catalog_settings

if TYPE_CHECKING:
    from walferry.streams.history.iceberg import HistoryTables


def examine(spec: ResolvedStreamSpec, cluster_id: str, secrets: SecretConnections) -> dict[str, Any]:
    """Examine the folder for a spec, and its Iceberg tables, and change nothing. Raises UsageError for what is not the
    stream's.

    Facts: folder, commits: the number of its last commit, and with Iceberg tables `iceberg`: that of each table, None
    for one that is not there.
    """
    files, folder = _folder(spec)
    commits = Commits(files, folder, Owner(cluster_id, spec.name), spec.epoch)
    last = commits.last()
    found: dict[str, Any] = {"folder": _parquet(spec).folder, "commits": last.number if last else 0}
    if spec.iceberg_tables is not None:
        with _tables(spec, cluster_id, files, folder, catalog_settings(spec, secrets)) as tables:
            assert tables is not None
            found["iceberg"] = tables.examine(commits)
    return found


def plan(run: StreamRun) -> dict[str, Any]:
    """Examine the folder of a run, and make it. Raises UsageError for what stands in the way. Facts: as `examine`."""
    found = examine(run.spec, run.source.cluster_id(), run.secrets)
    _commits(run.spec, run.source.cluster_id()).make_folders()
    return found


@contextmanager
def opened(run: StreamRun) -> Iterator[OpenedDestination]:
    """A sink for a run, and its delivery. The name of the stream is the spec's: a new run of that name goes on where
    the last one ended."""
    files, folder = _folder(run.spec)
    owner, wanted = Owner(run.source.cluster_id(), run.spec.name), _parquet(run.spec)
    limits = Limits(wanted.commit_seconds, wanted.commit_bytes)
    settings = None if run.spec.iceberg_tables is None else catalog_settings(run.spec, run.secrets)
    with (
        _tables(run.spec, owner.cluster_id, files, folder, settings) as tables,
        HistorySink.open(
            files, folder, owner, run.spec.epoch, limits, expected=run.has_positions, tables=tables
        ) as sink,
    ):
        yield OpenedDestination(sink, HistoryDelivery(sink), 0)


@contextmanager
def _tables(
    spec: ResolvedStreamSpec, cluster_id: str, files: FileSystem, folder: str, settings: CatalogSettings | None
) -> Iterator[HistoryTables | None]:
    """The Iceberg tables of a folder, or None without settings of a catalogue."""
    names, wanted = spec.iceberg_tables, _parquet(spec)
    if settings is None or names is None or wanted.iceberg is None:
        yield None
        return
    try:
        from walferry.streams.history.iceberg import HistoryTables
        from walferry.streams.history.iceberg_files import Folder
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed: install walferry with its extra iceberg", missing=error.name
        ) from None
    place = Folder(files, folder, wanted.location)
    tables = HistoryTables(settings, place, Owner(cluster_id, spec.name), names, wanted.iceberg.expire_days)
    with closing(tables):
        yield tables


def _commits(spec: ResolvedStreamSpec, cluster_id: str) -> Commits:
    return Commits(*_folder(spec), Owner(cluster_id, spec.name), spec.epoch)


def _folder(spec: ResolvedStreamSpec) -> tuple[FileSystem, str]:
    """The folder's file system, and its path there without a trailing slash."""
    address = spec.log_address()
    files, folder = open_file_system(_parquet(spec).folder, user=address.user, security=address.security)
    return files, folder.rstrip("/")


def _parquet(spec: ResolvedStreamSpec) -> Parquet:
    assert spec.parquet is not None, "the stream goes to Kafka"
    return spec.parquet
