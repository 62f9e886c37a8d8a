"""Snapshots as files: `files` has the manifest, and where the store files of each region are; `reading` shows the cells
or the rows of a snapshot, by options; `stat` counts them, for `walferry snapshot stat`. Begin with `reading`."""
