"""The files of a history as two Iceberg tables, of changes and of events: the same files, which are added as they are.

A commit of the history that has files of a table is one commit of that table, which adds them, and in which the table's
property `walferry.commit` becomes the number of the history's commit. That property changes only together with a new
snapshot, and pyiceberg makes a snapshot only on top of the one that was looked at. So of two processes that add the
same files, one does; the other one then finds them there, whatever answers were lost. Which files are there is not
asked of snapshots, so others may compact the table, expire its snapshots and delete rows of it.

`walferry.passed` tells up to which commit there were no more files for the table. It is always true, so it does not
matter when it is set back: commits up to the higher one of both are in the table.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import HourTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from sqlalchemy import inspect
from sqlalchemy.exc import InterfaceError, OperationalError

from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.streams.history.catalog import CatalogSettings, TableNames
from walferry.streams.history.commits import Commit, Commits, Owner
from walferry.streams.history.files import EVENTS_FOLDER, TABLE_FOLDERS, files_between
from walferry.streams.history.iceberg_files import FOLDER, Folder, FolderIO
from walferry.streams.history.rows import CHANGES, EVENTS

log = logging.getLogger(__name__)

METADATA = "_iceberg"
"""the folder of what Iceberg has beside the files, and of files that others write by way of Iceberg"""
COMMIT, PASSED = "walferry.commit", "walferry.passed"
STREAM, CLUSTER, HISTORY = "walferry.stream", "walferry.cluster", "walferry.history"
FILES_AT_ONCE = 1000
"""that are added in one commit at least, when many commits are missing"""
MOST_SNAPSHOTS = 1500
"""that are kept until the next checkpoint: each commit reads and writes them all, in half a millisecond each"""
ATTEMPTS = 10
"""to add files while others change the table"""
_AWAY = (
    OperationalError, InterfaceError, requests.RequestException, CommitStateUnknownException, ServerError,
    ServiceUnavailableError, TooManyRequestsError,
)  # fmt: skip
_TYPES: Mapping[pa.DataType, IcebergType] = {
    pa.string(): StringType(), pa.binary(): BinaryType(), pa.int32(): IntegerType(), pa.int64(): LongType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}  # fmt: skip


class HistoryTables:
    """The tables of one history. For one thread; close it. Errors of the catalogue are TransientError if they may pass,
    else WalferryError, and have no secrets.
    """

    def __init__(
        self, settings: CatalogSettings, folder: Folder, owner: Owner, names: TableNames, expire_days: float | None
    ) -> None:
        """`folder`: of the history. `expire_days`: after which snapshots are expired; None: never."""
        self._settings, self._folder, self._owner, self._names = settings, folder, owner, names
        self._expire_days = expire_days
        self._catalog: Catalog | None = None
        self._changes = _HistoryTable(names.changes, _schema(CHANGES), is_of_events=False)
        self._events = _HistoryTable(names.events, _schema(EVENTS), is_of_events=True)

    def close(self) -> None:
        """Close connections to the catalogue."""
        if self._catalog is not None:
            self._catalog.close()

    def examine(self, commits: Commits) -> dict[str, int | None]:
        """Examine the tables, and change nothing. `commits`: of the history.

        Returns the number of the last commit in each table, by the table's name; None for a table that is not there.
        Raises UsageError for a table that is not this history's, or that others wrote to.
        """
        with self._told():
            catalog = self._opened(init_catalog_tables="false")
            found: dict[str, int | None] = {}
            is_new = isinstance(catalog, SqlCatalog) and not inspect(catalog.engine).has_table(
                IcebergTables.__tablename__
            )
            for one in (self._changes, self._events):
                try:
                    if is_new:
                        raise NoSuchTableError
                    self._load(catalog, one)
                except NoSuchTableError:
                    found[self._full_name(one)] = None
                else:
                    self._require_known(one, commits)
                    found[self._full_name(one)] = one.position
            return found

    def catch_up(self, commits: Commits, last: Commit | None) -> None:
        """Add the files of all commits that the tables lack, whose files have their names; make tables that do not
        exist. `last`: the last commit."""
        with self._told():
            for one in (self._changes, self._events):
                self._load_or_make(one)
                self._require_known(one, commits)
                if last is not None and one.position < last.number:
                    self._add_all(one, self._lacking(one, commits, last))

    def publish(self, commit: Commit) -> None:
        """Add the files of a commit, after those of all commits before it."""
        with self._told():
            for one in (self._changes, self._events):
                self._add_all(one, self._of_commits(one, [commit]))

    def checkpoint(self, number: int) -> None:
        """Note in the tables that they have all commits up to a number, whose records may be deleted then; expire old
        snapshots."""
        with self._told():
            for one in (self._changes, self._events):
                if one.position < number:
                    self._pass(one, number)
                if self._expire_days is not None:
                    self._expire(one, now_ms() - int(self._expire_days * 86_400_000))

    def _opened(self, **more: str) -> Catalog:
        if self._catalog is None:
            own = {PY_IO_IMPL: f"{FolderIO.__module__}.{FolderIO.__name__}", FOLDER: self._folder}
            properties = cast(dict[str, str], {**self._settings.properties, **more, **own})
            self._catalog = load_catalog(self._settings.name, **properties)
        return self._catalog

    def _load(self, catalog: Catalog, one: _HistoryTable) -> None:
        """Raises NoSuchTableError if there is no such table, and UsageError if it is not this history's."""
        table = catalog.load_table(self._full_name(one))
        self._require_own(one, table)
        one.table = table

    def _load_or_make(self, one: _HistoryTable) -> None:
        catalog = self._opened()
        try:
            self._load(catalog, one)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self._names.namespace)
            try:
                catalog.create_table(
                    self._full_name(one),
                    one.schema,
                    f"{self._folder.location}/{METADATA}/{one.name}",
                    one.spec,
                    properties=self._properties(one),
                )
                log.info("made the Iceberg table %s", self._full_name(one))
            except TableAlreadyExistsError:
                pass  # another process was faster
            self._load(catalog, one)

    def _properties(self, one: _HistoryTable) -> dict[str, str]:
        return {
            **self._owned(),
            COMMIT: "0",
            TableProperties.DEFAULT_NAME_MAPPING: one.schema.name_mapping.model_dump_json(),
            TableProperties.MANIFEST_MERGE_ENABLED: "true",
            TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
            # Files of the folder are the history's: without this, engines delete those that a snapshot no longer needs.
            "gc.enabled": "false",
        }

    def _owned(self) -> dict[str, str]:
        return {STREAM: self._owner.stream, CLUSTER: self._owner.cluster_id, HISTORY: self._folder.location}

    def _require_own(self, one: _HistoryTable, table: Table) -> None:
        owned = {name: table.properties.get(name) for name in self._owned()}
        if owned != self._owned():
            whose = (
                "is not walferry's"
                if owned[STREAM] is None
                else f"belongs to stream {owned[STREAM]} of cluster {owned[CLUSTER]} in {owned[HISTORY]}"
            )
            raise self._refused(one, f"{whose}: set another name for it in the spec (iceberg)")
        if not (table.properties.get(COMMIT) or "").isdecimal():
            raise self._refused(
                one,
                f"has lost its property {COMMIT}, which tells what is in it: set another name for the table in the "
                "spec (iceberg), which then gets all files of the folder",
            )
        if table.schema().as_struct() != one.schema.as_struct() or table.spec().fields != one.spec.fields:
            raise self._refused(
                one,
                "has other columns or partitions than walferry gave it: set them back, or set another name for the "
                "table in the spec (iceberg), which then gets all files of the folder",
            )
        self._require_no_others(one, table)

    def _require_no_others(self, one: _HistoryTable, table: Table) -> None:
        """Raise UsageError unless the table has what this history added, but for rows that were deleted."""
        snapshot, added = table.current_snapshot(), table.properties[COMMIT]
        while snapshot is not None:
            number = _fact(snapshot, COMMIT)
            if number is not None and number != added:
                raise self._refused(
                    one,
                    f"was set back to commit {number}, and it had commit {added}: roll it forward again, or set "
                    "another name for the table in the spec (iceberg), which then gets all files of the folder",
                )
            if number is not None:
                return
            if _adds_rows(snapshot):
                raise self._refused(
                    one,
                    f"has rows of somebody else: snapshot {snapshot.snapshot_id} of "
                    f"{datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC. Roll the "
                    f"table back to snapshot {snapshot.parent_snapshot_id}, or set another name for it in the spec "
                    "(iceberg), which then gets all files of the folder",
                )
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)

    def _require_known(self, one: _HistoryTable, commits: Commits) -> None:
        last = commits.last()  # after the table was loaded: another process may have made a commit meanwhile
        number = 0 if last is None else last.number
        if one.position > number:
            raise self._refused(
                one,
                f"has commit {one.position}, and the last one of the history in {self._folder.path} is {number}: the "
                "folder was replaced by another. Set another name for the table in the spec (iceberg)",
            )

    def _refused(self, one: _HistoryTable, why: str) -> UsageError:
        name = self._full_name(one)
        return UsageError(f"the Iceberg table {name} {why}", table=name, connection=self._settings.connection)

    def _full_name(self, one: _HistoryTable) -> str:
        return f"{self._names.namespace}.{one.name}"

    def _lacking(self, one: _HistoryTable, commits: Commits, last: Commit) -> list[tuple[int, list[str]]]:
        """The files of all commits that the table lacks and that are still in the folder, by number: from the records,
        or if some of these are deleted, from the names of all files in the folder."""
        records = commits.after(one.position, last)
        if records is not None:
            named = self._of_commits(one, records)
            left = [(number, [at for at in locations if self._folder.has(at)]) for number, locations in named]
            return [(number, locations) for number, locations in left if locations]
        log.info("looking for the files of %s in all folders of %s", self._full_name(one), self._folder.path)
        found: dict[int, list[str]] = defaultdict(list)
        for folder in self._folder.files.list(self._folder.path):
            if folder.is_dir and one.has_file(f"{folder.name}/"):
                for number, path in files_between(self._folder.files, folder.path, one.position, last.number):
                    found[number].append(self._folder.location_of(path))
        return sorted(found.items())

    def _of_commits(self, one: _HistoryTable, commits: Sequence[Commit]) -> list[tuple[int, list[str]]]:
        """The files of commits that belong into the table and have rows, by number."""
        named = [
            (commit.number, [file.path for file in commit.files if file.rows and one.has_file(file.path)])
            for commit in commits
        ]
        return [(number, [f"{self._folder.location}/{path}" for path in paths]) for number, paths in named if paths]

    def _add_all(self, one: _HistoryTable, lacking: Sequence[tuple[int, list[str]]]) -> None:
        gathered: list[str] = []
        for number, locations in lacking:
            gathered += locations
            if len(gathered) >= FILES_AT_ONCE or number == lacking[-1][0]:
                self._add(one, number, gathered)
                gathered = []

    def _add(self, one: _HistoryTable, number: int, locations: list[str]) -> None:
        """Add the files of commits up to a number, unless they are there."""
        for _ in range(ATTEMPTS):
            if one.position >= number:
                return
            added = {COMMIT: str(number)}
            try:
                with one.opened_alone().transaction() as transaction:
                    transaction.add_files(locations, snapshot_properties=added, check_duplicate_files=False)
                    transaction.set_properties(added)
            except CommitFailedException as error:
                log.info("somebody else has changed %s: %s", self._full_name(one), error)
                self._load_again(one)
                if one.position >= number:
                    # Perhaps by this commit, as after a request that was sent twice: pyiceberg would delete its files.
                    self._folder.doomed.clear()
            self._delete_doomed()
        if one.position < number:
            raise TransientError(
                f"others have changed the Iceberg table {self._full_name(one)} {ATTEMPTS} times while files were added",
                table=self._full_name(one),
            )

    def _pass(self, one: _HistoryTable, number: int) -> None:
        try:
            with one.opened_alone().transaction() as transaction:
                transaction.set_properties({PASSED: str(number)})
        except CommitFailedException as error:
            # It only saves looking through the folder.
            log.info("the number of %s is noted later: %s", self._full_name(one), error)
            self._load_again(one)
        self._delete_doomed()

    def _load_again(self, one: _HistoryTable) -> None:
        """Load the table after others have changed it. Raises NoSuchTableError if it is another one, which lacks what
        was added before."""
        before = one.table
        self._load(self._opened(), one)
        assert before is not None, "the table was loaded before"
        assert one.table is not None
        if one.table.metadata.table_uuid != before.metadata.table_uuid:
            raise NoSuchTableError(f"Table {self._full_name(one)} is another one now")

    def _delete_doomed(self) -> None:
        """Delete what pyiceberg wanted to delete: files of former metadata, or those of a commit that was not made."""
        doomed = set(self._folder.doomed)
        self._folder.doomed.clear()
        for location in doomed:
            try:
                self._folder.files.delete(self._folder.path_of(location))
            except WalferryError as error:
                log.warning("a file that no table needs is left behind: %s", error)

    def _expire(self, one: _HistoryTable, before_ms: int) -> None:
        """Expire snapshots from before a moment, and what is more than MOST_SNAPSHOTS. Delete those of Iceberg's own
        files that only they had, which pyiceberg leaves; data files stay."""
        table = one.opened_alone()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        whole = _by_age(table)
        old = [
            each
            for number, each in enumerate(whole, MOST_SNAPSHOTS - len(whole))
            if (each.timestamp_ms < before_ms or number < 0) and each.snapshot_id not in heads
        ]
        if not old:
            return
        had = _metadata_files(table, old) if _is_one_line(table) else set()
        try:
            table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
        except (CommitFailedException, ValueError) as error:
            log.warning("snapshots of %s are expired later: %s", self._full_name(one), error)
            self._load_again(one)
            return
        if _is_one_line(table):  # and nobody has made a branch meanwhile
            # A manifest that the oldest snapshot does not have is in no later one.
            self._folder.doomed.extend(had - _metadata_files(table, _by_age(table)[:1]))
        self._delete_doomed()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of pyiceberg and of what is below it into walferry's."""
        connection = self._settings.connection
        try:
            yield
        except WalferryError:
            raise
        except _AWAY as error:
            raise TransientError(
                f"the Iceberg catalogue of connection {connection} does not answer as it should: {self._text(error)}",
                connection=connection,
            ) from None
        except NoSuchTableError as error:
            raise TransientError(
                f"an Iceberg table was dropped while it was written to, and will be made anew: {self._text(error)}",
                connection=connection,
            ) from None
        except Exception as error:
            # pyiceberg raises errors of any class, also ValueError and TypeError.
            raise WalferryError(
                f"Iceberg tables of connection {connection} cannot be written to: {type(error).__name__}: "
                f"{self._text(error)}",
                connection=connection,
            ) from None

    def _text(self, error: BaseException) -> str:
        whole = str(getattr(error, "orig", None) or error)
        return self._settings.without_secrets(whole.strip().partition("\n")[0])


class _HistoryTable:
    """One of the two tables."""

    def __init__(self, name: str, schema: Schema, *, is_of_events: bool) -> None:
        self.name = name
        self.schema = schema
        self.spec = PartitionSpec() if is_of_events else _partitions(schema)
        self.table: Table | None = None
        self._is_of_events = is_of_events

    def has_file(self, path: str) -> bool:
        """Whether a file of the history belongs into the table; `path`: relative to the folder."""
        return path.startswith(f"{EVENTS_FOLDER}/" if self._is_of_events else TABLE_FOLDERS)

    @property
    def position(self) -> int:
        """The number of the history's commit up to which the table has all files, as far as is known."""
        assert self.table is not None, "the table is loaded first"
        return max(int(self.table.properties.get(name, 0)) for name in (COMMIT, PASSED))

    def opened_alone(self) -> Table:
        """The table for a commit that pyiceberg does not repeat: it would add the files on top of whatever others have
        made of the table meanwhile, and they might be there then. The property is this object's alone."""
        assert self.table is not None, "the table is loaded first"
        properties = self.table.properties | {TableProperties.COMMIT_NUM_RETRIES: "0"}
        self.table.metadata = self.table.metadata.model_copy(update={"properties": properties})
        return self.table


def _schema(columns: pa.Schema) -> Schema:
    """The schema of a table whose files have these columns."""
    fields = []
    for number, one in enumerate(columns, 1):
        kind: Any = one.type.value_type if pa.types.is_dictionary(one.type) else one.type
        known = (
            ListType(len(columns) + 1, _TYPES[kind.value_type], element_required=False)
            if pa.types.is_list(kind)
            else _TYPES[kind]
        )
        fields.append(NestedField(number, one.name, known, required=not one.nullable))
    return Schema(*fields)


def _partitions(schema: Schema) -> PartitionSpec:
    """Those of the folders: a file has changes of one table and hour."""
    table, time = schema.find_field("table").field_id, schema.find_field("_commit_timestamp").field_id
    return PartitionSpec(
        PartitionField(table, 1000, IdentityTransform(), "table"), PartitionField(time, 1001, HourTransform(), "hour")
    )


def _fact(snapshot: Snapshot, name: str) -> str | None:
    """What a snapshot's summary says."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _adds_rows(snapshot: Snapshot) -> bool:
    """Whether it added rows that were not there; who deletes rows may write again those that were in the same file."""
    operation = None if snapshot.summary is None else snapshot.summary.operation
    if operation == Operation.OVERWRITE:
        added, deleted = (int(_fact(snapshot, f"{what}-records") or 0) for what in ("added", "deleted"))
        return added >= max(deleted, 1)
    return operation not in (Operation.REPLACE, Operation.DELETE)


def _by_age(table: Table) -> list[Snapshot]:
    """All snapshots, the oldest first."""
    return sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)


def _is_one_line(table: Table) -> bool:
    """Whether each snapshot is an ancestor of the current one: there are no branches, and nothing was rolled back."""
    line = {one.snapshot_id for one in ancestors_of(table.current_snapshot(), table.metadata)}
    return line == {one.snapshot_id for one in table.snapshots()} and set(table.metadata.refs) <= {MAIN_BRANCH}


def _metadata_files(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """The manifests and lists of snapshots."""
    return {one.manifest_list for one in snapshots} | {
        manifest.manifest_path for one in snapshots for manifest in one.manifests(table.io)
    }
