"""Snapshots as files: `manifest` has the regions and where their store files are; `reading` shows the cells or the rows
of a snapshot, by options; `stat` counts them, for `walferry snapshot stat`. Begin with `reading`."""
