"""Write-ahead logs as files: names and groups, where they are, when they are sealed; `wal cat`."""
