"""Every way has its writer."""

from __future__ import annotations

from typing import get_args

import pytest

from walferry.apply.route import WRITERS
from walferry.hbase.way import Way
from walferry.run.spec import Spec


def test_every_way_has_a_writer_and_can_be_asked_for() -> None:
    assert WRITERS.keys() == set(Way)
    assert Way in get_args(Spec.model_fields["apply"].annotation)


@pytest.mark.parametrize("way", Way)
def test_a_spec_reads_back_with_its_way(way: Way) -> None:
    spec = Spec.model_validate({"name": "move", "tables": ["t"], "apply": way.value})
    assert spec.apply is way
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec
