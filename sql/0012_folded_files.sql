-- Packed files that no longer exist at the source become one row for neighbours in their group: the row of the first one
-- stands for all of them. What runs have applied and nobody can read again does not make the ledger grow.
ALTER TABLE wal_files ADD COLUMN folded_to BIGINT;   -- the number of the last file; null: the row is of one file

CREATE INDEX wal_files_folded ON wal_files (run_id, wal_group, number) WHERE folded_to IS NOT NULL;
