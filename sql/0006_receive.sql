-- Runs of kind `receive`, to which a source replicates as to a cluster. The files beside this one replace the list of
-- kinds, and add to received_calls the column `content`, whose type has two names: which entries the call applied, in an
-- encoding of the process that wrote it.

-- One row for each call of the source and each table in it, as far as rows are not folded. Written by received.py.
CREATE TABLE received_calls (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    table_name TEXT    NOT NULL,                        -- the source table
    number     BIGINT  NOT NULL,                        -- rises by one per run and table
    at_ms      BIGINT  NOT NULL,                        -- when it was applied
    entries    BIGINT  NOT NULL CHECK (entries >= 0),   -- that were applied
    cells      BIGINT  NOT NULL CHECK (cells >= 0),
    bytes      BIGINT  NOT NULL CHECK (bytes >= 0),
    repeated   BIGINT  NOT NULL CHECK (repeated >= 0),  -- entries that had been applied before
    late       BIGINT  NOT NULL CHECK (late >= 0),      -- entries that came after newer ones of their region
    PRIMARY KEY (run_id, table_name, number)
);

-- What folded rows of received_calls say of each region: its highest number that was applied.
CREATE TABLE received_floors (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    table_name TEXT    NOT NULL,
    region     TEXT    NOT NULL,                        -- its encoded name at the source
    highest    BIGINT  NOT NULL,
    PRIMARY KEY (run_id, table_name, region)
);

-- Sums over all calls of a table, folded or not.
CREATE TABLE received_totals (
    run_id       TEXT    NOT NULL REFERENCES runs (run_id),
    table_name   TEXT    NOT NULL,
    calls        BIGINT  NOT NULL CHECK (calls > 0),    -- also the number of the newest one
    entries      BIGINT  NOT NULL CHECK (entries >= 0),
    cells        BIGINT  NOT NULL CHECK (cells >= 0),
    bytes        BIGINT  NOT NULL CHECK (bytes >= 0),
    repeated     BIGINT  NOT NULL CHECK (repeated >= 0),
    late         BIGINT  NOT NULL CHECK (late >= 0),
    newest_ms    BIGINT,                                -- the highest write time that was applied; NULL: none was
    at_ms        BIGINT,                                -- when that was applied
    last_call_ms BIGINT  NOT NULL,
    PRIMARY KEY (run_id, table_name)
);

-- The processes of a run, as of their newest heartbeats.
CREATE TABLE receivers (
    run_id          TEXT    NOT NULL REFERENCES runs (run_id),
    server          TEXT    NOT NULL,                   -- host,port,start code
    state           TEXT    NOT NULL CHECK (state IN ('serving', 'left')),
    since_ms        BIGINT  NOT NULL,
    at_ms           BIGINT  NOT NULL,                   -- of the heartbeat
    tables          TEXT    NOT NULL,                   -- target tables that it writes, separated by spaces
    calls           BIGINT  NOT NULL CHECK (calls >= 0),
    refused         BIGINT  NOT NULL CHECK (refused >= 0),
    held_bytes      BIGINT  NOT NULL CHECK (held_bytes >= 0), -- of calls under way
    last_refusal    TEXT    NOT NULL,                   -- why; '': none was refused
    last_refusal_ms BIGINT,
    PRIMARY KEY (run_id, server)
);
