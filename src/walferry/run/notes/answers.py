"""A person's answers, where the phase that they are for has not recorded them yet."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from walferry.ledger import RunLedger

_WORD, _REFUSED = "answer", "way out refused"


@dataclass(frozen=True)
class Word:
    """A person's yes to the cutover (phase `approve`), or the word that writes have stopped (`write_stop`)."""

    by: str
    said_ms: int


def keep_word(ledger: RunLedger, phase: str, word: Word) -> None:
    """Keep an answer, whoever hears it first: the task that asked may be lost, and nobody need wait for it."""
    ledger.notes.keep(_WORD, asdict(word), phase)


def word_of(ledger: RunLedger, phase: str) -> Word | None:
    """The answer as it was kept; None before it was given, and after it was used."""
    kept = ledger.notes.get(_WORD, phase)
    return None if kept is None else Word(**kept)


def drop_word(ledger: RunLedger, phase: str) -> None:
    """The answer is used: whoever asks again wants another one."""
    ledger.notes.drop(_WORD, phase)


def note_refused(ledger: RunLedger, why: str) -> None:
    """Keep why what a person chose after a check that did not pass was not possible; "" once something was."""
    ledger.notes.keep_text(_REFUSED, why)


def why_refused(ledger: RunLedger) -> str:
    """Why what a person chose last was not possible; "" if it was."""
    return ledger.notes.text(_REFUSED)
