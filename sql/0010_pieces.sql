-- The batch of sealed files that a run applies now: what it is, as decided when it began. A process that continues it
-- goes by this, whatever has happened to the regions since. Gone when all of it is recorded; `rounds` is the history.
CREATE TABLE batches (
    run_id      TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    plan        TEXT   NOT NULL,                   -- JSON
    started_ms  BIGINT NOT NULL
);

-- Its pieces, each applied and recorded on its own: a kill costs those that are running.
CREATE TABLE pieces (
    run_id      TEXT   NOT NULL REFERENCES batches (run_id),
    number      BIGINT NOT NULL,                   -- the oldest first
    kind        TEXT   NOT NULL CHECK (kind IN ('group', 'rows')),
    subject     TEXT   NOT NULL,                   -- a WAL group, or a range of rows
    plan        TEXT   NOT NULL,                   -- JSON
    bytes       BIGINT NOT NULL,
    state       TEXT   NOT NULL CHECK (state IN ('waiting', 'running', 'done')),
    attempts    BIGINT NOT NULL,
    started_ms  BIGINT,
    finished_ms BIGINT,
    outcome     TEXT   NOT NULL,                   -- JSON; '' until it is done
    PRIMARY KEY (run_id, number)
);

ALTER TABLE rounds ADD COLUMN pieces BIGINT NOT NULL DEFAULT 0;
-- Attempts at pieces beyond the first.
ALTER TABLE rounds ADD COLUMN repeated BIGINT NOT NULL DEFAULT 0;
