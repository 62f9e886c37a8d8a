"""What the driver and Spark's workers hand to each other with a task, beside its work.

A worker gets tokens with which it logs in to secured clusters, in the code of the task: no page, log or setting of
Spark shows them. It also gets the name nodes that its driver found behind nameservices. When the task ends, its
requests to the clusters are added to the driver's counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

from walferry import request_meter
from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.security import handed
from walferry.security.handed import NOTHING, Handed, WorkerLoginError
from walferry.security.held_token import discard, to_hand_over
from walferry.storage import name_nodes
from walferry.storage.name_nodes import Nameservice

Given = TypeVar("Given")
Yielded = TypeVar("Yielded")
Outcome = TypeVar("Outcome")
Result = TypeVar("Result")

AGAIN_SECONDS = 1800.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandedOver:
    """What a worker gets from its driver; picklable."""

    tokens: Handed
    name_nodes: Mapping[Nameservice, tuple[str, ...]]

    def take(self) -> None:
        """Use it in this process."""
        handed.take(self.tokens)
        name_nodes.learn(self.name_nodes)


def from_driver(*, tokens: bool = True) -> HandedOver:
    """What this process has for its workers: for all services that it has clients for."""
    return HandedOver(to_hand_over() if tokens else NOTHING, name_nodes.known())


class _Sum(AccumulatorParam[request_meter.Counts]):
    def zero(self, value: request_meter.Counts) -> request_meter.Counts:
        return Counter()

    def addInPlace(self, value1: request_meter.Counts, value2: request_meter.Counts) -> request_meter.Counts:
        return value1 + value2  # not in place: another thread may be reading it


@cache
def _accumulator(context: SparkContext) -> Accumulator[request_meter.Counts]:
    accumulator = context.accumulator(Counter(), _Sum())
    request_meter.gather(lambda: accumulator.value)
    return accumulator


def handing_over(
    spark: SparkSession, work: Callable[[Iterator[Given]], Iterator[Yielded]]
) -> Callable[[Iterable[Given]], Iterator[Yielded]]:
    """Wrap the work on a partition: it has tokens for all secured services that this process has clients for, and its
    requests are added to the driver's counts. Its log lines have a time, like a command's."""
    accumulator, found = _accumulator(spark.sparkContext), from_driver()

    def run(partition: Iterable[Given]) -> Iterator[Yielded]:
        # A worker's warnings appear between a command's log lines, which have a time.
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
        found.take()
        try:
            yield from work(iter(partition))
        finally:
            accumulator.add(request_meter.taken())

    return run


def with_new_tokens(work: Callable[[], Result]) -> Result:
    """Do work, and once more if a service did not take a worker's token, as after the token's life: its jobs then have
    new ones. In work of weeks that may happen again, but not within AGAIN_SECONDS. The work must be one that may be
    repeated."""
    repeated: float | None = None
    while True:
        try:
            return work()
        except WorkerLoginError as error:
            if repeated is not None and steady_s() - repeated < AGAIN_SECONDS:
                raise
            log.warning("%s", error)
            repeated = steady_s()


def all_handed_back(outcomes: Iterable[Outcome | WalferryError]) -> list[Outcome]:
    """The outcomes of workers' work. Raises the first one that is an error; the next job gets other tokens in place of
    those that a service has refused."""
    errors, found = [], list[Outcome]()
    for outcome in outcomes:
        if isinstance(outcome, WorkerLoginError):
            discard(outcome)
        if isinstance(outcome, WalferryError):
            errors.append(outcome)
        else:
            found.append(outcome)
    if errors:
        raise errors[0]
    return found


def handed_back(outcome: Outcome | WalferryError) -> Outcome:
    """`all_handed_back` for one outcome."""
    (found,) = all_handed_back([outcome])
    return found
