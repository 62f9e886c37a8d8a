"""How to reach a Kafka cluster: what the user sets, what the guarantees forbid, and which settings are secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_SECRET = re.compile(r"password|passphrase|secret|\.pem$|^sasl\.oauthbearer\.config$")
MASK = "**********"
"""stands for a secret wherever settings or the client's own lines are shown"""
_SHORTEST_SECRET = 3
"""shorter values are not looked for in texts: masking every `a` would leave nothing to read"""

_OURS = "walferry sets it: exactly once depends on it"
_NO_GROUP = "walferry keeps its positions in a topic and joins no consumer group"
_NO_CODE = "it names code that the client would load or call"
OF_CONSUMERS = (
    "group.id", "group.instance.id", "group.protocol", "enable.auto.commit", "enable.auto.offset.store",
    "auto.offset.reset",
)  # fmt: skip
"""Settings that only members of consumer groups have: a connection may have them for its other users."""
_REFUSED = {
    "bootstrap.servers": "give the brokers as bootstrap",
    "metadata.broker.list": "give the brokers as bootstrap",
    "allow.auto.create.topics": "topics are created by create_topics only",
    "plugin.library.paths": _NO_CODE,
    "interceptors": _NO_CODE,
    "logger": _NO_CODE,
    "opaque": _NO_CODE,
    **dict.fromkeys(
        [
            "transactional.id", "transaction.timeout.ms", "enable.idempotence", "enable.gapless.guarantee", "acks",
            "request.required.acks", "isolation.level", "partitioner", "message.timeout.ms", "delivery.timeout.ms",
            "max.in.flight", "max.in.flight.requests.per.connection", "retries", "message.send.max.retries",
            "request.timeout.ms", "message.max.bytes", "delivery.report.only.error", "enable.partition.eof",
            "check.crcs", "log_level", "log.connection.close", "log.queue",
        ],
        _OURS,
    ),
    **dict.fromkeys(OF_CONSUMERS, _NO_GROUP),
}  # fmt: skip
"""Settings of librdkafka that a user may not set, each with the reason."""

_NUMBERS = ("batch.size", "queue.buffering.max.kbytes")
"""Settings whose values walferry fits to the topics' limits."""

_OF_EVERY_CLIENT = (
    "security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "socket.", "client.", "broker.", "api.",
    "metadata.", "topic.metadata.", "reconnect.", "retry.", "connections.", "debug", "log.",
)  # fmt: skip
"""How the names begin that consumers and admin clients know, too; of others librdkafka warns."""


def is_secret(name: str) -> bool:
    """Whether the value of librdkafka's setting `name` is a secret: passwords, private keys, client secrets."""
    return _SECRET.search(name) is not None


class KafkaSettings(BaseModel):
    """A Kafka cluster, and how its client is set up. Secrets are masked wherever the settings are shown or dumped.

    Raises pydantic's ValidationError, which never quotes a value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap: str = Field(description='the brokers to ask first: "host:port,host:port"')
    client: Mapping[str, str | SecretStr] = Field(
        default_factory=dict,
        description="settings by librdkafka's names: security.protocol, sasl.mechanism, ssl.ca.location, linger.ms, …",
    )

    @field_validator("bootstrap")
    @classmethod
    def _names_brokers(cls, bootstrap: str) -> str:
        brokers = [one.strip() for one in bootstrap.split(",")]
        for broker in brokers:
            host, _, port = broker.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
                raise ValueError('must be "host:port", several separated by commas')
        return ",".join(brokers)

    @field_validator("client", mode="before")
    @classmethod
    def _allowed(cls, client: object) -> object:
        if not isinstance(client, Mapping):
            return client
        return {name: _value(str(name), value) for name, value in client.items()}

    @model_validator(mode="after")
    def _gets_tokens(self) -> Self:
        """The client would ask for a token by a function of the program's, and without one it waits forever."""
        mechanism = self.client.get("sasl.mechanism", self.client.get("sasl.mechanisms"))
        is_unsecured = self.client.get("enable.sasl.oauthbearer.unsecure.jwt") == "true"
        if mechanism == "OAUTHBEARER" and self.client.get("sasl.oauthbearer.method") != "oidc" and not is_unsecured:
            raise ValueError(
                "sasl.mechanism OAUTHBEARER needs a way to get tokens: set sasl.oauthbearer.method to oidc, and "
                "sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
            )
        return self

    def client_settings(self) -> dict[str, str]:
        """All settings for the client, secrets in plain text: never show them."""
        return {"bootstrap.servers": self.bootstrap} | {name: _plain(value) for name, value in self.client.items()}

    def common_settings(self) -> dict[str, str]:
        """Those of `client_settings` that consumers and admin clients know, too."""
        return {
            name: value
            for name, value in self.client_settings().items()
            if name == "bootstrap.servers" or name.startswith(_OF_EVERY_CLIENT)
        }

    def mask(self, text: str) -> str:
        """A text without the secrets of these settings."""
        for secret in self._secrets():
            text = text.replace(secret, MASK)
        return text

    def _secrets(self) -> Iterator[str]:
        """Longest first: one secret may be part of another. Of a key, each line counts: an error may quote one."""
        values = [value.get_secret_value() for value in self.client.values() if isinstance(value, SecretStr)]
        parts = {part.strip() for value in values for part in (value, *value.splitlines())}
        yield from sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True)


def _value(name: str, value: object) -> object:
    """A setting as the model keeps it. Raises ValueError for one that is refused."""
    reason = _REFUSED.get(name) or (_NO_CODE if name.endswith(("_cb", "_callback")) or name == "on_delivery" else None)
    if reason is not None:
        raise ValueError(f"{name} cannot be set: {reason}")
    if name in _NUMBERS and not str(value).isdecimal():
        raise ValueError(f"{name} must be a whole number")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if is_secret(name):
        if _plain(value) == MASK:
            raise ValueError(f"{name} is masked: give the secret itself")
        return value if isinstance(value, SecretStr) else SecretStr(value) if isinstance(value, str) else value
    return value


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
