"""Which edits become one message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unit.receive.call_builder import REGION, Sent
from unit.receive.kafka_world import TABLE, World, put


def test_edits_of_a_row_that_follow_each_other_are_one_message_on_request(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(merge_rows=True)
    one = world.process()
    one.send(*(row_edit(number, row) for number, row in enumerate((b"a", b"a", b"a", b"b", b"a", b"a"), 1)))
    assert [shown(value) for value in world.kafka.messages] == [
        ("a", 3, ["1", "2", "3"]), ("b", 4, ["4"]), ("a", 6, ["5", "6"]),
    ]  # fmt: skip
    assert world.kafka.messages[0]["position"] == [0, 3, 0]
    assert world.sums()[0] == 6
    one.send(row_edit(6, b"a"), row_edit(7, b"a"), row_edit(8, b"a"))
    assert shown(world.kafka.messages[-1]) == ("a", 8, ["7", "8"]), "what was sent before is left out"
    one.close()
    world.process().send(*(row_edit(number, b"a") for number in (7, 8, 9)))
    assert shown(world.kafka.messages[-1]) == ("a", 9, ["9"])


def test_what_is_merged_is_of_one_region_one_origin_and_one_row(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(merge_rows=True)
    world.process().send(
        row_edit(1, b"a"), replace(row_edit(2, b"a"), region="other"), replace(row_edit(3, b"a"), region="other"),
        replace(row_edit(4, b"a"), region="other", clusters=[(0, 8), (0, 5)]),
        Sent([put(b"a", b"5"), put(b"b", b"5")], REGION, TABLE, 5, clusters=[(0, 5)]), row_edit(6, b"b"),
        Sent([put(b"b", b"7"), put(b"b", b"7 again")], REGION, TABLE, 7, time=9, clusters=[(0, 7), (0, 5)]),
    )  # fmt: skip
    assert [shown(value) for value in world.kafka.messages] == [
        ("a", 1, ["1"]), ("a", 3, ["2", "3"]), ("a", 4, ["4"]), ("a", 5, ["5"]), ("b", 5, ["5"]),
        ("b", 7, ["6", "7", "7 again"]),
    ]  # fmt: skip
    assert world.kafka.messages[-1]["write_time"] == 9


def test_what_would_be_too_large_together_is_not_merged(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(merge_rows=True)
    half = [Sent([put(b"a", b"%d" % number * (600 << 10))], REGION, TABLE, number) for number in (1, 2)]
    world.process().send(*half)
    assert world.kafka.numbers == [1, 2]


def test_an_edit_that_comes_after_newer_ones_is_a_message_of_its_own_with_its_own_version(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(merge_rows=True)
    one = world.process()
    one.send(row_edit(20, b"a"))
    one.send(*(row_edit(number, b"a") for number in (9, 10, 30, 31, 11)))
    shown_all = [shown(value) for value in world.kafka.messages]
    assert shown_all == [
        ("a", 20, ["20"]), ("a", 9, ["9"]), ("a", 10, ["10"]), ("a", 31, ["30", "31"]), ("a", 11, ["11"]),
    ]  # fmt: skip
    versions = [value["version"] for value in world.kafka.messages]
    assert versions[1] < versions[2] < versions[4] < versions[0] < versions[3]


def test_a_call_whose_numbers_fall_is_not_merged_where_they_do(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(merge_rows=True)
    world.process().send(*(row_edit(number, b"a") for number in (4, 5, 2, 3)))
    assert [shown(value) for value in world.kafka.messages] == [("a", 5, ["4", "5"]), ("a", 3, ["2", "3"])]


def row_edit(number: int, row: bytes) -> Sent:
    return Sent([put(row, b"%d" % number)], REGION, TABLE, number, clusters=[(0, 7), (0, 5)])


def shown(value: Any) -> tuple[str, int, list[str]]:
    return value["row"], value["sequence_number"], [cell["value"] for cell in value["cells"]]
