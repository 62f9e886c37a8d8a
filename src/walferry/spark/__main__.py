"""`python -m walferry.spark`: `pack FILE` packs what Spark's executors need of this environment; `archive` archives
Spark's classes in a file that the JVM maps."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

import pyspark_hbase_snapshot
import pyspark_hbase_wal
from walferry.errors import UsageError, WalferryError
from walferry.spark import class_archive

PYTHON = Path(sys.executable).resolve()
NOT_RUN = {".h", ".c", ".pxd", ".pyx", ".pyi"}

ENVIRONMENTS = "WALFERRY_ENVIRONMENTS"
"""the workers' environment variable for the folder of the unpacked packages; default: `walferry-<uid>` in the temp
folder"""

_LAUNCHER = """#!/bin/sh
bin="${0%%/*}"
[ -e "$bin/home" ] || "%s" -I "$bin/settle.py" || exit 1
read -r home < "$bin/home"
exec "$home/bin/python3" "$@"
"""
"""`bin/python` of the archive"""

_SETTLE = """
import fcntl, json, os, sys, tempfile, zipfile

# Half a gigabyte: all executors on a machine, of this app and of later ones, share what the first of them unpacks.
bin = os.path.dirname(os.path.abspath(__file__))
top = os.path.dirname(bin)
(packages,) = [name for name in os.listdir(top) if name.startswith("packages-")]
root = os.environ.get("%s") or os.path.join(tempfile.gettempdir(), f"walferry-{os.getuid()}")
os.makedirs(root, mode=0o700, exist_ok=True)
if os.stat(root).st_uid != os.getuid():
    sys.exit(f"{root} belongs to another user: set $%s to another folder")
home = os.path.join(root, packages.removesuffix(".zip"))
with open(home + ".lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.isdir(home):
        unfinished = tempfile.mkdtemp(dir=root)
        with zipfile.ZipFile(os.path.join(top, packages)) as archive:
            archive.extractall(unfinished)
        # A zip file does not keep exact times, by which Python and numba know that their compiled code is up to date.
        with open(os.path.join(unfinished, "times.json")) as times:
            for path, ns in json.load(times).items():
                os.utime(os.path.join(unfinished, path), ns=(ns, ns))
        os.mkdir(os.path.join(unfinished, "bin"))
        os.symlink(sys.executable, os.path.join(unfinished, "bin", "python3"))
        os.rename(unfinished, home)
written = os.path.join(bin, f"home.{os.getpid()}")
with open(written, "w") as file:
    print(home, file=file)
os.replace(written, os.path.join(bin, "home"))  # the last step: it marks completion
"""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _commands() -> None:
    """Tools around Spark."""


@app.command("pack")
def pack_command(
    file: Annotated[Path, typer.Argument(help="the archive, *.zip")],
    python: Annotated[Path, typer.Option(help="where the workers have the same Python")] = PYTHON,
) -> None:
    """Pack walferry and what it imports as a relocatable environment, for a Spark connection's extra `archives`."""
    try:
        pack(file, python)
    except UsageError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(error.exit_code) from None
    typer.echo(f"{file}: {file.stat().st_size / 1e6:.0f} MB")


@app.command("archive")
def archive_command() -> None:
    """Archive Spark's classes beside its jars: Spark starts in half the time then, where it runs without a cluster."""
    try:
        path = class_archive.make()
    except WalferryError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(error.exit_code) from None
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


def pack(file: Path, python: Path = PYTHON) -> None:
    """Write the archive. It does not contain Python: each worker needs the same version, at the path `python`.

    Leaves out PySpark, which the workers have, and whatever only drivers need. The packages are one file inside the
    archive, and `bin/python` unpacks it once per machine; Spark would unpack it for the driver and each executor of
    every app. The archive is a zip file because Spark keeps neither the executable bits nor the links of a tar file.
    Raises UsageError unless `file` ends in .zip.
    """
    if file.suffix != ".zip":
        raise UsageError(f"{file}: name it *.zip; Spark loses the executable bits of other archives")
    unfinished = file.with_name(f".{file.name}")
    packages = file.with_name(f".{file.stem}-packages.zip")
    try:
        _pack_packages(packages, python)
        with packages.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()[:16]
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            archive.write(packages, f"packages-{digest}.zip")
            archive.writestr("bin/settle.py", _SETTLE % (ENVIRONMENTS, ENVIRONMENTS))
            launcher = zipfile.ZipInfo("bin/python")
            launcher.create_system, launcher.external_attr = 3, 0o100755 << 16  # made on Unix: rwxr-xr-x
            archive.writestr(launcher, _LAUNCHER % python)
        unfinished.replace(file)
    finally:
        packages.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)


def _pack_packages(file: Path, python: Path) -> None:
    folder = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    times: dict[str, int] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for path, inside in contents():
            name = f"{folder}/{inside}"
            archive.write(path, name)
            if path.suffix == ".py":
                times[name] = path.stat().st_mtime_ns
        configuration = f"home = {python.parent}\ninclude-system-site-packages = false\n"
        # A plain ZipInfo has no current time, so that equal packages have equal digests.
        archive.writestr(zipfile.ZipInfo("pyvenv.cfg"), configuration)
        archive.writestr(zipfile.ZipInfo("times.json"), json.dumps(times))


def contents() -> Iterator[tuple[Path, str]]:
    """The files to pack with their paths in site-packages, without libraries' tests and C sources."""
    for name in sorted(dependencies("walferry")):
        for path, inside in files_of(name):
            if "tests" not in Path(inside).parts and path.suffix not in NOT_RUN:
                yield path, inside
    sources = [Path(str(module.__file__)).parent for module in (pyspark_hbase_wal, pyspark_hbase_snapshot)]
    for folder in (Path(__file__).parents[1], *sources):
        # A checkout's distribution has no file list, so list the folder. Includes numba's cache beside the sources.
        yield from ((path, f"{folder.name}/{path.relative_to(folder)}") for path in folder.rglob("*") if path.is_file())


def dependencies(name: str) -> set[str]:
    """The distributions that `name` requires, directly or indirectly, without its extras and itself."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for text in distribution(todo.pop()).requires or []:
            requirement = Requirement(text)
            key = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and key not in found:
                found.add(key)
                todo.append(key)
    return found


def files_of(name: str) -> Iterator[tuple[Path, str]]:
    """The files of an installed distribution, including compiled modules, with their paths in site-packages."""
    installed = distribution(name)
    for file in installed.files or []:
        path, inside = Path(str(installed.locate_file(file))), str(file)
        if inside.startswith("..") or "__pycache__" in inside or not path.exists():
            continue
        yield path, inside
        compiled = Path(cache_from_source(str(path))) if path.suffix == ".py" else path
        if compiled != path and compiled.exists():
            yield compiled, cache_from_source(inside)


if __name__ == "__main__":
    app()
