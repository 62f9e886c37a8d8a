"""Processes of a run that pass calls on to each other by TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from unit.receive.call_builder import Sent, received
from unit.receive.test_receiver import CELL, Cluster, edit
from walferry.embedded.certificates import Authority
from walferry.hbase.errors import RemoteTransientError
from walferry.security.accepting_tls import ServerTls

ADDRESS = "127.0.0.1"
Begin = Callable[..., Cluster]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins a process with each of these."""
    received(Sent([CELL]))  # the kernels are loaded before a call's time begins
    with ExitStack() as opened:

        def begun(*tls: ServerTls | None) -> Cluster:
            cluster = Cluster(monkeypatch)
            cluster.tls = list(tls)
            for _ in tls:
                opened.enter_context(cluster.process())
            return cluster

        yield begun


def of(authority: Authority, name: str, *, address: str | None = ADDRESS, trusts: Authority | None = None) -> ServerTls:
    made = authority.issue(name, address, host="elsewhere.example")
    return ServerTls(str(made.certificate), str(made.key), str((trusts or authority).bundle))


def test_each_shows_its_certificate_to_the_other(begin: Begin, authority: Authority) -> None:
    cluster = begin(of(authority, "first"), of(authority, "second"))
    for process in cluster.processes:
        cluster.applied.clear()
        process.send(edit(1), edit(2, "old"), edit(3))
        assert sorted(cluster.applied) == [(0, "t1", [1, 3]), (1, "t2", [2])]


def test_nothing_is_passed_on_to_who_does_not_prove_its_name(begin: Begin, authority: Authority) -> None:
    cluster = begin(of(authority, "first"), of(authority, "second", address=None))
    first, second = cluster.processes
    with pytest.raises(RemoteTransientError) as refused:
        first.send(edit(2, "old"))
    assert f"nothing can be passed on to {second.name} by TLS: its certificate is for another host" in str(
        refused.value
    )
    assert "give all processes of the run a `receive.tls` of the same authorities" in str(refused.value)
    assert cluster.applied == []


def test_nothing_is_passed_on_by_who_has_another_authority(begin: Begin, authority: Authority, tmp_path: Path) -> None:
    others = Authority(tmp_path, "others")
    cluster = begin(of(others, "first", trusts=authority), of(authority, "second"))
    cluster.processes[0].tls = replace(of(authority, "source").as_client(), ca=str(others.bundle))
    with pytest.raises(RemoteTransientError, match="it wants a client certificate, or another one than it got"):
        cluster.processes[0].send(edit(2, "old"))
    assert cluster.applied == []


def test_who_speaks_no_tls_is_told_so_by_who_does(begin: Begin, authority: Authority) -> None:
    plain, encrypted = begin(None, of(authority, "second")).processes
    with pytest.raises(RemoteTransientError, match=r"this receiver speaks TLS only \(`receive.tls`\)"):
        plain.send(edit(2, "old"))
    with pytest.raises(RemoteTransientError, match=r"nothing can be passed on to .* it speaks no TLS at that port"):
        encrypted.send(edit(1))
