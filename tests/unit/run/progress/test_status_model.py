"""What `walferry status --json` prints keeps its shape within a version."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine
from sqlalchemy.event import listen, remove

from unit.json_shape import keys_of, schema_of, undescribed, written_schema
from unit.migration.full_ledger import full
from walferry.ledger import Ledger
from walferry.run.progress.status import status
from walferry.run.progress.status_model import Status

KEYS = """
backlog_bytes, batch.bytes, batch.bytes_done, batch.done, batch.eta_seconds, batch.pieces, batch.repeated[],
cause, colour, counted_numbers[].accepted_by, counted_numbers[].accepted_ms, counted_numbers[].numbers,
counted_numbers[].places, counted_numbers[].reason, counted_numbers[].table, counted_numbers[].text,
edits_applied, elapsed_seconds, ended, error, error_class, eta_seconds, lag_by_server[].apply_seconds,
lag_by_server[].discovery_seconds, lag_by_server[].group, lag_by_server[].lag_seconds,
lag_by_server[].read_seconds, lag_by_server[].server, lag_by_server[].shown_after_seconds,
lag_by_server[].text, lag_seconds, lag_split.apply_seconds, lag_split.discovery_seconds, lag_split.group,
lag_split.lag_seconds, lag_split.read_seconds, lag_split.server, lag_split.shown_after_seconds,
lag_split.text, lag_unknown, late_edits, log.cleaner_ttl_assumed, log.cleaner_ttl_seconds,
log.first_to_be_lost, log.kept_by, log.kept_bytes, log.kept_files, log.late, log.text,
log.time_to_loss_seconds, longest_lag_seconds, next_step, not_followed, open_logs, percent, phase,
requests.source.namenode.limit, requests.source.namenode.per_second, requests.source.region_servers.limit,
requests.source.region_servers.per_second, requests.source.zookeeper.limit,
requests.source.zookeeper.per_second, requests.target.namenode.limit, requests.target.namenode.per_second,
requests.target.region_servers.limit, requests.target.region_servers.per_second,
requests.target.zookeeper.limit, requests.target.zookeeper.per_second, run, seconds_since_last_edit, since_ms,
standstills[].from_ms, standstills[].text, standstills[].ttl_seconds, standstills[].until_ms, state,
target_open_ms, throttle.text, throttle.write_bytes, throttle.write_cells, waits_for, whom, write_stop_over,
write_stop_seconds
"""
"""before there was a version"""
NEW = {"version", "kind", "edits_per_second", "moments", "receiving"}


@pytest.mark.usefixtures("still")
def test_a_status_has_every_key_that_it_had_and_a_version(book: Ledger) -> None:
    now = status(full(book))
    printed = json.dumps(now.model_dump())
    assert keys_of(json.loads(printed)) == {key.strip() for key in KEYS.split(",")} | NEW
    assert Status.model_validate_json(printed) == now


@pytest.mark.usefixtures("still")
def test_a_status_is_read_in_one_transaction(book: Ledger) -> None:
    """Parts of different moments would contradict each other, and each transaction is a trip to the database."""
    ledger, begun = full(book), list[object]()
    note = begun.append
    listen(Engine, "begin", note)
    try:
        status(ledger)
    finally:
        remove(Engine, "begin", note)
    assert len(begun) == 1


def test_the_docs_have_the_schema_of_a_status() -> None:
    path, written = written_schema("status")
    assert written == schema_of(Status), f"{path} should be:\n{schema_of(Status)}"
    assert undescribed(Status) == []
