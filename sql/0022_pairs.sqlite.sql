-- A CHECK cannot be changed, and SQLite drops columns only since 3.35: the old column stays, unused.
ALTER TABLE runs RENAME COLUMN kind TO former_kind;
ALTER TABLE runs ADD COLUMN kind TEXT NOT NULL DEFAULT 'migration'
    CHECK (kind IN ('migration', 'snapshot', 'copy', 'standby', 'comparison', 'window', 'drain', 'watch', 'pair'));
UPDATE runs SET kind = former_kind;
