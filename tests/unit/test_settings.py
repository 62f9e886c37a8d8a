"""The variables of the environment: one place declares them, one page lists them, the edges read them."""

from __future__ import annotations

import ast
import json
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from walferry import settings
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.settings import (
    MODELS,
    Places,
    Schedules,
    Variables,
    WalKeys,
    Writing,
    ZooKeeperSession,
    allowed,
    is_secret,
    known_variables,
    unknown_variables,
    variable_of,
    warn_of_unknown_variables,
)
from walferry.wal.keys import KEY_VARIABLES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
NAMED_IN = ("src", "dags", "plugins", "spark_apps", "bench", "tests", "docker", "docs", "Makefile", "README.md")
REMOVED = {"WALFERRY_SPARK_APPS"}
"""of which only CHANGELOG.md still speaks"""
NO_VARIABLES = {"WALFERRY_LEGDER", "WALFERRY_PIN", "WALFERRY_WEBHOOK"}
"""what this test makes up, and the end of AIRFLOW_CONN_WALFERRY_WEBHOOK"""

MAY_USE_THE_ENVIRONMENT = {
    "bench/follow_lag.py": "what it gives to processes that it starts",
    "bench/protection_cost.py": "KRB5_CONFIG of the KDC that it boots",
    "bench/receive_kafka_speed.py": "what it gives to processes that it starts",
    "bench/receive_speed.py": "what it gives to processes that it starts",
    "bench/side_by_side/timing.py": "what it gives to processes that it starts",
    "bench/stream_speed.py": "what it gives to processes that it starts",
    "bench/wal_speed.py": "what it gives to processes that it starts",
    "src/walferry/airflow/spark_submit.py": "SPARK_HOME, and what it gives to spark-submit",
    "src/walferry/airflow/hook.py": "KRB5CCNAME, which Airflow sets for its tasks",
    "src/walferry/checks/validation.py": "sets GX_ANALYTICS_ENABLED",
    "src/walferry/embedded/airflow.py": "PATH, and what it gives to Airflow",
    "src/walferry/embedded/jars.py": "JAVA_HOME",
    "src/walferry/embedded/processes.py": "what it gives to servers",
    "src/walferry/embedded/spark.py": "PATH, for the servers of Spark",
    "src/walferry/storage/name_nodes.py": "HADOOP_CONF_DIR and HADOOP_HOME, which the HDFS library reads, too",
    "src/walferry/ledger/ledger.py": "USER, who signs the audit lines",
    "src/walferry/process.py": "whether there is a WALFERRY_ variable, before the models are imported",
    "src/walferry/run/given_spec.py": "connections, from AIRFLOW_CONN_…, for the command",
    "src/walferry/security/spec.py": "KRB5CCNAME, where neither keytab nor ticket cache is given",
    "src/walferry/settings.py": "the names of all variables, to find unknown ones",
    "src/walferry/spark/class_archive.py": "JAVA_HOME and PATH",
    "src/walferry/spark/session.py": "Spark's own variables, and the keys of WALs, which it hands on to Python workers",
    "src/walferry/spark/worker_python.py": "PYTHONPATH",
    "src/walferry/storage/https.py": "REQUESTS_CA_BUNDLE, where the rest of what `requests` reads must not count",
}
"""Files with `os.environ`, each with what for. Values of walferry's own come from `settings`."""

HEAD = """\
# Settings

For operators: every variable of the environment that walferry reads. `python tests/unit/test_settings.py >
docs/settings.md` writes this page from `walferry/settings.py`; a test compares it.

The process that does the work reads them: the command `walferry`, an Airflow task, the driver of a Spark app. It sends
the values on to Spark's workers, so set nothing for executors, but for two cases: the packed environment's folder
([spark.md](spark.md#the-packed-environment)), and the keys of encrypted WALs in Spark jobs of your own
([runbook.md](runbook.md#encrypted-wals)). A DAG's schedule is read by the DAG processor.

A value that is not allowed ends the command or the task with exit code 2 and a message that names the variable. A
`WALFERRY_…` variable that is not on this page has no effect: the log warns of it and names the nearest one that is.
Connections come from Airflow, or for the command from `AIRFLOW_CONN_…` ([runbook.md](runbook.md#production-airflow)).
"""


def default_of(model: type[Variables], field: str) -> str:
    """As the page shows it."""
    default = model.model_fields[field].default
    plain = default.get_secret_value() if isinstance(default, SecretStr) else default
    return f"`{plain}`" if plain not in (None, "") else "-"


def settings_page() -> str:
    """docs/settings.md"""
    return "\n".join([HEAD, *tables()])


def tables() -> Iterator[str]:
    for model in MODELS:
        yield f"## {model.__doc__}\n\n| variable | what it is | default | allowed |\n|---|---|---|---|"
        rules = model.model_json_schema()["properties"]
        for field in model.model_fields:
            name = variable_of(field)
            rule = rules[name]
            yield f"| `{name}` | {rule['description']} | {default_of(model, field)} | {allowed(rule)} |"
        if model is not MODELS[-1]:
            yield ""


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page() + "\n"


def test_each_variable_is_described() -> None:
    rules = [rule for model in MODELS for rule in model.model_json_schema()["properties"].items()]
    assert [name for name, rule in rules if not rule.get("description")] == []
    assert len(known_variables()) == len(set(known_variables())) == len(rules)


def test_each_variable_that_code_and_documents_name_is_declared() -> None:
    listed = subprocess.run(["git", "ls-files", *NAMED_IN], cwd=ROOT, capture_output=True, text=True, check=True)
    named: set[str] = set()
    for path in listed.stdout.splitlines():
        if not path.startswith("docs/pictures/"):
            text = (ROOT / path).read_text(encoding="utf-8", errors="ignore")
            named |= set(re.findall(r"\bWALFERRY_[A-Z_]*[A-Z]\b(?!_)", text))
    prefixes = {name for name in named if any(known.startswith(f"{name}_") for known in known_variables())}
    assert named - prefixes - set(known_variables()) - REMOVED - NO_VARIABLES == set()


def uses(tree: ast.AST) -> list[ast.AST]:
    """Each `os.environ`, `os.environb` and `os.getenv` of a file, and each import of one of them from `os`."""
    names = {"environ", "environb", "getenv"}
    return [
        node for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names})
    ]  # fmt: skip


def sources(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    """The Python files below these folders, by their path in the repository."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def test_the_environment_is_used_only_where_it_is_listed_with_a_reason() -> None:
    found = {path for path, tree in sources("src", "dags", "plugins", "spark_apps", "bench") if uses(tree)}
    assert found == MAY_USE_THE_ENVIRONMENT.keys()


@pytest.mark.parametrize(
    "line", ["os.environ['X']", "os.getenv('X')", "f(os.environ)", "os.environ.update()", "from os import environ"]
)
def test_a_use_of_the_environment_is_found(line: str) -> None:
    assert uses(ast.parse(line))
    assert not uses(ast.parse("os.path.join(environ)"))


def test_no_variable_of_walferry_is_looked_up_by_its_name() -> None:
    looked_up = re.compile(r"(environ(\.get\(|\[)|getenv\()['\"]WALFERRY_")
    found = [path for path, tree in sources("src", "dags", "plugins", "spark_apps", "bench", "tests")
             if looked_up.search("\n".join(map(ast.unparse, reads(tree))))]  # fmt: skip
    assert found == []


def reads(tree: ast.AST) -> list[ast.expr]:
    """Calls and subscripts whose value is used, not set."""
    return [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load))
    ]  # fmt: skip


def test_the_keys_handed_on_to_python_workers_are_all_that_there_are() -> None:
    assert sorted(KEY_VARIABLES) == sorted(map(variable_of, WalKeys.model_fields))


@pytest.mark.parametrize("model", MODELS)
def test_values_can_be_sent_to_another_process_and_not_be_changed(model: type[Variables]) -> None:
    values = model.read()
    assert pickle.loads(pickle.dumps(values)) == values
    with pytest.raises(ValueError, match="frozen"):
        setattr(values, next(iter(model.model_fields)), None)


@pytest.mark.parametrize("text", ["many", "", "0", "-1", "1.5", "nan", "inf"])
def test_a_value_that_is_not_allowed_is_refused_by_the_name_of_its_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALFERRY_LANES", text)
    with pytest.raises(UsageError, match=rf"^WALFERRY_LANES is '{text}': give a whole number from 1$"):
        Writing.read()


def test_all_faults_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_LANES", "0")
    monkeypatch.setenv("WALFERRY_REQUEST_SECONDS", "inf")
    with pytest.raises(UsageError, match=r"WALFERRY_LANES is '0'.*; WALFERRY_REQUEST_SECONDS is 'inf'.* above 0"):
        Writing.read()


@pytest.mark.parametrize("text", ["0 4 * * *", "*/5 * * * *", "@daily"])
def test_a_schedule_is_a_cron_expression(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_VERIFY_CRON", text)
    assert Schedules.read().verify_cron == text
    monkeypatch.setenv("WALFERRY_VERIFY_CRON", "hourly")
    with pytest.raises(UsageError, match="WALFERRY_VERIFY_CRON is 'hourly': give a cron expression"):
        Schedules.read()


def test_no_message_shows_a_password_or_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"WALFERRY_LEDGER": "postgresql://me:hunter2@db/x", "WALFERRY_WAL_KEY_HEX": "hunter2",
               "WALFERRY_WAL_KEY_STORE": "jceks:///x?password=hunter2"}  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    assert "hunter2" not in f"{Places.read()} {WalKeys.read()!r} {Places.read().model_dump()}"
    assert Places.read().ledger.get_secret_value() == secrets["WALFERRY_LEDGER"]
    rules = {name: rule for model in MODELS for name, rule in model.model_json_schema()["properties"].items()}
    assert {name for name, rule in rules.items() if is_secret(rule)} == secrets.keys()


def test_a_wrong_secret_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded(Variables):
        pin: SecretStr = SecretStr("1234567")
        model_config = Variables.model_config | {"str_min_length": 5}

    monkeypatch.setenv("WALFERRY_PIN", "hunt")
    with pytest.raises(UsageError, match=r"^WALFERRY_PIN is wrong: give text") as refused:
        Guarded.read()
    assert "hunt" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_place_that_is_empty_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_REPORTS", "")
    assert Places.read().reports == Path(".run/reports")


def test_a_client_of_its_own_has_the_default_session_of_a_run() -> None:
    assert ClusterAddress("zk:1").session_seconds == ZooKeeperSession.model_fields["zookeeper_session_seconds"].default


def test_names_are_read_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("walferry_lanes", "7")
    monkeypatch.setenv("LANES", "7")
    monkeypatch.setenv("lanes", "7")
    assert Writing.read().lanes == 4


def test_an_unknown_variable_gets_one_warning_that_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WALFERRY_LEGDER", "sqlite:///secret.db")
    monkeypatch.setenv("WALFERRY_LEDGER", "sqlite:///ledger.db")
    warn_of_unknown_variables.cache_clear()
    with caplog.at_level(logging.WARNING, logger=settings.__name__):
        warn_of_unknown_variables()
        warn_of_unknown_variables()
    (line,) = caplog.messages
    assert line == "the variable WALFERRY_LEGDER is unknown and has no effect: the nearest known one is WALFERRY_LEDGER"
    warn_of_unknown_variables.cache_clear()


def test_variables_of_others_are_not_unknown() -> None:
    assert unknown_variables(["PATH", "AIRFLOW_CONN_WALFERRY_WEBHOOK", *known_variables()]) == {}


def command(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command `walferry` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "walferry.cli", *arguments],
        cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_warns_of_an_unknown_variable_once(tmp_path: Path) -> None:
    said = command(
        "status", "move", folder=tmp_path, WALFERRY_LEGDER="x", WALFERRY_LEDGER=f"sqlite:///{tmp_path}/no.db"
    )
    warning, error = said.stderr.splitlines()
    assert "WALFERRY_LEGDER is unknown" in warning
    assert error.startswith("error: there is no ledger at")


def test_the_command_ends_as_for_any_usage_error_if_a_value_is_not_allowed(tmp_path: Path) -> None:
    cluster = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
    spec = {"name": "move", "source": cluster, "target": cluster | {"znode": "/other"}, "tables": ["shop:orders"]}
    (tmp_path / "move.yaml").write_text(json.dumps(spec))  # which is YAML, too
    said = command("plan", "move.yaml", folder=tmp_path, WALFERRY_KEEP_HOURS="a day")
    assert said.stderr == "error: WALFERRY_KEEP_HOURS is 'a day': give a number from 0\n"
    assert said.returncode == 2


def test_the_command_has_the_variables_and_defaults_of_the_models() -> None:
    from unit.test_api import verbs  # here: this file is a script, too

    options = [option for _, verb in verbs() for option in verb.params]
    named = {option.envvar: option.default for option in options if option.envvar}
    assert named == {"WALFERRY_LEDGER": None, "WALFERRY_REPORTS": Places.model_fields["reports"].default}


def test_the_help_of_the_command_does_not_wait_for_the_models() -> None:
    script = "import sys, walferry.cli; print('pydantic' in str(sys.modules.keys()))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_what_sparks_workers_import_does_not_wait_for_the_models() -> None:
    modules = "walferry.apply.writers, walferry.spark.clients, walferry.wal.open, walferry.replay.rights.claims"
    script = f"import sys, {modules}; print('pydantic_settings' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


if __name__ == "__main__":
    print(settings_page())
