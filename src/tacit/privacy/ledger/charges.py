"""Releases to charge, and replies to store.

These types validate everything that does not depend on the ledger's history. `rules` and `cost`
check the rest.
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


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One requested release from one data set, validated on construction.

    `content` is a digest of everything that the server chooses and the reply depends on. A lost
    reply is computed again only for the same content.
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
        # A caller's list could change between charge and computation.
        msgspec.structs.force_setattr(self, "events", tuple(self.events))

    @property
    def place(self) -> tuple[str, str]:
        """Key of this release's charges and reply in the ledger: (run, request)."""
        return (self.run, self.request)

    def same_release(self, charge: Charge) -> bool:
        """True if the charge covers the same events on the same data set."""
        parts = ("dataset", "unit", "adjacency", "events")
        return all(getattr(self, part) == getattr(charge, part) for part in parts)


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All releases that a run intends to make from one data set, fixed before the first of them."""

    dataset: DatasetId
    run: str
    events: Sequence[GaussianEvent]
    unit: Unit
    adjacency: Adjacency
    purpose: str = ""

    def __post_init__(self) -> None:
        check_release(self.events, self.unit, self.adjacency)
        check_id("run", self.run)
        check_text("purpose", self.purpose)
        msgspec.structs.force_setattr(self, "events", tuple(self.events))


class ChargedRequest(NamedTuple):
    """A charged release without a reply, with its noise key."""

    release: ReleaseRequest
    key: bytes
    """32 secret bytes; a reply that was lost and is computed again gets the same key."""


class Reply(NamedTuple):
    """Encoded reply to a charged request."""

    run: str
    request: str
    body: bytes

    @property
    def place(self) -> tuple[str, str]:
        """Key of the reply's charge in the ledger: (run, request)."""
        return (self.run, self.request)


def check_release(events: Sequence[GaussianEvent], unit: str, adjacency: str) -> None:
    """Refuse unknown events, an empty list, and an unknown unit or adjacency."""
    check_terms(unit, adjacency)
    for event in events:
        if not isinstance(event, GaussianEvent):
            raise ConfigError(
                f"unknown event of type {type(event).__name__}; the ledger charges"
                " GaussianEvent only"
            )
    if not events:
        raise ConfigError("a charge without events; every private release has at least one")


def check_distinct(batch: Iterable[ReleaseRequest | Reply]) -> None:
    """Refuse a batch with a repeated request, which would be charged or answered twice."""
    seen: set[tuple[str, str]] = set()
    for item in batch:
        if item.place in seen:
            raise ConfigError(
                f"request {item.request} of run {item.run} is in one batch twice; a request is"
                " answered once: use another request id"
            )
        seen.add(item.place)


def check_id(name: str, value: str) -> None:
    """Refuse unsafe ids: they come from a server and are shown in terminals and spreadsheets."""
    if not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} = {value[:40]!r}; an id has 1 to 128 letters, digits and . _ : / @ + -, and"
            " begins with a letter or a digit"
        )


def check_text(name: str, value: str, *, needed: bool = False) -> None:
    """Refuse text that is not one printable line of limited length."""
    if not (value.isprintable() and len(value) <= _TEXT_LENGTH and (value.strip() or not needed)):
        raise ConfigError(
            f"{name} = {value[:40]!r}; it must be printable text of at most {_TEXT_LENGTH}"
            f" characters{', and not empty' if needed else ''}"
        )
