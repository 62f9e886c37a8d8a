"""Every change of a source as a message: one per row that a client wrote, in JSON, with its position.

Start with `messages`, which turns the entries of a log into messages; docs/streams.md describes them.
"""
