"""Equal sides open the gates over data, and each wrong value shuts them and names its region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from walferry.checks.suites import COPY_COLUMNS, DRAIN_COLUMNS, LOAD_COLUMNS
from walferry.checks.validation import GateResult, require_passed, validate
from walferry.errors import UsageError, WalferryError

pytestmark = pytest.mark.usefixtures("quick_data_docs")


def copied(regions: int = 2) -> pd.DataFrame:
    """Regions r1, r2, … of a file each, copied well; what a kind of row lacks stays null."""
    rows: list[dict[str, Any]] = [{"kind": "schema", "region": "", "source_schema": "cf", "target_schema": "cf"}]
    for number in range(1, regions + 1):
        region, start, end = f"r{number}", f"{number:02x}", f"{number + 1:02x}"
        rows.append(
            {
                "kind": "region",
                "region": region,
                "source_start": start,
                "target_start": start,
                "source_end": end,
                "target_end": end,
            }
        )
        rows.append(
            {
                "kind": "file",
                "region": region,
                "name": f"{region}/hfile",
                "source_bytes": 10,
                "target_bytes": 10,
                "source_checksum": f"crc-{region}",
                "target_checksum": f"crc-{region}",
            }
        )
    frame = pd.DataFrame(rows, columns=list(COPY_COLUMNS))
    return frame.assign(table="shop:orders")


def loaded(regions: int = 2) -> pd.DataFrame:
    """Regions r1, r2, … loaded well, and a schema."""
    sides = {f"{side}_{what}": value for side in ("source", "target") for what, value in (("rows", 5), ("cells", 9))}
    rows: list[dict[str, Any]] = [{"kind": "schema", "region": "", "source_schema": "cf", "target_schema": "cf"}]
    for number in range(1, regions + 1):
        digests = {"source_digest": f"{number}ff", "target_digest": f"{number}ff", "uncompared": 0}
        rows.append({"kind": "region", "region": f"r{number}"} | sides | digests)
    return pd.DataFrame(rows, columns=list(LOAD_COLUMNS)).assign(table="shop:orders")


def drained(regions: int = 2) -> pd.DataFrame:
    names = [f"r{number}" for number in range(1, regions + 1)]
    rows = [("shop:orders", name, 5, 5, 9, 9, f"{name}ff", f"{name}ff", 0, 0, 0, 0, 0, None) for name in names]
    return pd.DataFrame(rows, columns=list(DRAIN_COLUMNS))


def changed(frame: pd.DataFrame, kind: str | None, column: str, value: object, region: str = "r2") -> pd.DataFrame:
    """`frame` with one value of a region (of the rows of `kind`) replaced."""
    rows = frame["region"] == region
    if kind is not None:
        rows &= frame["kind"] == kind
    assert rows.sum() == 1
    frame[column] = frame[column].astype(object)
    frame.loc[rows, column] = value  # type: ignore[call-overload]
    return frame


def gate(suite: str, frame: pd.DataFrame, docs: Path) -> GateResult:
    return validate(suite, frame, docs=docs, run_name="move-1")


@pytest.mark.parametrize(
    ("suite", "frame"), [("after_copy", copied()), ("after_load", loaded()), ("after_drain", drained())]
)
def test_equal_sides_open_the_gate_and_data_docs_name_the_run(suite: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    result = gate(suite, frame, tmp_path)
    require_passed(result)
    assert result.passed
    assert result.failures == []
    assert tmp_path / "move-1" in result.docs_index.parents
    assert "move-1" in result.docs_index.read_text(encoding="utf-8")


WRONG_COPIES = [
    ("file", "target_bytes", 9),
    ("file", "target_bytes", None),
    ("file", "target_checksum", "crc-other"),
    ("file", "target_checksum", None),
    ("file", "source_checksum", None),
    ("region", "target_start", "6e"),
    ("region", "target_end", "ff"),
    ("region", "target_end", None),
]


def test_each_wrong_value_of_a_copied_region_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = copied(1 + len(WRONG_COPIES))
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_COPIES))}
    for number, (kind, column, value) in enumerate(WRONG_COPIES, 2):
        frame = changed(frame, kind, column, value, f"r{number}")
    result = gate("after_copy", frame, tmp_path)
    assert shut_for(result) == wrong
    with pytest.raises(WalferryError, match=r"failed at \d+ places of shop:orders, the first: .* r2: ") as caught:
        require_passed(result)
    assert caught.value.regions == sorted(wrong)


def shut_for(result: GateResult) -> set[str]:
    """The regions of which each alone shuts the gate: an expectation whose failure is critical names it."""
    assert {failure.severity for failure in result.failures} == {"critical"}
    assert not result.passed
    return {region for failure in result.failures for region in failure.regions}


def test_files_without_any_checksum_shut_the_gate(tmp_path: Path) -> None:
    assert not gate("after_copy", copied().assign(source_checksum=None, target_checksum=None), tmp_path).passed


def test_another_schema_shuts_the_gate_and_names_the_table(tmp_path: Path) -> None:
    frame = copied()
    frame.loc[frame["kind"] == "schema", "target_schema"] = "other"
    with pytest.raises(WalferryError, match="shop:orders"):
        require_passed(gate("after_copy", frame, tmp_path))


@pytest.mark.parametrize("kind", ["region", "schema"])
def test_a_copy_that_shows_no_region_or_no_schema_shuts_the_gate(kind: str, tmp_path: Path) -> None:
    frame = copied()
    assert not gate("after_copy", frame[frame["kind"] != kind].reset_index(drop=True), tmp_path).passed


WRONG_LOADS = [
    ("target_rows", 4),
    ("target_cells", 10),
    ("target_digest", "00"),
    ("target_digest", None),
    ("uncompared", 1),
    ("uncompared", None),
]


def test_each_wrong_value_of_a_loaded_region_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = loaded(1 + len(WRONG_LOADS))
    for number, (column, value) in enumerate(WRONG_LOADS, 2):
        frame = changed(frame, "region", column, value, f"r{number}")
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_LOADS))}
    assert shut_for(gate("after_load", frame, tmp_path)) == wrong


@pytest.mark.parametrize("kind", ["region", "schema"])
def test_a_load_that_shows_no_region_or_another_schema_shuts_the_gate(kind: str, tmp_path: Path) -> None:
    frame = loaded()
    assert not gate("after_load", frame[frame["kind"] != kind].reset_index(drop=True), tmp_path).passed
    frame.loc[frame["kind"] == "schema", "target_schema"] = "other"
    assert not gate("after_load", frame, tmp_path).passed


WRONG_SIDES = [
    ("target_rows", 4),
    ("target_cells", 10),
    ("target_digest", "00"),
    ("target_digest", None),
    ("unexplained", 1),
    ("undecided", 1),
    ("uncompared", 1),
]


def test_each_wrong_value_after_the_drain_shuts_the_gate_and_names_the_region(tmp_path: Path) -> None:
    frame = drained(1 + len(WRONG_SIDES))
    for number, (column, value) in enumerate(WRONG_SIDES, 2):
        frame = changed(frame, None, column, value, f"r{number}")
    wrong = {f"shop:orders r{number}" for number in range(2, 2 + len(WRONG_SIDES))}
    assert shut_for(gate("after_drain", frame, tmp_path)) == wrong


def test_a_difference_of_a_named_class_is_a_warning_that_names_the_region(tmp_path: Path) -> None:
    frame = changed(changed(drained(), None, "target_digest", "00"), None, "explained", 1)
    result = gate("after_drain", frame, tmp_path)
    require_passed(result)
    assert [(failure.severity, failure.regions) for failure in result.failures] == [("warning", ["shop:orders r2"])]


def test_an_explained_row_does_not_cover_an_unexplained_one(tmp_path: Path) -> None:
    frame = changed(changed(drained(), None, "explained", 1), None, "unexplained", 1)
    assert not gate("after_drain", frame, tmp_path).passed


def test_an_empty_comparison_shuts_the_gate(tmp_path: Path) -> None:
    assert not gate("after_drain", drained().iloc[:0], tmp_path).passed


@pytest.mark.parametrize(
    ("suite", "frame"), [("after_copy", copied()), ("after_load", loaded()), ("after_drain", drained())]
)
def test_a_frame_without_a_column_to_compare_shuts_the_gate(suite: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    missing = "target_checksum" if suite == "after_copy" else "target_digest"
    result = gate(suite, frame.drop(columns=missing), tmp_path)
    assert not result.passed


def test_a_repeated_gate_of_the_same_run_counts_anew(tmp_path: Path) -> None:
    assert not gate("after_drain", changed(drained(), None, "target_rows", 4), tmp_path).passed
    assert gate("after_drain", drained(), tmp_path).passed


def test_an_unknown_suite_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="after_copy, after_drain"):
        gate("before_lunch", drained(), tmp_path)
