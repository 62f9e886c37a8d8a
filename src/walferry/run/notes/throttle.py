"""The throttle of a run: how much it may write per second. The spec sets it first, `walferry throttle` changes it."""

from __future__ import annotations

from collections.abc import Mapping

from walferry.errors import UsageError
from walferry.ledger import RunLedger
from walferry.run.recorded_spec import options_of
from walferry.run.spec import Throttle, rate

NOTE = "throttle"


def throttle_of(ledger: RunLedger) -> Throttle:
    """The run's throttle now: as set last, or else as in its spec."""
    kept = ledger.notes.get(NOTE)
    return options_of(ledger.record).throttle if kept is None else Throttle.model_validate(kept)


def set_throttle(ledger: RunLedger, throttle: Throttle, actor: str) -> None:
    """Set the run's throttle from now on. The processes that work on the run notice within a second."""
    before = throttle_of(ledger)
    ledger.notes.keep(NOTE, throttle.model_dump())
    inputs = {"from": before.model_dump(), "to": throttle.model_dump()}
    ledger.whole.audit(actor, "throttle run", ledger.run_id, inputs)


def changed(throttle: Throttle, given: Mapping[str, str | None], off: bool) -> Throttle:
    """The throttle with the `given` rates, as text by field; with `off`, a throttle without limits.

    Raises UsageError for text that is not a rate above 0, and for rates given together with `off`.
    """
    rates = {field: text for field, text in given.items() if text is not None}
    if off and rates:
        raise UsageError("--off removes the limits: give no other option with it")
    found = {}
    for field, text in rates.items():
        option = f"--{field.replace('_', '-')}"
        try:
            found[field] = rate(text)
        except ValueError as error:
            advice = "; --off removes the limits, `walferry pause` stops the run"
            raise UsageError(f"{option} {text!r}: {error}{advice}", option=option) from None
    return Throttle() if off else throttle.model_copy(update=found)


def throttle_text(throttle: Throttle) -> str:
    """As a phrase: "at most 20.0 MB/s and 50000 cells/s"."""
    limits = []
    if throttle.write_bytes is not None:
        limits.append(f"{throttle.write_bytes / 1e6:.1f} MB/s" if throttle.write_bytes >= 1e5
                      else f"{throttle.write_bytes:.0f} bytes/s")  # fmt: skip
    if throttle.write_cells is not None:
        limits.append(f"{throttle.write_cells:g} cells/s")
    return f"at most {' and '.join(limits)}" if limits else "without a limit"
