-- What one comparison of a table was made for, and what it rests on. The last gate accepts only the one that the present
-- attempt of the run's own phase recorded, after the present drain and for the present end fence.
CREATE TABLE compared_tables (
    run_id         TEXT   NOT NULL REFERENCES runs (run_id),
    attempt        BIGINT NOT NULL,                -- of all comparisons of the table in this run: 1, 2, ...
    table_name     TEXT   NOT NULL,
    purpose        TEXT   NOT NULL CHECK (purpose IN ('phase', 'verify')),
    phase_attempt  BIGINT NOT NULL,                -- of the phase `compare`; 0: made by `walferry verify`
    drain_attempt  BIGINT NOT NULL,                -- of the phase `drain`, done by then; 0: it was not
    end_fence      TEXT   NOT NULL,                -- digest of the end fence; '': none was set
    began_ms       BIGINT NOT NULL,
    ended_ms       BIGINT NOT NULL,
    differing_rows BIGINT NOT NULL,                -- all of them, also those that `differences` does not name
    PRIMARY KEY (run_id, attempt, table_name)
);

-- Cells whose TTL ended while a range was read: compared where both sides held them, else uncompared.
ALTER TABLE comparisons ADD COLUMN expiring BIGINT NOT NULL DEFAULT 0;
ALTER TABLE comparisons ADD COLUMN uncompared BIGINT NOT NULL DEFAULT 0;
ALTER TABLE comparisons ADD COLUMN first_ms BIGINT;
ALTER TABLE comparisons ADD COLUMN last_ms BIGINT;

-- Of exactly the cells that a row differs in: a decision about a difference holds for no other.
ALTER TABLE differences ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
UPDATE differences SET kind = 'in-flight' WHERE kind = 'in flight';
UPDATE differences SET kind = 'not-in-log' WHERE kind = 'not in the log';
UPDATE differences SET kind = 'left-out' WHERE kind = 'left out by decision';

-- Differences that a person decided to live with.
CREATE TABLE accepted_differences (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    table_name  TEXT   NOT NULL,
    row_key     TEXT   NOT NULL,                   -- hex
    fingerprint TEXT   NOT NULL,
    detail      TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    accepted_by TEXT   NOT NULL,
    accepted_ms BIGINT NOT NULL,
    PRIMARY KEY (run_id, table_name, row_key, fingerprint)
);
