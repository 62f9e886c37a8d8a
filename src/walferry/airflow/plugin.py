"""The board of walferry in Airflow's navigation: /walferry, behind Airflow's login.

Airflow finds it by the entry point of the installed package; nothing goes into a plugins folder.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from walferry.airflow.board import Board


class WalferryBoard(AirflowPlugin):
    """Mounts the board and links it; the pages are in the package, `walferry.airflow.board`."""

    name = "walferry_board"
    fastapi_apps: list[Any] = [{"app": Board(), "url_prefix": "/walferry", "name": "walferry"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        # Relative, so that it holds below a base URL with a path, too.
        {
            "name": "Migrations",
            "href": "walferry/",
            "url_route": "walferry",
            "destination": "nav",
            "nav_top_level": True,
        }
    ]
