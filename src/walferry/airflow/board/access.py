"""Who may see the board: users whom Airflow lets read the runs of the DAG `hbase_migrate`; rows that differ, with their
cells, only those whom it lets trigger it.

Airflow mounts a plugin's app beside its own routes, without a login. So this module checks what Airflow's routes check:
the login cookie or a Bearer token, then the auth manager.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, requires_access_dag
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials

from walferry.airflow.board.app import NotLoggedInError

DAG = "hbase_migrate"

_reads_runs = requires_access_dag("GET", DagAccessEntity.RUN, DAG)
_triggers_runs = requires_access_dag("POST", DagAccessEntity.RUN, DAG)


async def logged_in(
    request: Request, token: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> BaseUser:
    """The user of the request. Raises NotLoggedInError without a valid cookie or token."""
    try:
        return await get_user(request, None, token)
    except HTTPException as refused:
        # Airflow answers 401 or 403, depending on the token. Both mean that nobody is logged in.
        raise NotLoggedInError(str(refused.detail), login=_login_page(request), by_token=token is not None) from None


def may_read(request: Request, user: Annotated[BaseUser, Depends(logged_in)]) -> None:
    """Let the request through, and set `request.state.sees_rows`. Raises NotLoggedInError, or HTTPException 403 for a
    user without the permission."""
    try:
        _reads_runs(request, user)
    except HTTPException as refused:
        raise HTTPException(
            refused.status_code, f"you are logged in, but Airflow does not let you read the runs of the DAG {DAG}"
        ) from None
    try:
        _triggers_runs(request, user)
    except HTTPException:
        return
    request.state.sees_rows = True


def _login_page(request: Request) -> str:
    """Airflow's login page, which returns to the requested page."""
    page = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    airflow = request.scope.get("app_root_path", "")
    return f"{airflow}/api/v2/auth/login?{urlencode({'next': page})}"
