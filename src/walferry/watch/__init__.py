"""Watching a source's log without a migration: what is new, what has been announced."""
