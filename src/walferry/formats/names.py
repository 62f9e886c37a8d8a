"""Names that many entries share, as codes."""

from __future__ import annotations

import numpy as np

from walferry.formats.cells import Bytes, Int32s, Int64s, binary_column


class Names:
    """A growing dictionary of names and their codes. With `text`, names that are not UTF-8 have the code -1."""

    def __init__(self, *, text: bool = False) -> None:
        self._text = text
        self.names: list[bytes] = []
        self._codes: dict[bytes, int] = {}

    def codes(self, buffer: Bytes, starts: Int64s, lengths: Int64s) -> Int32s:
        """The codes of the slices `buffer[starts:starts+lengths]`; adds new names to the dictionary."""
        encoded = binary_column(buffer, starts, lengths).dictionary_encode()
        codes = np.array([self._code(name) for name in encoded.dictionary.to_pylist()], np.int32)
        # Avoid `to_numpy`: it imports pandas where installed, which takes a quarter of a second.
        indices = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(starts), 4 * encoded.indices.offset)
        of_rows: Int32s = codes[indices]
        return of_rows

    def _code(self, name: bytes) -> int:
        if self._text and name not in self._codes and not _is_text(name):
            return -1
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
