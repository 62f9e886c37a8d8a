"""From WAL entries to the target: the route, by group or by row, the writers, and what became of each file."""
