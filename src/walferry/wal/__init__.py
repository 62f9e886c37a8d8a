"""Write-ahead logs as files: their names and groups, where they stand, when they are sealed, printing them."""
