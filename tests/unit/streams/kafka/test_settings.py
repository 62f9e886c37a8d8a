"""What a user may set of Kafka's client, and that its secrets are shown nowhere."""

from __future__ import annotations

import json
import logging

import pytest
from confluent_kafka import KafkaError
from pydantic import ValidationError

from walferry.errors import TransientError, UsageError
from walferry.streams.kafka.errors import ClientLog, kafka_error
from walferry.streams.kafka.settings import MASK, KafkaSettings, is_secret

SECRETS = {
    "sasl.password": "secret-one",
    "ssl.key.password": "secret-two",
    "ssl.key.pem": "-----BEGIN PRIVATE KEY-----\nsecret-three\n-----END PRIVATE KEY-----",
    "ssl.keystore.password": "secret-four",
    "sasl.oauthbearer.client.secret": "secret-five",
    "sasl.oauthbearer.config": "principal=secret-six",
    "sasl.oauthbearer.assertion.private.key.passphrase": "secret-seven",
}


def given(**client: object) -> KafkaSettings:
    return KafkaSettings.model_validate({"bootstrap": "a:1", "client": client})


def test_settings_reach_the_client_as_they_were_given() -> None:
    settings = KafkaSettings.model_validate(
        {
            "bootstrap": "a:9092, b:9093",
            "client": {"linger.ms": 7, "enable.ssl.certificate.verification": False} | SECRETS,
        }
    )
    assert (
        settings.client_settings()
        == {
            "bootstrap.servers": "a:9092,b:9093",
            "linger.ms": "7",
            "enable.ssl.certificate.verification": "false",
        }
        | SECRETS
    )


def test_a_consumer_gets_only_settings_that_every_client_knows() -> None:
    settings = KafkaSettings(bootstrap="a:1", client={"linger.ms": "7", "security.protocol": "ssl", "batch.size": "1"})
    assert settings.common_settings() == {"bootstrap.servers": "a:1", "security.protocol": "ssl"}


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_is_shown_or_dumped(name: str) -> None:
    assert is_secret(name)
    settings = KafkaSettings(bootstrap="a:1", client=SECRETS | {"sasl.username": "shown"})
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "secret-" not in shown.replace("client.secret", "")
        assert "shown" in shown


def test_no_secret_is_in_the_error_for_wrong_settings() -> None:
    for client in (SECRETS | {"acks": "1"}, SECRETS | {"sasl.username": ["x"]}, {"sasl.password": ["secret-list"]}):
        with pytest.raises(ValidationError) as caught:
            KafkaSettings.model_validate({"bootstrap": "no port", "client": client})
        assert "secret-" not in str(caught.value)


def test_no_secret_is_in_what_the_client_says(caplog: pytest.LogCaptureFixture) -> None:
    settings = KafkaSettings(bootstrap="a:1", client=SECRETS | {"debug": "all"})
    said = "refused " + ", ".join(SECRETS.values())
    with caplog.at_level(logging.DEBUG):
        ClientLog(settings).log(logging.DEBUG, "%s [%s] %s", "FAIL", "client", said)
    error = kafka_error(KafkaError(KafkaError._AUTHENTICATION, said), "opening", settings)
    line = kafka_error(KafkaError(KafkaError._TRANSPORT, "near line secret-three"), "opening", settings)
    assert caplog.messages
    for text in (*caplog.messages, str(error), str(error.facts), str(line)):
        assert "secret-" not in text
        assert MASK in text or text == str(error.facts)


def test_masked_secrets_are_not_taken_for_the_secrets() -> None:
    shown = json.loads(KafkaSettings(bootstrap="a:1", client=SECRETS).model_dump_json())
    with pytest.raises(ValidationError, match=r"sasl\.password is masked: give the secret itself"):
        KafkaSettings.model_validate(shown)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bootstrap.servers", "give the brokers as bootstrap"),
        ("transactional.id", "exactly once depends on it"),
        ("transaction.timeout.ms", "exactly once depends on it"),
        ("enable.idempotence", "exactly once depends on it"),
        ("acks", "exactly once depends on it"),
        ("request.required.acks", "exactly once depends on it"),
        ("isolation.level", "exactly once depends on it"),
        ("partitioner", "exactly once depends on it"),
        ("message.timeout.ms", "exactly once depends on it"),
        ("max.in.flight", "exactly once depends on it"),
        ("max.in.flight.requests.per.connection", "exactly once depends on it"),
        ("message.max.bytes", "exactly once depends on it"),
        ("group.id", "joins no consumer group"),
        ("enable.auto.commit", "joins no consumer group"),
        ("plugin.library.paths", "names code"),
        ("error_cb", "names code"),
    ],
)
def test_a_setting_that_would_break_the_guarantees_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} cannot be set: .*{reason}"):
        given(**{name: "1"})


def test_sizes_that_are_fitted_to_the_topics_are_numbers() -> None:
    with pytest.raises(ValidationError, match=r"batch\.size must be a whole number"):
        given(**{"batch.size": "large"})


@pytest.mark.parametrize("bootstrap", ["", "host", "host:", ":9092", "host:0", "host:70000", "a:1,,b:1", "http://a:1"])
def test_brokers_are_named_by_host_and_port(bootstrap: str) -> None:
    with pytest.raises(ValidationError, match="host:port"):
        KafkaSettings(bootstrap=bootstrap)


def test_unknown_keys_and_changes_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        KafkaSettings.model_validate({"bootstrap": "a:1", "acks": "1"})
    with pytest.raises(ValidationError, match="frozen"):
        given().bootstrap = "b:1"


@pytest.mark.parametrize(
    ("code", "what_to_do"),
    [
        (KafkaError._AUTHENTICATION, "check security.protocol, sasl.mechanism, sasl.username and sasl.password"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "sasl.password"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant Describe, DescribeConfigs and Write"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant Write and Describe on transactional ids"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "grant IdempotentWrite"),
    ],
)
def test_what_only_a_person_can_change_is_one_line_with_what_to_do(code: int, what_to_do: str) -> None:
    error = kafka_error(KafkaError(code), "opening", given())
    assert isinstance(error, UsageError)
    assert what_to_do in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT])
def test_what_may_pass_is_transient(code: int) -> None:
    assert isinstance(kafka_error(KafkaError(code), "opening", given()), TransientError)


def test_a_client_that_repeats_itself_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog(given())
    for milliseconds in range(100):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "client", f"Connection refused (after {milliseconds}ms)")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_only_a_connection_that_was_there_can_have_broken() -> None:
    log = ClientLog(given())
    log.log(
        logging.ERROR, "%s [%s] %s", "FAIL", "client", "Connect failed: Connection refused (after 0ms in state CONNECT)"
    )
    assert not log.is_disturbed(0)
    log.log(logging.ERROR, "%s [%s] %s", "FAIL", "client", "Disconnected (after 100ms in state UP)")
    assert log.is_disturbed(0)


def test_a_login_by_token_needs_a_way_to_get_tokens() -> None:
    by_token = {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ValidationError, match=r"set sasl\.oauthbearer\.method to oidc"):
        given(**by_token)
    assert given(**by_token, **{"sasl.oauthbearer.method": "oidc"})
