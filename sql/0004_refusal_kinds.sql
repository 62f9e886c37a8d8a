-- What kind of refusal an item in quarantine is (walferry.refusals.RefusalKind), so that nobody reads it out of the reason.
-- A region that is not known is '*', as in held_regions, and no longer ''.
ALTER TABLE quarantine ADD COLUMN kind TEXT NOT NULL DEFAULT 'refused'
    CHECK (kind IN ('refused', 'not in the log', 'lineage', 'damage'));

UPDATE quarantine SET kind = 'not in the log' WHERE reason LIKE '%not in the log: %';
UPDATE quarantine SET kind = 'lineage' WHERE reason LIKE '%lineage: %';
UPDATE quarantine SET kind = 'damage' WHERE table_name = '*';
UPDATE quarantine SET region = '*' WHERE region = '';
