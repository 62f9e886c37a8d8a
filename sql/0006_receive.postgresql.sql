ALTER TABLE runs DROP CONSTRAINT runs_kind_check;

ALTER TABLE runs ADD CONSTRAINT runs_kind_check CHECK (kind IN (
    'migration', 'snapshot', 'copy', 'standby', 'comparison', 'window', 'drain', 'watch', 'pair', 'stream',
    'keep', 'restore', 'replication', 'setup', 'receive'
));

ALTER TABLE received_calls ADD COLUMN content BYTEA NOT NULL DEFAULT '';
