"""No file has more than 500 lines, and no function more than 60: `python tests/sizes.py` names each that has.

Files are those that mypy checks. A function counts from its `def` to its last line, docstring and inner functions
included.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE_LINES = 500
FUNCTION_LINES = 60
GENERATED = "*_pb2.py"
KERNELS = "_*_kernels.py"
"""numba compiles them: each kernel is one flat loop by design, since a call in it would cost more than its work"""


def main() -> int:
    """Print what is too long; 1 if anything is."""
    found = [line for path in checked(ROOT) for line in too_long(str(path.relative_to(ROOT)), path.read_text("utf-8"))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def checked(root: Path) -> list[Path]:
    """The Python files of the folders and files that `tool.mypy` names."""
    named = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["files"]
    places = [root / name for name in named]
    files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
    return sorted(file for file in files if not fnmatch(file.name, GENERATED))


def too_long(path: str, text: str) -> Iterator[str]:
    """What is too long in a file, each as one line that begins with the place."""
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"{path}:1: file has {lines} lines, at most {FILE_LINES}"
    if fnmatch(path.rpartition("/")[2], KERNELS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            size = node.end_lineno - node.lineno + 1
            if size > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: function {node.name} has {size} lines, at most {FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit(main())
