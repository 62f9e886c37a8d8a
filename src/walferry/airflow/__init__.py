"""The Airflow provider: the connection type `hbase`, and what the DAGs are made of."""

from __future__ import annotations

from typing import Any

import walferry


def get_provider_info() -> dict[str, Any]:
    """What Airflow asks of a provider (entry point `apache_airflow_provider`)."""
    return {
        "package-name": "walferry",
        "name": "walferry",
        "description": walferry.__doc__,
        "versions": [walferry.__version__],
        "connection-types": [
            {"hook-class-name": "walferry.airflow.hook.HBaseHook", "connection-type": "hbase", "hook-name": "HBase"}
        ],
    }
