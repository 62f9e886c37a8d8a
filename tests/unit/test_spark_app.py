from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from walferry import spark_app
from walferry.process import open_ledger

THIN = Path(__file__).parents[2] / "spark_apps" / "run_phase.py"
CLUSTER = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}


def test_a_phase_without_an_app_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    spec = {"name": "move", "source": CLUSTER, "target": CLUSTER, "tables": [{"source": "t", "target": "t"}]}
    with open_ledger() as ledger:
        run = ledger.open_run("move", "test", spec, "test").run_id
    monkeypatch.setattr(spark_app, "opened_once", lambda name: lambda: pytest.fail("Spark was started"))
    app = typer.Typer(add_completion=False)
    app.command()(spark_app.main)
    refused = CliRunner().invoke(app, ["release", run])
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"error: run {run} has no Spark job release: give one of compare t, copy t, drain, replay\n"
    )
    assert "no Spark job copy: give" in CliRunner().invoke(app, ["copy", run]).stderr
    assert "no Spark job drain t: give" in CliRunner().invoke(app, ["drain", run, "t"]).stderr
    assert (
        "no phase copy after replay: give one of approve,"
        in CliRunner().invoke(app, ["replay", run, "--through", "copy"]).stderr
    )
    unknown = CliRunner().invoke(app, ["copy", "other-1", "t"])
    assert unknown.exit_code == 2
    assert "other-1" in unknown.stderr


def test_the_file_for_a_submit_by_hand_is_the_same_app(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(THIN), "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(THIN), run_name="__main__")
    said = capsys.readouterr().out
    assert all(name in said for name in ("PHASE", "RUN", "TABLE", "--parent"))
