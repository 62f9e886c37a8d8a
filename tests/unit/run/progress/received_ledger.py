"""A ledger filled by hand: a run to which a source replicates, brought to each state that it can be in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from walferry import clock
from walferry.ledger import ReceivedCall, Receiver, RunLedger
from walferry.ledger.batches import in_one
from walferry.run.notes.history import History as Copied
from walferry.run.progress.states import StateName

SERVER = "east-1.example,16040,1700000000000"
OTHER = "east-2.example,16040,1700000000000"
REFUSED = "the target does not answer"


def receiver(server: str = SERVER, ago_s: float = 1, since_s: float = 3600, **values: Any) -> Receiver:
    """A process that serves since `since_s`, and whose last heartbeat was `ago_s` ago."""
    now = clock.now_ms()
    made = Receiver(
        server, "serving", now - int(since_s * 1000), now - int(ago_s * 1000), frozenset({"shop:orders"}), 12, 0, 0
    )
    return replace(made, **values)


def refuses(server: str = SERVER, ago_s: float = 5, why: str = REFUSED) -> Receiver:
    """A process that has refused a call."""
    return receiver(server, refused=2, last_refusal=why, last_refusal_ms=clock.now_ms() - int(ago_s * 1000))


def come(run: RunLedger, age_s: float = 1, table: str = "shop:orders", late: int = 0) -> None:
    """A call came now, whose newest edit was written `age_s` ago."""
    call = ReceivedCall(table, 2, 6, 100, 1, late, clock.now_ms() - int(age_s * 1000), b"")
    run.received.applied([call], in_one())


def receive(run: RunLedger, name: StateName) -> None:
    """Bring a run that was just opened to a state."""
    match name:
        case "copying":
            run.received.beat(receiver())
            Copied("east", 7, 0, ((b"row3", b""),), 3, 5, 900, 10.0).keep(run, "shop:orders")
        case "receiving":
            run.received.beat(receiver())
            come(run)
        case "idle":
            run.received.beat(receiver())
        case "refusing":
            run.received.beat(refuses())
        case "no receiver":
            run.received.beat(receiver(ago_s=61))
        case _:
            raise AssertionError(name)
