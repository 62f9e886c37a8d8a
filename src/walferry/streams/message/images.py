"""Images: what a reader sees of a row after a change, as the messages have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Bytes, Int64s


@dataclass(frozen=True)
class Images:
    """The images of n changed rows of a batch: image i is `texts[ends[i]:ends[i + 1]]`, its cells as the elements of a
    list of JSON, nothing if a reader sees no cell."""

    texts: Bytes
    ends: Int64s  # n + 1
    exact: npt.NDArray[np.bool_]
    unread: npt.NDArray[np.bool_]  # the row was not read: the image has no list of cells
    place: Int64s  # where the run of each changed row begins in the batch's buffer, rising
    refused: Mapping[int, str] = field(default_factory=dict)  # number of the image -> why no message can have it

    def numbers(self, place: Int64s) -> Int64s:
        """The number of the image of each changed row. Raises ValueError if one has none."""
        found = np.searchsorted(self.place, place)
        if (found == len(self.place)).any() or (self.place[found] != place).any():
            raise ValueError("a changed row without an image")
        return found.astype(np.int64)

    def text(self, number: int) -> bytes:
        """The cells of an image: elements of a list of JSON, without its brackets."""
        return self.texts[self.ends[number] : self.ends[number + 1]].tobytes()
