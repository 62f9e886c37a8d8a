"""Turns by key: who comes first, and what a cancelled one does to those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walferry.receive.in_order import InOrder

KEYS = st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=12)


@settings(deadline=None)
@given(KEYS, st.randoms(use_true_random=False))
def test_calls_with_a_key_in_common_never_overlap_and_keep_their_order(wanted: list[set[str]], random: object) -> None:
    order, ended, busy = InOrder(), list[int](), set[str]()

    async def call(number: int, keys: Collection[str]) -> None:
        async with order.turn(keys):
            assert not busy.intersection(keys)
            busy.update(keys)
            for _ in range(random.randrange(4)):  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            busy.difference_update(keys)
            ended.append(number)

    async def all_of_them() -> None:
        await asyncio.gather(*(call(number, keys) for number, keys in enumerate(wanted)))

    asyncio.run(all_of_them())
    for later, keys in enumerate(wanted):
        for earlier in range(later):
            if keys & wanted[earlier]:
                assert ended.index(earlier) < ended.index(later)
    assert not order._last, "nothing is kept of calls that have ended"


def test_calls_without_a_key_in_common_go_on_beside_each_other() -> None:
    async def both() -> bool:
        order, first_waits = InOrder(), asyncio.Event()
        async with order.turn({"a"}), asyncio.timeout(1), order.turn({"b"}):
            first_waits.set()
        return first_waits.is_set()

    assert asyncio.run(both())


@pytest.mark.parametrize("raised", [False, True])
def test_who_waits_behind_a_cancelled_call_still_waits_for_those_before_it(raised: bool) -> None:
    async def three() -> list[str]:
        order, seen, go = InOrder(), list[str](), asyncio.Event()

        async def first() -> None:
            async with order.turn({"a"}):
                await go.wait()
                seen.append("first")
                if raised:
                    raise ValueError

        async def other(name: str) -> None:
            async with order.turn({"a"}):
                seen.append(name)

        tasks = [asyncio.ensure_future(one) for one in (first(), other("second"), other("third"))]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert seen == []
        go.set()
        await asyncio.wait(tasks, timeout=1)
        return seen

    assert asyncio.run(three()) == ["first", "third"]
