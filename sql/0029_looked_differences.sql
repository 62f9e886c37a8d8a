-- Rows that differed at the last look at what was touched since the comparison of a table, and were left as they are.
CREATE TABLE looked_differences (
    run_id      TEXT NOT NULL REFERENCES runs (run_id),
    table_name  TEXT NOT NULL,
    row_key     TEXT NOT NULL,   -- hex
    kind        TEXT NOT NULL,   -- the class of the difference
    detail      TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    PRIMARY KEY (run_id, table_name, row_key)
);
