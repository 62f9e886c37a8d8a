"""The present walferry opens the ledgers of every release, and refuses ledgers from before 0.1.0."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text

from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.ledger.database import TABLES, Database, _migrations, _run_script, sql_directory

RELEASES = sorted(path for path in (Path(__file__).parents[2] / "fixtures" / "ledger").iterdir() if path.is_dir())
OLD_FILES = [(1, "0001_ledger"), (2, "0002_run_kinds"), (30, "0030_second_reader")]
"""some of the files from before 0.1.0, by number"""
SQL_OF_0_1_0 = {
    "0001_ledger.postgresql.sql": "44c15c434e87cbd7a53ecc7c7c27443d549a7f93c7c294461f4abdde68d7f637",
    "0001_ledger.sql": "97314e5b8fdf166e04123eb2ef1b4de4d70f5910a5382b728bef97924934ffce",
    "0001_ledger.sqlite.sql": "efbd2fcb340a6c79c1854827c94302a92ecc2877d1b26e9a2f1d2a05852a661f",
}
"""SHA-256 of the SQL files of release 0.1.0"""


def make_ledger(url: str, release: Path) -> None:
    """Make a ledger with the files of a release, as that release did."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for file in sorted(release.glob("[0-9]*.sql")):
            if file.name.count(".") == 1:
                for part in (file, file.with_suffix(f".{engine.dialect.name}.sql")):
                    _run_script(connection, part.read_text(encoding="utf-8") if part.exists() else "")
        _run_script(connection, (release / "rows.sql").read_text(encoding="utf-8"))
    engine.dispose()


def stored_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, as the database has it."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            table: [dict(row) for row in connection.execute(text(f"SELECT * FROM {table}")).mappings()]
            for table in set(TABLES).intersection(inspect(connection).get_table_names())
        }
    engine.dispose()
    return found


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
class TestReleases:
    def test_every_row_of_a_released_ledger_is_found_again(self, ledger_url: str, release: Path) -> None:
        make_ledger(ledger_url, release)
        before = stored_rows(ledger_url)
        assert [table for table, found in before.items() if not found] == [], "the fixture has rows in each table"
        Ledger.open(ledger_url, actor="tester").close()
        after = stored_rows(ledger_url)
        for table, found in before.items():
            if table != "schema_versions":  # has a row for each newer file, too
                assert len(after[table]) == len(found)
            for old in found:
                assert any(old.items() <= new.items() for new in after[table]), f"{table} has lost {old}"

    def test_what_a_released_ledger_says_is_read_and_continued(self, ledger_url: str, release: Path) -> None:
        make_ledger(ledger_url, release)
        with Ledger.open(ledger_url, actor="tester") as ledger:
            ledger.verify_audit()
            assert [(run.run_id, run.kind, run.state) for run in ledger.runs()] == [
                ("move-1", "migration", "running"), ("twins-1", "pair", "running"),
            ]  # fmt: skip
            run, pair = ledger.of("move-1"), ledger.of("twins-1")
            assert {phase.phase: phase.transient for phase in run.phases.all()}["replay"]
            assert run.notes.get("reason", "shop:orders") == {"why": "a note"}
            assert [thing.state for thing in run.objects.all()] == ["made"]
            assert [lease.fencing_number for lease in ledger.leases()] == [1]
            assert [position.number for position in run.log.fence("start") or []] == [10]
            assert len(run.log.files()) == 3
            assert run.log.applied(["other.20", "other.21", "other.22"]) == {"other.20", "other.21"}
            assert [(c.group, c.sealed, c.applied, c.verified) for c in run.log.coverage()] == [
                ("other", 60, 200, 0), ("rs%2C1%2C2", 0, 0, 1_000),
            ]  # fmt: skip
            assert {gap.kind for gap in run.log.gaps()} == {"not applied", "held"}
            assert [file.bytes for file in run.staged.there()] == [1_000]
            assert run.regions.known(["shop:orders"])["shop:orders", "r1"].closed_sequence == 9
            assert run.numbers.last(["r1"])["r1"].number == 12
            assert [(gap.first, gap.last) for gap in run.numbers.gaps(accepted=True)] == [(5, 7)]
            assert [one.accepted_by for one in run.numbers.counted()] == ["tester"]
            assert [item.data for item in run.quarantine.items("released")] == [b"\x00\xff"]
            assert len(run.quarantine.holds()) == len(run.late.all()) == len(run.batches.pieces()) == 1
            assert run.batches.now() is not None
            assert run.rounds.totals().cells == sum(made.cells for made in run.rounds.all()) == 7
            assert [compared.differing_rows for compared in run.comparisons.tables()] == [2]
            assert len(run.comparisons.ranges()) == len(run.comparisons.differences()) == 2
            assert len(run.comparisons.looked()) == len(run.comparisons.accepted()) == len(run.repairs.all()) == 1
            assert [made.differing_rows for made in pair.passes.latest(9)] == [1]
            assert len(pair.passes.regions()) == len(pair.passes.differences()) == len(pair.passes.positions()) == 1
            run.end("aborted", "tester")
            ledger.verify_audit()


def test_the_sql_of_a_released_version_is_never_edited() -> None:
    """Neither is the copy in the fixture. A change of the schema is a new numbered file."""
    for folder in (sql_directory(), RELEASES[0]):
        assert {name: sha256((folder / name).read_bytes()).hexdigest() for name in SQL_OF_0_1_0} == SQL_OF_0_1_0
    for release in RELEASES:
        for file in release.glob("[0-9]*.sql"):
            assert (sql_directory() / file.name).read_bytes() == file.read_bytes(), f"{file.name} of {release.name}"


def test_the_files_are_numbered_without_a_hole() -> None:
    assert sorted(_migrations()) == list(range(1, len(_migrations()) + 1))


@pytest.mark.parametrize("last", OLD_FILES)
@pytest.mark.parametrize("create", [True, False])
def test_a_ledger_from_before_the_first_release_is_refused_with_what_to_do(
    ledger_url: str, last: tuple[int, str], create: bool
) -> None:
    Ledger.open(ledger_url).close()
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM schema_versions"))
        for version, name in [old for old in OLD_FILES if old <= last]:
            connection.execute(text(f"INSERT INTO schema_versions VALUES ({version}, '{name}', 0)"))
        if last[0] == 1:
            connection.execute(text("DROP TABLE notes"))
    engine.dispose()
    with pytest.raises(UsageError, match=rf"before 0\.1\.0 .*schema {last[0]}, {last[1]}.*another ledger"):
        Database(ledger_url, create=create)
