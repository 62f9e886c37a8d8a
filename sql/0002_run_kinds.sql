-- What kind of run it is decides which phases it has, and in which order (walferry/run/phases.py).
ALTER TABLE runs ADD COLUMN kind TEXT NOT NULL DEFAULT 'migration'
    CHECK (kind IN ('migration', 'snapshot', 'copy', 'standby', 'comparison', 'window', 'drain', 'watch'));
UPDATE runs SET kind = 'window' WHERE owner = 'window';
UPDATE runs SET kind = 'drain' WHERE owner = 'airflow hbase_wal_drain';
UPDATE runs SET kind = 'watch' WHERE owner = 'hbase_wal_watch';

-- What a run must remember between its steps and no phase of it tells: one value for each name and subject.
CREATE TABLE notes (
    run_id  TEXT   NOT NULL REFERENCES runs (run_id),
    name    TEXT   NOT NULL,
    subject TEXT   NOT NULL,
    facts   TEXT   NOT NULL,                       -- JSON
    at_ms   BIGINT NOT NULL,
    PRIMARY KEY (run_id, name, subject)
);
INSERT INTO notes (run_id, name, subject, facts, at_ms)
SELECT run_id, CASE phase WHEN 'applied_cut' THEN 'applied cut' ELSE phase END, subject, facts, started_ms
FROM phases
WHERE phase = 'applied_cut' OR phase = 'nothing to announce' OR phase LIKE 'told %';
DELETE FROM phases WHERE phase = 'applied_cut' OR phase = 'nothing to announce' OR phase LIKE 'told %';
