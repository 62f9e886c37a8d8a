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
)
from walferry.hbase import errors as hbase_errors
from walferry.replay.lease import LeaseHeldError, LeaseLostError
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
