-- Missing numbers of a table that shut no gate, added up: those of a source whose regions skip numbers (before 2.0), and
-- those found since a person said for the whole run why numbers of this table are missing.
CREATE TABLE counted_numbers (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    table_name  TEXT   NOT NULL,
    places      BIGINT NOT NULL CHECK (places >= 0),
    numbers     BIGINT NOT NULL CHECK (numbers >= 0),
    accepted_ms BIGINT,                            -- when a person decided; NULL: nobody has
    accepted_by TEXT,
    reason      TEXT,
    PRIMARY KEY (run_id, table_name)
);
