"""What of the log is applied when: cuts, rounds, windows, leases, lineage, protection, quarantine."""
