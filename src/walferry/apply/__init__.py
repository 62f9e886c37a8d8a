"""From WAL entries to the target: the route, by group or by row, the writers, and reports on each file."""
