"""The board for an Airflow whose Python finds walferry without its being installed (PYTHONPATH).

An installed walferry brings the board by its entry point; Airflow takes a plugin of one name only once.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if not any(entry.name == "walferry_board" for entry in entry_points(group="airflow.plugins")):
    from walferry.airflow.plugin import WalferryBoard as WalferryBoard
