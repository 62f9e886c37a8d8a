"""Watching a source's log without a run: what is new, what was announced."""
