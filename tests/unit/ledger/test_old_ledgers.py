"""A ledger of an older walferry is brought up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from unit.migration.filled_ledger import compared
from walferry.ledger import Ledger, RoundTotals
from walferry.ledger.database import sql_directory
from walferry.refusals import ANY_REGION, ANY_TABLE, RefusalKind

BEFORE = 4
"""the schema that brought the column"""


def test_the_kind_and_region_of_older_items_are_known_from_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as connection:
        for file in sorted(sql_directory().glob("[0-9]*.sql")):
            version, _, rest = file.name.partition("_")
            if int(version) < BEFORE and (rest.count(".") == 1 or ".sqlite." in rest):
                connection.executescript(file.read_text(encoding="utf-8"))
                if rest.count(".") == 1:
                    connection.execute("INSERT INTO schema_versions VALUES (?, ?, 0)", (int(version), file.stem))
        connection.execute(
            "INSERT INTO runs (run_id, name, owner, spec, state, paused, outcome, created_ms) "
            "VALUES ('move-1', 'move', 'me', '{}', 'running', FALSE, '', 0)"
        )
        items = [
            ("t", "r1", "no such family"),
            ("t", "r1", "again, after the release of 1: not in the log: a bulk load"),
            ("t", "", "lineage: region r2 was created anew"),
            ("*", "", "rs.1 is damaged at byte 7"),
        ]
        for number, (table, region, reason) in enumerate(items, 1):
            connection.execute(
                "INSERT INTO quarantine (quarantine_id, run_id, file, start_offset, end_offset, table_name, region, "
                "sequence_number, reason, data, state, recorded_ms) VALUES (?, 'move-1', 'f', 1, 2, ?, ?, 3, ?, '', "
                "'held', 0)",
                (number, table, region, reason),
            )
    connection.close()
    with Ledger.open(f"sqlite:///{path}", actor="test") as ledger:
        found = [(item.table, item.region, item.kind) for item in ledger.of("move-1").quarantine.items()]
    assert found == [
        ("t", "r1", RefusalKind.REFUSED),
        ("t", "r1", RefusalKind.NOT_IN_LOG),
        ("t", ANY_REGION, RefusalKind.LINEAGE),
        (ANY_TABLE, ANY_REGION, RefusalKind.DAMAGE),
    ]


def test_a_ledger_of_before_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its comparisons stay the newest, its differences get the names of today; its failures may be tried again."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        for name in ("0001_ledger.sql", "0001_ledger.sqlite.sql", "0002_run_kinds.sql"):
            old.executescript((sql_directory() / name).read_text())
        for values in (
            "schema_versions VALUES (2, '0002_run_kinds', 0)",
            "runs VALUES ('m-1', 'm', 'o', '{\"tables\": [\"t1\"]}', 'running', 0, '', 1, NULL, 'migration')",
            "comparisons VALUES ('m-1', 4, 't1', 'r1', '', '', 1, 2, 'aa', 1, 2, 'aa', '{}')",
            "differences VALUES ('m-1', 4, 't1', '00', 'not in the log', 'd')",
            "phases VALUES ('m-1', 'copy', 't1', 'failed', 1, 1, 2, '{}', 'SomeError: no')",
            "phases VALUES ('m-1', 'plan', '', 'done', 1, 1, 2, '{}', '')",
        ):
            old.execute(f"INSERT INTO {values}")
        old.commit()
    with Ledger.open(f"sqlite:///{tmp_path / 'old.db'}") as ledger:
        kept = ledger.of("m-1").comparisons
        assert kept.ranges()[0].equal
        assert [item.kind for item in kept.differences()] == ["not-in-log"]
        assert kept.record(compared("t1"), [], []).attempt == 5
        assert {phase.phase: phase.transient for phase in ledger.of("m-1").phases.all()} == {
            "copy": True, "plan": False,
        }  # fmt: skip


def test_the_applied_files_of_an_older_ledger_are_packed(tmp_path: Path) -> None:
    """What is applied stays so, with all that its ranges said: nothing is applied again."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        for file in sorted(sql_directory().glob("000*.sql")):
            if file.name.count(".") == 1 or ".sqlite." in file.name:
                old.executescript(file.read_text(encoding="utf-8"))
        old.execute("INSERT INTO schema_versions VALUES (9, '0009_transient_failures', 0)")
        old.execute(
            "INSERT INTO runs VALUES ('m-1', 'm', 'o', '{\"tables\": [\"t1\", \"t2\"]}', 'running', 0, '', 1, NULL, "
            "'migration')"
        )
        old.executemany("INSERT INTO run_tables VALUES ('m-1', ?)", [("t1",), ("t2",)])
        for number, sealed_ms in ((10, 5), (11, 5), (12, 5), (13, None)):
            old.execute(
                "INSERT INTO wal_files VALUES ('m-1', ?, 'g', 's', ?, '/p', 8, 'sealed', 4, ?)",
                (f"g.{number}", number, sealed_ms),
            )
        ranges = [
            ("g.10", "t1", 0, 8, 2, 5, 1000, 2000, "verified"), ("g.10", "t2", 0, 8, 0, 0, None, None, "applied"),
            ("g.11", "t1", 0, 8, 1, 1, 7, 7, "applied"), ("g.11", "t2", 0, 8, 1, 1, 7, 7, "sealed"),
            ("g.12", "t1", 0, 3, 1, 1, 7, 7, "applied"), ("g.12", "t1", 3, 8, 1, 1, 9, 9, "applied"),
            ("g.12", "t2", 0, 8, 0, 0, None, None, "applied"),
            ("g.13", "t1", 0, 8, 0, 0, None, None, "applied"), ("g.13", "t2", 0, 8, 0, 0, None, None, "applied"),
        ]  # fmt: skip
        old.executemany("INSERT INTO wal_ranges VALUES ('m-1', ?, ?, ?, ?, ?, ?, ?, ?, ?)", ranges)
        rounds = [(1, 0, 50, 1, 10, 2, 3, 20, 0), (2, 50, 150, 1, 10, 2, 3, 20, 0)]
        old.executemany("INSERT INTO rounds VALUES ('m-1', ?, ?, ?, ?, ?, ?, ?, ?, ?)", rounds)
        old.commit()
    with Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", actor="test") as ledger:
        part = ledger.of("m-1")
        names = [f"g.{number}" for number in range(10, 14)]
        assert part.log.applied(names) == {"g.10", "g.12", "g.13"}
        assert part.log.pending(names) == {"g.11"}
        assert [(r.file, r.table, r.start, *vars(r).values()) for r in part.log.ranges()] == [
            (file, table, start, file, start, end, table, *rest) for file, table, start, end, *rest in ranges
        ]
        assert [(c.table, c.sealed, c.applied, c.verified) for c in part.log.coverage()] == [
            ("t1", 0, 24, 8), ("t2", 8, 24, 0),
        ]  # fmt: skip
        assert {(gap.file, gap.table) for gap in part.log.gaps()} == {("g.11", "t2")}
        assert part.log.reached() == {("g", "t1"): 13, ("g", "t2"): 13}
        assert part.rounds.totals() == RoundTotals(2, 20, 4, 6, 120)
        with ledger._store.database.read() as connection:
            kept = connection.execute(ledger._store.table("wal_ranges").select()).all()
        assert {row.file for row in kept} == {"g.11", "g.12", "g.13"}
