"""The suites by name. A suite is a function without arguments that returns Great Expectations' expectations.

Our own are `after_copy`, `after_load` and `after_drain`; other packages add theirs by an entry point in the group
`walferry.checks`, for example `nightly = "ours.checks:nightly"`. Expectations are about columns of the frame;
`severity="critical"` shuts the gate, "warning" and "info" are only reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from walferry.errors import UsageError

if TYPE_CHECKING:
    from great_expectations.expectations.metadata_types import FailureSeverity

Suite = Callable[[], Sequence[Any]]

GROUP = "walferry.checks"

COPY_COLUMNS = (
    "table",
    "region",
    "kind",
    "name",
    "source_bytes",
    "target_bytes",
    "source_checksum",
    "target_checksum",
    "source_start",
    "target_start",
    "source_end",
    "target_end",
    "source_schema",
    "target_schema",
)
"""Columns of the frame of `after_copy`: one row per file, per region and per table schema, as `kind` says."""

LOAD_COLUMNS = (
    "table",
    "region",
    "kind",
    "source_rows",
    "target_rows",
    "source_cells",
    "target_cells",
    "source_digest",
    "target_digest",
    "uncompared",
    "source_schema",
    "target_schema",
)
"""Columns of the frame of `after_load`: one row per source region and per table schema, as `kind` says."""

DRAIN_COLUMNS = (
    "table",
    "region",
    "source_rows",
    "target_rows",
    "source_cells",
    "target_cells",
    "source_digest",
    "target_digest",
    "expiring",
    "uncompared",
    "unexplained",
    "undecided",
    "explained",
    "second_reader",
)
"""Columns of the frame of `after_drain`: one row per region. `expiring` and `uncompared` count cells whose TTL ended
while they were read; the next three count rows that differ, `undecided` those that wait for a person's decision;
`second_reader` counts those of them that differ only for HBase's own Java client, and is null where that read none."""


def suite(name: str) -> Sequence[Any]:
    """The expectations of the suite `name`. Raises UsageError if the suite does not exist."""
    own: dict[str, Suite] = {"after_copy": after_copy, "after_load": after_load, "after_drain": after_drain}
    if name in own:
        return own[name]()
    added = {point.name: point for point in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(sorted({*own, *added}))
        raise UsageError(f"there is no suite {name!r} of checks; known: {known}", suite=name)
    load: Suite = added[name].load()
    return load()


def after_copy() -> Sequence[Any]:
    """Every file arrived whole, every region has the same borders, every table the same schema."""
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.row_conditions import Column

    gxe, critical = _core(), FailureSeverity.CRITICAL
    files, regions, schemas = (Column("kind") == kind for kind in ("file", "region", "schema"))
    return [
        _equal("bytes", files, critical),
        _equal("checksum", files, critical),
        gxe.ExpectColumnValuesToNotBeNull(column="source_checksum", row_condition=files, severity=critical),
        gxe.ExpectColumnValuesToNotBeNull(column="target_checksum", row_condition=files, severity=critical),
        _equal("start", regions, critical),
        _equal("end", regions, critical),
        _equal("schema", schemas, critical),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, row_condition=regions, severity=critical),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, row_condition=schemas, severity=critical),
    ]


def after_load() -> Sequence[Any]:
    """In the rows of every source region the target shows the snapshot's content; every table has the same schema."""
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.row_conditions import Column

    gxe, critical = _core(), FailureSeverity.CRITICAL
    regions, schemas = (Column("kind") == kind for kind in ("region", "schema"))
    return [
        *(_equal(what, regions, critical) for what in ("rows", "cells", "digest")),
        gxe.ExpectColumnValuesToBeBetween(
            column="uncompared", min_value=0, max_value=0, row_condition=regions, severity=critical
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="uncompared", row_condition=regions, severity=critical),
        _equal("schema", schemas, critical),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, row_condition=regions, severity=critical),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, row_condition=schemas, severity=critical),
    ]


def after_drain() -> Sequence[Any]:
    """Rows, cells and digests are equal in every region. A region whose differences all have a named class may differ,
    with a warning; a single row that is unexplained or waits for a decision shuts the gate, and so does a cell that
    could not be compared, or a row that HBase's own Java client shows otherwise."""
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.row_conditions import Column

    gxe, critical = _core(), FailureSeverity.CRITICAL
    clean, explained = Column("explained") == 0, Column("explained") > 0
    return [
        *(_equal(what, clean, critical) for what in ("rows", "cells", "digest")),
        *(_equal(what, explained, FailureSeverity.WARNING) for what in ("rows", "cells", "digest")),
        *(
            gxe.ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=0, severity=critical)
            for column in ("unexplained", "undecided", "uncompared", "second_reader")
        ),
        *(
            gxe.ExpectColumnValuesToNotBeNull(column=column, severity=critical)
            for column in ("unexplained", "undecided", "uncompared", "explained")
        ),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, severity=critical),
    ]


def _equal(what: str, rows: Any, severity: FailureSeverity) -> Any:

    # "neither": a value missing on one side is a difference too.
    return _core().ExpectColumnPairValuesToBeEqual(
        column_A=f"source_{what}",
        column_B=f"target_{what}",
        ignore_row_if="neither",
        row_condition=rows,
        severity=severity,
    )


def _core() -> Any:
    """Great Expectations' own expectations; its modules re-export them in a way that mypy cannot follow."""
    from great_expectations.expectations import core

    return core
