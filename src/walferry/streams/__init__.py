"""Every change of a source as a message to Kafka, by row, in the order of the row, exactly once.

Start with `stream`, which has the phases, and `passes`, the loop. In each pass `follower` reads the log, has
`ordering/` put the entries in order, and `sending` sends them as messages (`message/`) to Kafka (`kafka/`). `snapshot/`
sends the rows that tables have already. docs/streams.md describes what is promised.
"""
