"""A part of a file: the entries that end past one place and at or before another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.errors import DamagedInputError, TransientError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import EntryBatch, WalReader
from walferry.storage import FileStatus, Local
from walferry.wal import open as opening
from walferry.wal.files import WalFile, list_wals
from walferry.wal.keys import KEY_STORE, master_keys
from walferry.wal.open import Until, open_wal
from written import write_anew

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
NAME = "rs%2C1%2C2.7"
CELL = encode_cell(b"r", b"f", b"q", 1, 4)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_SECONDS", 0.2)
    monkeypatch.setenv(KEY_STORE, f"jceks://{FIXTURES}/keys.jceks?password=fixture")


def live(root: Path, content: bytes) -> WalFile:
    write_anew(Local(), f"{root}/WALs/rs,1,2/{NAME}", [content])
    (file,) = list_wals(Local(), str(root))
    return file


class Unlisted(Local):
    """A file system that does not know the length of open files, as a NameNode does not."""

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return status and replace(status, length=0)


class Counted(Local):
    """Counts the bytes that are read."""

    count = 0

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        for chunk in super().read(path, offset, length):
            self.count += len(chunk)
            yield chunk


def triples(batches: Iterable[EntryBatch]) -> list[tuple[int, int, bytes]]:
    """Of each entry where it ends in the file, its sequence number, and it itself as a plain one."""
    return [
        (int(end), int(number), batch.buffer[start:stop].tobytes())
        for batch in batches
        for end, number, start, stop in zip(
            batch.offset_end, batch.sequence_number, batch.start, batch.end, strict=True
        )
    ]


@pytest.mark.parametrize("kind", ["closed", "killed", "encrypted", "dictionary", "values-gz"])
def test_a_real_log_is_entered_at_any_of_its_entries_and_left_after_any_other(kind: str, tmp_path: Path) -> None:
    content = (FIXTURES / f"{kind}.wal").read_bytes()
    file = live(tmp_path, content)
    whole = triples(WalReader([content], NAME, keys=master_keys))
    assert len(whole) > 10
    places = [0, *(end for end, _, _ in whole)]
    for first, start in list(enumerate(places))[:: max(1, len(places) // 60)]:
        for last in {first, min(first + 3, len(whole)), len(whole)}:
            stop = None if last == len(whole) else places[last]
            wal = open_wal(Local(), str(tmp_path), file, Until.NOW, start=start, stop=stop, batch_bytes=4096)
            assert triples(wal) == whole[first:last]


def test_a_place_inside_an_entry_of_a_file_with_dictionaries_belongs_to_what_comes_after(tmp_path: Path) -> None:
    content = (FIXTURES / "dictionary.wal").read_bytes()
    file = live(tmp_path, content)
    ends = [int(end) for batch in WalReader([content], NAME) for end in batch.offset_end]
    inside = ends[4] + 2
    before = open_wal(Local(), str(tmp_path), file, stop=inside)
    after = open_wal(Local(), str(tmp_path), file, start=inside)
    assert [int(end) for batch in before for end in batch.offset_end] == ends[:5]
    assert [int(end) for batch in after for end in batch.offset_end] == ends[5:]


def test_what_precedes_the_start_of_a_plain_file_is_not_read(tmp_path: Path) -> None:
    entries = [entry([encode_cell(b"r", b"f", b"q", 1, 4, bytes(9000))], i) for i in range(1000)]
    content = header() + b"".join(entries)
    files, file = Counted(), live(tmp_path, content)
    (batch,) = open_wal(files, str(tmp_path), file, Until.NOW, start=len(content) - len(entries[-1]))
    assert batch.sequence_number.tolist() == [999]
    assert files.count < 20_000


def test_a_file_that_shows_less_than_it_had_shown_is_waited_for_and_then_left_for_later(tmp_path: Path) -> None:
    one, two = entry([CELL], 1), entry([CELL], 2)
    file = live(tmp_path, header() + one)

    stop = len(header() + one + two)
    wal = open_wal(Unlisted(), str(tmp_path), file, stop=stop)
    read = iter(wal)
    assert len(next(read)) == 1
    with pytest.raises(TransientError, match="another replica may show them"):
        next(read)
    live(tmp_path, header() + one + two + entry([CELL], 3)[:-4])
    assert [int(n) for batch in wal for n in batch.sequence_number] == [1, 2]


class Recovering(Local):
    """Cannot read a file from its middle on, the first few times."""

    def __init__(self, failures: int) -> None:
        self._failures = failures

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if offset and self._failures:
            self._failures -= 1
            raise TransientError("Cannot obtain block length")
        yield from super().read(path, offset, length)


def test_what_could_be_read_a_moment_ago_is_tried_again_for_a_while(tmp_path: Path) -> None:
    begin, more = header() + entry([CELL], 1), entry([CELL], 2)
    file = live(tmp_path, begin + more)

    def read(failures: int) -> list[int]:
        files = Recovering(failures)
        wal = open_wal(files, str(tmp_path), file, start=len(begin), stop=len(begin + more))
        return [int(number) for batch in wal for number in batch.sequence_number]

    assert read(failures=1) == [2]
    with pytest.raises(TransientError, match="Cannot obtain"):
        read(failures=100)


def test_a_sealed_file_that_is_shorter_than_it_had_shown_ends_where_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = live(tmp_path, header() + entry([CELL]) + TRAILER)
    wal = open_wal(Local(), str(tmp_path), file, stop=10_000)
    assert sum(len(batch) for batch in wal) == 1
    assert "never acknowledged" in caplog.text


def test_damage_past_the_stop_is_no_concern_and_damage_before_it_is(tmp_path: Path) -> None:
    begin = header() + entry([CELL]) + entry([CELL], 2)
    file = live(tmp_path, begin + b"\1\1\1" + entry([CELL], 3))
    assert sum(len(batch) for batch in open_wal(Local(), str(tmp_path), file, stop=len(begin))) == 2
    with pytest.raises(DamagedInputError):
        list(open_wal(Local(), str(tmp_path), file, stop=len(begin) + 10))


def test_a_reader_of_a_file_with_dictionaries_cannot_skip(tmp_path: Path) -> None:
    reader = WalReader([(FIXTURES / "dictionary.wal").read_bytes()], NAME)
    assert not reader.can_skip
    with pytest.raises(ValueError, match="only be read from its beginning"):
        reader.skip_to(1000, [b""])
    assert sum(len(batch) for batch in reader) > 10
