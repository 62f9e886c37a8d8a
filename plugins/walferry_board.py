"""The board for an Airflow that finds walferry on PYTHONPATH, without its being installed.

An installed walferry provides the board by its entry point; Airflow loads only one plugin of a name.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if not any(entry.name == "walferry_board" for entry in entry_points(group="airflow.plugins")):
    from walferry.airflow.plugin import WalferryBoard as WalferryBoard
