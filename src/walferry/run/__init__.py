"""A run as its processes see it: its spec, its phases, both clusters, and how far it has come."""
