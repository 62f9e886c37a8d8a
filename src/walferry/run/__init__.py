"""A run as its processes see it: spec, phases, both clusters, state and progress."""
