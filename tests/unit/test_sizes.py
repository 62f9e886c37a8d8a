"""The check of sizes finds what is too long, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizes import FILE_LINES, FUNCTION_LINES, checked, too_long


def function(lines: int, head: str = "def work():") -> str:
    return "\n".join([head, *["    pass"] * (lines - 1)]) + "\n"


def test_a_function_of_the_most_lines_is_no_fault_and_one_line_more_is() -> None:
    assert list(too_long("a.py", function(FUNCTION_LINES))) == []
    assert list(too_long("a.py", "\n\n" + function(FUNCTION_LINES + 1))) == [
        "a.py:3: function work has 61 lines, at most 60"
    ]


@pytest.mark.parametrize("head", ["class Box:\n  async def work():", "def outer():\n  def work():"])
def test_methods_and_inner_functions_count_too(head: str) -> None:
    found = list(too_long("a.py", function(FUNCTION_LINES + 1, head)))
    assert "a.py:2: function work has 61 lines, at most 60" in found


def test_a_file_of_the_most_lines_is_no_fault_and_one_line_more_is() -> None:
    assert list(too_long("a.py", "pass\n" * FILE_LINES)) == []
    assert list(too_long("a.py", "pass\n" * (FILE_LINES + 1))) == ["a.py:1: file has 501 lines, at most 500"]


def test_a_kernel_may_be_one_long_loop_in_a_file_of_the_most_lines() -> None:
    assert list(too_long("formats/_wal_kernels.py", function(FILE_LINES))) == []
    assert len(list(too_long("formats/_wal_kernels.py", function(FILE_LINES + 1)))) == 1
    assert len(list(too_long("_a_kernels.py/wal.py", function(FILE_LINES)))) == 1


def test_all_that_mypy_checks_is_looked_at_but_for_generated_files(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.mypy]\nfiles = ["src", "build.py"]\n')
    (tmp_path / "src" / "inner").mkdir(parents=True)
    for name in ("build.py", "other.py", "src/inner/wal.py", "src/inner/wal_pb2.py", "src/notes.txt"):
        (tmp_path / name).write_text("")
    assert [str(path.relative_to(tmp_path)) for path in checked(tmp_path)] == ["build.py", "src/inner/wal.py"]
