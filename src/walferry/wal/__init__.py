"""Write-ahead logs as files: their names and groups, where they are, when they are sealed, printing them."""
