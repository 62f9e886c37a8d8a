"""Gates of a migration: Great Expectations suites over small frames of results."""
