"""What a client's words for a refusal mean; which words a client uses is shown on real brokers."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import KafkaError

from walferry.errors import UsageError
from walferry.streams.kafka.admin import admin_client
from walferry.streams.kafka.errors import ClientLog
from walferry.streams.kafka.refusals import advice_for, is_refusal
from walferry.streams.kafka.settings import KafkaSettings
from walferry.streams.kafka.sink import Shard, Sink
from walferry.streams.kafka.topics import StreamTopics, Topic

TOPICS = StreamTopics({"changes": Topic("changes", 1, 1_000_000)}, Topic("positions", 1, 1_000_000))


def by_sasl(bootstrap: str = "a:1", **mechanism: str) -> KafkaSettings:
    client = {"security.protocol": "sasl_ssl", "sasl.username": "writer", "sasl.password": "the-password"}
    return KafkaSettings(bootstrap=bootstrap, client=client | mechanism)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported mechanisms: "
         "SCRAM-SHA-512", "set sasl.mechanism to one of theirs"),
        ("Unsupported SASL mechanism: FOO", "does not know the mechanism"),
        ("SSL routines::certificate verify failed", "set ssl.ca.location"),
        ("SSL routines::ssl/tls alert bad certificate: SSL alert number 42", "refuse the client's certificate"),
        ("SSL routines::tlsv13 alert certificate required: SSL alert number 116", "refuse the client's certificate"),
        ("SSL routines::tlsv1 alert unknown ca: SSL alert number 48", "refuse the client's certificate"),
        ("ssl.key.location failed: x509 certificate routines::key values mismatch", "another certificate's"),
        ("ssl.key.pem failed: error:0A080009:SSL routines::PEM lib", "check ssl.key.location"),
        ("ssl.certificate.location failed: error:80000002", "set ssl.certificate.location"),
    ],
)  # fmt: skip
def test_what_the_client_says_names_the_setting_to_change(said: str, advice: str) -> None:
    error = KafkaError(KafkaError._TRANSPORT, said)
    assert is_refusal(error)
    assert advice in (advice_for(error, by_sasl()) or "")


@pytest.mark.parametrize(
    "said",
    [
        "Disconnected: connection closed by peer: receive 0 after POLLIN (after 301ms in state UP)",
        "SSL handshake failed: Disconnected: SSL connection closed by peer: connecting to a PLAINTEXT broker listener?",
        "Receive failed: error:0A000438:SSL routines::tlsv1 alert internal error: SSL alert number 80",
    ],
)
def test_a_connection_that_ends_is_no_refusal(said: str) -> None:
    error = KafkaError(KafkaError._TRANSPORT, said)
    assert not is_refusal(error)
    assert advice_for(error, by_sasl()) is None


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_kerberos_is_refused_before_the_brokers_are_asked(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = by_sasl(f"127.0.0.1:{listener.getsockname()[1]}", **{name: "GSSAPI"})
        for make in (
            lambda: admin_client(settings, ClientLog(settings)),
            lambda: Sink.open(settings, Shard("source", "stream"), TOPICS),
        ):
            with pytest.raises(UsageError, match="Cyrus SASL, and confluent-kafka from source against it") as caught:
                make()
            assert "\n" not in str(caught.value)
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_mechanism_that_is_not_set_is_kerberos() -> None:
    settings = by_sasl()
    with pytest.raises(UsageError, match=r"sasl\.mechanism is not set, and its default is GSSAPI: set it"):
        admin_client(settings, ClientLog(settings))
