"""Dirty rows: a request for them may have been carried out after its sender had lost the lease (R13).

The sender marks them with a persistent JSON node `/walferry/dirty/<table>/<name>` in the target's ZooKeeper. A mark is
removed when a comparison of the table that began after the mark finds both sides equal. Until then the gates are shut.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError
from pydantic import TypeAdapter

from walferry.errors import WalferryError, is_transient
from walferry.hbase.address import ClusterAddress
from walferry.hbase.zookeeper import ZooKeeper
from walferry.ledger import ComparedTable
from walferry.replay.rights import znodes
from walferry.run.run import Run

log = logging.getLogger(__name__)

ROOT = "/walferry/dirty"
MOST_MARKS = 100
"""marks per table; beyond that, further rows share one mark, which shows the newest (where a mark's maker may remove an
older one: not where the driver has logged in)"""
SHARED = "more-"
SHOWN_BYTES = 64
ATTEMPTS = 12
"""attempts to write a mark, in about two minutes"""
_LONGEST_PAUSE_S = 15.0
_NOTE = "dirty rows compared"


class UnmarkedRowsError(WalferryError):
    """Rows are dirty and could not be marked: the gates do not know of them; facts `table`, `first`, `last`."""


@dataclass(frozen=True)
class DirtyRows:
    """Rows of a target table that may hold wrong data."""

    table: str
    name: str
    """name of the mark's node"""
    first: str
    """the first row, as Python prints bytes; cut after SHOWN_BYTES"""
    last: str
    run: str
    """the run whose process sent the request"""
    number: int
    """number of the lease that the process had lost"""
    at_ms: int
    why: str = ""
    """what the rows may hold; "": an old request may have been applied over newer edits"""

    @classmethod
    def of(cls, table: str, first: bytes, last: bytes, run: str, number: int, at_ms: int, why: str = "") -> DirtyRows:
        """A new mark for the rows from `first` to `last`."""
        return cls(table, uuid4().hex, _shown(first), _shown(last), run, number, at_ms, why)

    def describe(self) -> str:
        """What happened to which rows, for people."""
        rows = f"{'many rows, the newest' if self.name.startswith(SHARED) else 'rows'} {self.first} to {self.last}"
        if self.why:
            return f"rows of target table {self.table} may hold {self.why}"
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        return (
            f"{rows} of target table {self.table} may hold old edits: at {at} a process of run {self.run}, which "
            f"had been suspended, had sent a request for them after losing its lease (number {self.number})"
        )


_MARK = TypeAdapter(DirtyRows)


def mark(target: ClusterAddress, rows: DirtyRows) -> None:
    """Write a mark, retrying for two minutes. Opens its own session, since this process's session may have expired.

    Raises UnmarkedRowsError if ZooKeeper cannot be reached in that time.
    """
    final = 0
    for attempt in range(1, ATTEMPTS + 1):
        # Everybody may mark rows, so a login that fails, as without a ticket, is left out at the next attempt.
        zookeeper = ZooKeeper.of(target if attempt % 2 else target.without_zookeeper_login())
        try:
            _create(zookeeper.client, rows, target.zookeeper_login)
            return
        except (WalferryError, KazooException, KazooTimeoutError) as error:
            final = 0 if is_transient(error) else final + 1
            if attempt == ATTEMPTS or final == 2:
                raise UnmarkedRowsError(
                    f"{rows.describe()}; they could not be marked in ZooKeeper at {target.zookeeper}, so no gate "
                    "will stop for them. Compare the table before you use it (`walferry verify`)",
                    table=rows.table, first=rows.first, last=rows.last,
                ) from error  # fmt: skip
            log.warning("attempt %d of %d to mark rows of %s failed: %r", attempt, ATTEMPTS, rows.table, error)
            time.sleep(min(2.0 ** (attempt - 1), _LONGEST_PAUSE_S))
        finally:
            zookeeper.close()


def make_room(zk: KazooClient, table: str) -> None:
    """Make the node of a table's marks, where nodes are closed, before anything may be sent to the table.

    Raises AccessDeniedError if it belongs to another principal, which alone could remove marks.
    """
    path = node_of(table)
    znodes.ensure_folder(zk, path, closed=True)
    with znodes.refusals_told(zk, path):
        zk.set_acls(path, znodes.SHARED)


def marks(zk: KazooClient, table: str) -> list[DirtyRows]:
    """The marks of a target table, oldest first."""
    try:
        names = zk.retry(zk.get_children, node_of(table))
    except NoNodeError:
        return []
    found = []
    for name in names:
        try:
            data, _ = zk.retry(zk.get, f"{node_of(table)}/{name}")
        except NoNodeError:  # removed since it was listed
            continue
        found.append(_parsed(table, name, data))
    return sorted(found, key=lambda rows: rows.at_ms)


def _parsed(table: str, name: str, data: bytes) -> DirtyRows:
    """A mark. Everybody may make one: of what cannot be read, only the name counts."""
    try:
        return _MARK.validate_python(json.loads(data) | {"table": table, "name": name})
    except (ValueError, TypeError):
        return DirtyRows(table, name, "", "", "", 0, 0, f"anything: the mark {node_of(table)}/{name} cannot be read")


def marks_of(run: Run) -> list[DirtyRows]:
    """The marks of all target tables of a run."""
    return [rows for pair in run.tables for rows in marks(run.target.zk, pair.target)]


def compared(run: Run, comparison: ComparedTable, known: Sequence[DirtyRows], equal: bool) -> None:
    """Record that a comparison began after these marks were made. Remove the marks if it found both sides equal."""
    if not known:
        return
    facts = {"marks": [rows.name for rows in known]}
    run.ledger.notes.keep(_NOTE, facts, _subject(comparison))
    if equal:
        remove(run, known)


def uncovered(run: Run, found: Sequence[DirtyRows], comparisons: Sequence[ComparedTable]) -> list[DirtyRows]:
    """The marks that no comparison covers: each comparison began before they were made."""
    noted = run.ledger.notes.named(_NOTE)
    covered = {name for item in comparisons if (note := noted.get(_subject(item))) for name in note[0]["marks"]}
    return [rows for rows in found if rows.name not in covered]


def remove(run: Run, known: Sequence[DirtyRows]) -> None:
    """Remove marks that a comparison covers; the audit trail keeps them."""
    for rows in known:
        run.ledger.audit(run.actor, "clear dirty rows", asdict(rows))
        path = f"{node_of(rows.table)}/{rows.name}"
        with suppress(NoNodeError), znodes.refusals_told(run.target.zk, path):  # another run has compared it, too
            run.target.zk.retry(run.target.zk.delete, path)
    if run.target_address().zookeeper_login:  # a worker that is late must still find the node
        return
    for table in {rows.table for rows in known}:
        # New marks may have been made; a run that logs in may have made ROOT, and alone deletes in it.
        with suppress(NoNodeError, NotEmptyError, NoAuthError):
            run.target.zk.retry(run.target.zk.delete, node_of(table))


def _subject(comparison: ComparedTable) -> str:
    return f"{comparison.table} {comparison.attempt}"


def _create(zk: KazooClient, rows: DirtyRows, closed: bool) -> None:
    path, content = node_of(rows.table), asdict(rows)
    del content["table"], content["name"]
    data = json.dumps(content).encode()
    zk.ensure_path(path)  # `make_room` has made it where nodes are closed; else one that others can empty is made
    others = zk.get_children(path)
    name = rows.name if len(others) < MOST_MARKS else f"{SHARED}{rows.name}"
    with suppress(NodeExistsError):  # an earlier attempt wrote the node, but its answer was lost
        zk.create(f"{path}/{name}", data, acl=znodes.READ_ONLY if closed else None)
    for older in others:
        # The shared mark gets a new name each time, so that a comparison that began earlier does not cover it.
        if name.startswith(SHARED) and older.startswith(SHARED) and older != name:
            with suppress(NoNodeError, NoAuthError):  # a worker may not remove marks: the older ones stay, too
                zk.delete(f"{path}/{older}")


def node_of(table: str) -> str:
    """The node of a target table's marks."""
    return f"{ROOT}/{quote(table, safe='')}"


def _shown(row: bytes) -> str:
    return repr(row[:SHOWN_BYTES])[1:] + ("…" if len(row) > SHOWN_BYTES else "")
