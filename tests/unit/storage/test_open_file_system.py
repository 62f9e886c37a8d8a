"""URLs of files."""

from __future__ import annotations

import getpass

import pytest

from walferry.errors import UsageError
from walferry.storage import Local, WebHdfs, open_file_system
from walferry.storage.direct import DirectHdfs


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a/b c", "/a/b c"), ("relative", "relative"), ("file:///a/b%20c", "/a/b c")],
)
def test_a_local_path_is_local(url: str, path: str) -> None:
    files, found = open_file_system(url)
    assert isinstance(files, Local)
    assert found == path


def test_a_webhdfs_url_names_server_user_and_path() -> None:
    files, path = open_file_system("webhdfs://alice@nn:9870/hbase/oldWALs/h%2C1%2C2.3")
    assert isinstance(files, WebHdfs)
    assert (files.url, files.user) == ("http://nn:9870", "alice")
    assert path == "/hbase/oldWALs/h%2C1%2C2.3"


def test_the_user_is_the_one_asked_for_or_the_one_who_runs() -> None:
    for files, user in (
        (open_file_system("swebhdfs://nn:9870/x", user="bob")[0], "bob"),
        (open_file_system("swebhdfs://nn:9870/x")[0], getpass.getuser()),
    ):
        assert isinstance(files, WebHdfs)
        assert (files.url, files.user) == ("https://nn:9870", user)


def test_with_the_name_nodes_http_address_a_path_is_on_its_hdfs_and_an_hdfs_url_is_read_from_the_data_nodes() -> None:
    for address, url in (
        ("http://nn:9870/", "http://nn:9870"),
        ("nn:9870", "http://nn:9870"),
        ("https://nn:1", "https://nn:1"),
        ("http://nn1:9870/; nn2:9870;", "http://nn1:9870;http://nn2:9870"),
    ):
        files, path = open_file_system("/h%2C1", webhdfs=address, user="bob")
        assert isinstance(files, WebHdfs)
        assert (files.url, files.user, path) == (url, "bob", "/h%2C1")
    files, path = open_file_system("hdfs://nn:8020/h%2C1", webhdfs="nn:9870", user="bob")
    assert isinstance(files, DirectHdfs)
    assert (files.url, files.user, path) == ("http://nn:9870", "bob", "/h%2C1")
    with pytest.raises(UsageError, match="write webhdfs://host:port/path, with the host:port of each"):
        open_file_system("hdfs://nn:8020/x")


@pytest.mark.parametrize(
    ("url", "address", "user"),
    [
        ("webhdfs://nn1:9870;nn2:9871/h%2C1", "http://nn1:9870;http://nn2:9871", getpass.getuser()),
        ("swebhdfs://alice@nn1:1; [::1]:2;/h%2C1", "https://nn1:1;https://[::1]:2", "alice"),
    ],
)
def test_a_webhdfs_url_names_several_name_nodes(url: str, address: str, user: str) -> None:
    files, path = open_file_system(url)
    assert isinstance(files, WebHdfs)
    assert (files.url, files.user, path) == (address, user, "/h%2C1")


@pytest.mark.parametrize("webhdfs", ["https://kim:hush@nn:9870", "nn1:9870;kim:hush@nn2:9870"])
def test_a_name_nodes_address_with_a_password_is_refused_without_showing_it(webhdfs: str) -> None:
    for url in ("/x", "hdfs://nn:8020/x"):
        with pytest.raises(UsageError, match="leave user and password out") as refused:
            open_file_system(url, webhdfs=webhdfs)
        assert "hush" not in f"{refused.value} {refused.value.facts}"


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/x", "webhdfs://nn/x", "webhdfs:///x", "webhdfs://nn:1;nn/x", "webhdfs://a@nn:1;b@nn:2/x"],
)
def test_any_other_url_is_refused_with_what_to_use(url: str) -> None:
    with pytest.raises(UsageError, match="webhdfs://host:port/path"):
        open_file_system(url)


def test_an_address_of_a_gateway_may_have_what_webhdfs_adds() -> None:
    for address in ("https://knox:8443/gateway/x", "https://knox:8443/gateway/x/webhdfs/v1/"):
        assert WebHdfs(address, "kim").url == "https://knox:8443/gateway/x"


def test_a_port_that_is_none_is_told_as_such() -> None:
    """Hole: a traceback, ValueError."""
    with pytest.raises(UsageError, match="hdfs://nn:abc/x: what it has in place of a port is no number"):
        open_file_system("hdfs://nn:abc/x", webhdfs="nn:9870")
    with pytest.raises(UsageError, match="give http://host:port of each NameNode"):
        open_file_system("/x", webhdfs="nn:98a0")
