"""`python -m walferry.spark pack FILE`: what Spark's executors need of this environment, as one archive."""

from __future__ import annotations

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

import pyspark_hbase_wal
from walferry.errors import UsageError

PYTHON = Path(sys.executable).resolve()
NOT_RUN = {".h", ".c", ".pxd", ".pyx", ".pyi"}

_LAUNCHER = """#!/bin/sh
bin="${0%%/*}"
[ -x "$bin/python3" ] || "%s" -I "$bin/settle.py" || exit 1
exec "$bin/python3" "$@"
"""
"""`bin/python` of the unpacked environment"""

_SETTLE = """
import json, os, sys

# Spark unpacks without the files' times, by which Python and numba know that what they compiled is still good.
bin = os.path.dirname(os.path.abspath(__file__))
top = os.path.dirname(bin)
with open(os.path.join(bin, "times.json")) as times:
    for path, ns in json.load(times).items():
        os.utime(os.path.join(top, path), ns=(ns, ns))
# Python finds pyvenv.cfg from the link's own place. The link comes last: it says that all is done.
link = os.path.join(bin, f"python3.{os.getpid()}")
os.symlink(sys.executable, link)
os.replace(link, os.path.join(bin, "python3"))
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


def pack(file: Path, python: Path = PYTHON) -> None:
    """Write the archive. Python itself is not in it: each worker needs the same version, at the path `python`.

    Left out is PySpark, which the workers have, and whatever only drivers need. It is a zip file: of a tar file Spark
    keeps neither what is executable nor links. UsageError for a file of another name.
    """
    if file.suffix != ".zip":
        raise UsageError(f"{file}: name it *.zip; of other archives Spark does not keep what is executable")
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    times: dict[str, int] = {}
    unfinished = file.with_name(f".{file.name}")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for path, inside in contents():
            name = f"{packages}/{inside}"
            archive.write(path, name)
            if path.suffix == ".py":
                times[name] = path.stat().st_mtime_ns
        archive.writestr("pyvenv.cfg", f"home = {python.parent}\ninclude-system-site-packages = false\n")
        archive.writestr("bin/times.json", json.dumps(times))
        archive.writestr("bin/settle.py", _SETTLE)
        launcher = zipfile.ZipInfo("bin/python")
        launcher.create_system, launcher.external_attr = 3, 0o100755 << 16  # made on Unix: rwxr-xr-x
        archive.writestr(launcher, _LAUNCHER % python)
    unfinished.replace(file)


def contents() -> Iterator[tuple[Path, str]]:
    """The files to pack: where they are, and their path in site-packages. Not tests and C sources of libraries."""
    for name in sorted(dependencies("walferry")):
        for path, inside in files_of(name):
            if "tests" not in Path(inside).parts and path.suffix not in NOT_RUN:
                yield path, inside
    for folder in (Path(__file__).parents[1], Path(str(pyspark_hbase_wal.__file__)).parent):
        # Not by its list of files: a checkout has none. Numba's cache beside the sources goes along.
        yield from ((path, f"{folder.name}/{path.relative_to(folder)}") for path in folder.rglob("*") if path.is_file())


def dependencies(name: str) -> set[str]:
    """The distributions that one needs, directly or not, without its extras and without itself."""
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
    """The files of an installed distribution, compiled modules too: where they are, and their path in site-packages."""
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
