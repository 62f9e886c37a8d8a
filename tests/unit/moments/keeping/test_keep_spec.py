"""The spec of a run that keeps: what it refuses, and what the ledger has of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.moments.keeping.keep_spec import (
    KeepSpec,
    load_keep_spec,
    parse_keep_spec,
    recorded_keep_spec,
    resolve_keep,
)
from walferry.moments.keeping.start import open_keep, start_keep
from walferry.run.recorded_spec import log_spec_of
from walferry.run.spec import Cluster

EXAMPLE = Path(__file__).parents[4] / "keep.example.yaml"
SOURCE = {"zookeeper": "zk:2181", "webhdfs": "http://nn:9870", "rootdir": "hdfs://nn:8020/hbase"}
SPEC: dict[str, Any] = {"name": "moments", "source": SOURCE, "tables": ["shop:orders"], "folder": "/backup"}


def unknown(connection_id: str) -> Cluster:
    raise AssertionError(connection_id)


def test_a_recorded_spec_is_read_again_and_as_one_that_copies_the_log_to_the_folder(tmp_path: Path) -> None:
    spec = resolve_keep(parse_keep_spec(SPEC | {"keep_bytes": "2TiB"}, origin="x"), unknown)
    assert spec.keep_bytes == 2 * 1024**4
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = ledger.run(open_keep(ledger, spec, "me"))
        assert json.loads(json.dumps(run.spec)) == run.spec
        assert recorded_keep_spec(run) == spec
        assert (log_spec_of(run).protect, log_spec_of(run).stage) == ("stage", "/backup")


def test_the_example_has_every_key() -> None:
    assert load_keep_spec(EXAMPLE).name
    assert yaml.safe_load(EXAMPLE.read_text()).keys() == KeepSpec.model_fields.keys()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"folder": "backup"}, "folder: give the whole path of a folder"),
        ({"folder": "/kept#1"}, "folder: a folder whose path has #, ? or % cannot be written as a URL"),
        ({"folder": "/hbase/oldWALs/x"}, "folder: a folder of HBase's own, which deletes unknown files there"),
        ({"folder": "s3://bucket/x"}, "folder: s3://bucket/x: unknown kind of file"),
        ({"tables": ["hbase:meta"]}, "tables: system tables are not kept"),
        ({"tables": ["a", "default:a"]}, "tables: a is named twice"),
        ({"keep_bytes": "lots"}, "keep_bytes: give a size above 0, such as 500GB or 2TiB"),
        ({"base_hours": 0}, "base_hours"),
        ({"keepdays": 1}, "keepdays: unknown key"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_key_and_the_fault(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_keep_spec(SPEC | wrong, origin="keep.yaml")
    assert str(refused.value).startswith(f"keep.yaml: {said}")


def test_tables_and_times_of_an_unfinished_run_may_change_but_neither_its_folder_nor_its_tables_become_less(
    tmp_path: Path,
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:

        def started(**changed: Any) -> str:
            return start_keep(ledger, SPEC | changed, unknown, "me")

        first = started()
        ledger.of(first).phases.start("protect")
        more = {"tables": ["shop:orders", "shop:lines"], "keep_days": 2, "tail_seconds": 1, "copy_bases": True}
        assert started(**more) == first
        assert recorded_keep_spec(ledger.run(first)).keep_days == 2
        with pytest.raises(UsageError, match="which its spec no longer names"):
            started()
        with pytest.raises(UsageError, match="with another spec"):
            started(**more, folder="/other")
