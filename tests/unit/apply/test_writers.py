"""Every kind of writer can be asked for."""

from __future__ import annotations

from typing import get_args

import pytest

from walferry.apply.writers import WRITERS
from walferry.hbase.writer_kind import WriterKind
from walferry.run.spec import Spec


def test_every_kind_has_a_writer_and_can_be_asked_for() -> None:
    assert WRITERS.keys() == set(WriterKind)
    assert WriterKind in get_args(Spec.model_fields["apply"].annotation)


@pytest.mark.parametrize("kind", WriterKind)
def test_a_spec_reads_back_with_its_kind_of_writer(kind: WriterKind) -> None:
    spec = Spec.model_validate({"name": "move", "tables": ["t"], "apply": kind.value})
    assert spec.apply is kind
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec
