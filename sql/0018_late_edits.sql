-- Edits of migrated tables past the end fence of a run, found before its end, and what a person decided about each.
CREATE TABLE late_edits (
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    file            TEXT   NOT NULL,
    start_offset    BIGINT NOT NULL,
    table_name      TEXT   NOT NULL,
    region          TEXT   NOT NULL,
    sequence_number BIGINT NOT NULL,
    write_ms        BIGINT NOT NULL,   -- when the source's region server wrote it
    cells           INTEGER NOT NULL,
    first_row       TEXT   NOT NULL,   -- hex
    found_ms        BIGINT NOT NULL,
    decision        TEXT   NOT NULL CHECK (decision IN ('', 'apply', 'reject')),
    reason          TEXT   NOT NULL,
    decided_by      TEXT   NOT NULL,
    decided_ms      BIGINT,
    PRIMARY KEY (run_id, file, start_offset)
);
