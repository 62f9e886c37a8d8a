"""The ledger: for every byte of every WAL file, whether it was seen, applied and verified; who did what, and when.

`Ledger.open(url)` opens it; its rows are frozen dataclasses. Drivers and tasks write it, Spark workers never do.
"""

from walferry.ledger.ledger import Ledger, RunLedger, source_tables, target_tables, user_name
from walferry.ledger.rows import (
    AcceptedDifference,
    AuditHead,
    AuditLine,
    ClusterObject,
    ComparedTable,
    Coverage,
    Difference,
    Gap,
    Hold,
    KnownRegion,
    Lease,
    PhaseRecord,
    Position,
    Quarantined,
    QuarantineItem,
    RangeComparison,
    Round,
    RunRecord,
    SeenFile,
    WalFile,
    WalRange,
)

__all__ = [
    "AcceptedDifference",
    "AuditHead",
    "AuditLine",
    "ClusterObject",
    "ComparedTable",
    "Coverage",
    "Difference",
    "Gap",
    "Hold",
    "KnownRegion",
    "Lease",
    "Ledger",
    "PhaseRecord",
    "Position",
    "QuarantineItem",
    "Quarantined",
    "RangeComparison",
    "Round",
    "RunLedger",
    "RunRecord",
    "SeenFile",
    "WalFile",
    "WalRange",
    "source_tables",
    "target_tables",
    "user_name",
]
