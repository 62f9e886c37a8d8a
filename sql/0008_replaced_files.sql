-- Store files that a compaction removed before the log told of the flush or bulk load that made them. From here on each
-- store file is known as family/name, so what was known without families begins anew with the log that comes.
ALTER TABLE known_regions ADD COLUMN replaced_files TEXT NOT NULL DEFAULT '';
DELETE FROM known_regions;
