from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from walferry.errors import (
    DamagedInputError,
    GapError,
    GateShutError,
    SidesDifferError,
    TransientError,
    UnfinishedInputError,
    UnreadableInputError,
    UsageError,
    WalferryError,
    as_recorded,
    class_of,
    message_of,
)
from walferry.hbase import errors as hbase_errors
from walferry.replay.rights.lease import LeaseHeldError, LeaseLostError
from walferry.storage import PermissionDeniedError, QuotaExceededError


def family(kind: type[WalferryError] = WalferryError) -> Iterator[type[WalferryError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


def test_every_error_of_every_room_belongs_to_the_family() -> None:
    known = set(family())
    assert {GateShutError, LeaseHeldError, LeaseLostError, PermissionDeniedError, QuotaExceededError} <= known
    assert hbase_errors.TableNotFoundError in known


@pytest.mark.parametrize("kind", sorted(set(family()), key=str), ids=lambda kind: str(kind.__name__))
def test_an_error_crosses_processes_with_its_facts(kind: type[WalferryError]) -> None:
    error = kind("what happened", file="a.wal", offset=7)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == "what happened"
        assert other.facts == {"file": "a.wal", "offset": 7}
        assert (other.file, other.offset) == ("a.wal", 7)


def test_a_fact_that_was_not_given_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="region"):
        _ = WalferryError("what happened", file="a.wal").region


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (WalferryError, 1),
        (TransientError, 1),
        (UsageError, 2),
        (UnfinishedInputError, 3),
        (DamagedInputError, 4),
        (UnreadableInputError, 4),
        (SidesDifferError, 5),
        (GapError, 6),
    ],
)
def test_the_exit_code_is_the_one_that_the_command_promises(kind: type[WalferryError], code: int) -> None:
    assert kind("").exit_code == code


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GapError("WAL file x: is missing"), "WAL file x: is missing"),
        (ConnectionRefusedError(111, "refused"), "[Errno 111] refused"),
        (KeyboardInterrupt(), "interrupted"),
        (KeyError("x"), "unexpected error (the log of its process has the details): 'x'"),
        (AssertionError(), "unexpected error (the log of its process has the details)"),
        (UsageError(""), "the log of its process says why"),
    ],
    ids=str,
)
def test_an_error_that_is_recorded_keeps_its_class_for_programs_and_names_none_to_people(
    error: BaseException, told: str
) -> None:
    recorded = as_recorded(error)
    assert (class_of(recorded), message_of(recorded)) == (type(error).__name__, told)


@pytest.mark.parametrize("reason", ["", "to be done again", "the writers go on", "shop:orders: rows were repaired"])
def test_a_reason_that_is_no_error_is_told_as_it_is(reason: str) -> None:
    assert (class_of(reason), message_of(reason)) == ("", reason)
