"""Whether logs were sealed with the bytes that they had shown while they were open.

Bytes that were read from an open log may be taken back: those past the last acknowledgement need not survive their
server and its data nodes. A piece that applies a file by group compares the beginning as it reads the file, and applies
the whole file if the bytes differ (`apply.by_group`). This module compares all other files: files that went in bulk or
by row, files whose tables were stopped, files that were found empty, and files that a killed process applied. In both
cases, if bytes were taken back, the tables are marked, so that no gate opens until they are compared. Only then is the
note of what was sent dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from walferry.apply.prefix import Beginning, not_known, taken_back
from walferry.apply.route import Route, mark_tables
from walferry.errors import WalferryError, is_transient
from walferry.replay.log.cut import as_listed
from walferry.run.notes.sent_early import SentEarly, compared, sent_early
from walferry.run.run import Run
from walferry.wal.files import WalFile
from walferry.wal.open import open_wal

log = logging.getLogger(__name__)


def compare_sent(run: Run, route: Route, names: Collection[str] | None = None) -> None:
    """Compare each log that was sent early with the bytes it had shown. Mark a log's tables if it was sealed with other
    bytes, or cannot be read. `names`: compare only these logs.

    Call it once the logs are sealed. Raises transient errors of reading the logs, and LeaseLostError.
    """
    left = {name: sent for name, sent in sent_early(run.ledger).items() if names is None or name in names}
    files = run.ledger.log.known(left) if left else {}
    for name, sent in left.items():
        known = files.get(name)
        if why := _why_other(run, None if known is None else as_listed(known), name, sent):
            log.warning("%s", why)
            mark_tables(route, sent.tables, why)
        route.guard(list(route.tables.values()))
        compared(run.ledger, [name])


def _why_other(run: Run, file: WalFile | None, name: str, sent: SentEarly) -> str:
    """The reason to doubt that a file holds everything that was sent from it; "" without doubt."""
    if file is None:
        return not_known(name, sent.shown, "no listing shows it any more")
    beginning = Beginning(sent.shown)
    try:
        for batch in open_wal(run.wal_files, run.wal_root, file):
            if not beginning.add(batch):
                break
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        if not beginning.is_same:
            return not_known(name, sent.shown, f"it cannot be read: {error}")
    return "" if beginning.is_same else taken_back(name, sent.shown)
