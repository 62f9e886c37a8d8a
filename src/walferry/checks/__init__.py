"""The gates of a run: what the ledger says, and Great Expectations suites over small frames of results."""
