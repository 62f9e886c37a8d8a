"""`python -m walferry.streams`: compile the numba kernels of messages into their cache, as `python -m walferry.formats`
does with those of the formats."""

from __future__ import annotations

import numpy as np

from walferry.formats.__main__ import plain_log
from walferry.formats.wal import WalReader
from walferry.streams.message.changes import BytesAs, Form, messages


def main() -> None:
    """Make messages of one entry, in each form of bytes."""
    for batch in WalReader([plain_log()], "warm-up"):
        picked = np.flatnonzero(batch.edits)
        for bytes_as in BytesAs:
            messages(Form("warm-up", 1, bytes_as), batch, picked, np.ones(len(picked), np.int32))


if __name__ == "__main__":
    main()
