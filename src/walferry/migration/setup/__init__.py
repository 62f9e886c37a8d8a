"""HBase's own replication of tables, set up without a window in which edits are lost, and put back.

Start with `setup`, which has the function of each phase; `setup_plan` says what is refused. `setting` sets scopes
(`scopes`) and peers, whose records are those of `wanted_peer`. `teardown` and aborts put them back (`put_back`), and
`setup_look` looks at what is set up. `setups` knows which setups a ledger has.
"""
