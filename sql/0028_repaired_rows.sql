-- Rows of target tables that differed from the source, and what was done about each.
CREATE TABLE repaired_rows (
    run_id     TEXT    NOT NULL REFERENCES runs (run_id),
    number     INTEGER NOT NULL,
    table_name TEXT    NOT NULL,
    row_key    TEXT    NOT NULL,   -- hex
    kind       TEXT    NOT NULL,   -- the class of its difference; '' where nobody looked for it
    action     TEXT    NOT NULL,   -- what was sent and purged
    cells      INTEGER NOT NULL,   -- that were sent
    fault      TEXT    NOT NULL,   -- why it could not be repaired; '' if both sides show the same since
    at_ms      BIGINT  NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX repaired_rows_of_table ON repaired_rows (run_id, table_name, row_key);
