-- What is known of each region of a run's tables, by the snapshot and by the log as far as it is applied. A region that
-- opens again without a store file that it had was restored in place, or cloned under the same name.
CREATE TABLE known_regions (
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    table_name      TEXT   NOT NULL,
    region          TEXT   NOT NULL,               -- encoded name
    store_files     TEXT   NOT NULL,               -- names, with blanks in between
    closed_sequence BIGINT,                        -- of its closing, if that was the last that the log told; else NULL
    closed_file     TEXT   NOT NULL,               -- the WAL file with the marker of that closing; else ''
    closed_offset   BIGINT NOT NULL,
    closed_ms       BIGINT NOT NULL,               -- write time of that marker
    PRIMARY KEY (run_id, table_name, region)
);
DELETE FROM notes WHERE name = 'closed regions';

-- Of which kind a gap is (walferry.refusals.GapKind), so that nobody reads it out of the reason.
DROP VIEW gaps;

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
