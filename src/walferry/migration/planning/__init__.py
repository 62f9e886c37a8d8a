"""What a plan examines: the source's log (`log_findings`), the tables (`tables`), and file systems (`space`).

Each function yields findings (`finding`) and changes nothing; `migration.plan` calls them.
"""
