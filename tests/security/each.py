"""Which versions of HBase and protections the tests of secured clusters boot."""

from __future__ import annotations

import pytest

EACH = pytest.mark.parametrize(
    "secured",
    [
        "2.6.3-authentication",
        *(pytest.param(one, marks=pytest.mark.matrix) for one in ("2.6.3-privacy", "2.2.3-integrity", "1.7.2-privacy")),
    ],
    indirect=True,
)
