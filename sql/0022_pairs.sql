-- Pairs of tables that something else keeps equal, verified pass after pass (walferry/migration/pairs/pair_pass.py).

-- One pass over all tables of a pair. Sums grow as regions are recorded; a pass that was interrupted is resumed.
CREATE TABLE passes (
    run_id         TEXT    NOT NULL REFERENCES runs (run_id),
    number         INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,               -- of the phase: an older one records nothing more
    started_ms     BIGINT  NOT NULL,
    ended_ms       BIGINT,
    regions        INTEGER NOT NULL,
    whole_regions  INTEGER NOT NULL,
    log_bytes      BIGINT  NOT NULL,               -- read of both sides' logs
    written_rows   BIGINT  NOT NULL,               -- that these named
    rows_read      BIGINT  NOT NULL,
    bytes_read     BIGINT  NOT NULL,               -- of both sides' cells
    differing_rows BIGINT  NOT NULL,
    under_way_rows BIGINT  NOT NULL,               -- other cells differed each time that they were read
    reasons        TEXT    NOT NULL,               -- JSON: why regions were read whole, with how many
    PRIMARY KEY (run_id, number)
);

-- Places in both logs: everything before them was written before the regions that refer to them were read.
CREATE TABLE pass_positions (
    run_id   TEXT    NOT NULL REFERENCES runs (run_id),
    position INTEGER NOT NULL,
    at_ms    BIGINT  NOT NULL,
    source   TEXT    NOT NULL,                     -- JSON: WAL group to its newest file, and to the ends of open ones
    target   TEXT    NOT NULL,
    PRIMARY KEY (run_id, position)
);

-- What is known of each region of the source, by its newest pass.
CREATE TABLE pass_regions (
    run_id       TEXT    NOT NULL REFERENCES runs (run_id),
    table_name   TEXT    NOT NULL,
    region       TEXT    NOT NULL,                 -- encoded name
    target_table TEXT    NOT NULL,
    start_row    TEXT    NOT NULL,                 -- hex
    stop_row     TEXT    NOT NULL,
    lines        TEXT    NOT NULL,                 -- digest: who serves it, and the target's regions of its rows
    pass         INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    whole        BOOLEAN NOT NULL,                 -- how it was read in that pass
    why          TEXT    NOT NULL,                 -- it was read whole
    whole_ms     BIGINT  NOT NULL,                 -- when it was last read whole
    clean_ms     BIGINT,                           -- when it was last found equal
    rows_read    BIGINT  NOT NULL,                 -- in that pass
    bytes_read   BIGINT  NOT NULL,
    fragile      BOOLEAN NOT NULL,                 -- a compaction may change what is visible of it
    unnamed      BIGINT  NOT NULL,                 -- rows that differ beyond those that are named
    PRIMARY KEY (run_id, table_name, region)
);

-- Rows that differed when they were last read.
CREATE TABLE pass_differences (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    table_name TEXT    NOT NULL,
    row_key    TEXT    NOT NULL,                   -- hex
    region     TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('differs', 'under way')),
    detail     TEXT    NOT NULL,
    found_ms   BIGINT  NOT NULL,                   -- for the first time
    PRIMARY KEY (run_id, table_name, row_key)
);
