-- Runs of kind `keep` and `restore`; the files beside this one replace the list of kinds.

-- Snapshots of tables that a run of kind `keep` has taken: with the log since, a table is restored to any later moment.
-- A row is added once the snapshot is complete. Written by bases.py.
CREATE TABLE bases (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    snapshot    TEXT   NOT NULL,                      -- its name at the source
    table_name  TEXT   NOT NULL,
    fence       TEXT   NOT NULL,                      -- JSON: for each WAL group the number of the first file it needs
    begun_ms    BIGINT NOT NULL,                      -- before the snapshot was requested
    complete_ms BIGINT NOT NULL,                      -- the snapshot was complete by then
    bytes       BIGINT NOT NULL CHECK (bytes >= 0),   -- of its store files
    copied_ms   BIGINT,                               -- when all of its files were in the run's folder
    dropped_ms  BIGINT,                               -- when walferry deleted it, since newer ones are old enough
    PRIMARY KEY (run_id, snapshot)
);

CREATE INDEX bases_there ON bases (table_name, complete_ms) WHERE dropped_ms IS NULL;
