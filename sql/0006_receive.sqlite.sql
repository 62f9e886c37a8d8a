-- SQLite cannot change a constraint, so the table is made again. Other tables refer to its rows until the commit.
PRAGMA defer_foreign_keys = ON;

CREATE TEMPORARY TABLE kept_runs AS SELECT * FROM runs;

DROP TABLE runs;

CREATE TABLE runs (
    run_id      TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    kind        TEXT    NOT NULL DEFAULT 'migration'
        CHECK (kind IN (
            'migration', 'snapshot', 'copy', 'standby', 'comparison', 'window', 'drain', 'watch', 'pair', 'stream',
            'keep', 'restore', 'replication', 'setup', 'receive'
        )),
    owner       TEXT    NOT NULL,
    spec        TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('running', 'done', 'failed', 'aborted')),
    paused      BOOLEAN NOT NULL,
    outcome     TEXT    NOT NULL,
    created_ms  BIGINT  NOT NULL,
    ended_ms    BIGINT
);

INSERT INTO runs (run_id, name, kind, owner, spec, state, paused, outcome, created_ms, ended_ms)
SELECT run_id, name, kind, owner, spec, state, paused, outcome, created_ms, ended_ms FROM kept_runs;

CREATE UNIQUE INDEX runs_unfinished ON runs (name) WHERE state = 'running';

DROP TABLE kept_runs;

ALTER TABLE received_calls ADD COLUMN content BLOB NOT NULL DEFAULT x'';
