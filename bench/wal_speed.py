"""How fast logs are read, beside HBase's own reader on the same files: `make bench-wal`, or this file.

Makes a log of each kind (plain, dictionary-compressed, with values by GZ and ZSTD, encrypted) of --size plain bytes in
a folder of its own, as HBase's writer lays it out: a few thousand entries with the names' first uses, then the same
entries again and again, whose names are all in the dictionaries by then. Every measurement is the processor time of
one process that is bound to one core, so that other work on the machine hardly matters; the start of Python or of the
JVM is measured with a log of one entry, and subtracted. HBase's WALPrettyPrinter prints keys only, to nowhere.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
import zstandard

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from unit.formats.compressed_builder import Compressor, in_blocks
from unit.formats.encrypted_builder import MASTER_KEY, encrypted_entry, encrypted_header
from unit.formats.wal_builder import TRAILER, entry, header
from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster, Ports
from walferry.formats.cells import encode_cell
from walferry.formats.entries import entry_cells
from walferry.formats.wal import WalReader
from walferry.wal.cat import ARROW_BATCH_BYTES
from walferry.wal.keys import KEY_HEX

ENTRIES = 2000
ROWS_AN_ENTRY = 4
CELLS_A_ROW = 5
CHUNK_BYTES = 1 << 20
SITE = {
    "hbase.crypto.keyprovider": "org.apache.hadoop.hbase.io.crypto.KeyStoreKeyProvider",
    "hbase.unsafe.stream.capability.enforce": "false",
}


@dataclass(frozen=True)
class Log:
    """A log of one kind on this machine."""

    kind: str
    path: Path
    small: Path
    """a log of one entry, of the same kind"""
    size: int
    plain: int
    """bytes of its entries as plain ones"""
    cells: int
    values: list[bytes]
    """the compressed values of one round of entries; empty for other kinds"""
    rounds: int


def plain_cells(value_bytes: int) -> list[list[bytes]]:
    """Entries of a few rows each, with values that compress to about a half."""
    rng = random.Random(1)
    found = []
    for number in range(ENTRIES):
        cells = []
        for _ in range(ROWS_AN_ENTRY):
            row = b"row-%010d" % rng.randrange(4000)
            for column in range(CELLS_A_ROW):
                value = (rng.randbytes(value_bytes // 2) * 2)[:value_bytes]
                cells.append(encode_cell(row, b"f", b"column-%d" % column, 1_700_000_000_000 + number, 4, value))
        found.append(cells)
    return found


def make_log(folder: Path, kind: str, value_bytes: int, size: int) -> Log:
    """Write a log of about `size` plain bytes."""
    cells = plain_cells(value_bytes)
    values: list[bytes] = []
    plain = b"".join(entry(one, number + 1) for number, one in enumerate(cells))
    if kind == "plain":
        begin, first, again = header(), plain, plain
    elif kind == "encrypted":
        begin = encrypted_header()
        first = again = b"".join(encrypted_entry(one, number + 1) for number, one in enumerate(cells))
    else:
        compressor = make_compressor(kind, values)
        begin = compressor.header
        first = b"".join(compressor.entry(one, number + 1) for number, one in enumerate(cells))
        values.clear()
        again = b"".join(compressor.entry(one, number + 1) for number, one in enumerate(cells))
    rounds = max(1, round(size / len(plain)))
    path, small = folder / f"{kind}-{value_bytes}.wal", folder / f"{kind}-{value_bytes}-small.wal"
    with path.open("wb") as file:
        file.write(begin + first)
        for _ in range(rounds - 1):
            file.write(again)
        file.write(TRAILER)
    small.write_bytes(begin + one_entry(kind, cells[0]) + TRAILER)
    count = ENTRIES * ROWS_AN_ENTRY * CELLS_A_ROW * rounds
    return Log(
        f"{kind}, values of {value_bytes}", path, small, path.stat().st_size, len(plain) * rounds, count, values, rounds
    )


def one_entry(kind: str, cells: list[bytes]) -> bytes:
    if kind == "plain":
        return entry(cells)
    return encrypted_entry(cells) if kind == "encrypted" else make_compressor(kind, []).entry(cells)


def make_compressor(kind: str, values: list[bytes]) -> Compressor:
    """HBase's dictionary compression, with values by `kind`; what it makes of values is kept in `values`."""
    by: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
        "gz": (1, partial(zlib.compress, wbits=31)),
        "zstd": (6, in_blocks(zstandard.ZstdCompressor().compress, 1 << 17)),
    }
    if kind not in by:
        return Compressor()
    number, compress = by[kind]

    def kept(value: bytes) -> bytes:
        values.append(compress(value))
        return values[-1]

    return Compressor(value=kept, algorithm=number)


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def scan(path: Path) -> None:
    for batch in WalReader(chunks(path), path.name, keys=lambda: {"": MASTER_KEY}):
        del batch


def to_columns(path: Path) -> None:
    for batch in WalReader(chunks(path), path.name, keys=lambda: {"": MASTER_KEY}, batch_bytes=ARROW_BATCH_BYTES):
        entry_cells(batch, "file")


def bare(log: Log) -> None:
    """The library alone, on the same values as often."""
    if log.kind.startswith("gz"):
        for _ in range(log.rounds):
            for value in log.values:
                zlib.decompress(value, 31)
    else:
        decompress = zstandard.ZstdDecompressor().decompress
        frames = [value[8:] for value in log.values]
        for _ in range(log.rounds):
            for frame in frames:
                decompress(frame)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Processor time of the quickest of some rounds in this process."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def process_seconds(command: list[str], settings: dict[str, str]) -> float:
    """Processor time of a process whose output goes nowhere."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def printer(folder: Path) -> Callable[[Path], float]:
    """HBase's own reader, as seconds of a file."""
    idle = MiniCluster(folder / "conf", Ports.free(), hbase_site=SITE)
    idle._write_configuration()

    def taken(path: Path) -> float:
        command = tools.command(idle, tools.WAL_PRETTY_PRINTER, [f"file://{path}"])
        return process_seconds(command, {})

    return taken


def walferry(*arguments: str) -> float:
    command = [str(Path(sys.executable).parent / "walferry"), *arguments]
    return process_seconds(command, {KEY_HEX: MASTER_KEY.hex()})


def first_cell(path: Path) -> float:
    """Wall time until `wal cat` has printed a cell."""
    command = [str(Path(sys.executable).parent / "walferry"), "wal", "cat", str(path)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = time.perf_counter() - begun
        process.kill()
    return taken


def show(what: str, log: Log, taken: float, official: float | None, more: str = "") -> None:
    rate = f"{log.plain / taken / 1e6:7.0f} MB/s {log.cells / taken / 1e6:6.2f} M cells/s"
    ratio = f"  {official / taken:5.1f} times as fast as WALPrettyPrinter" if official else ""
    print(f"{log.kind:26} {what:22} {taken:7.2f} s {rate}{ratio}{more}", flush=True)


def measure(log: Log, official: float | None, rounds: int) -> None:
    """Print what reading one log costs."""
    scanned = seconds(partial(scan, log.path), rounds)
    more = ""
    if log.values:
        alone = seconds(partial(bare, log), rounds)
        more = f"  {scanned / alone:.2f} times the library alone ({alone:.2f} s)"
    show("entries", log, scanned, official, more)
    show("columns", log, seconds(partial(to_columns, log.path), rounds), official)


def commands(log: Log, official: float | None) -> None:
    """Print what the commands cost on one log, without their start."""
    for arguments in (("cat", "--format", "arrow"), ("cat", "--format", "parquet"), ("stat",)):
        taken = walferry("wal", *arguments, str(log.path)) - walferry("wal", *arguments, str(log.small))
        show(f"wal {' '.join(arguments)}", log, taken, official)
    first = min(first_cell(log.path) for _ in range(3))
    usage = min(walferry("wal", "cat", "--help") for _ in range(3))
    print(f"first cell of wal cat after {first:.2f} s (wall time); wal cat --help {usage:.2f} s", flush=True)


def main(
    size: Annotated[int, typer.Option(help="MB of each log, as plain entries", min=1)] = 1000,
    rounds: Annotated[int, typer.Option(help="how often each is read in one process", min=1)] = 2,
    kind: Annotated[list[str] | None, typer.Option(help="plain, dictionary, gz, zstd, encrypted; default: all")] = None,
    official: Annotated[bool, typer.Option(help="measure WALPrettyPrinter, too")] = True,
) -> None:
    """Measure and print one line for each kind of log and way to read it."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"Python {platform.python_version()}, Arrow {pa.__version__}, {os.cpu_count()} cores, one of them used")
    with tempfile.TemporaryDirectory() as folder:
        by_hbase = printer(Path(folder))
        wanted: Iterable[tuple[str, int]] = [
            (name, value_bytes)
            for name in kind or ["plain", "dictionary", "gz", "zstd", "encrypted"]
            for value_bytes in ((50, 1000) if name in ("gz", "zstd") else (50,))
        ]
        for name, value_bytes in wanted:
            log = make_log(Path(folder), name, value_bytes, size * 1_000_000)
            scan(log.small)
            # ZSTD and the key of encrypted logs would need more jars and a key store.
            theirs = None
            if official and name in ("plain", "dictionary", "gz"):
                theirs = by_hbase(log.path) - by_hbase(log.small)
                print(f"{log.kind:26} {'WALPrettyPrinter':22} {theirs:7.2f} s", flush=True)
            measure(log, theirs, rounds)
            if name == "plain":
                commands(log, theirs)
            log.path.unlink()


if __name__ == "__main__":
    typer.run(main)
