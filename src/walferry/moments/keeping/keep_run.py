"""One run of kind `keep`: its spec, its ledger, and the source."""

from __future__ import annotations

from walferry.ledger import Ledger, RunRecord
from walferry.moments.keeping.keep_spec import recorded_keep_spec
from walferry.run.run import LogRun


class KeepRun(LogRun):
    """A run of kind `keep`."""

    def __init__(self, ledger: Ledger, record: RunRecord | str, actor: str | None = None) -> None:
        """As `LogRun`."""
        super().__init__(ledger, record, actor)
        self.spec = recorded_keep_spec(self.record)
