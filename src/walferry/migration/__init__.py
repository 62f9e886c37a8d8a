"""A migration's own phases up to the cutover.

Start with `plan` (`planning/` has what it examines); `report` is the end. `copying/` brings the tables over,
`comparing/` finds out whether both sides are equal, and `repairing/` makes them equal. They build on `sides/` (reads
both sides of rows), `touching/` (rows that may have become unequal since a comparison) and `explaining/` (why a row
differs). `pairs/` verifies tables that something else keeps equal, and `setup/` has HBase's own replication do that.
"""
