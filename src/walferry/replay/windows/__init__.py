"""Replay a window: exactly the edits that the source wrote in a span of time.

Start with `window`. `window_pieces` sends the edits as requests, `window_bulk` loads them as HFiles.
"""
