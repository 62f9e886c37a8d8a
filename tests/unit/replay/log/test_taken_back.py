"""What was sent of an open log is compared with the sealed one, whatever way the log is applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.apply.prefix import Prefix
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.formats.wal import WalReader
from walferry.ledger import Ledger
from walferry.replay.log import taken_back
from walferry.replay.log.cut import as_seen
from walferry.replay.log.taken_back import compare_sent
from walferry.run.notes.sent_early import SentEarly, note_sent, sent_early
from walferry.run.run import Run
from walferry.storage import Local
from walferry.wal.files import list_wals

NAME = "rs%2C1%2C2.7"
ENTRIES = [entry([encode_cell(b"r", b"f", b"q", number, 4)], number + 1) for number in range(4)]
OTHERS = [entry([encode_cell(b"r", b"f", b"z", number, 4)], number + 1) for number in range(4)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/hbase"}}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__.update(wal_files=Local())
        Path(f"{run.wal_root}/WALs").mkdir(parents=True)
        yield run


class Leases:
    """The leases on the target tables, and the marks that are set under them."""

    def __init__(self) -> None:
        self.marked: dict[str, str] = {}

    def __call__(self, tables: Sequence[str]) -> None:
        """They are held."""

    def mark_dirty(self, rows: dict[str, tuple[bytes, bytes]], why: str) -> None:
        self.marked |= dict.fromkeys(rows, why)


@pytest.fixture
def leases() -> Leases:
    return Leases()


def compare(run: Run, leases: Leases, names: Sequence[str] | None = None) -> None:
    route: Any = SimpleNamespace(tables={"t1": "one", "t2": "two"}, guard=leases)
    compare_sent(run, route, names)


def shown(entries: Sequence[bytes]) -> tuple[int, int]:
    prefix = Prefix()
    for batch in WalReader([header() + b"".join(entries)], NAME):
        prefix.add(batch)
    return prefix.end, prefix.crc


def sealed(run: Run, entries: Sequence[bytes]) -> None:
    path = Path(f"{run.wal_root}/oldWALs/{NAME}")
    path.parent.mkdir(parents=True)
    path.write_bytes(header() + b"".join(entries) + TRAILER)
    (file,) = list_wals(run.wal_files, run.wal_root)
    run.ledger.log.see_files([as_seen(file, sealed=True)])


def sent(run: Run, *shown: tuple[int, int]) -> None:
    note_sent(run.ledger, {NAME: SentEarly(shown=shown, tables=("t1",))}, lambda _: None)


def test_a_log_that_was_sealed_as_it_had_shown_is_in_order_and_its_note_goes(run: Run, leases: Leases) -> None:
    sealed(run, ENTRIES)
    sent(run, shown(ENTRIES[:2]), shown(ENTRIES[:3]))
    compare(run, leases, ["another one"])
    assert sent_early(run.ledger).keys() == {NAME}, "it is still written"
    compare(run, leases)
    assert (leases.marked, sent_early(run.ledger)) == ({}, {})


@pytest.mark.parametrize(
    "entries",
    [ENTRIES[:2], [*ENTRIES[:2], *OTHERS[2:]], [], OTHERS],
    ids=["shorter", "other ones at its end", "empty", "other ones"],
)
def test_a_log_that_was_sealed_with_other_bytes_marks_the_tables_that_had_edits_there(
    run: Run, leases: Leases, entries: list[bytes]
) -> None:
    """Hole: only a batch by group looked; one in bulk, or a file that was found empty, opened the target with edits
    that the source never had."""
    sealed(run, entries)
    sent(run, shown(ENTRIES[:3]))
    compare(run, leases)
    assert leases.marked.keys() == {"one"}
    assert leases.marked["one"].startswith(f"edits that the source has lost: {NAME} had shown ")
    assert sent_early(run.ledger) == {}


def test_what_an_earlier_process_was_shown_counts_though_the_next_one_was_shown_something_else(
    run: Run, leases: Leases
) -> None:
    sealed(run, [*ENTRIES[:1], *OTHERS[1:]])
    sent(run, shown(ENTRIES[:2]), shown([*ENTRIES[:1], *OTHERS[1:]]))
    compare(run, leases)
    assert leases.marked.keys() == {"one"}


def test_a_log_that_nobody_can_read_any_more_marks_its_tables(run: Run, leases: Leases) -> None:
    sent(run, shown(ENTRIES[:1]))
    compare(run, leases)
    assert "no listing shows it any more" in leases.marked["one"]
    sealed(run, ENTRIES)
    Path(f"{run.wal_root}/oldWALs/{NAME}").unlink()
    sent(run, shown(ENTRIES[:1]))
    compare(run, leases)
    assert "is missing from WALs" in leases.marked["one"]
    assert sent_early(run.ledger) == {}


def test_while_a_log_cannot_be_read_nothing_is_decided(
    run: Run, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> Any:
        raise TransientError("the name node does not answer")

    sealed(run, ENTRIES)
    sent(run, shown(ENTRIES))
    monkeypatch.setattr(taken_back, "open_wal", down)
    with pytest.raises(TransientError):
        compare(run, leases)
    assert not leases.marked
    assert sent_early(run.ledger).keys() == {NAME}


def test_a_note_stays_until_its_mark_is_set(run: Run, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise TransientError("the lease is no longer held")

    sealed(run, [])
    sent(run, shown(ENTRIES))
    monkeypatch.setattr(leases, "mark_dirty", lost)
    with pytest.raises(TransientError):
        compare(run, leases)
    assert sent_early(run.ledger).keys() == {NAME}
