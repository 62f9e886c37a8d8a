"""What a message looks like.

Start with `changes`, which turns the entries of a log into messages, with numba. `image_cells` turns the cells that a
reader sees of a row into the `images` of messages. `events` are the messages about a table (schema,
truncation, bulk load), and `model` is the shape of both as a schema.
"""
