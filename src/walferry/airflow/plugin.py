"""walferry's board in Airflow's navigation: /walferry, behind Airflow's login.

Airflow finds the plugin by the package's entry point; nothing needs to be put into a plugins folder.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from walferry.airflow.board import Board


class WalferryBoard(AirflowPlugin):
    """Mounts the board and links to it; the pages are in `walferry.airflow.board`."""

    name = "walferry_board"
    fastapi_apps: list[Any] = [{"app": Board(), "url_prefix": "/walferry", "name": "walferry"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        # A relative link also works below a base URL with a path.
        {
            "name": "Migrations",
            "href": "walferry/",
            "url_route": "walferry",
            "destination": "nav",
            "nav_top_level": True,
        }
    ]
