-- Runs of kind `setup`, which set up HBase's own replication; the files beside this one replace the list of kinds.
SELECT 1; -- PostgreSQL takes no script without a statement
