-- Runs of kind `replication`, which watch what HBase replicates by itself; the files beside this one replace the list of
-- kinds.

-- How far a replication peer was at one look. Written by peer_looks.py; those of the last 30 days are kept.
CREATE TABLE peer_looks (
    run_id          TEXT    NOT NULL REFERENCES runs (run_id),
    peer            TEXT    NOT NULL,                              -- its id at the source
    looked_ms       BIGINT  NOT NULL,
    oldest_age_ms   BIGINT,                                        -- of the oldest edit that is not shipped; 0: none
                                                                   -- waits; NULL: it could not be told
    unshipped_bytes BIGINT  NOT NULL CHECK (unshipped_bytes >= 0), -- of logs, past the recorded positions
    pinned_bytes    BIGINT  NOT NULL CHECK (pinned_bytes >= 0),    -- of logs that only this peer keeps
    waiting_files   BIGINT  NOT NULL CHECK (waiting_files >= 0),   -- of bulk loads, not shipped
    lost_logs       INTEGER NOT NULL CHECK (lost_logs >= 0),       -- of its queues, without a file
    stuck_queues    INTEGER NOT NULL CHECK (stuck_queues >= 0),    -- that have not shipped an edit for a minute
    PRIMARY KEY (run_id, looked_ms, peer)
);

-- What the replication peer of a pair was seen to ship before rows were judged (pair_shipping.py): JSON with peer,
-- rolled_ms, shipped_ms, queues, logs, files, and why, if it did not ship, so that rows were not judged.
ALTER TABLE passes ADD COLUMN shipped TEXT NOT NULL DEFAULT '{}';
