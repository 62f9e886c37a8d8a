from __future__ import annotations

from pathlib import Path

import pytest

from unit.formats.wal_builder import TRAILER, header
from walferry.errors import UsageError
from walferry.migration.plan import Finding, Plan, _codec, require
from walferry.storage import Local


def write(folder: Path, name: str, content: bytes) -> tuple[str, str]:
    (folder / name).write_bytes(content)
    return str(folder / name), name


def plan(*findings: Finding) -> Plan:
    return Plan("2.6", "2.6", "a", "b", [], 0, 0, list(findings))


def test_a_plain_log_is_not_refused(tmp_path: Path) -> None:
    assert list(_codec(Local(), [write(tmp_path, "a.1", header() + TRAILER)])) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"has_compression": True},
        {"has_value_compression": True},
        {"has_compression": True, "has_tag_compression": True},
        {"cell_codec_cls_name": "org.example.OtherCodec"},
        {"writer_cls_name": "SecureProtobufLogWriter", "encryption_key": b"key"},
    ],
)
def test_a_log_that_cannot_be_read_is_refused_by_the_name_of_what_it_uses(
    fields: dict[str, object], tmp_path: Path
) -> None:
    (found,) = _codec(Local(), [write(tmp_path, "a.1", header(**fields))])
    assert (found.level, found.subject) == ("refuse", "WAL codec")
    assert "a.1" in found.message


def test_the_newest_log_with_a_header_tells_the_codec(tmp_path: Path) -> None:
    old = write(tmp_path, "a.1", header(has_compression=True))
    new = write(tmp_path, "a.2", header())
    empty = write(tmp_path, "a.3", b"")
    gone = (str(tmp_path / "a.4"), "a.4")
    assert list(_codec(Local(), [old, new, empty, gone])) == []
    assert len(list(_codec(Local(), [old, empty, gone]))) == 1
    assert list(_codec(Local(), [])) == []


def test_every_refusal_is_in_the_one_error_and_warnings_are_not() -> None:
    refusals = [Finding("refuse", "a", "is disabled"), Finding("refuse", "b", "is not there")]
    with pytest.raises(UsageError) as caught:
        require(plan(refusals[0], Finding("warn", "c", "is large"), refusals[1]))
    assert str(caught.value) == "the plan refuses: a: is disabled; b: is not there"
    assert len(caught.value.findings) == 2
    require(plan(Finding("warn", "c", "is large")))
