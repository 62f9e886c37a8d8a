-- Of a failed phase: whether another attempt may succeed, as the process that failed judged its error.
-- Of failures recorded before this column it is not known; as an unknown error they may be tried again.
ALTER TABLE phases ADD COLUMN transient BOOLEAN NOT NULL DEFAULT FALSE;

UPDATE phases SET transient = TRUE WHERE state = 'failed';
