-- `protect: stage`: copies of the source's WALs, which its cleaner may delete meanwhile. A row comes once the copy is
-- whole and has its name; a copy without a row is made again.
CREATE TABLE staged_files (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    name       TEXT   NOT NULL,                    -- of the WAL file, and of its copy in the run's folder
    bytes      BIGINT NOT NULL CHECK (bytes >= 0),
    sha256     TEXT   NOT NULL,                    -- of what was copied, as sha256sum prints it
    staged_ms  BIGINT NOT NULL,
    removed_ms BIGINT,                             -- when the copy was deleted, since it was applied and old enough
    PRIMARY KEY (run_id, name)
);

CREATE INDEX staged_files_there ON staged_files (run_id) WHERE removed_ms IS NULL;

-- The last entry of each region of the run's tables, as far as the log is applied. The next one has the number after it.
CREATE TABLE region_numbers (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    table_name  TEXT   NOT NULL,
    region      TEXT   NOT NULL,                   -- encoded name
    last_number BIGINT NOT NULL,                   -- its log sequence number
    file        TEXT   NOT NULL,
    edit        BOOLEAN NOT NULL,                  -- whether it is an edit; else a marker, next to which numbers are free
    PRIMARY KEY (run_id, region)
);

-- Numbers that no file has, between two files of a region: a WAL was lost that no list knows, or edits were not logged.
CREATE TABLE number_gaps (
    run_id        TEXT   NOT NULL REFERENCES runs (run_id),
    table_name    TEXT   NOT NULL,
    region        TEXT   NOT NULL,
    first_missing BIGINT NOT NULL,
    last_missing  BIGINT NOT NULL,
    file_before   TEXT   NOT NULL,
    file_after    TEXT   NOT NULL,
    found_ms      BIGINT NOT NULL,
    accepted_ms   BIGINT,                          -- when a person said that nothing was lost
    accepted_by   TEXT,
    reason        TEXT,
    PRIMARY KEY (run_id, region, first_missing)
);
