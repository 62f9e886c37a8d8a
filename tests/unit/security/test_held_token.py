"""Who gets a new token when; and the tokens that a driver hands to its workers."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from walferry.errors import WalferryError
from walferry.security import AuthenticationError, Kerberos, KerberosUnavailableError, Security, handed, held_token
from walferry.security.handed import Handed, Issued, Purpose, WorkerLoginError
from walferry.security.held_token import HeldToken
from walferry.security.token import Token

PURPOSE = Purpose("HDFS at http://n:1", Security(Kerberos(principal="ferry@EXAMPLE.COM", keytab="none")))
OTHER = replace(PURPOSE, service="HBase at zk:2181/hbase")


class Issuer:
    """Stands for the service: gives out tokens of an hour, unless `failure` is set."""

    def __init__(self) -> None:
        self.failure: WalferryError | None = None
        self.given = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self) -> tuple[Token, float]:
        self.may_answer.wait(30)
        if self.failure is not None:
            raise self.failure
        self.given += 1
        return token(self.given), 3600.0


def token(number: int) -> Token:
    return Token(f"whose {number}".encode(), f"a password, known {number}".encode(), "kind", "service")


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def held(issuer: Issuer) -> HeldToken:
    return HeldToken(PURPOSE, issuer)


@pytest.fixture
def registered(held: HeldToken, monkeypatch: pytest.MonkeyPatch) -> HeldToken:
    monkeypatch.setattr(held_token, "_known", {})
    held_token.register(held)
    return held


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Handed], None]:
    """Make this process a worker."""
    monkeypatch.setattr(handed, "_mine", None)
    return handed.take


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_threads_that_want_a_token_at_once_share_one_login(issuer: Issuer, held: HeldToken) -> None:
    got = []
    issuer.may_answer.clear()
    threads = [threading.Thread(target=lambda: got.append(held.current())) for _ in range(20)]
    for thread in threads:
        thread.start()
    issuer.may_answer.set()
    for thread in threads:
        thread.join(30)
    assert len(got) == 20
    assert issuer.given == 1


def test_a_token_is_replaced_in_the_background_before_it_ends(issuer: Issuer, held: HeldToken) -> None:
    first = held.current()
    held._held = replace(held._held, due=0.0)  # type: ignore[type-var]
    issuer.may_answer.clear()
    assert held.current() is first, "nobody waits for the login"
    issuer.may_answer.set()
    eventually(lambda: held.current() is not first)
    assert issuer.given == 2


def test_a_login_that_fails_does_no_harm_while_the_old_token_is_good(
    issuer: Issuer, held: HeldToken, caplog: pytest.LogCaptureFixture
) -> None:
    first = held.current()
    issuer.failure = KerberosUnavailableError("no KDC answers")
    held._held = replace(held._held, due=0.0)  # type: ignore[type-var]
    assert held.current() is first
    eventually(lambda: "no KDC answers; the old token is used on" in caplog.text)
    assert held.current() is first
    held._held = replace(held._held, due=0.0, end=0.0)  # type: ignore[type-var]
    with pytest.raises(KerberosUnavailableError, match="no KDC answers"):
        held.current()
    issuer.failure = None
    assert held.current() is not first


def test_of_many_threads_whose_token_was_refused_one_logs_in(issuer: Issuer, held: HeldToken) -> None:
    refused = held.current()
    new = {held.after(refused, "expired") for _ in range(5)}
    assert len(new) == 1
    assert issuer.given == 2


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (KerberosUnavailableError("no KDC answers", sent=True), WorkerLoginError),
        (WalferryError("EXEC is not granted", sent=True), AuthenticationError),
    ],
)
def test_a_driver_hands_over_what_it_has_and_why_it_lacks_the_rest(
    failure: WalferryError, told: type[WalferryError], registered: HeldToken
) -> None:
    failing = Issuer()
    failing.failure = failure
    held_token.register(HeldToken(OTHER, failing))
    carried: Handed = pickle.loads(pickle.dumps(held_token.to_hand_over()))
    assert carried.token(PURPOSE) == registered.current()
    with pytest.raises(told, match=failure.message) as raised:
        carried.token(OTHER)
    assert raised.value.facts["sent"] is False, "the request was the driver's"
    with pytest.raises(AuthenticationError, match="no token for HDFS at elsewhere: its driver has not used"):
        carried.token(replace(PURPOSE, service="HDFS at elsewhere"))
    assert "known" not in repr(carried)


def test_a_service_that_is_away_does_not_stop_jobs_that_do_without_it(
    registered: HeldToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_token, "WAIT_SECONDS", 0.2)
    hanging = Issuer()
    hanging.may_answer.clear()
    held_token.register(HeldToken(OTHER, hanging))
    for _ in range(3):
        carried = held_token.to_hand_over()
        assert carried.token(PURPOSE) == registered.current()
        with pytest.raises(WorkerLoginError, match=r"the driver got no answer within 0\.2 s"):
            carried.token(OTHER)
    monkeypatch.setattr(held_token, "FAILED_SECONDS", 0.0)
    hanging.may_answer.set()
    eventually(lambda: held_token.to_hand_over().issued[OTHER].token is not None)
    assert hanging.given == 1


def test_a_worker_never_logs_in_and_uses_the_newest_tokens_that_it_was_handed(
    issuer: Issuer, held: HeldToken, worker: Callable[[Handed], None]
) -> None:
    worker(Handed({PURPOSE: Issued(7, token(70))}))
    assert held.current() == held.held == token(70)
    worker(Handed({PURPOSE: Issued(6, token(60)), OTHER: Issued(6, token(61))}))
    assert held.current() == token(70), "a task of an earlier job came later"
    assert HeldToken(OTHER, issuer).current() == token(61), "the tokens of other services stay"
    with pytest.raises(WorkerLoginError, match="does not take the token of a Spark worker: it has expired") as raised:
        held.after(token(70), "it has expired")
    assert raised.value.facts["sent"] is False
    assert "known" not in f"{raised.value!r} {raised.value.facts}"
    worker(Handed({PURPOSE: Issued(8, token(80))}))
    assert held.after(token(70), "it has expired") == token(80)
    assert issuer.given == 0


def test_a_token_that_a_worker_was_refused_is_replaced_before_the_next_is_handed_over(
    issuer: Issuer, registered: HeldToken
) -> None:
    first = registered.current()
    refused: WorkerLoginError = pickle.loads(pickle.dumps(handed.refused(PURPOSE, first, "it has expired")))
    held_token.discard(refused)
    second = held_token.to_hand_over().token(PURPOSE)
    assert second != first
    held_token.discard(refused)
    assert held_token.to_hand_over().token(PURPOSE) == second, "other workers were refused the same one"
    assert issuer.given == 2
