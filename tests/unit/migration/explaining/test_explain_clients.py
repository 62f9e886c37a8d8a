"""What clients wrote to the open target explains their own cells and no others."""

from __future__ import annotations

import pytest

from unit.migration.explaining.explained_rows import SINCE, UNTIL, explained, marker, put, why
from walferry.formats.cells import CellType
from walferry.migration.explaining.difference_classes import (
    HISTORY,
    UNEXPLAINED,
    WRITTEN_SINCE,
    Clients,
    RowLog,
)

OPENED = 50_000


def test_what_a_client_wrote_to_the_open_target_explains_its_column_and_no_other() -> None:
    client, old = put(60_000), put(5)
    assert why([old], [client], clients=Clients(OPENED, OPENED)) == WRITTEN_SINCE
    assert why([old], [client], clients=Clients(60_001, 60_001)) == UNEXPLAINED
    assert why([old, put(5, qualifier=b"r")], [client], clients=Clients(OPENED, OPENED)) == UNEXPLAINED


def test_a_cell_of_the_future_that_the_source_has_too_explains_no_loss() -> None:
    future = put(70_000)
    assert why([future, put(5)], [future], versions=3, clients=Clients(OPENED, OPENED)) == UNEXPLAINED


def test_a_cell_of_the_future_that_the_log_holds_is_ours_whatever_its_timestamp() -> None:
    ours = put(70_000)
    assert why([], [ours], {ours: 5, marker(70_000): 6}, clients=Clients(OPENED, OPENED)) == UNEXPLAINED
    assert why([], [ours], clients=Clients(OPENED, 70_001)) == UNEXPLAINED, "no newer than what was there before"
    assert why([], [ours], clients=Clients(OPENED, 69_999)) == WRITTEN_SINCE


def test_a_clients_put_excuses_no_version_that_the_family_has_room_for() -> None:
    client, lost = put(60_000), put(2_000)
    assert why([lost], [client], {lost: 7}, versions=3, clients=Clients(OPENED, OPENED, {client})) == UNEXPLAINED
    assert why([lost], [client], {lost: 7}, versions=1, clients=Clients(OPENED, OPENED, {client})) == WRITTEN_SINCE


def test_a_client_whose_clock_is_late_or_who_stamps_by_itself_is_known_by_the_targets_log() -> None:
    late, stamped = put(OPENED - 5), put(7)
    for cell in (late, stamped):
        assert why([], [cell], clients=Clients(OPENED, OPENED)) == UNEXPLAINED
        assert why([], [cell], clients=Clients(OPENED, OPENED, {cell})) == WRITTEN_SINCE
    assert why([put(5)], [stamped], {put(5): 3}, clients=Clients(OPENED, OPENED, {stamped})) == WRITTEN_SINCE


def test_only_if_the_targets_log_does_not_tell_a_late_clock_explains_a_cell_that_is_newer_than_what_was_there() -> None:
    unread = Clients(OPENED, OPENED, unread="a log is gone", late=OPENED - 9)
    assert why([], [put(OPENED - 9)], clients=unread) == WRITTEN_SINCE
    assert why([], [put(OPENED - 10)], clients=unread) == UNEXPLAINED


def test_a_value_that_was_spoilt_just_before_the_opening_is_no_clients() -> None:
    """Hole: of the last 30 s everything counted as written by a client whose clock is late."""
    good, bad = (put(OPENED - 5, value=text) for text in (b"good", b"bad"))
    assert why([good], [bad], {good: 7}, clients=Clients(OPENED, OPENED)) == UNEXPLAINED


@pytest.mark.parametrize("kind", [kind for kind in CellType if kind is not CellType.PUT])
def test_a_clients_delete_explains_what_it_hid_and_what_shows_again_though_it_is_compacted_away(kind: CellType) -> None:
    older, newer = put(2_000), put(3_000)
    delete = marker(3_000, kind)
    clients = Clients(OPENED, OPENED, {delete})
    logged = {older: 1, newer: 2}
    assert why([newer], [delete], logged, clients=clients) == WRITTEN_SINCE
    assert why([newer], [], logged, clients=clients) == WRITTEN_SINCE
    assert why([newer, older], [older], logged, clients=clients) == WRITTEN_SINCE
    assert why([newer, put(2_000, qualifier=b"r")], [], {**logged, put(2_000, qualifier=b"r"): 3}, clients=clients) == (
        WRITTEN_SINCE if kind == CellType.DELETE_FAMILY else UNEXPLAINED
    )
    assert why([newer], [], logged) == UNEXPLAINED


def test_a_row_whose_clients_are_not_known_says_so() -> None:
    found = explained([put(5)], [], RowLog(SINCE, UNTIL), clients=Clients(OPENED, OPENED, unread="a log is gone"))
    assert found is not None
    assert found.kind == UNEXPLAINED
    assert "it is unknown whether a client did it: a log is gone" in found.detail


def test_a_stranger_that_a_clients_delete_uncovers_is_unexplained() -> None:
    newer, stranger = put(3_000), put(2_500)
    clients = Clients(OPENED, OPENED, {marker(3_000, CellType.DELETE)})
    assert why([newer], [stranger], {newer: 2}, clients=clients) == UNEXPLAINED
    assert why([newer], [stranger], {newer: 2, stranger: 1}, clients=clients) == WRITTEN_SINCE


def test_what_versions_of_the_source_displaced_already_is_not_a_clients() -> None:
    old, dropped, client = put(5), put(7), put(60_000)
    assert why([old], [dropped, client], {dropped: 2}, clients=Clients(OPENED, OPENED)) == HISTORY
    assert why([old], [client], {dropped: 2}, clients=Clients(OPENED, OPENED)) == WRITTEN_SINCE
