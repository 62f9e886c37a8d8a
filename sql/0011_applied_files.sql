-- What a round or a status costs depends on what is new. A WAL file that is applied for every table of its run becomes
-- one row: what its ranges said is packed into the file's row, and the bytes are added to those of its group.
ALTER TABLE run_tables ADD COLUMN table_number BIGINT NOT NULL DEFAULT 0;
UPDATE run_tables SET table_number = (
    SELECT COUNT(*) FROM run_tables t WHERE t.run_id = run_tables.run_id AND t.table_name < run_tables.table_name
);

-- Every table of the run has an applied range of the file, and no range of it is in another state.
ALTER TABLE wal_files ADD COLUMN applied BOOLEAN NOT NULL DEFAULT FALSE;
-- Not null: the file is packed. Every table of the run has applied [0, applied_end), which is at least the whole file.
ALTER TABLE wal_files ADD COLUMN applied_end BIGINT;
-- Of a packed file, for each table with entries: its table_number, entries, cells, first write time after the number in
-- the file's name, and last one after the first (ms, may be empty); ':' in between, blanks between tables.
ALTER TABLE wal_files ADD COLUMN packed TEXT NOT NULL DEFAULT '';
-- Of a packed file: the table_numbers of the tables for which it is verified, with blanks in between.
ALTER TABLE wal_files ADD COLUMN verified TEXT NOT NULL DEFAULT '';

-- Sums over the packed files of a group.
CREATE TABLE applied_groups (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    wal_group     TEXT   NOT NULL,
    files         BIGINT NOT NULL,
    bytes         BIGINT NOT NULL,                 -- the same for every table of the run
    newest        BIGINT NOT NULL,                 -- the largest number of a file
    last_write_ms BIGINT,                          -- of an edit; null: none of the files holds one
    PRIMARY KEY (run_id, wal_group)
);

-- How many of those bytes are verified for a table.
CREATE TABLE verified_groups (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    wal_group  TEXT   NOT NULL,
    table_name TEXT   NOT NULL,
    bytes      BIGINT NOT NULL,
    PRIMARY KEY (run_id, wal_group, table_name)
);

-- Sums over all rounds of a run.
CREATE TABLE round_totals (
    run_id         TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    rounds         BIGINT NOT NULL,
    bytes          BIGINT NOT NULL,
    entries        BIGINT NOT NULL,
    cells          BIGINT NOT NULL,
    longest_lag_ms BIGINT NOT NULL                 -- just before a round ended
);
INSERT INTO round_totals (run_id, rounds, bytes, entries, cells, longest_lag_ms)
SELECT run_id, COUNT(*), SUM(bytes), SUM(entries), SUM(cells), MAX(CASE WHEN aged > lag_ms THEN aged ELSE lag_ms END)
FROM (
    SELECT rounds.*, finished_ms - LAG(finished_ms - lag_ms) OVER (PARTITION BY run_id ORDER BY number) AS aged
    FROM rounds
) with_age
GROUP BY run_id;

UPDATE wal_files SET applied = TRUE
WHERE EXISTS (SELECT 1 FROM wal_ranges r WHERE r.run_id = wal_files.run_id AND r.file = wal_files.name)
  AND NOT EXISTS (
      SELECT 1 FROM wal_ranges r
      WHERE r.run_id = wal_files.run_id AND r.file = wal_files.name AND r.state NOT IN ('applied', 'verified')
  )
  AND NOT EXISTS (
      SELECT 1 FROM run_tables t
      WHERE t.run_id = wal_files.run_id
        AND NOT EXISTS (
            SELECT 1 FROM wal_ranges r
            WHERE r.run_id = t.run_id AND r.file = wal_files.name AND r.table_name = t.table_name
        )
  );

UPDATE wal_files SET applied_end = (
    SELECT CASE
             WHEN COUNT(*) = COUNT(DISTINCT r.table_name) AND MAX(r.start_offset) = 0
                  AND MIN(r.end_offset) = MAX(r.end_offset) AND MAX(r.end_offset) >= wal_files.length
             THEN MAX(r.end_offset)
           END
    FROM wal_ranges r
    JOIN run_tables t ON t.run_id = r.run_id AND t.table_name = r.table_name
    WHERE r.run_id = wal_files.run_id AND r.file = wal_files.name
)
WHERE applied AND sealed_ms IS NOT NULL;

INSERT INTO applied_groups (run_id, wal_group, files, bytes, newest, last_write_ms)
SELECT f.run_id, f.wal_group, COUNT(*), SUM(f.applied_end), MAX(f.number), MAX(e.last_write_ms)
FROM wal_files f
JOIN (SELECT run_id, file, MAX(last_write_ms) AS last_write_ms FROM wal_ranges GROUP BY run_id, file) e
    ON e.run_id = f.run_id AND e.file = f.name
WHERE f.applied_end IS NOT NULL
GROUP BY f.run_id, f.wal_group;

INSERT INTO verified_groups (run_id, wal_group, table_name, bytes)
SELECT f.run_id, f.wal_group, r.table_name, SUM(f.applied_end)
FROM wal_files f
JOIN wal_ranges r ON r.run_id = f.run_id AND r.file = f.name AND r.state = 'verified'
JOIN run_tables t ON t.run_id = r.run_id AND t.table_name = r.table_name
WHERE f.applied_end IS NOT NULL
GROUP BY f.run_id, f.wal_group, r.table_name;

CREATE INDEX wal_files_not_packed ON wal_files (run_id, wal_group, number) WHERE applied_end IS NULL;

DROP VIEW coverage;

-- Bytes by the state they are in now; the four columns add up to all that was read of the group for the table.
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

DROP VIEW gaps;
DROP VIEW required_files;

-- What a run must have applied and is not packed: every file of every group between the fences, clipped at the fences.
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
-- The end fence is past all that is known of a packed file.
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
) told
UNION ALL
-- A file that was never seen closed may hold more than is known of it.
SELECT run_id, file, length, length, table_name, CASE WHEN state = 'missing' THEN 'missing' ELSE 'not sealed' END,
       CASE WHEN state = 'missing' THEN 'missing before it was sealed: what followed is unknown' ELSE 'not sealed' END
FROM required
WHERE sealed_ms IS NULL AND ends_at_fence = 0
UNION ALL
-- A closed file without a byte has no hole; only a range says that somebody looked into it.
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
-- A fence names a file that no listing showed.
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
