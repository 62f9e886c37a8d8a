"""Row keys as text."""

from __future__ import annotations

import re

from walferry.errors import UsageError

_ESCAPE = re.compile(r"\\x([0-9A-Fa-f]{2})")


def shown_row(row: bytes) -> str:
    r"""A row key as the HBase shell writes it: printable ASCII unchanged, every other byte (and `\`) as \xNN."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02X}" for byte in row)


def parse_row(text: str) -> bytes:
    r"""The row key that `shown_row` wrote; other characters are encoded as UTF-8. Raises UsageError for a lone `\`."""
    pieces = _ESCAPE.split(text)  # text, two hex digits, text, ...
    if any("\\" in piece for piece in pieces[::2]):
        raise UsageError(
            f"row key {text}: write a backslash as \\x5C, and any other byte as \\x and two hex digits", row=text
        )
    return b"".join(bytes.fromhex(piece) if at % 2 else piece.encode() for at, piece in enumerate(pieces))
