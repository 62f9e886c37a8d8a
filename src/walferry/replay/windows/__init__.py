"""Replay a window: exactly the edits that the source wrote in a span of time.

`window` is where to start; `window_pieces` applies the edits as they come, `window_bulk` sorted into HFiles.
"""
