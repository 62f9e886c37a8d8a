"""Whether logs were sealed with the bytes that they had shown while they were open.

What is sent of an open log may be taken back: bytes past the last acknowledgement need not survive their server and its
data nodes. The piece of a batch that applies a file by group compares it on the way, and applies all of it if it is
another one (`apply.by_group`). Of every other file the first bytes are read here: of those that went in bulk or in row
order, whose tables were stopped, that were found empty or were applied by a process which was killed. Whichever finds
that bytes were taken back marks the tables, so that no gate opens until they were compared, and only then the note of
what was sent is dropped.
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
    """Compare each log of which something was sent with what it had shown; mark the tables of one that was sealed with
    other bytes, or that cannot be read. `names`: only those.

    Call it once the logs are sealed. Raises the transient errors of reading them, and LeaseLostError.
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
    """Why it is not certain that a file holds all that was sent of it; "" if it does."""
    if file is None:
        return not_known(name, sent.shown, "no list has it any more")
    beginning = Beginning(sent.shown)
    try:
        for batch in open_wal(run.source_files, run.wal_root, file):
            if not beginning.add(batch):
                break
    except (WalferryError, OSError) as error:
        if is_transient(error):
            raise
        if not beginning.is_same:
            return not_known(name, sent.shown, f"it cannot be read: {error}")
    return "" if beginning.is_same else taken_back(name, sent.shown)
