-- The audit trail only grows.
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit lines are never changed');
END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit lines are never removed');
END;

-- INSERT OR REPLACE removes the old line without asking the trigger above.
CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE sequence = NEW.sequence)
BEGIN
    SELECT RAISE(ABORT, 'audit lines are never changed');
END;
