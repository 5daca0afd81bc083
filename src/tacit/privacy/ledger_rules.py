"""What the ledger refuses and warns of, one rule a function."""

from __future__ import annotations

import re
import warnings

from tacit.errors import ConfigError, PrivacyError
from tacit.privacy.fingerprint import DatasetId
from tacit.privacy.ledger_budget import Ceiling, Charge, State

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_TEXT_LENGTH = 500


class LineageWarning(UserWarning):
    """A data set looks like the successor of one that has already been charged."""


def known_charge(state: State, wanted: Charge) -> Charge | None:
    """The stored charge of this attempt; None if it is the next to be made; otherwise refused."""
    done = state.charges.get((wanted.run, wanted.request), [])
    place = f"request {wanted.request} of run {wanted.run}"
    if done and not wanted.same_release(done[0]):
        raise PrivacyError(
            f"{place} was charged for another release (entry {done[0].seq}); a request is answered"
            " once: use a new request id"
        )
    if 1 <= wanted.attempt <= len(done):
        return done[wanted.attempt - 1]
    if (wanted.run, wanted.request) in state.answers:
        raise PrivacyError(f"{place} has been answered; send the stored reply (recall)")
    if wanted.attempt != len(done) + 1:
        raise PrivacyError(f"{place}: attempt = {wanted.attempt}; the next one is {len(done) + 1}")
    return None


def needed_ceiling(state: State, dataset: DatasetId) -> Ceiling:
    """Fail closed: what the operator has not allowed is not allowed."""
    ceiling = state.ceiling(dataset)
    if ceiling is not None:
        return ceiling
    alike = state.lookalikes(dataset)
    hint = (
        f"; it has the schema of {alike[-1].short}, which was charged: if it continues that data"
        f" set, link it instead: tacit ledger link {dataset} {alike[-1]}"
        if alike
        else ""
    )
    raise PrivacyError(
        f"data set {dataset.short} has no privacy ceiling, so nothing may be released; its operator"
        f" sets one: tacit ledger ceiling {dataset} --epsilon E --delta D{hint}"
    )


def warn_of_lookalikes(state: State, dataset: DatasetId) -> None:
    """Say that a new budget may be for old records."""
    alike = state.lookalikes(dataset)
    if alike:
        warnings.warn(
            f"data set {dataset.short} gets a budget of its own, but has the schema of"
            f" {alike[-1].short}, which was charged; if it holds some of the same records, link it:"
            f" tacit ledger link {dataset} {alike[-1]}",
            LineageWarning,
            stacklevel=3,
        )


def check_id(name: str, value: str) -> None:
    """Ids come from a server and end up in terminals, messages and spreadsheets."""
    if not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} = {value[:40]!r}; an id has 1 to 128 letters, digits and . _ : / @ + -, and"
            " begins with a letter or a digit"
        )


def check_text(name: str, value: str, *, needed: bool = False) -> None:
    """What people write must stay one line that a person can read."""
    if not (value.isprintable() and len(value) <= _TEXT_LENGTH and (value.strip() or not needed)):
        raise ConfigError(
            f"{name} = {value[:40]!r}; it must be printable text of at most {_TEXT_LENGTH}"
            f" characters{', and not empty' if needed else ''}"
        )
