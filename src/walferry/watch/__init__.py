"""Watches a source's log without a migration: what is new, and what has been announced."""
