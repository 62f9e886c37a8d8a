"""The audit trail's hash chain: hash = sha256(hash of the previous line + "\\n" + canonical JSON of the line).

The first line follows 64 zeros. Changing, removing, reordering or inserting a line breaks the chain at that place.
Cutting lines off the end leaves the chain valid; only a head kept elsewhere reveals the cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sqlalchemy import Connection, Table, insert, select

from walferry.errors import WalferryError
from walferry.ledger.columns import to_columns, to_json
from walferry.ledger.rows import AuditHead, AuditLine

START = AuditHead(0, "0" * 64)


def head(connection: Connection, table: Table) -> AuditHead:
    """The newest line; `START` for an empty trail."""
    statement = select(table.c.sequence, table.c.hash).order_by(table.c.sequence.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    return AuditHead(row.sequence, row.hash) if row else START


def append(connection: Connection, table: Table, line: AuditLine) -> AuditHead:
    """Append `line` after the head within a write transaction; its `sequence` and `hash` are ignored."""
    before = head(connection, table)
    columns = to_columns(line) | {"sequence": before.sequence + 1}
    columns["hash"] = _line_hash(before.hash, columns)
    connection.execute(insert(table).values(columns))
    return AuditHead(columns["sequence"], columns["hash"])


def verify(lines: Iterable[dict[str, object]], expected: AuditHead | None) -> None:
    """Verify the whole trail, column values by sequence. Raises WalferryError that names the first wrong line."""
    before = START
    met = expected is None or expected == START
    for columns in lines:
        sequence = before.sequence + 1
        if columns["sequence"] != sequence:
            raise _broken(sequence, f"is missing: line {columns['sequence']} is in its place")
        if columns["hash"] != _line_hash(before.hash, columns):
            raise _broken(sequence, "or the previous one was changed")
        before = AuditHead(sequence, str(columns["hash"]))
        if expected is not None and sequence == expected.sequence:
            if before != expected:
                raise _broken(sequence, "does not have the hash of the head kept elsewhere: the trail was rewritten")
            met = True
    if expected is not None and not met:
        raise _broken(before.sequence + 1, f"to {expected.sequence} were cut off the end")


def _line_hash(before: str, columns: dict[str, object]) -> str:
    # Hashes the stored text of `inputs`, so the hash does not depend on a JSON parser.
    body = to_json({name: value for name, value in columns.items() if name != "hash"})
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def _broken(sequence: int, what: str) -> WalferryError:
    return WalferryError(
        f"the audit trail is broken: line {sequence} {what}; compare the ledger with a backup of it",
        sequence=sequence,
    )
