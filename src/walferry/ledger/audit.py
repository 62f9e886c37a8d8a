"""The audit trail's hash chain: hash = sha256(hash of the line before + "\\n" + canonical JSON of the line).

The first line follows 64 zeros. A line that was changed, removed, reordered or slipped in breaks the chain at its
place; lines cut off the end leave a whole chain, and only a head kept elsewhere tells of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sqlalchemy import Connection, Table, insert, select

from walferry.errors import WalferryError
from walferry.ledger.rows import AuditHead, AuditLine, to_columns, to_json

START = AuditHead(0, "0" * 64)


def head(connection: Connection, table: Table) -> AuditHead:
    """The newest line, `START` for an empty trail."""
    statement = select(table.c.sequence, table.c.hash).order_by(table.c.sequence.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    return AuditHead(row.sequence, row.hash) if row else START


def append(connection: Connection, table: Table, line: AuditLine) -> AuditHead:
    """Append `line` after the head (its own `sequence` and `hash` do not matter) within a write transaction."""
    before = head(connection, table)
    columns = to_columns(line) | {"sequence": before.sequence + 1}
    columns["hash"] = _line_hash(before.hash, columns)
    connection.execute(insert(table).values(columns))
    return AuditHead(columns["sequence"], columns["hash"])


def verify(lines: Iterable[dict[str, object]], expected: AuditHead | None) -> None:
    """Walk the whole trail (column values by sequence); raise WalferryError naming the first line that is wrong."""
    before = START
    met = expected is None or expected == START
    for columns in lines:
        sequence = before.sequence + 1
        if columns["sequence"] != sequence:
            raise _broken(sequence, f"is not there: line {columns['sequence']} is in its place")
        if columns["hash"] != _line_hash(before.hash, columns):
            raise _broken(sequence, "or the line before it was changed")
        before = AuditHead(sequence, str(columns["hash"]))
        if expected is not None and sequence == expected.sequence:
            if before != expected:
                raise _broken(sequence, "does not carry the hash of the head kept outside: the trail was written anew")
            met = True
    if expected is not None and not met:
        raise _broken(before.sequence + 1, f"to {expected.sequence} were cut off the end")


def _line_hash(before: str, columns: dict[str, object]) -> str:
    # `inputs` goes in as the text that is stored, so that no reading of JSON comes between line and hash.
    body = to_json({name: value for name, value in columns.items() if name != "hash"})
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def _broken(sequence: int, what: str) -> WalferryError:
    return WalferryError(
        f"the audit trail is broken: line {sequence} {what}; compare the ledger with a backup of it",
        sequence=sequence,
    )
