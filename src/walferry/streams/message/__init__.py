"""What a message looks like.

Start with `changes`, which turns the entries of a log into messages, with numba. `events` are the messages about a
table (schema, truncation, bulk load), and `model` is the shape of both as a schema.
"""
