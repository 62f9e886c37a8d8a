"""Images: each changed row as a reader saw it right after the change, and upserts, which have its last image.

Start with `rows`, which reads the rows of a pass. It asks HBase for a past moment, and proves by `holds` that the
answer is what a reader saw then, if `proof` has nothing against it. `stored` has the images of a snapshot's rows.
`delivery` sends messages with images, and `upserts` the last ones.
"""
