"""Every change of a source as a message to Kafka, or a row in Parquet, in the order of the row, exactly once.

Start with `stream`, which has the phases, and `passes`, the loop. In each pass `follower` reads the log, has
`ordering/` put the entries in order, and `sending` sends them to a `destination`: as messages (`message/`) to Kafka
(`kafka/`), or as rows into files (`history/`). `snapshot/` sends the rows that tables have already. For Kafka, `image/`
reads the row after each change. docs/streams.md describes what is promised.
"""
