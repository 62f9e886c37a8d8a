"""Findings about one table: at the source, at the target, and how its schema fits the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from walferry.formats.value_codecs import CODECS
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.migration.planning.finding import Finding
from walferry.migration.schema import Fit, family_differences
from walferry.replay.rights.durability import MEANWHILE, NOT_DURABLE
from walferry.run.spec import TablePair


def source_findings(source: HBaseClient, pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    """Refusals for what a run cannot move, and warnings for what it moves differently than people may expect."""
    refuse: Callable[[str], Finding] = lambda message: Finding("refuse", pair.source, message)  # noqa: E731
    if not source.table_enabled(pair.source):
        yield refuse("the table is disabled; enable it, so that its snapshot includes what is in memory")
    for family in descriptor.families.values():
        if family.is_mob:
            yield refuse(f"family {family.name} stores MOB files, which are not copied yet")
        if family.new_version_behavior:
            yield refuse(f"family {family.name} has NEW_VERSION_BEHAVIOR, whose result depends on sequence numbers")
        if "ENCRYPTION" in family.attributes:
            yield Finding(
                "warn", pair.source, f"family {family.name} is encrypted: the target opens its files only with the "
                "source's master key (hbase.crypto.master.key.name)",
            )  # fmt: skip
    if descriptor.durability in NOT_DURABLE:
        yield Finding("warn", pair.source, _not_durable(descriptor.durability))
    coprocessors = [value for key, value in descriptor.attributes.items() if key.lower().startswith("coprocessor$")]
    if any("phoenix" in value.lower() for value in coprocessors):
        yield refuse("a Phoenix table: its indexes and catalogue are not migrated")
    elif coprocessors:
        yield Finding("warn", pair.source, "has coprocessors, which must also be installed at the target")
    stated = [descriptor.attributes, *(family.attributes for family in descriptor.families.values())]
    names_class = (".class", "region.split.policy")
    if classes := sorted({value for some in stated for key, value in some.items() if key.endswith(names_class)}):
        yield Finding(
            "warn", pair.source, f"names {', '.join(classes)}: without these classes at the target's region servers "
            "its regions do not open, and older masters accept the table nevertheless",
        )  # fmt: skip
    if source.table_exists("hbase:labels"):
        yield refuse("the source has visibility labels, whose numbers mean something else at the target")


def existing_findings(target: HBaseClient, pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    """Whether the snapshot can be loaded into the existing target table."""
    refuse: Callable[[str], Finding] = lambda message: Finding("refuse", pair.source, message)  # noqa: E731
    if not target.table_enabled(pair.target):
        yield refuse(f"target table {pair.target} is disabled; enable it, or drop it")
    elif next(iter(target.scan_raw(pair.target)), None) is not None:
        yield refuse(f"target table {pair.target} is not empty; truncate it, drop it, or map to another name")
    there = target.describe(pair.target)
    if there.read_only:
        yield refuse(f"target table {pair.target} is READONLY")
    for difference in family_differences(descriptor, there):
        yield refuse(f"{difference}; with history: bulk the families of an existing table must equal the source's")


def unreadable_findings(pair: TablePair, descriptor: TableDescriptor) -> Iterator[Finding]:
    """Whether the table has store files that only HBase can read."""
    for family in descriptor.families.values():
        stated = family.attributes.items()
        codecs = sorted({value.upper() for name, value in stated if name.startswith("COMPRESSION")} - CODECS.keys())
        encrypted = ["encrypted"] if "ENCRYPTION" in family.attributes else []
        for what in encrypted + [f"compressed by {codec}" for codec in codecs]:
            yield Finding(
                "refuse", pair.source, f"files of family {family.name} are {what}, which history: bulk cannot read; "
                "use history: clone",
            )  # fmt: skip


def fit_findings(pair: TablePair, fits: Fit) -> Iterator[Finding]:
    """What the target refuses in the table's schema."""
    if not fits.asked:
        yield Finding(
            "warn", pair.source, "the user may not ask the target whether it would create such a table (HBase wants "
            "CREATE on the namespace hbase for that): what it refuses is found only when the table is made",
        )  # fmt: skip
    elif fits.refused:
        yield Finding(
            "refuse", pair.source, f"the target would not create such a table: {fits.reason}. Make the target able to "
            "(its hbase-site.xml, its libraries), or change the table at the source and compact it (major_compact)",
        )  # fmt: skip
    elif fits.left_out:
        yield Finding(
            "warn", pair.source, f"the target table will not have {', '.join(fits.left_out)}, which the target "
            f"refuses: {fits.reason}",
        )  # fmt: skip


def _not_durable(durability: str) -> str:
    what = "edits that were acknowledged just before a crash may be lost"
    if durability == "SKIP_WAL":
        what = "edits that set no durability themselves are not in the log, so they are not replayed"
    return (
        f"has DURABILITY {durability}: {what}. The target table inherits it, but has {MEANWHILE} while walferry "
        "applies edits to it"
    )
