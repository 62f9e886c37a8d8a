"""The ledger: for every byte of every WAL file, was it seen, applied and verified; who did what, and when.

`Ledger.open(url)` opens it; its rows are frozen dataclasses. Drivers and tasks write it, Spark workers never do.
"""

from walferry.ledger.ledger import Ledger, source_tables
from walferry.ledger.rows import (
    AuditHead,
    AuditLine,
    ClusterObject,
    Coverage,
    Difference,
    Gap,
    Hold,
    Lease,
    Phase,
    Position,
    Quarantined,
    QuarantineItem,
    RangeComparison,
    Round,
    Run,
    SeenFile,
    WalFile,
    WalRange,
)

__all__ = [
    "AuditHead",
    "AuditLine",
    "ClusterObject",
    "Coverage",
    "Difference",
    "Gap",
    "Hold",
    "Lease",
    "Ledger",
    "Phase",
    "Position",
    "QuarantineItem",
    "Quarantined",
    "RangeComparison",
    "Round",
    "Run",
    "SeenFile",
    "WalFile",
    "WalRange",
    "source_tables",
]
