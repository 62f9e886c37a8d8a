"""Connections of any type, with their secrets."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from walferry.errors import TransientError, UsageError
from walferry.run.given_spec import Connection


def secret_connection(connection_id: str) -> Connection:
    """The fields of an Airflow connection, such as Kafka's or that of an Iceberg catalogue.

    Raises TransientError if Airflow does not give it: it says the same of a connection that does not exist and of one
    that it cannot read at the moment.
    """
    try:
        known: Any = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError):
        raise TransientError(
            f"Airflow does not give the connection {connection_id}: add it, or look whether Airflow's API server and "
            "secrets backends answer",
            connection=connection_id,
        ) from None
    try:
        extra = dict(known.extra_dejson)
    except (ValueError, TypeError):
        # The error's own text may quote the extra, and with it a password.
        raise UsageError(f"connection {connection_id}: its extra is not JSON", connection=connection_id) from None
    return Connection(known.host, known.port, known.login, known.password, extra)
