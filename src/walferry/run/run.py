"""One run of a migration: its spec, its ledger, and both clusters as this process sees them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from walferry.errors import UsageError, WalferryError, as_recorded, is_transient
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.retry import FAILOVER_ATTEMPTS
from walferry.ledger import Ledger, RunRecord, user_name
from walferry.ledger.batches import Change
from walferry.run.fences import fences_of
from walferry.run.heartbeat import beating
from walferry.run.known_rows import KnownRows
from walferry.run.phases import needed, phase_of
from walferry.run.recorded_spec import log_spec_of, source_of, source_tables, spec_of
from walferry.run.spec import Cluster, TablePair
from walferry.storage import FileSystem
from walferry.wal.cached_listing import CachedListing
from walferry.wal.copies import as_url, files_of, log_files_of, open_folder
from walferry.wal.fences import Fences

if TYPE_CHECKING:
    from walferry.settings import LogTimes, Writing

log = logging.getLogger(__name__)


class LogRun:
    """A run of the ledger that follows a source's log. Clients are opened at first use; `close` (or `with`) closes
    them."""

    _CLIENTS: tuple[str, ...] = ("source", "source_files", "wal_files")

    def __init__(self, ledger: Ledger, record: RunRecord | str, actor: str | None = None) -> None:
        """`record`: the id of a run in the ledger, or a record that is not in it, for a dry run.

        Raises UsageError for the record of a watch, which has no tables.
        """
        self.record: RunRecord = ledger.run(record) if isinstance(record, str) else record
        self.ledger = ledger.of(self.record.run_id)
        """this run's part of the ledger; `ledger.whole` is all of it"""
        if not source_tables(self.record):
            raise UsageError(
                f"run {self.record.run_id} is only the record of {self.record.owner}: it has no tables to work on",
                run=self.record.run_id,
            )
        self.log_spec = log_spec_of(self.record)
        self.actor = actor or f"{user_name()}@{socket.gethostname()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients and the connections to file systems that were opened."""
        self.__dict__.pop("wal_listing", None)
        for opened in self._CLIENTS:
            client = self.__dict__.pop(opened, None)
            if client is not None:
                client.close()

    @property
    def run_id(self) -> str:
        """The run's id: the spec's name and a number."""
        return self.record.run_id

    @property
    def source_tables(self) -> list[str]:
        """The names of the source tables."""
        return [pair.source for pair in self.log_spec.tables]

    @cached_property
    def source(self) -> HBaseClient:
        """The source cluster."""
        return HBaseClient(self.source_address(), master_attempts=FAILOVER_ATTEMPTS)

    @property
    def source_uuid(self) -> UUID:
        """The source's id as it appears in WAL keys."""
        return self.source.cluster_uuid()

    @cached_property
    def source_files(self) -> FileSystem:
        """The source's file system, with the copies of its WALs."""
        return file_system(self.log_spec.source, self.source_address())

    @cached_property
    def wal_files(self) -> FileSystem:
        """The file system of the source's log, with the copies of its WALs; that of its root, unless they are apart."""
        address = self.source_address()
        return self.source_files if address.of_log is address else log_files_of(address)

    @cached_property
    def wal_listing(self) -> CachedListing:
        """The source's WAL files, for listing them in every round."""
        return CachedListing(self.wal_files, self.wal_root)

    def source_address(self, workers: int = 0) -> ClusterAddress:
        """The source, with copies of its WALs, for the driver or, with `workers`, for each of so many Spark workers."""
        address = self.log_spec.source_address(workers)
        return replace(address, copies=self.staged_folders, session_seconds=self._session_seconds)

    @property
    def log_times(self) -> LogTimes:
        """Times of the source's log, from this process's environment."""
        from walferry.settings import LogTimes  # here: Spark's workers import this module and need no settings

        return LogTimes.read()

    @cached_property
    def _session_seconds(self) -> float:
        from walferry.settings import ZooKeeperSession

        return ZooKeeperSession.read().zookeeper_session_seconds

    @property
    def staged_folder(self) -> str | None:
        """The URL of the run's folder for copies of the source's WALs; None unless it has `protect: stage`."""
        return None if self.log_spec.stage is None else f"{as_url(self.log_spec.stage)}/{self.run_id}"

    @cached_property
    def staged_folders(self) -> tuple[str, ...]:
        """Where copies of the source's WALs are: this run's folder or, for a window or a restore, those of other runs.

        Another run's folder that cannot be reached is left out; a run that needs its copies names the missing files.
        """
        own = self.staged_folder
        if self.record.kind not in ("window", "restore"):
            return (own,) if own else ()
        source = self.log_spec.source.address()
        found = [
            item.name
            for run_id, item in self.ledger.objects.of_all_runs("folder")
            if (there := source_of(self.ledger.whole.run(run_id))) and there.address().cluster == source.cluster
        ]
        return tuple(url for url in dict.fromkeys(found) if _answers(url, source))

    @property
    def source_root(self) -> str:
        """HBase's root folder on the source's file system, without a trailing slash."""
        return self.log_spec.source.address().root_path

    @property
    def wal_root(self) -> str:
        """The folder with WALs/ and oldWALs/ on the file system of the source's log, without a trailing slash."""
        return self.log_spec.source.address().wal_path

    def is_due(self, phase: str, subject: str = "") -> bool:
        """Whether a phase is still to be done. A phase that repeats always is.

        Raises PhaseNotReadyError when it may not start yet, and UsageError when the run has ended without it.
        """
        if not phase_of(self.record.kind, phase).repeats and self.ledger.phases.facts(phase, subject) is not None:
            return False
        self.ledger.require_running()
        self.require_needs(phase, subject)
        return True

    def once(
        self,
        phase: str,
        work: Callable[[], dict[str, Any]],
        subject: str = "",
        lease_check: Change = lambda connection: None,
    ) -> dict[str, Any]:
        """Do a phase if it is due (`is_due`). Returns its facts either way; a failure is recorded and raised.

        `work` must be idempotent: a killed task leaves the phase started, and the next task repeats it from the
        beginning. `lease_check` is called in the transaction that records the phase as done, and raises if that must
        not be recorded. Raises the errors of `is_due`, `work` and `lease_check`.
        """
        label = f"{phase} {subject}".strip()
        if not self.is_due(phase, subject):
            log.info("%s: already done", label)
            return self.done(phase, subject)
        with beating(self.ledger, label, self.actor):  # around the record: no running phase lacks a heartbeat
            attempt = self.ledger.phases.start(phase, subject)
            log.info("%s: started", label)
            try:
                facts = work()
                self.ledger.phases.finish(phase, facts, subject, attempt, lease_check)
            except BaseException as error:
                self.ledger.phases.fail(phase, as_recorded(error), subject, attempt, transient=is_transient(error))
                raise
        log.info("%s: done", label)
        return facts

    def require_needs(self, phase: str, subject: str = "") -> None:
        """Raise PhaseNotReadyError unless the ledger records every phase as done that this one needs. Airflow's task
        states do not count."""
        kind, tables = self.record.kind, self.source_tables
        done = {(known.phase, known.subject) for known in self.ledger.phases.all() if known.state == "done"}
        missing = [step for step in needed(phase_of(kind, phase), kind, subject, tables) if step not in done]
        if missing:
            names = ", ".join(f"{name} {table}".strip() for name, table in missing)
            raise PhaseNotReadyError(
                f"{f'{phase} {subject}'.strip()} of run {self.run_id} cannot start: {names} is not done in the ledger. "
                f"Do that first: clear its task in Airflow, or `walferry resume {self.record.name}`",
                run=self.run_id, phase=phase, missing=missing,
            )  # fmt: skip

    def done(self, phase: str, subject: str = "") -> dict[str, Any]:
        """The facts of a phase that is done. Raises UsageError if it is not."""
        facts = self.ledger.phases.facts(phase, subject)
        if facts is None:
            raise UsageError(
                f"this needs {f'{phase} {subject}'.strip()} of run {self.run_id}, which is not done, or no longer. "
                f"Do that first: clear its task in Airflow, or `walferry resume {self.record.name}`",
                run=self.run_id, phase=phase, subject=subject,
            )  # fmt: skip
        return facts

    def fences(self) -> Fences:
        """Where the run's part of the log begins and ends, as recorded so far."""
        return fences_of(self.ledger)

    @property
    def peer(self) -> str:
        """Id of the replication peer that keeps the source's WALs (HBase forbids '-' in peer ids)."""
        return f"walferry_{self.run_id.replace('-', '_')}"


class Run(LogRun):
    """A run that also has a target."""

    _CLIENTS = ("source", "target", "source_files", "wal_files", "target_files", "target_wal_files")

    def __init__(self, ledger: Ledger, record: RunRecord | str, actor: str | None = None) -> None:
        """As `LogRun`."""
        super().__init__(ledger, record, actor)
        self.spec = spec_of(self.record)
        self.known_rows = KnownRows()

    @property
    def tables(self) -> list[TablePair]:
        """The pairs of source and target tables."""
        return list(self.spec.tables)

    def pair(self, source_table: str) -> TablePair:
        """The pair of a source table. Raises KeyError when it is not part of the run."""
        for pair in self.tables:
            if pair.source == source_table:
                return pair
        raise KeyError(source_table)

    @cached_property
    def target(self) -> HBaseClient:
        """The target cluster."""
        return HBaseClient(self.target_address(), master_attempts=FAILOVER_ATTEMPTS)

    @cached_property
    def target_files(self) -> FileSystem:
        """The target's file system."""
        return file_system(self.spec.target)

    @cached_property
    def target_wal_files(self) -> FileSystem:
        """The file system of the target's log; that of its root, unless they are apart."""
        address = self.spec.target.address()
        return self.target_files if address.of_log is address else log_files_of(address)

    def target_address(self) -> ClusterAddress:
        """The target for the driver and for Spark workers."""
        return replace(self.spec.target.address(), session_seconds=self._session_seconds)

    @property
    def writing(self) -> Writing:
        """How much is sent to the target at a time, from this process's environment."""
        from walferry.settings import Writing

        return Writing.read()

    @property
    def target_root(self) -> str:
        """HBase's root folder on the target's file system, without a trailing slash."""
        return self.spec.target.address().root_path

    @property
    def target_wal_root(self) -> str:
        """The folder with WALs/ and oldWALs/ on the file system of the target's log, without a trailing slash."""
        return self.spec.target.address().wal_path

    def snapshot(self, source_table: str) -> str:
        """Name of the snapshot of a source table, on both sides."""
        namespace, _, table = source_table.rpartition(":")
        return f"walferry-{self.run_id}-{namespace or 'default'}.{table}"


class RunEndedError(WalferryError):
    """Somebody ended the run while this process worked on it; fact `run`."""


class PhaseNotReadyError(UsageError):
    """A phase was started before those that it needs were done; facts `run`, `phase`, `missing`."""


def file_system(cluster: Cluster, address: ClusterAddress | None = None) -> FileSystem:
    """The file system of a cluster; `address` if it differs from the cluster's own."""
    return files_of(address or cluster.address())


def _answers(url: str, source: ClusterAddress) -> bool:
    try:
        files, path = open_folder(url, source)
        files.status(path)
    except Exception as error:  # any error of another run's folder is only a warning here
        log.warning("the copies of WALs in %s cannot be reached: %s", url, error)
        return False
    return True


def archive_folder(root: str, table: str) -> str:
    """Where HBase looks for the files that the table's snapshots and links need."""
    namespace, _, name = table.rpartition(":")
    return f"{root}/archive/data/{namespace or 'default'}/{name}"


def data_folder(root: str, table: str) -> str:
    """Where a table's regions are stored."""
    namespace, _, name = table.rpartition(":")
    return f"{root}/data/{namespace or 'default'}/{name}"
