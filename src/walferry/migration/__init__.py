"""A migration's own phases up to the cutover.

`plan` is where to start (`planning/` has what it looks at), `report` the end. `copying/` brings the tables over,
`comparing/` asks whether both sides are equal, `repairing/` makes them so. These rest on `sides/` (both sides of rows,
as they are read), `touching/` (what may no longer be equal since) and `explaining/` (why a row differs). `pairs/`
verifies tables that something else keeps equal.
"""
