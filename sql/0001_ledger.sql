-- The ledger: what walferry did, byte for byte, in SQLite and in PostgreSQL alike.
--
-- Conventions: times are milliseconds since 1970 UTC; offsets and lengths are bytes of the WAL file;
-- row keys and other raw bytes are lower-case hex, which sorts as the bytes do; facts are JSON text.
-- This file is portable. What the databases spell differently (triggers) is in
-- 0001_ledger.sqlite.sql and 0001_ledger.postgresql.sql, run right after it in the same transaction.

CREATE TABLE schema_versions (
    version     BIGINT NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL,
    applied_ms  BIGINT NOT NULL
);

CREATE TABLE runs (
    run_id      TEXT    NOT NULL PRIMARY KEY,      -- name-1, name-2, ...
    name        TEXT    NOT NULL,
    owner       TEXT    NOT NULL,                  -- who may go on with it: a DAG run, or a user of the CLI
    spec        TEXT    NOT NULL,                  -- JSON
    state       TEXT    NOT NULL CHECK (state IN ('running', 'done', 'failed', 'aborted')),
    paused      BOOLEAN NOT NULL,
    outcome     TEXT    NOT NULL,
    created_ms  BIGINT  NOT NULL,
    ended_ms    BIGINT
);

-- One unfinished run per name.
CREATE UNIQUE INDEX runs_unfinished ON runs (name) WHERE state = 'running';

-- The source tables that a run moves, named as the WAL names them ("ns:table", or "table" in namespace default).
CREATE TABLE run_tables (
    run_id      TEXT NOT NULL REFERENCES runs (run_id),
    table_name  TEXT NOT NULL,
    PRIMARY KEY (run_id, table_name)
);

CREATE TABLE phases (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    phase       TEXT   NOT NULL,
    subject     TEXT   NOT NULL,                   -- a table, or '' for the whole run
    state       TEXT   NOT NULL CHECK (state IN ('running', 'done', 'failed')),
    attempts    BIGINT NOT NULL,
    started_ms  BIGINT NOT NULL,
    finished_ms BIGINT,
    facts       TEXT   NOT NULL,                   -- JSON
    error       TEXT   NOT NULL,
    PRIMARY KEY (run_id, phase, subject)
);

-- Every object of ours on a cluster (peer, snapshot, manifest): written before it is made, so that none is left behind.
CREATE TABLE objects (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    cluster     TEXT   NOT NULL CHECK (cluster IN ('source', 'target')),
    kind        TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    state       TEXT   NOT NULL CHECK (state IN ('planned', 'made', 'removed')),
    planned_ms  BIGINT NOT NULL,
    made_ms     BIGINT,
    removed_ms  BIGINT,
    PRIMARY KEY (run_id, cluster, kind, name)
);

-- Who may write to a target table. The lease itself is an ephemeral node of the target's ZooKeeper; here is its history.
CREATE TABLE leases (
    resource       TEXT   NOT NULL,
    fencing_number BIGINT NOT NULL,                -- only ever grows per resource
    run_id         TEXT   NOT NULL REFERENCES runs (run_id),
    holder         TEXT   NOT NULL,
    taken_ms       BIGINT NOT NULL,
    released_ms    BIGINT,
    PRIMARY KEY (resource, fencing_number)
);

-- A fence is a vector of positions, one for each WAL group; bytes before `start` and from `end` on are not the run's.
CREATE TABLE fences (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    kind        TEXT   NOT NULL CHECK (kind IN ('start', 'end')),
    wal_group   TEXT   NOT NULL,
    file        TEXT   NOT NULL,                   -- '': behind all files of a group that has ended
    number      BIGINT NOT NULL,                   -- the number in the file's name: orders the files of a group
    at_offset   BIGINT NOT NULL CHECK (at_offset >= 0),
    PRIMARY KEY (run_id, kind, wal_group)
);

CREATE TABLE wal_files (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    name          TEXT   NOT NULL,
    wal_group     TEXT   NOT NULL,
    server        TEXT   NOT NULL,
    number        BIGINT NOT NULL,
    path          TEXT   NOT NULL,                 -- where it was seen last: WALs/..., -splitting, oldWALs
    length        BIGINT NOT NULL CHECK (length >= 0),
    state         TEXT   NOT NULL CHECK (state IN ('open', 'sealed', 'missing')),
    first_seen_ms BIGINT NOT NULL,
    sealed_ms     BIGINT,                          -- null: never seen closed, so its real length is unknown
    PRIMARY KEY (run_id, name)
);

CREATE INDEX wal_files_group ON wal_files (run_id, wal_group, number);

-- The ranges of a file tile it once for each table: [0, length) of every file, header and trailer included.
CREATE TABLE wal_ranges (
    run_id         TEXT   NOT NULL,
    file           TEXT   NOT NULL,
    table_name     TEXT   NOT NULL,
    start_offset   BIGINT NOT NULL CHECK (start_offset >= 0),
    end_offset     BIGINT NOT NULL CHECK (end_offset >= start_offset),
    entries        BIGINT NOT NULL,                -- of this table in the range
    cells          BIGINT NOT NULL,
    first_write_ms BIGINT,                         -- null: the range holds no entry of this table
    last_write_ms  BIGINT,
    state          TEXT   NOT NULL CHECK (state IN ('seen', 'sealed', 'applied', 'verified')),
    PRIMARY KEY (run_id, file, table_name, start_offset),
    FOREIGN KEY (run_id, file) REFERENCES wal_files (run_id, name)
);

CREATE INDEX wal_ranges_state ON wal_ranges (run_id, table_name, state);

-- What could not be applied, with its bytes. Nothing leaves but by an operator's recorded decision.
CREATE TABLE quarantine (
    quarantine_id   BIGINT NOT NULL PRIMARY KEY,
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    file            TEXT   NOT NULL,
    start_offset    BIGINT NOT NULL,
    end_offset      BIGINT NOT NULL,
    table_name      TEXT   NOT NULL,               -- '' when the bytes cannot be decoded
    region          TEXT   NOT NULL,
    sequence_number BIGINT NOT NULL,
    reason          TEXT   NOT NULL,
    data            TEXT   NOT NULL,               -- hex
    state           TEXT   NOT NULL CHECK (state IN ('held', 'released')),
    resolution      TEXT   CHECK (resolution IN ('retry', 'rpc', 'reread', 'accept')),
    release_reason  TEXT,
    released_by     TEXT,
    recorded_ms     BIGINT NOT NULL,
    released_ms     BIGINT,
    UNIQUE (run_id, file, start_offset, reason, table_name, region)
);

-- Regions that wait behind a quarantined item: from `from_offset` on nothing of them is applied.
CREATE TABLE held_regions (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    quarantine_id BIGINT NOT NULL REFERENCES quarantine (quarantine_id),
    file          TEXT   NOT NULL,
    table_name    TEXT   NOT NULL,
    region        TEXT   NOT NULL,
    from_offset   BIGINT NOT NULL,
    PRIMARY KEY (run_id, quarantine_id, file, table_name, region)
);

CREATE TABLE comparisons (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    attempt       BIGINT NOT NULL,
    table_name    TEXT   NOT NULL,
    region        TEXT   NOT NULL,
    start_row     TEXT   NOT NULL,                 -- hex
    stop_row      TEXT   NOT NULL,
    source_rows   BIGINT NOT NULL,
    source_cells  BIGINT NOT NULL,
    source_digest TEXT   NOT NULL,
    target_rows   BIGINT NOT NULL,
    target_cells  BIGINT NOT NULL,
    target_digest TEXT   NOT NULL,
    dropped       TEXT   NOT NULL,                 -- JSON: invisible cells by their fate
    PRIMARY KEY (run_id, attempt, table_name, start_row)
);

CREATE TABLE differences (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    attempt    BIGINT NOT NULL,
    table_name TEXT   NOT NULL,
    row_key    TEXT   NOT NULL,                    -- hex
    kind       TEXT   NOT NULL,                    -- the class of the difference
    detail     TEXT   NOT NULL
);

CREATE INDEX differences_table ON differences (run_id, table_name, attempt);

CREATE TABLE rounds (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    number        BIGINT NOT NULL,
    started_ms    BIGINT NOT NULL,
    finished_ms   BIGINT NOT NULL,
    files         BIGINT NOT NULL,
    bytes         BIGINT NOT NULL,
    entries       BIGINT NOT NULL,
    cells         BIGINT NOT NULL,
    lag_ms        BIGINT NOT NULL,
    backlog_bytes BIGINT NOT NULL,
    PRIMARY KEY (run_id, number)
);

-- Append-only: hash = sha256(hash of the line before, newline, canonical JSON of this line). Triggers refuse the rest.
CREATE TABLE audit (
    sequence BIGINT NOT NULL PRIMARY KEY,          -- 1, 2, 3, ... without a hole
    at_ms    BIGINT NOT NULL,
    actor    TEXT   NOT NULL,
    action   TEXT   NOT NULL,
    run_id   TEXT,
    inputs   TEXT   NOT NULL,                      -- canonical JSON
    outcome  TEXT   NOT NULL,
    hash     TEXT   NOT NULL
);

CREATE INDEX audit_run ON audit (run_id, sequence);

-- Bytes by the state they are in now; the four columns add up to all that was read of the group for the table.
CREATE VIEW coverage AS
SELECT
    f.run_id,
    f.wal_group,
    r.table_name,
    CAST(SUM(CASE WHEN r.state = 'seen'     THEN r.end_offset - r.start_offset ELSE 0 END) AS BIGINT) AS seen,
    CAST(SUM(CASE WHEN r.state = 'sealed'   THEN r.end_offset - r.start_offset ELSE 0 END) AS BIGINT) AS sealed,
    CAST(SUM(CASE WHEN r.state = 'applied'  THEN r.end_offset - r.start_offset ELSE 0 END) AS BIGINT) AS applied,
    CAST(SUM(CASE WHEN r.state = 'verified' THEN r.end_offset - r.start_offset ELSE 0 END) AS BIGINT) AS verified
FROM wal_files f
JOIN wal_ranges r ON r.run_id = f.run_id AND r.file = f.name
GROUP BY f.run_id, f.wal_group, r.table_name;

-- What a run must have applied: every file of every group between the fences, clipped at the fences.
-- Without an end fence the newest sealed file of each group is the end. A group that a fence does not
-- name (a server that started or died in between) counts in full.
CREATE VIEW required_files AS
SELECT
    f.run_id,
    f.name AS file,
    CASE WHEN s.number = f.number THEN s.at_offset ELSE 0 END AS start_offset,
    CASE WHEN e.number = f.number THEN e.at_offset ELSE f.length END AS end_offset,
    f.length,
    f.state,
    f.sealed_ms,
    CASE WHEN e.number = f.number THEN 1 ELSE 0 END AS ends_at_fence
FROM wal_files f
LEFT JOIN fences s ON s.run_id = f.run_id AND s.wal_group = f.wal_group AND s.kind = 'start'
LEFT JOIN fences e ON e.run_id = f.run_id AND e.wal_group = f.wal_group AND e.kind = 'end'
LEFT JOIN (
    SELECT run_id, wal_group, MAX(number) AS number FROM wal_files WHERE sealed_ms IS NOT NULL GROUP BY run_id, wal_group
) newest ON newest.run_id = f.run_id AND newest.wal_group = f.wal_group
WHERE (s.number IS NULL OR f.number >= s.number)
  AND CASE
        WHEN e.number IS NOT NULL THEN f.number <= e.number
        WHEN EXISTS (SELECT 1 FROM fences x WHERE x.run_id = f.run_id AND x.kind = 'end') THEN TRUE
        WHEN f.state = 'missing' THEN TRUE
        ELSE f.number <= newest.number
      END;

-- Every required byte that is not applied, by table, with the reason. No rows: nothing is missing.
CREATE VIEW gaps AS
WITH required AS (
    SELECT q.*, t.table_name FROM required_files q JOIN run_tables t ON t.run_id = q.run_id
),
-- Applied ranges of the file, then an empty one at its required end, so that the last hole has a right border too.
steps AS (
    SELECT q.run_id, q.file, q.table_name, q.state, q.start_offset AS from_offset,
           CASE WHEN r.start_offset < q.end_offset THEN r.start_offset ELSE q.end_offset END AS start_offset,
           r.end_offset
    FROM required q
    JOIN wal_ranges r ON r.run_id = q.run_id AND r.file = q.file AND r.table_name = q.table_name
    WHERE r.state IN ('applied', 'verified')
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
SELECT h.run_id, h.file, h.start_offset, h.end_offset, h.table_name,
       CASE
         WHEN h.state = 'missing' THEN 'missing: the file is gone from the source'
         WHEN EXISTS (
             SELECT 1 FROM wal_ranges r
             WHERE r.run_id = h.run_id AND r.file = h.file AND r.table_name = h.table_name
               AND r.start_offset < h.end_offset AND r.end_offset > h.start_offset
               AND r.state NOT IN ('applied', 'verified')
         ) THEN 'not applied'
         ELSE 'not read'
       END AS reason
FROM holes h
WHERE h.end_offset > h.start_offset
UNION ALL
-- A file that was never seen closed may hold more than is known of it.
SELECT run_id, file, length, length, table_name,
       CASE WHEN state = 'missing' THEN 'missing before it was sealed: what followed is unknown' ELSE 'not sealed' END
FROM required
WHERE sealed_ms IS NULL AND ends_at_fence = 0
UNION ALL
-- A fence names a file that no listing showed.
SELECT p.run_id, p.file, p.at_offset, p.at_offset, t.table_name, 'the ' || p.kind || ' fence stands in a file never seen'
FROM fences p
JOIN run_tables t ON t.run_id = p.run_id
WHERE (p.kind = 'start' OR p.at_offset > 0) AND p.file <> ''
  AND NOT EXISTS (SELECT 1 FROM wal_files f WHERE f.run_id = p.run_id AND f.name = p.file)
UNION ALL
SELECT run_id, file, start_offset, end_offset, table_name, 'quarantine: item ' || quarantine_id || ' is not released'
FROM quarantine
WHERE state = 'held'
UNION ALL
SELECT h.run_id, h.file, h.from_offset, COALESCE(f.length, h.from_offset), h.table_name,
       'quarantine: region ' || h.region || ' waits behind item ' || h.quarantine_id
FROM held_regions h
LEFT JOIN wal_files f ON f.run_id = h.run_id AND f.name = h.file;
