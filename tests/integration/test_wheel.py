"""The built wheel, alone and in an Airflow of one's own: everything is there once, and a Spark job runs.

Installed as a user does it, by resolving the wheel's own requirements; the lock serves as constraints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "wal" / "closed.wal"
HFILE = ROOT / "tests" / "fixtures" / "hfile" / "none.hfile"
OURS = ("AIRFLOW", "PYSPARK", "PYTHON", "SPARK", "VIRTUAL_ENV", "WALFERRY")
"""variables that could lead from the installed wheel to the checkout begin so"""
DAGS = (
    "hbase_history", "hbase_keep_log", "hbase_migrate", "hbase_repair", "hbase_stream", "hbase_verify",
    "hbase_wal_drain", "hbase_wal_replay", "hbase_wal_watch",
)  # fmt: skip

pytestmark = pytest.mark.timeout(1200)

LOOK_AROUND = """
import json, sys
from importlib.metadata import distributions

import walferry
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager

manager = ProvidersManager()
bag = DagBag(sys.argv[1])
apps, views = plugins_manager.get_fastapi_plugins()[0], plugins_manager._get_ui_plugins()[0]
print(json.dumps({
    "place": walferry.__file__,
    "packages": sorted(one.metadata["Name"].lower() for one in distributions()),
    "hooks": {name: manager.hooks[name].package_name for name in ("hbase", "spark")},
    "links": [name for name in manager.extra_links_class_names if name.startswith("walferry.")],
    "boards": [one["url_prefix"] for one in apps],
    "menu": [one["name"] for one in views],
    "plugin_errors": plugins_manager._get_plugins()[1],
    "dags": {name: dag.fileloc for name, dag in bag.dags.items()},
    "dag_errors": bag.import_errors,
}))
"""

READ_A_LOG = """
import sys
from walferry.spark.session import open_session

read = open_session("an analyst's").read
cells = read.format("hbase_wal").load(sys.argv[1])
print(cells.count(), len(cells.columns), len(read.format("hbase_changes").load(sys.argv[1]).columns))
"""

USE_ALONE = """
import json, sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import walferry.hbase
from walferry.formats import hfile_cells, wal_cells
from walferry.process import open_ledger
from walferry.wal import read_wal

wal, hfile = sys.argv[1:]
spec = {"name": "move", "tables": [{"source": "t", "target": "t"}]}
with open_ledger() as ledger:
    run = ledger.open_run("move", "test", spec, "test").run_id
with open_ledger(create=False) as ledger:
    found = ledger.of(run).record.name
print(json.dumps({
    "place": walferry.__file__,
    "frameworks": [name for name in ("airflow", "pyspark", "great_expectations", "pandas") if find_spec(name)],
    "exports": [name for name in walferry.hbase.__all__ if getattr(walferry.hbase, name, None) is None],
    "wal": pa.Table.from_batches(wal_cells(Path(wal).read_bytes())).num_rows,
    "path": pa.Table.from_batches(read_wal(wal)).num_rows,
    "hfile": pa.Table.from_batches(hfile_cells(Path(hfile).read_bytes())).num_rows,
    "run": found,
}))
"""

SUBMIT = """
import logging, sys
from walferry.airflow.operators import WalferrySparkOperator
from walferry.process import open_ledger

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
cluster = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
spec = {"name": "move", "source": cluster, "target": cluster, "tables": [{"source": "t", "target": "t"}]}
with open_ledger() as ledger:
    run = ledger.open_run("move", "test", spec, "test").run_id
    ledger.of(run).phases.start("drain")
    ledger.of(run).phases.finish("drain", {})
WalferrySparkOperator(task_id="drain", run=run, phase="drain").execute({})
"""


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a command where nothing of the checkout is near; its stdout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    answer = subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, cwd=folder, env=clean | variables,
    )  # fmt: skip
    assert answer.returncode == 0, f"{answer.stdout[-5000:]}\n{answer.stderr[-5000:]}"
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def installed(wheel: Path, extras: str, folder: Path) -> Path:
    """The interpreter of a new environment with the wheel and these extras, "[…]"."""
    run(sys.executable, "-m", "uv", "venv", "--python", sys.executable, folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "uv", "pip", "install", "--python", python, "-c", ROOT / "requirements.lock",
        f"walferry{extras} @ {wheel.as_uri()}", folder=folder,
    )  # fmt: skip
    return python


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with walferry's wheel and no extra."""
    return installed(wheel, "", tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with walferry's wheel and its extra `airflow`."""
    return installed(wheel, "[airflow]", tmp_path_factory.mktemp("airflow"))


@pytest.fixture
def variables(tmp_path: Path, python: Path) -> dict[str, str]:
    """What this Airflow has in its environment. Its Python is not on the PATH, as that of a service seldom is."""
    return {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "WALFERRY_LEDGER": f"sqlite:///{tmp_path / 'ledger.db'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.long
def test_client_formats_and_ledger_work_without_extras(bare: Path, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    said = run(bare, "-c", USE_ALONE, FIXTURE, HFILE, folder=tmp_path, WALFERRY_LEDGER=ledger)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert found["place"].startswith(str(bare.parents[1]))
    assert found["frameworks"] == found["exports"] == []
    assert found["wal"] == found["path"] > 0
    assert found["hfile"] > 0
    assert found["run"] == "move"


def test_the_command_works_without_extras(bare: Path, tmp_path: Path) -> None:
    command = bare.parent / "walferry"
    assert " wal " in run(command, "--help", folder=tmp_path)
    lines = run(command, "wal", "cat", FIXTURE, folder=tmp_path).splitlines()
    assert {"table", "row", "value"} <= json.loads(lines[0]).keys()
    stat = json.loads(run(command, "wal", "stat", FIXTURE, "--json", folder=tmp_path))
    assert {table["table"] for table in stat["tables"]} <= {json.loads(line)["table"] for line in lines}


@pytest.mark.long
def test_connection_types_links_board_and_dags_are_there_once(
    python: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in DAGS:
        (dags / f"{name}.py").write_text(f"from walferry.airflow.dags import {name}\n{name}()\n")
    found: dict[str, Any] = json.loads(
        run(python, "-c", LOOK_AROUND, dags, folder=tmp_path, **variables).splitlines()[-1]
    )
    assert found["place"].startswith(str(python.parents[1]))
    assert not {"pyspark-client", "requests-kerberos", "gssapi", "krb5"} & set(found["packages"])
    assert found["hooks"] == {"hbase": "walferry", "spark": "walferry"}
    assert len(found["links"]) == len(set(found["links"])) == 4
    assert found["boards"].count("/walferry") == found["menu"].count("Migrations") == 1
    assert found["plugin_errors"] == {}
    assert found["dag_errors"] == {}
    assert found["dags"] == {name: str(dags / f"{name}.py") for name in DAGS}


@pytest.mark.long
def test_an_analysts_job_reads_a_log(python: Path, variables: dict[str, str], tmp_path: Path) -> None:
    cells, columns, of_changes = run(python, "-c", READ_A_LOG, FIXTURE, folder=tmp_path, **variables).split()
    assert int(cells) > 0
    assert int(columns) == 14
    assert int(of_changes) == 15


def test_a_tasks_spark_job_runs_out_of_the_installed_package(
    python: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    said = run(python, "-c", SUBMIT, folder=tmp_path, **variables)
    assert "drain: already done" in said
