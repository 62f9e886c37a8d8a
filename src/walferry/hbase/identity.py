"""Whom HBase takes the client for, and tokens for the client's workers: AuthenticationService, which the coprocessor
TokenProvider answers at the region of hbase:meta."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from google.protobuf.message import DecodeError, Message

from walferry.background import made_once
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.authentication import purpose_of
from walferry.hbase.calls import Calls
from walferry.hbase.errors import RemoteError
from walferry.hbase.locations import META_TABLE
from walferry.hbase.sockets import LENGTH
from walferry.security import AuthenticationError
from walferry.security.held_token import HeldToken, register
from walferry.security.token import Token

_KIND = "HBASE_AUTH_TOKEN"  # AuthenticationTokenIdentifier.AUTH_TOKEN_TYPE


def who_am_i(client: Calls) -> str | None:
    """See `HBaseClient.who_am_i`."""
    answer = _asked(client, "WhoAmI", pb.WhoAmIRequest())
    return None if answer is None else pb.WhoAmIResponse.FromString(answer).username or None


@made_once
def let_workers_log_in(
    address: ClusterAddress, connect: Callable[[ClusterAddress], AbstractContextManager[Calls]]
) -> None:
    """Have this process, a driver, hand over a token of the cluster's HBase, if that is secured. `connect` makes the
    client that asks for it."""

    def made() -> tuple[Token, float]:
        with connect(address) as client:
            return issued_token(client)

    if (purpose := purpose_of(address)) is not None:
        register(HeldToken(purpose, made))


def issued_token(client: Calls) -> tuple[Token, float]:
    """A new token for the user of a client that has logged in with a ticket, good at all servers of the cluster, and
    how many seconds it lives; HBase renews none. Raises AuthenticationError if the cluster gives no tokens."""
    answer = _asked(client, "GetAuthenticationToken", pb.GetAuthenticationTokenRequest())
    if answer is None:
        cluster, kerberos = client.address.cluster, client.address.hbase_kerberos
        reason = "it has no org.apache.hadoop.hbase.security.token.TokenProvider"
        raise AuthenticationError(
            f"HBase at {cluster} gives no tokens for workers to log in with: {reason}; add that to "
            "hbase.coprocessor.region.classes in its hbase-site.xml, and restart its region servers",
            server=cluster,
            principal=None if kerberos is None else kerberos.principal,
            reason=reason,
            sent=False,
        )
    try:
        token = pb.GetAuthenticationTokenResponse.FromString(answer).token
        # AuthenticationTokenIdentifier.write
        identifier = pb.TokenIdentifier.FromString(token.identifier[LENGTH.size :])
    except DecodeError:
        raise RemoteError(
            f"HBase at {client.address.cluster} gave a token that cannot be read", server=client.address.cluster
        ) from None
    life_ms = identifier.expiration_date - identifier.issue_date
    return Token(token.identifier, token.password, _KIND, token.service.decode()), life_ms / 1000


def _asked(client: Calls, method: str, request: Message) -> bytes | None:
    """The answer of AuthenticationService; None if the cluster does not have it."""
    call = pb.CoprocessorServiceCall(
        row=b"", service_name="AuthenticationService", method_name=method, request=request.SerializeToString()
    )
    try:
        answer = client.region_call(
            META_TABLE, b"", "ClientService", "ExecService",
            lambda region: pb.CoprocessorServiceRequest(region=region.specifier, call=call),
            pb.CoprocessorServiceResponse,
        )  # fmt: skip
    except RemoteError as error:
        if "UnknownProtocolException" in f"{error.facts['exception_class']} {error}":
            return None
        raise
    return answer.value.value
