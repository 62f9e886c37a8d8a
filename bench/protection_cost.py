"""What each protection of HBase's RPC costs: `python -m bench.protection_cost`, or `make bench-protection`.

One open source, whose log is replayed by `apply: rpc` into targets that differ in their protection only, in turn. Each
result is checked by a plain scan.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from bench.side_by_side.clusters import HEAP, Clusters, source_in
from bench.side_by_side.data import Data
from bench.side_by_side.rows import Bench
from bench.side_by_side.timing import Timed

from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import MiniCluster, Ports, boot, shut_down
from walferry.embedded.encrypted import of_rpc
from walferry.embedded.kdc import HOST, Kdc
from walferry.embedded.kerberized import Protection, Secured
from walferry.hbase.client import HBaseClient
from walferry.security import Tls


@dataclass(frozen=True)
class Target:
    """How a target is reached."""

    name: str
    qop: Protection | None = None
    """with Kerberos"""
    tls: bool = False
    data_transfer: tuple[Protection, ...] = ("authentication",)
    """of the target's HDFS, with Kerberos"""

    def secured(self, kdc: Kdc) -> Secured | None:
        """What its cluster is booted with."""
        return None if self.qop is None else Secured(kdc, qop=self.qop, data_transfer=self.data_transfer)


TARGETS = (
    Target("open"),
    Target("auth", "authentication"),
    Target("auth-int", "integrity"),
    Target("auth-conf", "privacy"),
    Target("TLS", tls=True),
    Target("auth and TLS", "authentication", tls=True),
    Target("auth, HDFS with privacy", "authentication", data_transfer=("privacy",)),
)


def main(
    cells: Annotated[int, typer.Option(help="in the log")] = 1_300_000,
    rounds: Annotated[int, typer.Option(help="of each target")] = 3,
) -> None:
    """Measure and print medians, and ratios to the open target."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walferry-bench-")))
        kdc = stack.enter_context(Kdc.start(folder / "kdc"))
        os.environ["KRB5_CONFIG"] = str(kdc.config)
        benches = stack.enter_context(booted(folder, kdc))
        data = next(iter(benches.values())).data(cells)
        times: dict[str, list[Timed]] = {name: [] for name in benches}
        for number in range(-1, rounds):
            for name in sorted(benches, reverse=bool(number % 2)):
                taken = replayed(benches[name], data, name)
                print(
                    f"{name}: {taken.seconds:.2f} s, {taken.cpu_seconds:.1f} s of processors",
                    file=sys.stderr,
                    flush=True,
                )
                if number >= 0:  # servers that have just started are slow
                    times[name].append(taken)
    plain, plain_cpu = (median(getattr(one, what) for one in times["open"]) for what in ("seconds", "cpu_seconds"))
    print(f"{data.cells:,} cells; medians of {rounds}, load {os.getloadavg()[0]:.1f}")
    print("| target | seconds | beside open | seconds of processors | beside open |\n|---|---|---|---|---|")
    for name, all_ in times.items():
        seconds, cpu = median(one.seconds for one in all_), median(one.cpu_seconds for one in all_)
        print(f"| {name} | {seconds:.1f} | {seconds / plain:.2f} | {cpu:.1f} | {cpu / plain_cpu:.2f} |")


def replayed(bench: Bench, data: Data, name: str) -> Timed:
    """One replay into an empty table."""
    bench.empty_target(data)
    taken = bench.ours.replay(data, "rpc")
    bench.check_target(data, name)
    return taken


@contextmanager
def booted(folder: Path, kdc: Kdc) -> Iterator[dict[str, Bench]]:
    """A bench for each target, all with the same source, whose data is made once."""
    authority = Authority(folder)
    mine = authority.issue("ferry", host=HOST)
    tls = Tls(ca=str(authority.bundle), certificate=str(mine.certificate), key=str(mine.key), rpc=True)
    source = source_in(folder)
    targets = {
        target.name: MiniCluster(
            folder / re.sub(r"\W+", "-", target.name), Ports.free(), False, of_rpc(authority) if target.tls else {},
            hbase_heap=HEAP, security=target.secured(kdc),
            tls=tls if target.tls else None,
        )
        for target in TARGETS
    }  # fmt: skip
    boot(source, *targets.values())
    try:
        with ExitStack() as stack:
            source_client = stack.enter_context(HBaseClient(source.address))
            yield {
                name: Bench(
                    Clusters(
                        target.directory,
                        source,
                        target,
                        source_client,
                        stack.enter_context(HBaseClient(target.address)),
                    ),
                    1,
                )
                for name, target in targets.items()
            }
    finally:
        shut_down(source, *targets.values())


if __name__ == "__main__":
    typer.run(main)
