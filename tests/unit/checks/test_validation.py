"""What it costs to have Great Expectations in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from walferry.checks.validation import _great_expectations

before = list(sys.meta_path)
gx = _great_expectations()
print(sorted({"scipy.stats._stats_py", "altair.vegalite"} & sys.modules.keys()), sys.meta_path == before)

import pandas as pd

column = gx.get_context(mode="ephemeral").data_sources.add_pandas("p").add_dataframe_asset("a")
batch = column.add_batch_definition_whole_dataframe("b").get_batch({"dataframe": pd.DataFrame({"n": [1, 1, 2, 2]})})
expected = {"values": [1, 2], "weights": [0.5, 0.5]}
wanted = gx.expectations.ExpectColumnKLDivergenceToBeLessThan(column="n", partition_object=expected, threshold=0.01)
print(batch.validate(wanted).success, "scipy.stats._stats_py" in sys.modules)
"""


def test_what_only_other_expectations_need_is_imported_when_one_of_them_is_used(tmp_path: Path) -> None:
    """It takes as long as the rest of Great Expectations, in every process that has a gate."""
    script = tmp_path / "gates.py"  # it cannot be imported by `python -c`
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(script)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    assert told == ["[] True", "True True"]
