from __future__ import annotations

import pytest

from walferry.errors import UnreadableInputError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import table_name
from walferry.snapshots.manifest import StoreFile, region_name, snapshot_regions

ROW = b"r10"
KEY = len(ROW).to_bytes(2, "big") + ROW + b"\0" + b"\x7f" + b"\xff" * 8
OTHER = "0" * 32


def manifest(*files: pb.SnapshotRegionManifest.StoreFile, table: str = "t") -> pb.SnapshotDataManifest:
    info = pb.RegionInfo(region_id=1, table_name=table_name(table), start_key=b"a", end_key=b"z")
    region = pb.SnapshotRegionManifest(
        region_info=info, family_files=[pb.SnapshotRegionManifest.FamilyFiles(family_name=b"f", store_files=files)]
    )
    return pb.SnapshotDataManifest(table_schema=pb.TableSchema(table_name=table_name(table)), region_manifests=[region])


def only_file(name: str, table: str = "t", reference: pb.Reference | None = None) -> StoreFile:
    file = pb.SnapshotRegionManifest.StoreFile(name=name, reference=reference, file_size=7)
    ((only,),) = (region.files for region in snapshot_regions("/hbase", manifest(file, table=table)))
    return only


def test_a_plain_file_is_in_its_regions_folder_or_in_the_archive() -> None:
    (region,) = manifest(table="n:t").region_manifests
    name = region_name(region.region_info)
    inside = f"data/n/t/{name}/f/abc"
    assert only_file("abc", "n:t").paths == (f"/hbase/{inside}", f"/hbase/archive/{inside}")
    assert only_file("abc").bulk_sequence is None
    assert only_file("abc_SeqId_12_").bulk_sequence == 12


def test_a_link_names_another_table() -> None:
    assert only_file(f"n=o={OTHER}-abc_SeqId_3_").paths[0] == f"/hbase/data/n/o/{OTHER}/f/abc_SeqId_3_"
    assert only_file(f"n=o={OTHER}-abc_SeqId_3_").bulk_sequence == 3
    assert only_file(f"o={OTHER}-abc", "n:t").paths[0] == f"/hbase/data/default/o/{OTHER}/f/abc"


@pytest.mark.parametrize(("half", "rows"), [(pb.Reference.TOP, (ROW, b"")), (pb.Reference.BOTTOM, (b"", ROW))])
def test_a_reference_is_half_of_a_file_of_the_parent_or_of_what_that_links_to(
    half: pb.Reference.Range, rows: tuple[bytes, bytes]
) -> None:
    reference = pb.Reference(splitkey=KEY, range=half)
    for name, folder in (
        (f"abc.{OTHER}", f"default/t/{OTHER}"),
        (f"o={'1' * 32}-abc.{OTHER}", f"default/o/{'1' * 32}"),
    ):
        file = only_file(name, reference=reference)
        assert (file.start, file.stop) == rows
        assert file.paths[0] == f"/hbase/data/{folder}/f/abc"


def test_a_file_of_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(UnreadableInputError, match="something else"):
        only_file("something else")
