"""The commits of a history: numbered records in its folder `_commits`, which say which files and positions there are.

A commit is a file `_commits/NUMBER.json` that nothing overwrites: of two processes that make the same number, one
does. Its data files are written before under hidden names; after its record, they get the names that readers look for.
So what a record names is whole, and whoever comes after a kill can complete the last commit. All earlier ones are
complete. A record has the positions that changed, and every CHECKPOINT_EVERY-th all of them, so older ones are deleted
in time. A process whose number was deleted finds higher ones.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from walferry.errors import UsageError, WalferryError
from walferry.storage import FileSystem
from walferry.streams.fenced import FencedError
from walferry.streams.history.files import BEGUN, DataFile, begun_by

log = logging.getLogger(__name__)

COMMITS = "_commits"
FORMAT = 1
"""rises when an older walferry could not read a record"""
CHECKPOINT_EVERY = 100
KEPT = 200
"""records before a checkpoint that are kept; whoever reads positions needs those from the checkpoint before on"""
_NAME = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True)
class Owner:
    """Whose history it is: the stream, and the id of the HBase cluster whose changes it has."""

    cluster_id: str
    stream: str


@dataclass(frozen=True)
class Commit:
    """One record."""

    number: int
    files: tuple[DataFile, ...]
    positions: Mapping[str, bytes | None]
    """those that changed, None for those that are gone; all of them in a checkpoint"""
    checkpoint: int
    """the number of the last checkpoint, which may be this one"""
    epoch: int
    """of the positions"""
    sink: str
    """a unique id of who made it"""


class Commits:
    """The records of one history."""

    def __init__(self, files: FileSystem, folder: str, owner: Owner, epoch: int) -> None:
        """`folder`: of the history, without a trailing slash. `epoch`: of the stream."""
        self._files = files
        self._folder = folder
        self._owner = owner
        self._epoch = epoch

    def last(self) -> Commit | None:
        """The last commit; None if there is none. Raises UsageError for a folder that has other files, or whose last
        commit is not the owner's or of a later epoch."""
        if self._files.status(self._folder) is None:
            return None
        names = {status.name for status in self._files.list(self._folder)}
        if COMMITS not in names:
            if names - {BEGUN}:
                raise UsageError(
                    f"{self._folder} has files, and none of a history ({', '.join(sorted(names)[:3])}): give an empty "
                    "folder, or one that does not exist",
                    folder=self._folder,
                )
            return None
        names = self._names()
        if foreign := sorted(name for name in names if not _NAME.fullmatch(name)):
            raise self._foreign(f"{COMMITS}/{foreign[0]} is not walferry's")
        if not names:
            return None
        last = self.read(max(_numbers(names)))
        if last.epoch > self._epoch:
            raise UsageError(
                f"{self._folder} has commits of epoch {last.epoch}, and the spec has epoch {self._epoch}: give epoch "
                f"{last.epoch} to go on from there, or {last.epoch + 1} to begin anew",
                folder=self._folder, epoch=last.epoch,
            )  # fmt: skip
        return last

    def read(self, number: int) -> Commit:
        """One record. Raises UsageError for one that is missing, or not the owner's."""
        name = f"{COMMITS}/{number:020}.json"
        try:
            value = json.loads(b"".join(self._files.read(f"{self._folder}/{name}")))
            owner, commit = Owner(value["cluster_id"], value["stream"]), _commit_of(value)
        except FileNotFoundError:
            raise self._foreign(f"{name} is missing, though later ones are there") from None
        except (ValueError, TypeError, KeyError):
            raise self._foreign(f"{name} is not walferry's, or of a newer one") from None
        if owner != self._owner:
            raise self._foreign(f"it belongs to stream {owner.stream} of cluster {owner.cluster_id}")
        if commit.number != number:
            raise self._foreign(f"{name} is not walferry's")
        return commit

    def positions(self, last: Commit) -> dict[str, bytes]:
        """All positions as of a commit."""
        found: dict[str, bytes] = {}
        for number in range(last.checkpoint, last.number + 1):
            one = last if number == last.number else self.read(number)
            changed = found | dict(one.positions)
            found = {key: value for key, value in changed.items() if value is not None}
        return found

    def after(self, number: int, last: Commit) -> list[Commit] | None:
        """The commits after a number, up to the last one; None if records of some of them are deleted."""
        if not set(range(number + 1, last.number)) <= set(_numbers(self._names())):
            return None
        return [*(self.read(one) for one in range(number + 1, last.number)), last]

    def record(self, commit: Commit) -> None:
        """Make a record. Raises FencedError if another process has made that number, or a higher one; after a
        TransientError, whether it was made is to be seen in the folder."""
        value = _json_of(commit) | {"cluster_id": self._owner.cluster_id, "stream": self._owner.stream}
        begun = f"{self._folder}/{begun_by(commit.sink, commit.number)}.json"
        self._files.write(begun, [json.dumps(value, separators=(",", ":")).encode()])
        with suppress(FileExistsError, FileNotFoundError):
            self._files.rename(begun, f"{self._folder}/{COMMITS}/{commit.number:020}.json")
        # Whether it was renamed is seen in the folder only: an answer may be lost, and the number's record be gone.
        if max(_numbers(self._names()), default=0) != commit.number or self.read(commit.number).sink != commit.sink:
            raise FencedError(
                f"another process has made commit {commit.number} of the history in {self._folder}: this one must end; "
                "what it had not committed is not there",
                folder=self._folder, stream=self._owner.stream,
            )  # fmt: skip

    def complete(self, commit: Commit) -> None:
        """Give the files of a recorded commit the names that readers look for, those that do not have them yet.

        Raises WalferryError for a file that is gone."""
        for folder in {one.path.rpartition("/")[0] for one in commit.files}:
            self._files.mkdirs(f"{self._folder}/{folder}")
        for one in commit.files:
            try:
                self._files.rename(f"{self._folder}/{one.begun}", f"{self._folder}/{one.path}")
            except (FileExistsError, FileNotFoundError) as error:
                there = self._files.status(f"{self._folder}/{one.path}")
                if there is None or there.length != one.bytes:
                    raise WalferryError(
                        f"{self._folder}: file {one.path} of commit {commit.number} is gone or has not its "
                        f"{one.bytes} bytes: put it back, or begin another history in another folder",
                        folder=self._folder, file=one.path, commit=commit.number,
                    ) from error  # fmt: skip

    def clear(self, number: int) -> None:
        """Delete what was begun of commits up to a number, which is made."""
        for status in self._files.list(f"{self._folder}/{BEGUN}"):
            if status.name < f"{number + 1:020}":
                self._files.delete(f"{self._folder}/{BEGUN}/{status.name}")

    def forget(self, number: int) -> None:
        """Delete the records before a number."""
        for one in _numbers(self._names()):
            if one < number:
                self._files.delete(f"{self._folder}/{COMMITS}/{one:020}.json")

    def make_folders(self) -> None:
        """Make the folders that a history has from the beginning."""
        for name in (COMMITS, BEGUN):
            self._files.mkdirs(f"{self._folder}/{name}")

    def _names(self) -> set[str]:
        """The names of all records. Raises UsageError if their folder is gone."""
        try:
            return {status.name for status in self._files.list(f"{self._folder}/{COMMITS}")}
        except FileNotFoundError:
            raise self._foreign(f"{COMMITS} is gone") from None

    def _foreign(self, why: str) -> UsageError:
        return UsageError(
            f"{self._folder} is not a history of stream {self._owner.stream} of cluster {self._owner.cluster_id}: "
            f"{why}. Set another folder",
            folder=self._folder,
        )


def _numbers(names: Collection[str]) -> list[int]:
    """The numbers of records with these names."""
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


def _json_of(commit: Commit) -> dict[str, Any]:
    return {
        "format": FORMAT, "number": commit.number, "epoch": commit.epoch, "sink": commit.sink,
        "files": [asdict(one) for one in commit.files], "checkpoint": commit.checkpoint,
        "positions": {key: None if value is None else value.decode() for key, value in commit.positions.items()},
    }  # fmt: skip


def _commit_of(value: Mapping[str, Any]) -> Commit:
    if value["format"] != FORMAT:
        raise ValueError(value["format"])
    files: Sequence[Mapping[str, Any]] = value["files"]
    return Commit(
        int(value["number"]),
        tuple(DataFile(**one) for one in files),
        {key: None if text is None else text.encode() for key, text in value["positions"].items()},
        int(value["checkpoint"]),
        int(value["epoch"]),
        value["sink"],
    )
