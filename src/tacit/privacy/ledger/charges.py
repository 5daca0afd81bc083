"""What the ledger is asked: to pay for a release, and to keep the reply that came of it.

An `Ask` that exists can be charged as far as its words go. What the ledger has to say to it, which
depends on everything charged before, is in `ledger_rules` and `ledger_price`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from tacit.errors import ConfigError
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.state import Charge, Unit, check_terms

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_TEXT_LENGTH = 500


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One release that is wanted from one data set; refused when made if it has no meaning.

    `content` is a digest of everything that the answer is computed from and a server chooses. An
    answer that was lost is drawn again for the same content only.
    """

    dataset: DatasetId
    run: str
    request: str
    events: Sequence[GaussianEvent]
    unit: Unit
    adjacency: Adjacency
    purpose: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        check_release(self.events, self.unit, self.adjacency)
        check_id("run", self.run)
        check_id("request", self.request)
        check_text("purpose", self.purpose)
        check_text("content", self.content)
        # A caller's list could change between the charge and the computing.
        msgspec.structs.force_setattr(self, "events", tuple(self.events))

    @property
    def place(self) -> tuple[str, str]:
        """Under which the ledger finds its charges and its reply."""
        return (self.run, self.request)

    def same_release(self, charge: Charge) -> bool:
        """Whether the charge pays for the same events on the same data set."""
        parts = ("dataset", "unit", "adjacency", "events")
        return all(getattr(self, part) == getattr(charge, part) for part in parts)


class Opened(NamedTuple):
    """An ask that is charged and has no reply yet, and the key that its noise is drawn with."""

    ask: Ask
    key: bytes
    """32 secret bytes; the same ones if the answer was lost and is made again."""


class Reply(NamedTuple):
    """What a charged release has become."""

    run: str
    request: str
    body: bytes

    @property
    def place(self) -> tuple[str, str]:
        """Under which the ledger finds its charge."""
        return (self.run, self.request)


def check_release(events: Sequence[GaussianEvent], unit: str, adjacency: str) -> None:
    """Refuse what is not an event, and terms without a meaning."""
    check_terms(unit, adjacency)
    for event in events:
        if not isinstance(event, GaussianEvent):
            raise ConfigError(
                f"unknown event of type {type(event).__name__}; the ledger charges"
                " GaussianEvent only"
            )
    if not events:
        raise ConfigError("a charge without events; every private release has at least one")


def check_distinct(batch: Iterable[Ask | Reply]) -> None:
    """A request twice in one batch would be charged twice, or answered in two ways, unnoticed."""
    seen: set[tuple[str, str]] = set()
    for item in batch:
        if item.place in seen:
            raise ConfigError(
                f"request {item.request} of run {item.run} is in one batch twice; a request is"
                " answered once: use another request id"
            )
        seen.add(item.place)


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
