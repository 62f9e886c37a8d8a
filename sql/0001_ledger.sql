-- The ledger: what walferry did to every byte of the source's write-ahead log (WAL), in SQLite and in PostgreSQL alike.
--
-- Conventions
--   *_ms              milliseconds since 1970 UTC
--   *_offset, bytes   bytes; an offset counts from the start of a WAL file, and a range is [start_offset, end_offset)
--   row keys, digests lower-case hex, which sorts as the bytes do
--   JSON              text: canonical JSON, with sorted keys and without whitespace
--   table_name        a source table as the WAL names it: "ns:table", or "table" in the namespace default
--   region            encoded name of a region
--   wal_group         the WAL files of one region server that follow each other; a server may have several groups
--   number            of a WAL file: the number at the end of its name, its creation time in ms, which orders a group
-- "Written by" names the module of walferry/ledger that inserts and changes the rows. Drivers and Airflow tasks call
-- it; Spark workers never do.
-- This file is portable. 0001_ledger.sqlite.sql and 0001_ledger.postgresql.sql hold the triggers, which the databases
-- spell differently. walferry runs one of them right after this file, in the same transaction.

-- One row for each numbered file of sql/ that was applied. Written by database.py.
CREATE TABLE schema_versions (
    version     BIGINT NOT NULL PRIMARY KEY,       -- the file's number
    name        TEXT   NOT NULL,                   -- the file's name without .sql
    applied_ms  BIGINT NOT NULL
);

---------------------------------------------------------------------------------------------------------------- runs

-- Written by ledger.py.
CREATE TABLE runs (
    run_id      TEXT    NOT NULL PRIMARY KEY,      -- name-1, name-2, ...
    name        TEXT    NOT NULL,
    kind        TEXT    NOT NULL DEFAULT 'migration'   -- decides the phases and their order (walferry/run/phases.py)
        CHECK (kind IN ('migration', 'snapshot', 'copy', 'standby', 'comparison', 'window', 'drain', 'watch', 'pair')),
    owner       TEXT    NOT NULL,                  -- who may continue the run: a DAG run, or a user of the CLI
    spec        TEXT    NOT NULL,                  -- JSON
    state       TEXT    NOT NULL CHECK (state IN ('running', 'done', 'failed', 'aborted')),
    paused      BOOLEAN NOT NULL,                  -- a person asked the run to pause
    outcome     TEXT    NOT NULL,                  -- why the run ended so, for people; '' while it is unfinished
    created_ms  BIGINT  NOT NULL,
    ended_ms    BIGINT                             -- null: unfinished
);

-- One unfinished run per name.
CREATE UNIQUE INDEX runs_unfinished ON runs (name) WHERE state = 'running';

-- The source tables that a run moves. Written by ledger.py when it opens the run.
CREATE TABLE run_tables (
    run_id       TEXT   NOT NULL REFERENCES runs (run_id),
    table_name   TEXT   NOT NULL,
    table_number BIGINT NOT NULL DEFAULT 0,        -- 0, 1, ... by name: stands for the table in wal_files.packed
    PRIMARY KEY (run_id, table_name)
);

-- Written by phases.py.
CREATE TABLE phases (
    run_id      TEXT    NOT NULL REFERENCES runs (run_id),
    phase       TEXT    NOT NULL,
    subject     TEXT    NOT NULL,                  -- a table, or '' for the whole run
    state       TEXT    NOT NULL CHECK (state IN ('running', 'done', 'failed')),
    attempts    BIGINT  NOT NULL,                  -- number of the newest attempt
    started_ms  BIGINT  NOT NULL,                  -- of the newest attempt
    finished_ms BIGINT,                            -- null: running
    facts       TEXT    NOT NULL,                  -- JSON: the result, which later phases and the report use
    error       TEXT    NOT NULL,                  -- of a failed phase; else ''
    transient   BOOLEAN NOT NULL DEFAULT FALSE,    -- of a failed phase: another attempt may succeed
    PRIMARY KEY (run_id, phase, subject)
);

-- What a run must remember between its steps and no phase records: one value for each name and subject.
-- Written by notes.py. The audit trail has no line about notes.
CREATE TABLE notes (
    run_id  TEXT   NOT NULL REFERENCES runs (run_id),
    name    TEXT   NOT NULL,
    subject TEXT   NOT NULL,                       -- '' for the whole run
    facts   TEXT   NOT NULL,                       -- JSON
    at_ms   BIGINT NOT NULL,                       -- when the value was kept
    PRIMARY KEY (run_id, name, subject)
);

-------------------------------------------------------------------------------------------------------- the clusters

-- Everything that a run creates or sets on a cluster (peer, snapshot, folder, ...). Written by objects.py before the
-- object is created, so that none is left behind.
CREATE TABLE objects (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    cluster     TEXT   NOT NULL CHECK (cluster IN ('source', 'target')),
    kind        TEXT   NOT NULL,                   -- walferry.ledger.rows.ObjectKind
    name        TEXT   NOT NULL,
    state       TEXT   NOT NULL CHECK (state IN ('planned', 'made', 'removed')),
    planned_ms  BIGINT NOT NULL,
    made_ms     BIGINT,
    removed_ms  BIGINT,
    PRIMARY KEY (run_id, cluster, kind, name)
);

-- Who could write to a target table, and when. The lease itself is an ephemeral node of the target's ZooKeeper; this
-- table is its history. Written by leases.py.
CREATE TABLE leases (
    resource       TEXT   NOT NULL,                -- target cluster's id, blank, target table
    fencing_number BIGINT NOT NULL,                -- only grows per resource, over all runs
    run_id         TEXT   NOT NULL REFERENCES runs (run_id),
    holder         TEXT   NOT NULL,                -- run id and actor (walferry/replay/rights/lease.py)
    taken_ms       BIGINT NOT NULL,
    released_ms    BIGINT,
    PRIMARY KEY (resource, fencing_number)
);

----------------------------------------------------------------------------------------------------------- the log

-- A fence has one position in each WAL group. The run's bytes start at the start fence and end before the end fence.
-- Written by fences.py.
CREATE TABLE fences (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    kind        TEXT   NOT NULL CHECK (kind IN ('start', 'end')),
    wal_group   TEXT   NOT NULL,
    file        TEXT   NOT NULL,                   -- '': behind all files of a group that has ended
    number      BIGINT NOT NULL,                   -- of that file
    at_offset   BIGINT NOT NULL CHECK (at_offset >= 0),
    PRIMARY KEY (run_id, kind, wal_group)
);

-- Every WAL file that a listing of the source showed. A file that every table of the run has applied is packed: the row
-- also holds what its rows in wal_ranges said, and those are deleted. Packed neighbours that no longer exist at the
-- source are folded into one row, so that the ledger does not grow with the log.
-- Written by log.py and log_rows.py (packing.py makes the packed text), folded by folding.py.
CREATE TABLE wal_files (
    run_id        TEXT    NOT NULL REFERENCES runs (run_id),
    name          TEXT    NOT NULL,                -- of a folded row: the first file
    wal_group     TEXT    NOT NULL,
    server        TEXT    NOT NULL,                -- region server: host,port,start code
    number        BIGINT  NOT NULL,
    path          TEXT    NOT NULL,                -- where a listing last showed it: WALs/..., -splitting, oldWALs
    length        BIGINT  NOT NULL CHECK (length >= 0),    -- bytes known so far
    state         TEXT    NOT NULL CHECK (state IN ('open', 'sealed', 'missing')),
    first_seen_ms BIGINT  NOT NULL,
    sealed_ms     BIGINT,                          -- null: never seen closed, so the final length is unknown
    applied       BOOLEAN NOT NULL DEFAULT FALSE,  -- every table has a range of the file, and all are applied
    applied_end   BIGINT,                          -- not null: packed, and every table has applied [0, applied_end)
    packed        TEXT    NOT NULL DEFAULT '',     -- of a packed file, for each table with entries:
                                                   -- table_number:entries:cells:first:last, with blanks in between;
                                                   -- first: ms from number to the first write, last: ms from there to
                                                   -- the last write; either may be empty
    verified      TEXT    NOT NULL DEFAULT '',     -- of a packed file: table_numbers for which a comparison verified it
    folded_to     BIGINT,                          -- number of the last file that the row stands for; null: one file
    PRIMARY KEY (run_id, name)
);

CREATE INDEX wal_files_group ON wal_files (run_id, wal_group, number);
CREATE INDEX wal_files_not_packed ON wal_files (run_id, wal_group, number) WHERE applied_end IS NULL;
CREATE INDEX wal_files_folded ON wal_files (run_id, wal_group, number) WHERE folded_to IS NOT NULL;

-- The ranges of a file that is not packed. For each table they tile the file, [0, length), header and trailer included.
-- Written by log_rows.py.
CREATE TABLE wal_ranges (
    run_id         TEXT   NOT NULL,
    file           TEXT   NOT NULL,
    table_name     TEXT   NOT NULL,
    start_offset   BIGINT NOT NULL CHECK (start_offset >= 0),
    end_offset     BIGINT NOT NULL CHECK (end_offset >= start_offset),
    entries        BIGINT NOT NULL,                -- entries of this table in the range
    cells          BIGINT NOT NULL,                -- cells of those entries
    first_write_ms BIGINT,                         -- of an entry, also a marker; null: no entry of this table
    last_write_ms  BIGINT,                         -- of an edit
    state          TEXT   NOT NULL CHECK (state IN ('seen', 'sealed', 'applied', 'verified')),  -- only moves forward
    PRIMARY KEY (run_id, file, table_name, start_offset),
    FOREIGN KEY (run_id, file) REFERENCES wal_files (run_id, name)
);

CREATE INDEX wal_ranges_state ON wal_ranges (run_id, table_name, state);

-- Sums over the packed files of a group, so that nobody has to read all files. Written by packing.py.
CREATE TABLE applied_groups (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    wal_group     TEXT   NOT NULL,
    files         BIGINT NOT NULL,
    bytes         BIGINT NOT NULL,                 -- the same for every table of the run
    newest        BIGINT NOT NULL,                 -- the largest number of a file
    last_write_ms BIGINT,                          -- of an edit; null: none of the files holds one
    PRIMARY KEY (run_id, wal_group)
);

-- How many of the bytes in applied_groups are verified for a table. Written by packing.py.
CREATE TABLE verified_groups (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    wal_group  TEXT   NOT NULL,
    table_name TEXT   NOT NULL,
    bytes      BIGINT NOT NULL,
    PRIMARY KEY (run_id, wal_group, table_name)
);

-- `protect: stage`: copies of the source's WAL files, which the source's cleaner may delete. A row is added once the
-- copy is complete under its final name; a copy without a row is made again. Written by staged.py.
CREATE TABLE staged_files (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    name       TEXT   NOT NULL,                    -- of the WAL file, and of the copy in the run's folder
    bytes      BIGINT NOT NULL CHECK (bytes >= 0),
    sha256     TEXT   NOT NULL,                    -- of the copied bytes, as sha256sum prints it
    staged_ms  BIGINT NOT NULL,
    removed_ms BIGINT,                             -- when walferry deleted the copy: it was applied and old enough
    PRIMARY KEY (run_id, name)
);

CREATE INDEX staged_files_there ON staged_files (run_id) WHERE removed_ms IS NULL;

-- Edits of the run's tables past the end fence, and a person's decision about each. Written by late.py.
CREATE TABLE late_edits (
    run_id          TEXT    NOT NULL REFERENCES runs (run_id),
    file            TEXT    NOT NULL,
    start_offset    BIGINT  NOT NULL,              -- where the entry starts
    table_name      TEXT    NOT NULL,
    region          TEXT    NOT NULL,
    sequence_number BIGINT  NOT NULL,
    write_ms        BIGINT  NOT NULL,              -- when the source's region server wrote the entry
    cells           INTEGER NOT NULL,
    first_row       TEXT    NOT NULL,              -- hex: row of the first cell
    found_ms        BIGINT  NOT NULL,
    decision        TEXT    NOT NULL CHECK (decision IN ('', 'apply', 'reject')),   -- '': none yet
    reason          TEXT    NOT NULL,
    decided_by      TEXT    NOT NULL,
    decided_ms      BIGINT,
    PRIMARY KEY (run_id, file, start_offset)
);

----------------------------------------------------------------------------------------------------------- regions

-- What the snapshot and the applied part of the log show about each region of the run's tables. A region that opens
-- again without a store file that it had was restored in place, or cloned under the same name. Written by regions.py.
CREATE TABLE known_regions (
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    table_name      TEXT   NOT NULL,
    region          TEXT   NOT NULL,
    store_files     TEXT   NOT NULL,               -- family/name, with blanks in between
    closed_sequence BIGINT,                        -- sequence number of its closing, if the log shows nothing later
    closed_file     TEXT   NOT NULL,               -- the WAL file with the marker of that closing; else ''
    closed_offset   BIGINT NOT NULL,               -- of that marker
    closed_ms       BIGINT NOT NULL,               -- write time of that marker
    replaced_files  TEXT   NOT NULL DEFAULT '',    -- family/name: a compaction removed them before the log showed the
                                                   -- flush or bulk load that made them
    PRIMARY KEY (run_id, table_name, region)
);

-- The last applied entry of each region. The next entry of the region has the following number. Written by numbers.py.
CREATE TABLE region_numbers (
    run_id      TEXT    NOT NULL REFERENCES runs (run_id),
    table_name  TEXT    NOT NULL,
    region      TEXT    NOT NULL,
    last_number BIGINT  NOT NULL,                  -- log sequence number
    file        TEXT    NOT NULL,                  -- the WAL file with that entry
    edit        BOOLEAN NOT NULL,                  -- an edit; else a marker, and numbers next to a marker may be unused
    PRIMARY KEY (run_id, region)
);

-- Sequence numbers of a region that no WAL file holds: a file that no listing showed was lost, or edits were not
-- logged. Written by numbers.py.
CREATE TABLE number_gaps (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    table_name    TEXT   NOT NULL,
    region        TEXT   NOT NULL,
    first_missing BIGINT NOT NULL,                 -- both included
    last_missing  BIGINT NOT NULL,
    file_before   TEXT   NOT NULL,
    file_after    TEXT   NOT NULL,
    found_ms      BIGINT NOT NULL,
    accepted_ms   BIGINT,                          -- when a person decided that nothing was lost; null: nobody has
    accepted_by   TEXT,
    reason        TEXT,
    PRIMARY KEY (run_id, region, first_missing)
);

-- Sums of missing numbers that do not shut the gate: those of a source whose regions skip numbers (HBase before 2.0),
-- and those found after a person decided for the whole run about this table. Written by numbers.py.
CREATE TABLE counted_numbers (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    table_name  TEXT   NOT NULL,
    places      BIGINT NOT NULL CHECK (places >= 0),   -- holes
    numbers     BIGINT NOT NULL CHECK (numbers >= 0),  -- missing numbers in all of them
    accepted_ms BIGINT,                            -- when a person decided; null: nobody has
    accepted_by TEXT,
    reason      TEXT,
    PRIMARY KEY (run_id, table_name)
);

-------------------------------------------------------------------------------------------------------- quarantine

-- What walferry could not apply, with its bytes. An item leaves only by an operator's recorded decision.
-- Written by quarantine.py.
CREATE TABLE quarantine (
    quarantine_id   BIGINT NOT NULL PRIMARY KEY,
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    file            TEXT   NOT NULL,
    start_offset    BIGINT NOT NULL,
    end_offset      BIGINT NOT NULL,
    table_name      TEXT   NOT NULL,               -- '*': unknown, the bytes cannot be decoded
    region          TEXT   NOT NULL,               -- '*': unknown, as in held_regions
    sequence_number BIGINT NOT NULL,
    kind            TEXT   NOT NULL DEFAULT 'refused'  -- walferry.refusals.RefusalKind
        CHECK (kind IN ('refused', 'not in the log', 'lineage', 'damage')),
    reason          TEXT   NOT NULL,               -- for people; programs use kind
    data            TEXT   NOT NULL,               -- hex: the bytes
    state           TEXT   NOT NULL CHECK (state IN ('held', 'released')),
    resolution      TEXT   CHECK (resolution IN ('retry', 'rpc', 'reread', 'accept')),
    release_reason  TEXT,
    released_by     TEXT,
    recorded_ms     BIGINT NOT NULL,
    released_ms     BIGINT,
    UNIQUE (run_id, file, start_offset, reason, table_name, region)
);

-- Regions that wait behind a quarantined item: walferry applies nothing of them from `from_offset` on.
-- Written by quarantine.py.
CREATE TABLE held_regions (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    quarantine_id BIGINT NOT NULL REFERENCES quarantine (quarantine_id),
    file          TEXT   NOT NULL,
    table_name    TEXT   NOT NULL,                 -- '*': every table
    region        TEXT   NOT NULL,                 -- '*': every region
    from_offset   BIGINT NOT NULL,
    PRIMARY KEY (run_id, quarantine_id, file, table_name, region)
);

------------------------------------------------------------------------------------------------------------ replay

-- The batch of sealed files that a run applies now, with the plan made at its start. A process that continues the batch
-- follows this plan, even if regions have moved since. The row is deleted once the whole batch is recorded; `rounds` is
-- the history. Written by batches.py.
CREATE TABLE batches (
    run_id      TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    plan        TEXT   NOT NULL,                   -- JSON of the room that applies the batch
    started_ms  BIGINT NOT NULL
);

-- The pieces of that batch, each applied and recorded on its own: a kill costs only the running ones.
-- Written by batches.py.
CREATE TABLE pieces (
    run_id      TEXT   NOT NULL REFERENCES batches (run_id),
    number      BIGINT NOT NULL,                   -- the lowest has the oldest edits
    kind        TEXT   NOT NULL CHECK (kind IN ('group', 'rows')),
    subject     TEXT   NOT NULL,                   -- a WAL group, or a range of rows
    plan        TEXT   NOT NULL,                   -- JSON
    bytes       BIGINT NOT NULL,                   -- of the log
    state       TEXT   NOT NULL CHECK (state IN ('waiting', 'running', 'done')),
    attempts    BIGINT NOT NULL,
    started_ms  BIGINT,
    finished_ms BIGINT,
    outcome     TEXT   NOT NULL,                   -- JSON; '' until the piece is done
    PRIMARY KEY (run_id, number)
);

-- One row for each round of the replay over the sealed files. Written by rounds.py.
CREATE TABLE rounds (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    number        BIGINT NOT NULL,
    started_ms    BIGINT NOT NULL,
    finished_ms   BIGINT NOT NULL,
    files         BIGINT NOT NULL,
    bytes         BIGINT NOT NULL,
    entries       BIGINT NOT NULL,
    cells         BIGINT NOT NULL,
    lag_ms        BIGINT NOT NULL,                 -- a duration: the age of the target when the round ended
    backlog_bytes BIGINT NOT NULL,                 -- not applied yet when the round ended
    pieces        BIGINT NOT NULL DEFAULT 0,
    repeated      BIGINT NOT NULL DEFAULT 0,       -- attempts at pieces beyond the first
    PRIMARY KEY (run_id, number)
);

-- Sums over all rounds of a run. Written by rounds.py.
CREATE TABLE round_totals (
    run_id         TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    rounds         BIGINT NOT NULL,
    bytes          BIGINT NOT NULL,
    entries        BIGINT NOT NULL,
    cells          BIGINT NOT NULL,
    longest_lag_ms BIGINT NOT NULL                 -- a duration: largest age of the target just before a round ended
);

------------------------------------------------------------------------------------------------------- comparisons

-- The head of each comparison of a table: its purpose, and what it rests on. The last gate accepts only a comparison
-- that the newest attempt of the run's own phase `compare` recorded, after the newest drain, for the present end fence.
-- Written by comparisons.py.
CREATE TABLE compared_tables (
    run_id         TEXT   NOT NULL REFERENCES runs (run_id),
    attempt        BIGINT NOT NULL,                -- 1, 2, ... among all comparisons of the table in this run
    table_name     TEXT   NOT NULL,
    purpose        TEXT   NOT NULL CHECK (purpose IN ('phase', 'verify')),  -- phase `compare`, or `walferry verify`
    phase_attempt  BIGINT NOT NULL,                -- attempt of the phase `compare`; 0: made by `walferry verify`
    drain_attempt  BIGINT NOT NULL,                -- attempt of the phase `drain` that was done by then; 0: none was
    end_fence      TEXT   NOT NULL,                -- digest of the end fence; '': none was set
    began_ms       BIGINT NOT NULL,
    ended_ms       BIGINT NOT NULL,
    differing_rows BIGINT NOT NULL,                -- all of them, also those that `differences` does not list
    PRIMARY KEY (run_id, attempt, table_name)
);

-- Both sides of each row range of a comparison. Written by comparisons.py.
CREATE TABLE comparisons (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    attempt       BIGINT NOT NULL,                 -- as in compared_tables
    table_name    TEXT   NOT NULL,
    region        TEXT   NOT NULL,                 -- of the source
    start_row     TEXT   NOT NULL,                 -- hex; [start_row, stop_row)
    stop_row      TEXT   NOT NULL,                 -- hex; '': to the end of the table
    source_rows   BIGINT NOT NULL,
    source_cells  BIGINT NOT NULL,
    source_digest TEXT   NOT NULL,                 -- hex
    target_rows   BIGINT NOT NULL,
    target_cells  BIGINT NOT NULL,
    target_digest TEXT   NOT NULL,                 -- hex
    dropped       TEXT   NOT NULL,                 -- JSON: invisible cells by side and fate
    expiring      BIGINT NOT NULL DEFAULT 0,       -- cells whose TTL ended during the read; both sides held them
    uncompared    BIGINT NOT NULL DEFAULT 0,       -- cells whose TTL ended during the read; only one side held them
    first_ms      BIGINT,                          -- when the first piece of the range was requested
    last_ms       BIGINT,                          -- the moment at which the last piece was resolved
    PRIMARY KEY (run_id, attempt, table_name, start_row)
);

-- Rows that a comparison found to differ. Written by comparisons.py.
CREATE TABLE differences (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    attempt     BIGINT NOT NULL,                   -- as in compared_tables
    table_name  TEXT   NOT NULL,
    row_key     TEXT   NOT NULL,                   -- hex
    kind        TEXT   NOT NULL,                   -- walferry.ledger.rows.DifferenceKind: why the row differs
    detail      TEXT   NOT NULL,                   -- for people
    fingerprint TEXT   NOT NULL DEFAULT ''         -- of exactly the differing cells: a decision holds for no others
);

CREATE INDEX differences_table ON differences (run_id, table_name, attempt);

-- Rows that differed at the last look at what was touched since the comparison of a table, and were left as they are.
-- Written by comparisons.py.
CREATE TABLE looked_differences (
    run_id      TEXT NOT NULL REFERENCES runs (run_id),
    table_name  TEXT NOT NULL,
    row_key     TEXT NOT NULL,                     -- hex
    kind        TEXT NOT NULL,                     -- as in differences
    detail      TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    PRIMARY KEY (run_id, table_name, row_key)
);

-- Differences that a person decided to live with. Written by comparisons.py.
CREATE TABLE accepted_differences (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    table_name  TEXT   NOT NULL,
    row_key     TEXT   NOT NULL,                   -- hex
    fingerprint TEXT   NOT NULL,                   -- as in differences
    detail      TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    accepted_by TEXT   NOT NULL,
    accepted_ms BIGINT NOT NULL,
    PRIMARY KEY (run_id, table_name, row_key, fingerprint)
);

-- Rows of target tables that differed from the source, and what was done about each. Written by repairs.py.
CREATE TABLE repaired_rows (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    number     INTEGER NOT NULL,                   -- 1, 2, ... in the run
    table_name TEXT    NOT NULL,
    row_key    TEXT    NOT NULL,                   -- hex
    kind       TEXT    NOT NULL,                   -- as in differences; '': nobody classified the row
    action     TEXT    NOT NULL,                   -- what was sent and purged
    cells      INTEGER NOT NULL,                   -- cells sent
    fault      TEXT    NOT NULL,                   -- why the row could not be repaired; '': both sides are equal since
    at_ms      BIGINT  NOT NULL,
    PRIMARY KEY (run_id, number)
);

CREATE INDEX repaired_rows_of_table ON repaired_rows (run_id, table_name, row_key);

------------------------------------------------------------------------------------------------------------- pairs

-- A run of kind `pair` verifies, pass after pass, tables that something else keeps equal
-- (walferry/migration/pairs/pair_pass.py). One row for each pass over all tables of the pair. The sums grow while
-- regions are recorded; an interrupted pass is resumed. Written by passes.py, which keeps the newest 1,000.
CREATE TABLE passes (
    run_id         TEXT    NOT NULL REFERENCES runs (run_id),
    number         INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,               -- of the phase: an older attempt can no longer record anything
    started_ms     BIGINT  NOT NULL,
    ended_ms       BIGINT,                         -- null: unfinished
    regions        INTEGER NOT NULL,               -- regions read
    whole_regions  INTEGER NOT NULL,               -- regions read whole
    log_bytes      BIGINT  NOT NULL,               -- read of both sides' logs
    written_rows   BIGINT  NOT NULL,               -- rows that those logs name
    rows_read      BIGINT  NOT NULL,
    bytes_read     BIGINT  NOT NULL,               -- of both sides' cells
    differing_rows BIGINT  NOT NULL,
    under_way_rows BIGINT  NOT NULL,               -- rows whose differing cells were other ones at each read
    reasons        TEXT    NOT NULL,               -- JSON: why regions were read whole, with the number of regions
    second_reader  TEXT    NOT NULL DEFAULT '{}',  -- JSON: what the second reader found (pair_spot_check.py): rows,
                                                   -- differing, excused, why, text
    PRIMARY KEY (run_id, number)
);

-- Places in both logs: everything before a place was written before the regions that refer to it were read.
-- Written by passes.py.
CREATE TABLE pass_positions (
    run_id   TEXT    NOT NULL REFERENCES runs (run_id),
    position INTEGER NOT NULL,
    at_ms    BIGINT  NOT NULL,
    source   TEXT    NOT NULL,                     -- JSON: WAL group to its newest file, and to the ends of open files
    target   TEXT    NOT NULL,                     -- JSON, as source
    PRIMARY KEY (run_id, position)
);

-- What the newest pass over each region of the source showed. Written by passes.py.
CREATE TABLE pass_regions (
    run_id       TEXT    NOT NULL REFERENCES runs (run_id),
    table_name   TEXT    NOT NULL,
    region       TEXT    NOT NULL,
    target_table TEXT    NOT NULL,
    start_row    TEXT    NOT NULL,                 -- hex; [start_row, stop_row)
    stop_row     TEXT    NOT NULL,                 -- hex; '': to the end of the table
    lines        TEXT    NOT NULL,                 -- digest: the region's server, and the target's regions of its rows
    pass         INTEGER NOT NULL,                 -- number of that pass
    position     INTEGER NOT NULL,                 -- of pass_positions
    whole        BOOLEAN NOT NULL,                 -- that pass read the whole region; else only the written rows
    why          TEXT    NOT NULL,                 -- why the region was read whole
    whole_ms     BIGINT  NOT NULL,                 -- when a pass last read the whole region
    clean_ms     BIGINT,                           -- when a pass last found the region equal; null: none has
    rows_read    BIGINT  NOT NULL,                 -- by that pass
    bytes_read   BIGINT  NOT NULL,                 -- by that pass
    fragile      BOOLEAN NOT NULL,                 -- a compaction may change which cells are visible
    unnamed      BIGINT  NOT NULL,                 -- differing rows beyond those in pass_differences
    PRIMARY KEY (run_id, table_name, region)
);

-- Rows that differed when a pass last read them. Written by passes.py.
CREATE TABLE pass_differences (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    table_name TEXT    NOT NULL,
    row_key    TEXT    NOT NULL,                   -- hex
    region     TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('differs', 'under way')),  -- under way: other cells at each read
    detail     TEXT    NOT NULL,
    found_ms   BIGINT  NOT NULL,                   -- when a pass first found the difference
    PRIMARY KEY (run_id, table_name, row_key)
);

------------------------------------------------------------------------------------------------------- audit trail

-- Append-only: triggers refuse any change and removal. Written by audit.py, in the transaction of the change that the
-- line records. hash = sha256(hash of the previous line, newline, canonical JSON of this line).
CREATE TABLE audit (
    sequence BIGINT NOT NULL PRIMARY KEY,          -- 1, 2, 3, ... without a hole
    at_ms    BIGINT NOT NULL,
    actor    TEXT   NOT NULL,                      -- a person, or a program
    action   TEXT   NOT NULL,
    run_id   TEXT,                                 -- null: about no single run
    inputs   TEXT   NOT NULL,                      -- JSON
    outcome  TEXT   NOT NULL,
    hash     TEXT   NOT NULL                       -- hex
);

CREATE INDEX audit_run ON audit (run_id, sequence);

------------------------------------------------------------------------------------------------------------- views

-- Bytes by their present state. The four columns add up to all that was read of the group for the table.
CREATE VIEW coverage AS
SELECT
    run_id,
    wal_group,
    table_name,
    CAST(SUM(seen)     AS BIGINT) AS seen,
    CAST(SUM(sealed)   AS BIGINT) AS sealed,
    CAST(SUM(applied)  AS BIGINT) AS applied,
    CAST(SUM(verified) AS BIGINT) AS verified
FROM (
    SELECT
        f.run_id,
        f.wal_group,
        r.table_name,
        CASE WHEN r.state = 'seen'     THEN r.end_offset - r.start_offset ELSE 0 END AS seen,
        CASE WHEN r.state = 'sealed'   THEN r.end_offset - r.start_offset ELSE 0 END AS sealed,
        CASE WHEN r.state = 'applied'  THEN r.end_offset - r.start_offset ELSE 0 END AS applied,
        CASE WHEN r.state = 'verified' THEN r.end_offset - r.start_offset ELSE 0 END AS verified
    FROM wal_ranges r
    JOIN wal_files f ON f.run_id = r.run_id AND f.name = r.file
    UNION ALL
    SELECT a.run_id, a.wal_group, t.table_name, 0, 0, a.bytes - COALESCE(v.bytes, 0), COALESCE(v.bytes, 0)
    FROM applied_groups a
    JOIN run_tables t ON t.run_id = a.run_id
    LEFT JOIN verified_groups v
        ON v.run_id = a.run_id AND v.wal_group = a.wal_group AND v.table_name = t.table_name
    WHERE a.files > 0
) parts
GROUP BY run_id, wal_group, table_name;

-- The files that a run must have applied and that are not packed: every file of every group between the fences, clipped
-- at the fences. Without an end fence the newest sealed file of each group is the end. A group that a fence does not
-- name counts in full: its server started or died in between.
CREATE VIEW required_files AS
SELECT
    f.run_id,
    f.name AS file,
    CASE WHEN s.number = f.number THEN s.at_offset ELSE 0 END AS start_offset,
    CASE WHEN e.number = f.number THEN e.at_offset ELSE f.length END AS end_offset,
    f.length,
    f.state,
    f.sealed_ms,
    CASE WHEN e.number = f.number THEN 1 ELSE 0 END AS ends_at_fence,
    0 AS applied_end
FROM wal_files f
LEFT JOIN fences s ON s.run_id = f.run_id AND s.wal_group = f.wal_group AND s.kind = 'start'
LEFT JOIN fences e ON e.run_id = f.run_id AND e.wal_group = f.wal_group AND e.kind = 'end'
WHERE f.applied_end IS NULL
  AND (s.number IS NULL OR f.number >= s.number)
  AND CASE
        WHEN e.number IS NOT NULL THEN f.number <= e.number
        WHEN EXISTS (SELECT 1 FROM fences x WHERE x.run_id = f.run_id AND x.kind = 'end') THEN TRUE
        WHEN f.state = 'missing' THEN TRUE
        ELSE EXISTS (
            SELECT 1 FROM wal_files n
            WHERE n.run_id = f.run_id AND n.wal_group = f.wal_group AND n.number >= f.number
              AND n.sealed_ms IS NOT NULL
        )
      END
UNION ALL
-- A packed file that the end fence extends beyond its known bytes.
SELECT
    f.run_id,
    f.name,
    CASE WHEN s.number = f.number THEN s.at_offset ELSE 0 END,
    e.at_offset,
    f.length,
    f.state,
    f.sealed_ms,
    1,
    f.applied_end
FROM fences e
JOIN wal_files f ON f.run_id = e.run_id AND f.wal_group = e.wal_group AND f.number = e.number
LEFT JOIN fences s ON s.run_id = f.run_id AND s.wal_group = f.wal_group AND s.kind = 'start'
WHERE e.kind = 'end' AND f.applied_end < e.at_offset AND (s.number IS NULL OR f.number >= s.number);

-- Every required byte that is not applied, by table, with its kind (walferry.refusals.GapKind) and the reason as text.
-- No rows: nothing is missing. Every required file needs a range for every table, an empty file too: a listing may show
-- a length of 0 for a file that its server has just left.
CREATE VIEW gaps AS
WITH required AS (
    SELECT q.*, t.table_name FROM required_files q JOIN run_tables t ON t.run_id = q.run_id
),
-- The applied ranges of a file, then an empty range at its required end, which closes the last hole.
steps AS (
    SELECT q.run_id, q.file, q.table_name, q.state, q.start_offset AS from_offset,
           CASE WHEN r.start_offset < q.end_offset THEN r.start_offset ELSE q.end_offset END AS start_offset,
           r.end_offset
    FROM required q
    JOIN wal_ranges r ON r.run_id = q.run_id AND r.file = q.file AND r.table_name = q.table_name
    WHERE r.state IN ('applied', 'verified')
    UNION ALL
    SELECT run_id, file, table_name, state, start_offset, 0, applied_end FROM required WHERE applied_end > 0
    UNION ALL
    SELECT run_id, file, table_name, state, start_offset, end_offset, end_offset FROM required
),
reached AS (
    SELECT steps.*,
           MAX(end_offset) OVER (
               PARTITION BY run_id, file, table_name ORDER BY start_offset, end_offset
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS behind
    FROM steps
),
holes AS (
    SELECT run_id, file, table_name, state,
           CASE WHEN behind > from_offset THEN behind ELSE from_offset END AS start_offset,
           start_offset AS end_offset
    FROM reached
)
SELECT run_id, file, start_offset, end_offset, table_name, kind,
       CASE WHEN kind = 'missing' THEN 'missing: the file is gone from the source' ELSE kind END AS reason
FROM (
    SELECT h.run_id, h.file, h.start_offset, h.end_offset, h.table_name,
           CASE
             WHEN h.state = 'missing' THEN 'missing'
             WHEN EXISTS (
                 SELECT 1 FROM wal_ranges r
                 WHERE r.run_id = h.run_id AND r.file = h.file AND r.table_name = h.table_name
                   AND r.start_offset < h.end_offset AND r.end_offset > h.start_offset
                   AND r.state NOT IN ('applied', 'verified')
             ) THEN 'not applied'
             ELSE 'not read'
           END AS kind
    FROM holes h
    WHERE h.end_offset > h.start_offset
) holes_by_kind
UNION ALL
-- A file that no listing showed closed may hold more bytes than are known.
SELECT run_id, file, length, length, table_name, CASE WHEN state = 'missing' THEN 'missing' ELSE 'not sealed' END,
       CASE WHEN state = 'missing' THEN 'missing before it was sealed: what followed is unknown' ELSE 'not sealed' END
FROM required
WHERE sealed_ms IS NULL AND ends_at_fence = 0
UNION ALL
-- A closed file without a byte has no hole. Only a range shows that somebody read it.
SELECT q.run_id, q.file, q.start_offset, q.end_offset, q.table_name,
       CASE WHEN q.state = 'missing' THEN 'missing' ELSE 'not read' END,
       CASE WHEN q.state = 'missing' THEN 'missing: the file is gone from the source' ELSE 'not read' END
FROM required q
WHERE q.sealed_ms IS NOT NULL AND q.ends_at_fence = 0 AND q.end_offset <= q.start_offset
  AND NOT EXISTS (
      SELECT 1 FROM wal_ranges r
      WHERE r.run_id = q.run_id AND r.file = q.file AND r.table_name = q.table_name
        AND r.state IN ('applied', 'verified')
  )
UNION ALL
-- A fence stands in a file that no listing showed.
SELECT p.run_id, p.file, p.at_offset, p.at_offset, t.table_name, 'fence',
       'the ' || p.kind || ' fence stands in a file never seen'
FROM fences p
JOIN run_tables t ON t.run_id = p.run_id
WHERE (p.kind = 'start' OR p.at_offset > 0) AND p.file <> ''
  AND NOT EXISTS (SELECT 1 FROM wal_files f WHERE f.run_id = p.run_id AND f.name = p.file)
UNION ALL
SELECT run_id, file, start_offset, end_offset, table_name, 'held',
       'quarantine: item ' || quarantine_id || ' is not released'
FROM quarantine
WHERE state = 'held'
UNION ALL
SELECT h.run_id, h.file, h.from_offset, COALESCE(f.length, h.from_offset), h.table_name, 'held',
       'quarantine: region ' || h.region || ' waits behind item ' || h.quarantine_id
FROM held_regions h
LEFT JOIN wal_files f ON f.run_id = h.run_id AND f.name = h.file;
