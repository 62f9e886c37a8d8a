"""Whether the target accepts a source table's schema: as it is, without attributes that only tune it, or not at all."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor, without_attributes
from walferry.hbase.errors import AccessDeniedError
from walferry.hbase.versions import knows
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run


def family_differences(source: TableDescriptor, target: TableDescriptor) -> list[str]:
    """Differences between both sides' families and their attributes; [] when they agree."""
    differences = []
    for name in sorted(source.families.keys() | target.families.keys()):
        here, there = source.families.get(name), target.families.get(name)
        if here is None or there is None:
            differences.append(f"family {name} of {source.name} is only at the {'source' if here else 'target'}")
            continue
        ours, theirs = here.effective, there.effective
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                differences.append(
                    f"{key} of {source.name} family {name} is {here.attributes.get(key)} at the source, "
                    f"{there.attributes.get(key)} at the target"
                )
    return differences


TUNING = ("SPLIT_POLICY", "FLUSH_POLICY", "MAX_FILESIZE", "MEMSTORE_FLUSHSIZE")
"""attributes of a table that decide when its regions split and flush; they make no difference to readers"""


@dataclass(frozen=True)
class Fit:
    """How a source table's schema fits a target."""

    left_out: tuple[str, ...]
    """names of attributes that the target table will not have"""
    reason: str
    """why the target refuses these attributes or the whole schema; empty if it accepts the whole schema"""
    refused: bool
    asked: bool = True
    """False: the user may not ask"""


def fit(target: HBaseClient, descriptor: TableDescriptor) -> Fit:
    """Ask the target whether it would create a table with this schema and, if not, which tuning attributes to leave
    out."""
    unknown = [
        f"family {family.name} has {name} {value}, which HBase {target.release.name} cannot read"
        for family in descriptor.families.values()
        for name, value in family.attributes.items()
        if not knows(target.release, name, value.upper())
    ]
    if unknown:
        return Fit((), "; ".join(unknown), refused=True)
    try:
        reason = target.schema_fault(TableDescriptor(as_cloned(descriptor.schema)))
    except AccessDeniedError:  # it needs CREATE on the namespace of the table that exists (`hbase.schemas`)
        return Fit((), "", refused=False, asked=False)
    if reason is None:
        return Fit((), "", refused=False)
    stated = tuple(name for name in TUNING if name in descriptor.attributes)
    # Leave out one attribute if that is enough, otherwise all.
    for names in (*((name,) for name in stated), stated):
        if names and target.schema_fault(TableDescriptor(as_cloned(descriptor.schema, names))) is None:
            return Fit(names, reason, refused=False)
    return Fit((), reason, refused=True)


def as_cloned(schema: pb.TableSchema, left_out: Collection[str] = ()) -> pb.TableSchema:
    """The schema for the target: without some attributes of the table, and with VERSIONS stated for each family.

    VERSIONS defaults to 1, but HBase 1.x fails to read a schema that does not state it (seen on 1.7.2: "Cannot parse
    null string").
    """
    cloned = without_attributes(schema, left_out)
    for family in cloned.column_families:
        if all(pair.first != b"VERSIONS" for pair in family.attributes):
            family.attributes.add(first=b"VERSIONS", second=b"1")
    return cloned


def target_schema(run: Run, table: str, schema: pb.TableSchema) -> pb.TableSchema:
    """The schema of a clone: `as_cloned` and, of a run that sets up HBase's own replication, with the scopes that the
    target needs: 1 only where its edits are replicated back."""
    cloned = as_cloned(schema, left_out(run, table))
    if run.record.kind != "setup":
        return cloned
    spec, families = setup_spec_of(run.record), TableDescriptor(cloned).shown_families
    named = spec.names_of(table)
    back = [name for name in families if spec.peer_back is not None and (named is None or name in named)]
    return TableDescriptor(cloned).with_scopes({name: "1" if name in back else "0" for name in families}).schema


def left_out(run: Run, table: str) -> Collection[str]:
    """The attributes of a table that the target table will not have, according to the run's plan."""
    # A run that was planned before walferry asked the target leaves nothing out.
    plans = {plan["source"]: plan for plan in run.done("plan").get("tables", [])}
    names: list[str] = plans.get(table, {}).get("left_out", [])
    return names


def make_namespace(run: Run, table: str) -> None:
    """Create the namespace of a target table unless it exists."""
    namespace, _, _ = table.rpartition(":")
    if namespace and not run.target.namespace_exists(namespace):
        run.target.create_namespace(namespace)


def schema_text(descriptor: TableDescriptor) -> str:
    """A table's families as text, to compare both sides."""
    families = {name: family.effective for name, family in descriptor.families.items()}
    return json.dumps(families, sort_keys=True)
