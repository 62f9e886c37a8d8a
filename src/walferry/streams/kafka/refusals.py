"""What the brokers or the client refuse and only a person can change, with what to do."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from walferry.streams.kafka.settings import KafkaSettings

_MECHANISM = "the brokers do not know this mechanism of login: set sasl.mechanism to one of theirs"
_NO_LOGIN = "this listener takes no login: set security.protocol to plaintext or ssl, or bootstrap to another listener"
_LOGIN = "the brokers refuse the login: check security.protocol, sasl.mechanism, sasl.username and sasl.password"
_REFUSALS = {
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE: _NO_LOGIN,
    KafkaError._SSL: "TLS fails: check security.protocol, ssl.ca.location, ssl.certificate.location, ssl.key.location",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not use a topic: grant Describe, DescribeConfigs and Write on "
    "the change topics, and Read, too, on the position topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user may not use the transactional id: grant Write and "
    "Describe on transactional ids with the prefix walferry-",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the user lacks a right on the cluster: grant IdempotentWrite, and Create "
    "if walferry is to create topics",
    KafkaError._INVALID_ARG: "a setting of the client is unknown or wrong",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old: exactly once needs Kafka 2.5 or newer",
    KafkaError._UNSUPPORTED_FEATURE: "the brokers are too old: exactly once needs Kafka 2.5 or newer",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "raise transaction.max.timeout.ms of the brokers to 15000 or more",
    KafkaError.MSG_SIZE_TOO_LARGE: "max.message.bytes of a topic has been lowered: raise it again, or start again",
    KafkaError.RECORD_LIST_TOO_LARGE: "max.message.bytes of a topic has been lowered: raise it again, or start again",
    KafkaError.POLICY_VIOLATION: "the cluster's policy forbids it: create the topic yourself",
    KafkaError.INVALID_REPLICATION_FACTOR: "fewer brokers than replicas: lower the replication",
    KafkaError.INVALID_PARTITIONS: "the number of partitions is refused",
    KafkaError.TOPIC_EXCEPTION: "the name of a topic is not one that Kafka takes",
    KafkaError.INVALID_CONFIG: "a topic's configuration is refused: create the topic yourself",
}
"""What only a person can change, by the client's code, with what to do."""

_GSSAPI = (
    "this client cannot log in by Kerberos (GSSAPI), since confluent-kafka's wheel is built without it: install "
    "librdkafka built with Cyrus SASL, and confluent-kafka from source against it "
    "(pip install --force-reinstall --no-binary confluent-kafka confluent-kafka)"
)
_SAID = {
    "No provider for SASL mechanism GSSAPI": _GSSAPI,
    "Unsupported SASL mechanism: broker's supported": _MECHANISM,
    "No provider for SASL mechanism|Unsupported SASL mechanism": "this client does not know the mechanism: set "
    "sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    "not valid in current SASL state": _NO_LOGIN,
    r"sasl\.username and sasl\.password must be set": "set them, or login and password of the connection",
    "(?i)invalid credentials|invalid username or password": "the brokers refuse the login: check sasl.username and "
    "sasl.password, and that they know the user for this sasl.mechanism",
    "certificate verify failed": "the brokers' certificate is not trusted: set ssl.ca.location to the PEM file of the "
    "authority that signed it, and bootstrap to the names that are in it",
    r"alert (bad certificate|unsupported certificate|certificate \w+|unknown ca)": "the brokers refuse the client's "
    "certificate: set ssl.certificate.location and ssl.key.location to one that an authority of theirs signed",
    r"ssl\.ca\.(location|pem) failed": "the authority's certificate cannot be read: set ssl.ca.location to a PEM file "
    "on this machine",
    r"ssl\.certificate\.(location|pem) failed": "the client's certificate cannot be read: set ssl.certificate.location "
    "to a PEM file on this machine",
    "key values mismatch": "the key is another certificate's: set ssl.key.location to the key of "
    "ssl.certificate.location",
    r"ssl\.key\.(location|pem) failed": "the client's key cannot be read: check ssl.key.location, a PEM file on this "
    "machine, and ssl.key.password",
}
"""By what the client says (as patterns, the first that is found): its codes say less."""


def is_refusal(error: KafkaError) -> bool:
    """Whether only a person can change what the client reports: a login, a right, a setting."""
    return _by_text(error) is not None or error.code() in _REFUSALS


def advice_for(error: KafkaError, settings: KafkaSettings) -> str | None:
    """What has happened and what to do, if only a person can change it; otherwise None."""
    advice = _by_text(error) or _REFUSALS.get(error.code())
    if advice is _GSSAPI and not settings.client.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        return f"sasl.mechanism is not set, and its default is GSSAPI: set it, since {_GSSAPI}"
    return advice


def _by_text(error: KafkaError) -> str | None:
    return next((advice for pattern, advice in _SAID.items() if re.search(pattern, error.str())), None)
