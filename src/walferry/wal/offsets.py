"""Where a tail of the whole log is, and what it reads next. Pure; `wal.live_tail` does I/O.

Within a WAL group files are read in the order of their numbers. The position goes on to the next file only when the one
before it is sealed (`wal.files`) and read to its end: HBase creates the next file first and switches to it later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from walferry.errors import GapError, WalferryError
from walferry.wal.files import Place, WalFile, with_archived


@dataclass(frozen=True)
class GroupPosition:
    """How far one WAL group has been given out."""

    number: int
    """of the file that is being read"""
    offset: int = 0
    """a place in that file, in bytes: the entries that end at or before it have been given out"""
    read: bool = False
    """the file is sealed, and all of its entries have been given out"""
    over: bool = False
    """the group has no later file, and gets none: its server has ended"""
    ahead: tuple[int, ...] = ()
    """the numbers of later files of the group that have been seen"""


@dataclass(frozen=True)
class FileSpan:
    """The entries of one file that end past `start` and at or before `stop` (bytes)."""

    file: str
    start: int
    stop: int
    sealed: bool
    """to the true end of a sealed file; `stop` is then what its length seemed to be"""


@dataclass(frozen=True)
class Offset:
    """A position vector: how far each WAL group has been given out, and the spans of the batch that ends there.

    The spans make a batch repeatable: once one of its files has been deleted, a listing no longer shows which files lie
    between two positions.
    """

    batch: int = 0
    """the number of the batch; 0: where the stream begins"""
    groups: Mapping[str, GroupPosition] = field(default_factory=dict)
    spans: tuple[FileSpan, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As plain values; equal offsets are equal texts."""
        return {
            "batch": self.batch,
            "groups": {
                group: {
                    "number": position.number,
                    "offset": position.offset,
                    "read": position.read,
                    "over": position.over,
                    "ahead": " ".join(map(str, position.ahead)),
                }
                for group, position in sorted(self.groups.items())
            },
            "spans": {
                span.file: {"start": span.start, "stop": span.stop, "sealed": span.sealed} for span in self.spans
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """What `as_json` returned. Raises WalferryError for something else."""
        try:
            groups = {
                group: GroupPosition(**{**known, "ahead": tuple(map(int, known["ahead"].split()))})
                for group, known in value["groups"].items()
            }
            spans = tuple(FileSpan(name, **known) for name, known in value["spans"].items())
            return cls(int(value["batch"]), groups, spans)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WalferryError(f"walferry did not write the offset {dict(value)!r}") from error


def between(start: Offset, end: Offset) -> tuple[FileSpan, ...]:
    """What the batch from `start` to `end` reads. Raises WalferryError when they are not those of one batch."""
    if start.batch == end.batch:
        return ()
    if end.batch != start.batch + 1:
        raise WalferryError(
            f"walferry returns one batch at a time, but was asked for batches {start.batch} to {end.batch}"
        )
    return end.spans


# ------------------------------------------------------------------ what there is


@dataclass(frozen=True)
class CertainListing:
    """The log's files by WAL group, in order: only those below which no unseen file can exist."""

    groups: Mapping[str, tuple[WalFile, ...]]
    over: frozenset[str]
    """groups whose last file had been archived before the live files were listed, so that no file follows it"""
    unsure: bool
    """other files were seen; the next listing will include them"""

    @property
    def names(self) -> frozenset[str]:
        """The names of the files."""
        return frozenset(file.name for files in self.groups.values() for file in files)


def certain(live: Sequence[WalFile], archived: Sequence[WalFile], known: Mapping[str, int]) -> CertainListing:
    """What a listing proves. `live` was listed before `archived`; `known` has the highest numbers seen before.

    The listing misses a file that HBase creates after its folder was listed, but may show a later one that HBase
    archives at once. So only files count whose number is at most the highest one that was known before or is live.
    """
    is_live = {file.name for file in live}
    newest = dict(known)
    for file in live:
        newest[file.group] = max(newest.get(file.group, file.number), file.number)
    found = with_archived(live, archived)
    sure = [file for file in found if file.number <= newest.get(file.group, -1)]
    groups = {group: tuple(files) for group, files in groupby(sure, key=lambda file: file.group)}
    unsure = {file.group for file in found if file.number > newest.get(file.group, -1)}
    over = {
        group
        for group, files in groups.items()
        # HBase creates a file's successor before it closes the file.
        if files[-1].place is Place.ARCHIVED and files[-1].name not in is_live
    }
    return CertainListing(groups, frozenset(over - unsure), bool(unsure))


# ------------------------------------------------------------------ what to read next


@dataclass(frozen=True)
class BatchLimits:
    """Of one batch; None: no limit."""

    bytes: int | None = None
    files: int | None = None


class Reached(NamedTuple):
    """How far a file can be read: the place, and whether that is the end of a sealed file."""

    stop: int
    sealed: bool


class Reach(Protocol):
    """Finds out how far a file can be read from a place on."""

    def __call__(self, file: WalFile, offset: int, most: int | None, *, whole_entry: bool, newer: bool) -> Reached:
        """The place after at most `most` bytes; with `whole_entry`, the end of one entry if that entry is longer.

        `newer`: a later file of the group has been seen.
        """
        ...


def advance(
    start: Offset, listing: CertainListing, reach: Reach, limits: BatchLimits, served: Mapping[str, int] | None = None
) -> Offset:
    """The end of the batch after `start`; if nothing is new, only its number and spans differ from `start`.

    Groups take turns, ordered by `served`, the number of the last batch that read them, lowest first. Raises GapError
    for a file that was seen and no longer exists, unless it has been read.
    """
    groups = _known_groups(start, listing)
    budget = _Budget(limits)
    last = served or {}
    for group in sorted(groups, key=lambda name: (last.get(name, 0), groups[name].number, name)):
        groups[group] = _walk(groups[group], listing, group, reach, budget)
    return Offset(start.batch + 1, groups, tuple(budget.spans))


def is_news(start: Offset, end: Offset) -> bool:
    """Whether a batch from `start` to `end` is worth recording. The first one always is: it fixes where the stream
    began."""
    return start.batch == 0 or bool(end.spans) or end.groups != start.groups


def _known_groups(start: Offset, listing: CertainListing) -> dict[str, GroupPosition]:
    groups = {}
    for group in sorted(start.groups.keys() | listing.groups.keys()):
        numbers = [file.number for file in listing.groups.get(group, ())]
        position = start.groups.get(group) or GroupPosition(numbers[0])
        if position.over and not numbers:
            continue  # all files were read, and HBase has deleted them
        for number in (() if position.over else (position.number,)) + position.ahead:
            if number not in numbers:
                raise missing(f"{group}.{number}", position.offset if number == position.number else 0)
        groups[group] = replace(position, ahead=tuple(number for number in numbers if number > position.number))
    return groups


def _walk(position: GroupPosition, listing: CertainListing, group: str, reach: Reach, budget: _Budget) -> GroupPosition:
    """One group's position after what the budget allows."""
    files = {file.number: file for file in listing.groups.get(group, ())}
    while True:
        if position.read:
            if not position.ahead:
                return replace(position, over=position.over or group in listing.over)
            position = GroupPosition(position.ahead[0], ahead=position.ahead[1:])
        if budget.spent:
            return position
        found = reach(
            files[position.number],
            position.offset,
            budget.left,
            whole_entry=not budget.spans,
            newer=bool(position.ahead),
        )
        stop = max(found.stop, position.offset)  # another replica may show less than the one before
        if stop > position.offset:
            budget.take(FileSpan(f"{group}.{position.number}", position.offset, stop, found.sealed))
        position = replace(position, offset=stop, read=found.sealed)
        if not found.sealed:
            return position


class _Budget:
    """The rest of a batch's limits, and the spans taken."""

    def __init__(self, limits: BatchLimits) -> None:
        self._files = limits.files
        self.left = limits.bytes
        self.spans: list[FileSpan] = []

    @property
    def spent(self) -> bool:
        return (self.left is not None and self.left <= 0) or len(self.spans) == self._files

    def take(self, span: FileSpan) -> None:
        self.spans.append(span)
        if self.left is not None:
            self.left -= span.stop - span.start


def missing(name: str, offset: int) -> GapError:
    """The error for a file that was deleted before it was read to its end."""
    return GapError(
        f"WAL file {name} is missing from WALs, -splitting and oldWALs, and was not read past byte {offset}: HBase "
        "has deleted it. If you still have it, put it into oldWALs and start the query again. If it is lost, a "
        "query with a new checkpoint reads what is left",
        file=name,
        start=offset,
        end=None,
    )


def begin_at_end(listing: CertainListing, reach: Reach, is_sealed: Callable[[WalFile], bool]) -> Offset:
    """The start of a stream that reads only what is written from now on; a group's last few files may be read again."""
    groups = {}
    for group, files in listing.groups.items():
        first = len(files) - 1
        if group in listing.over:
            groups[group] = GroupPosition(files[-1].number, files[-1].length, read=True, over=True)
            continue
        # Files that are not sealed may still be written to, although there is a newer one.
        while first and not is_sealed(files[first - 1]):
            first -= 1
        found = reach(files[first], 0, None, whole_entry=True, newer=first < len(files) - 1)
        ahead = tuple(file.number for file in files[first + 1 :])
        groups[group] = GroupPosition(files[first].number, found.stop, read=found.sealed, ahead=ahead)
    return Offset(0, groups)
