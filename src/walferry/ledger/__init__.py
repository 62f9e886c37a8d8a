"""The ledger records which bytes of every WAL file were seen, applied and verified, and who did what when.

`Ledger.open(url)` opens it; its rows are frozen dataclasses. Drivers and tasks write it, Spark workers never do.
"""

from walferry.ledger.database import NoLedgerError
from walferry.ledger.late import LateEdit
from walferry.ledger.ledger import Ledger, RunLedger, user_name
from walferry.ledger.numbers import CountedNumbers
from walferry.ledger.passes import PassDifference, PassPosition, PassRecord, PassRegion
from walferry.ledger.peer_looks import PeerLook
from walferry.ledger.received import ReceivedCall, ReceivedTotal, Receiver
from walferry.ledger.repairs import RepairedRow
from walferry.ledger.rows import (
    AcceptedDifference,
    AuditHead,
    AuditLine,
    BatchRecord,
    ClusterObject,
    ComparedTable,
    Coverage,
    Difference,
    Gap,
    Hold,
    KnownRegion,
    Lease,
    LogPosition,
    NumberGap,
    PhaseRecord,
    Piece,
    Quarantined,
    QuarantineItem,
    RangeComparison,
    RecordedFile,
    RegionNumber,
    Round,
    RoundTotals,
    RunRecord,
    SeenFile,
    StagedFile,
    WalRange,
)

__all__ = [
    "AcceptedDifference",
    "AuditHead",
    "AuditLine",
    "BatchRecord",
    "ClusterObject",
    "ComparedTable",
    "CountedNumbers",
    "Coverage",
    "Difference",
    "Gap",
    "Hold",
    "KnownRegion",
    "LateEdit",
    "Lease",
    "Ledger",
    "LogPosition",
    "NoLedgerError",
    "NumberGap",
    "PassDifference",
    "PassPosition",
    "PassRecord",
    "PassRegion",
    "PeerLook",
    "PhaseRecord",
    "Piece",
    "QuarantineItem",
    "Quarantined",
    "RangeComparison",
    "ReceivedCall",
    "ReceivedTotal",
    "Receiver",
    "RecordedFile",
    "RegionNumber",
    "RepairedRow",
    "Round",
    "RoundTotals",
    "RunLedger",
    "RunRecord",
    "SeenFile",
    "StagedFile",
    "WalRange",
    "user_name",
]
