"""What gets into Kafka of calls: each edit once, wherever a process or a broker fails. In a real ledger."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from unit.receive.call_builder import REGION, Sent
from unit.receive.kafka_world import TABLE, World, put
from unit.receive.memory_kafka import TOO_LATE
from walferry.errors import TransientError, UsageError
from walferry.receive import applying, receiver
from walferry.receive.holding import NotHeldError
from walferry.receive.into_kafka import Position
from walferry.receive.topic_table import UnsendableError
from walferry.replay.rights.lease import LeaseLostError


def test_edits_are_sent_once_as_a_streams_messages_also_by_the_next_holder(world: World) -> None:
    one = world.process()
    one.send(1, 2)
    one.send(2, 3)
    one.close()
    world.process().send(1, 2, 3, 4)
    assert world.kafka.numbers == [1, 2, 3, 4]
    assert world.sums() == (4, 4, 0, 3)
    first = world.kafka.messages[0]
    assert (first["topic"], first["table"], first["row"], first["epoch"]) == ("shop.orders", TABLE, "r1", 1)
    assert (first["position"], first["region"], first["cluster"]) == ([0, 1, 0], REGION, "west")
    assert first["cluster_ids"] == [str(UUID(int=7))], "those before the source, as in a stream"
    assert first["cells"] == [{"kind": "put", "family": "d", "qualifier": "q", "timestamp": 1, "value": "v"}]


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_commit_whose_end_is_not_known_is_judged_by_the_position_of_the_next_opening(world: World, how: str) -> None:
    one = world.process()
    one.send(1)
    world.kafka.fails = [how]
    with pytest.raises(TransientError, match=TOO_LATE):
        one.send(2, 3)
    with pytest.raises(NotHeldError):
        one.send(2, 3)
    assert one.table.fault == TOO_LATE, "the reason why the table is given back"
    one.close()
    other = world.process()
    assert (world.rows(), world.sums()) == ((1, (1, 0, 0, 1)) if how == "before" else (2, (3, 0, 0, 2)))
    other.send(2, 3)
    assert world.kafka.numbers == [1, 2, 3]
    assert world.sums() == ((3, 0, 0, 2) if how == "before" else (3, 2, 0, 3))


def test_a_commit_fails_while_its_calls_can_still_be_told_why(world: World) -> None:
    world.process()
    assert world.kafka.commit_s is not None
    assert world.kafka.commit_s <= receiver.ANSWER_SECONDS / 2


def test_the_first_transaction_of_all_may_be_the_one_that_fails(world: World) -> None:
    world.kafka.fails = ["before", "after"]
    for _ in range(2):
        with pytest.raises(TransientError):
            world.process().send(1)
    world.process().send(1, 2)
    assert world.kafka.numbers == [1, 2]
    assert world.sums() == (2, 1, 0, 2)


def test_a_process_that_dies_after_its_record_leaves_nothing_that_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.process()
    one.send(1)
    monkeypatch.setattr(one.table.sink, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        one.send(2)
    assert world.rows() == 2
    world.process().send(2)
    assert world.kafka.numbers == [1, 2]
    assert world.sums() == (2, 0, 0, 2)


def killed(_: object) -> int:
    raise KeyboardInterrupt


def test_a_holder_that_was_succeeded_neither_records_nor_commits(world: World) -> None:
    old = world.process()
    old.send(1)
    new = world.process()
    with pytest.raises(LeaseLostError):
        old.send(2)
    assert world.rows() == 1
    new.send(2)
    assert world.kafka.numbers == [1, 2]


def test_a_holder_that_is_succeeded_between_record_and_commit_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, news = world.process(), []
    old.send(1)
    commit = old.table.sink.commit

    def suspended(changed: Any) -> int:
        news.append(world.process())
        return commit(changed)

    monkeypatch.setattr(old.table.sink, "commit", suspended)
    with pytest.raises(NotHeldError):
        old.send(2)
    assert world.rows() == 1, "the new holder has taken the row back"
    news[0].send(2)
    assert world.kafka.numbers == [1, 2]
    assert world.sums() == (2, 0, 0, 2)


def test_what_is_forgotten_was_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "MOST_CALLS", 8)
    one = world.process()
    for number in range(1, 20):
        one.send(number)
        assert world.rows() == one.table.seen.calls <= 8
    world.kafka.fails = ["before"]
    with pytest.raises(TransientError):
        one.send(20)
    other = world.process()
    other.send(18, 19, 20)
    assert world.kafka.numbers == list(range(1, 21))
    other.send(2)
    assert world.kafka.numbers[-1] == 2, "too old to be known"
    assert world.sums()[:3] == (21, 2, 1)


def test_a_row_number_is_never_used_twice_even_if_the_ledger_has_lost_rows(world: World) -> None:
    one = world.process()
    one.send(1)
    one.send(2)
    one.close()
    world.received.fold(TABLE, 0, {REGION: 0})  # as an older ledger that was restored
    other = world.process()
    world.kafka.fails = ["before"]
    with pytest.raises(TransientError):
        other.send(3)
    world.process().send(3)
    assert world.kafka.numbers == [1, 2, 3]


def test_positions_of_another_run_or_another_ledger_say_nothing(world: World, tmp_path: Path) -> None:
    one = world.process()
    one.send(1)
    one.send(2)
    one.close()
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(epoch=2)
    assert world.run_id == "topics-2"
    world.kafka.fails = ["before"]
    with pytest.raises(TransientError):
        world.process().send(1)
    world.process().send(1)
    assert [value["epoch"] for value in world.kafka.messages] == [1, 1, 2]


def test_a_position_of_another_ledger_does_not_count_as_ones_own(world: World) -> None:
    world.kafka.fails = ["before"]
    with pytest.raises(TransientError):
        world.process().send(1)
    begun = Position.before(world.ledger.run(world.run_id))
    world.kafka.positions[TABLE] = replace(begun, created_ms=begun.created_ms - 1).at(9)
    world.process().send(1)
    assert world.kafka.numbers == [1]


@pytest.mark.parametrize(
    ("other", "named"),
    [({"created_ms": 1}, "a run topics-1 of another ledger now"), ({"run": "topics-9"}, "run topics-9 now")],
)
def test_a_run_that_finds_anothers_position_where_it_wrote_its_own_stops_and_forgets_nothing(
    world: World, other: dict[str, Any], named: str
) -> None:
    one = world.process()
    one.send(1)
    one.close()
    world.kafka.positions[TABLE] = replace(Position.before(world.ledger.run(world.run_id)), **other).at(9)
    with pytest.raises(UsageError, match="another run, or another ledger, has written to the positions of") as refused:
        world.process()
    assert f"in topic walferry.topics.positions: they are those of {named}" in refused.value.message
    assert world.sums() == (1, 0, 0, 1)


def test_positions_that_are_lost_stop_the_table_with_what_to_do(world: World) -> None:
    one = world.process()
    one.send(1)
    one.close()
    world.kafka.positions = {"shop:items": one.table.position(1)}
    with pytest.raises(UsageError, match=r"topic walferry\.topics\.positions are lost"):
        world.process()


def test_a_topic_keeps_the_partitions_that_it_had_first(world: World) -> None:
    world.process().close()
    assert world.ledger.of(world.run_id).notes.get("receive has partitions", "shop.orders") == {"count": 2}


def test_a_topic_is_looked_at_without_all_positions_and_one_that_cannot_be_used_is_opened_again(world: World) -> None:
    one, big = world.process(), Sent([put(b"big", b"x" * (1 << 20))], REGION, TABLE, 2)
    with pytest.raises(UnsendableError):
        one.send(big)
    assert world.kafka.owners == [one.topics._owner(), None]
    world.kafka.refuses = TransientError(TOO_LATE)
    with pytest.raises(UnsendableError):
        one.send(big)
    assert not one.table.stale
    world.kafka.refuses = UsageError("topic shop.orders has 5 partitions, but the stream began with 2")
    with pytest.raises(UnsendableError):
        one.send(big)
    assert one.table.stale
    with pytest.raises(UsageError, match="has 5 partitions"):
        world.process()


def test_a_message_that_is_too_large_is_named_and_goes_once_its_topic_takes_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.process()
    big = Sent([put(b"big", b"x" * (1 << 20))], REGION, TABLE, 2)
    for _ in range(2):
        with pytest.raises(UnsendableError) as refused:
            one.send(1, big)
        assert f"edit 2 of region {REGION} of {TABLE} cannot be sent to Kafka: the message" in refused.value.message
        assert "big" not in refused.value.message, "the board shows it to those who may not see rows"
        assert '"row":"big"} cannot be sent' in caplog.text
        assert "its topic takes 1048576: raise the topic's max.message.bytes" in refused.value.message
    one.send((7, "another region"))
    world.kafka.most_bytes = 4 << 20
    with pytest.raises(UnsendableError):
        one.send(1, big)
    with pytest.raises(NotHeldError):  # it is opened again
        one.send(1, big)
    one.close()
    world.process().send(1, big)
    assert world.kafka.numbers == [7, 1, 2]


def test_large_messages_go_to_their_folder(world: World, tmp_path: Path) -> None:
    world.begin(large_messages=str(tmp_path / "claims"))
    world.process().send(Sent([put(b"big", b"x" * (1 << 20))], REGION, TABLE, 2))
    (value,) = world.kafka.messages
    assert Path(value["claim"]["path"]).is_file()


def test_a_file_of_an_attempt_that_was_not_committed_does_not_stand_for_another_content(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(large_messages=str(tmp_path / "claims"), decode="unit.receive.test_into_kafka:decoder")
    big = Sent([put(b"big", b"x" * (1 << 20))], REGION, TABLE, 2)
    world.kafka.fails = ["before", "before"]
    for _ in range(2):
        with pytest.raises(TransientError):
            world.process().send(big)
    monkeypatch.setattr(import_module("unit.receive.test_into_kafka"), "decoder", mended)
    world.process().send(big)
    claim = world.kafka.messages[0]["claim"]
    content = Path(claim["path"]).read_bytes()
    assert (len(content), sha256(content).hexdigest()) == (claim["bytes"], claim["sha256"])
    assert len(list((tmp_path / "claims").rglob("*.json"))) == 2, "one for each content"


def mended(*_: Any) -> str:
    return "y" * (1 << 20)


def test_a_folder_that_takes_no_message_refuses_the_call_until_it_does(world: World, tmp_path: Path) -> None:
    (tmp_path / "claims").touch()
    world.begin(large_messages=str(tmp_path / "claims"))
    one, big = world.process(), Sent([put(b"big", b"x" * (1 << 20))], REGION, TABLE, 2)
    with pytest.raises(TransientError, match="a large message of shop:orders is not in its folder"):
        one.send(big)
    (tmp_path / "claims").unlink()
    one.send(big)
    assert world.kafka.numbers == [2]


def decoder(table: str, family: str, qualifier: str, value: bytes) -> str:
    return value.decode("ascii")


def test_a_value_that_the_decoder_refuses_refuses_its_call(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(decode="unit.receive.test_into_kafka:decoder")
    one = world.process()
    with pytest.raises(UnsendableError, match="cannot be sent to Kafka: the decoder failed; the log") as refused:
        one.send(1, Sent([put(b"r", b"\xff")], REGION, TABLE, 2))
    assert "0xff" not in refused.value.message
    assert "can't decode byte 0xff" in caplog.text
    assert (world.kafka.messages, world.received.totals()) == ([], [])


def test_an_edit_that_comes_after_newer_ones_is_sent_counted_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.process()
    one.send(1, 5)
    one.send(3)
    assert world.kafka.numbers == [1, 5, 3]
    versions = [value["version"] for value in world.kafka.messages]
    assert versions[2] < versions[1], "which consumers see"
    assert world.sums()[2] == 1
    assert "number 3 of the source's region" in caplog.text


def test_edits_that_no_filter_passes_are_done_with_all_the_same(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(families=["other"])
    one = world.process()
    one.send(1)
    one.send(1)
    assert (world.kafka.messages, world.sums()) == ([], (1, 1, 0, 2))


def test_leases_are_not_those_of_a_target_table(world: World) -> None:
    topics = world.process().topics
    assert topics.lease_of("shop:orders") == f"kafka {topics.sink_id} shop:orders"


def test_a_table_has_the_same_transactional_id_in_each_run_of_the_name(world: World) -> None:
    known = world.process().topics._shard(TABLE).transactional_id
    assert known == f"walferry-west-receive-topics-{crc32(TABLE.encode())}"
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(tables=["shop:items", "shop:more", TABLE])
    assert world.process().topics._shard(TABLE).transactional_id == known
