-- What the second reader found after a pass over a pair (walferry/migration/pairs/pair_spot_check.py).
ALTER TABLE passes ADD COLUMN second_reader TEXT NOT NULL DEFAULT '{}';   -- JSON: rows, differing, excused, why, text
