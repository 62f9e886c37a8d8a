"""A person's answers, until the phase that asked records them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from walferry.ledger import RunLedger

_WORD, _REFUSED = "answer", "way out refused"


@dataclass(frozen=True)
class Word:
    """A person's yes to the cutover (phase `approve`), or confirmation that writes have stopped (`write_stop`)."""

    by: str
    said_ms: int


def keep_word(ledger: RunLedger, phase: str, word: Word) -> None:
    """Keep an answer. Whoever hears the answer first calls this, since the task that asked may be lost."""
    ledger.notes.keep(_WORD, asdict(word), phase)


def word_of(ledger: RunLedger, phase: str) -> Word | None:
    """The answer; None before it was given, and after it was used."""
    kept = ledger.notes.get(_WORD, phase)
    return None if kept is None else Word(**kept)


def drop_word(ledger: RunLedger, phase: str) -> None:
    """Remove an answer that was used: the next question needs a new answer."""
    ledger.notes.drop(_WORD, phase)


def note_refused(ledger: RunLedger, why: str) -> None:
    """Keep the reason why a person's choice after a failed check was not possible; "" once a choice was possible."""
    ledger.notes.keep_text(_REFUSED, why)


def why_refused(ledger: RunLedger) -> str:
    """Why a person's last choice was not possible; "" if it was."""
    return ledger.notes.text(_REFUSED)
