-- What is known of each region of a run's tables, by the snapshot and by the log as far as it is applied. A region that
-- opens again without a store file that it had was restored in place, or cloned under the same name.
CREATE TABLE known_regions (
    run_id          TEXT   NOT NULL REFERENCES runs (run_id),
    table_name      TEXT   NOT NULL,
    region          TEXT   NOT NULL,               -- encoded name
    store_files     TEXT   NOT NULL,               -- names, with blanks in between
    closed_sequence BIGINT,                        -- of its closing, if that was the last that the log told; else NULL
    closed_file     TEXT   NOT NULL,               -- the WAL file with the marker of that closing; else ''
    closed_offset   BIGINT NOT NULL,
    closed_ms       BIGINT NOT NULL,               -- write time of that marker
    PRIMARY KEY (run_id, table_name, region)
);
DELETE FROM notes WHERE name = 'closed regions';
