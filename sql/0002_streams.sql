-- Runs of kind `stream`. The list of kinds is a constraint of the table `runs`; the files beside this one replace it.
SELECT 1; -- PostgreSQL takes no script without a statement
