"""What a stream tells its ledger: files and their bytes, rounds and lag, and what cannot be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from walferry.amounts import amount
from walferry.clock import now_ms
from walferry.ledger import Round
from walferry.ledger.rows import Hold, QuarantineItem, WalRange
from walferry.replay.log.cut import as_seen
from walferry.run.between_rounds import pause_seconds
from walferry.run.facts import fenced_ms
from walferry.run.progress.backlog import unapplied
from walferry.run.progress.lag import Ahead, ahead_of, keep_ahead
from walferry.streams.follower import Follower, Passed, Tally
from walferry.streams.sending import Refused
from walferry.streams.stream_run import StreamRun
from walferry.wal.files import WalFile

TELL_MS = 1_000
"""time between two notes of the lag"""


class Account:
    """Records what a follower has done. The position topic may be newer, never older."""

    def __init__(self, run: StreamRun, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._ahead = ahead_of(run.ledger) or Ahead()
        self._round_ms = round(1000 * pause_seconds(run.spec.max_lag))
        self._began_ms = now_ms()
        self._next_ms = self._told_ms = 0
        self._sums = [0, 0, 0]  # bytes, entries, cells
        self._covered_ms = self._ahead.covered_ms or fenced_ms(run.ledger) or self._began_ms
        self._seen: dict[str, WalFile] = {}
        """files that are recorded as seen, as they were listed, and not as applied"""
        self._done: set[str] = set()

    def add(self, passed: Passed) -> int:
        """Record a pass. Returns how many items were put into quarantine."""
        for number, count in enumerate((passed.read_bytes, passed.messages, passed.cells)):
            self._sums[number] += count
        if passed.covered_ms is not None:
            self._covered_ms = max(self._covered_ms, passed.covered_ms)
        if passed.refused:
            self._quarantine(passed.refused)
        now = now_ms()
        if now >= self._next_ms or passed.refused:
            self._next_ms = now + self._round_ms
            self._record_files()
            self._record_round(now)
        elif passed.covered_ms is not None and now - self._told_ms >= TELL_MS:
            self._told_ms = now
            self._ahead = self._ahead.covering(passed.covered_ms, now)
            keep_ahead(self._run.ledger, self._ahead)
        return len(passed.refused)

    def _quarantine(self, refused: Sequence[Refused]) -> None:
        released = Counter((item.file, item.start) for item in self._run.ledger.quarantine.items("released"))
        items = []
        for one in refused:
            before = released[one.file, one.offset]
            reason = f"{one.reason}; so it was before {amount(before, 'release')}" if before else one.reason
            items.append(
                QuarantineItem(
                    one.file, one.offset, one.offset_end, one.table, one.region, one.sequence_number, reason, one.data
                )
            )

        def holds(ids: Sequence[int]) -> list[Hold]:
            return [
                Hold(one.file, one.table, one.region, one.offset, number)
                for one, number in zip(refused, ids, strict=True)
            ]

        self._run.ledger.quarantine.put(items, holds)

    def _record_files(self) -> None:
        """Record which files of the log there are, and which of them are sent whole."""
        fences = self._run.fences()
        positions = self._follower.positions.groups
        listed = {
            file.name: file
            for files in self._follower.listing.groups.values() for file in files
            if file.name not in self._done and fences.starts_by(file)
        }  # fmt: skip
        sent = [
            file for file in listed.values()
            if (known := positions.get(file.group)) is not None
            and (file.number < known.sent.number or (file.number == known.sent.number and known.sent.read))
        ]  # fmt: skip
        new = [file for name, file in listed.items() if self._seen.get(name) != file]
        whole = {file.name for file in sent}
        if new or sent:
            self._run.ledger.log.see_files([as_seen(file, file.name in whole) for file in {*new, *sent}])
            self._seen |= {file.name: file for file in new}
        if sent:
            ranges = [part for file in sent for part in self._ranges(file)]
            self._run.ledger.log.set_ranges(ranges, lengths={file.name: file.length for file in sent})
            for file in sent:
                self._done.add(file.name)
                self._seen.pop(file.name, None)
                self._follower.tallies.pop(file.name, None)

    def _ranges(self, file: WalFile) -> Iterator[WalRange]:
        tallies = self._follower.tallies.get(file.name)
        if tallies is None:  # an earlier process has read its beginning
            tallies = self._follower.count_file(file.name)
        for table in self._run.source_tables:
            tally = tallies.get(table, Tally())
            yield WalRange(
                file.name, 0, file.length, table, tally.entries, tally.cells, tally.first_write_ms,
                tally.last_write_ms, "applied",
            )  # fmt: skip

    def _record_round(self, now: int) -> None:
        ledger = self._run.ledger
        self._ahead = self._ahead.covering(self._covered_ms, now)
        keep_ahead(ledger, self._ahead)
        last = ledger.rounds.last()
        backlog = sum(file.length for file in unapplied(ledger))
        size, entries, cells = self._sums
        number, lag_ms = last.number + 1 if last else 1, max(0, now - self._covered_ms)
        ledger.rounds.record(Round(number, self._began_ms, now, 0, size, entries, cells, lag_ms, backlog))
        self._began_ms, self._sums = now, [0, 0, 0]
