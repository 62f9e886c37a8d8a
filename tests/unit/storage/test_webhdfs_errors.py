"""What HDFS says is an error that passes, or one that a person has to do something about."""

from __future__ import annotations

import pytest
from hdfs.util import HdfsError

from walferry.errors import TransientError, is_transient
from walferry.storage import WebHdfs


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("StandbyException", True),
        ("IOException", True),
        ("CannotObtainBlockLengthException", True),
        ("BlockMissingException", True),
        ("AccessControlException", False),
        ("DSQuotaExceededException", False),
        ("InvalidPathException", False),
    ],
)
def test_an_error_of_hdfs_that_passes_is_tried_again_and_another_is_final(name: str, passes: bool) -> None:
    """Hole: after a power cut of the source, a log without a known length ended a run's command for good."""
    hdfs = WebHdfs("http://127.0.0.1:1", "hbase")
    error = hdfs._error(HdfsError("of the block", exception=name), {"path": "/hbase/WALs/s/w.1", "operation": "read"})
    assert is_transient(error) == passes
    assert isinstance(error, TransientError) == passes
    assert "/hbase/WALs/s/w.1" in str(error)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://b:1", "name each NameNode of that HDFS, separated by ; "),
        ("http://a:1;http://b:1", "and no other one is active now"),
    ],
)
def test_a_standby_is_told_as_one_and_how_several_are_named_if_it_is_the_only_one(url: str, said: str) -> None:
    refusal = HdfsError("Operation category READ is not supported", exception="StandbyException")
    error = WebHdfs(url, "hbase")._error(refusal, {"path": "/copies", "operation": "status"})
    assert str(error).startswith(f"WebHDFS at {url} is that of a standby NameNode (status of /copies)")
    assert said in str(error)
