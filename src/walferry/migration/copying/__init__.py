"""Copy the tables as they are at the start fence.

`copy` takes a snapshot, copies its files (`copy_files`) and clones it at the target; `history` loads its cells in bulk
instead, with `history: bulk`.
"""
