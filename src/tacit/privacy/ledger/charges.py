"""Types for releases to charge and replies to store.

They validate everything that does not depend on earlier entries of the ledger. The modules `rules`
and `cost` check the rest.
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

    `content` is a digest of everything that the server chooses and on which the reply depends. A
    lost reply is computed again only for a request with the same content.
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
        """Pair (run, request), by which the ledger finds the charges and the reply of this
        release.
        """
        return (self.run, self.request)

    def same_release(self, charge: Charge) -> bool:
        """True if the charge was for the same events on the same data set."""
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
    """Reply to a charged request, as bytes."""

    run: str
    request: str
    body: bytes

    @property
    def place(self) -> tuple[str, str]:
        """Pair (run, request), by which the ledger finds the charge of this reply."""
        return (self.run, self.request)


def check_release(events: Sequence[GaussianEvent], unit: str, adjacency: str) -> None:
    """Raise an error for an empty list of events, an unknown event, or an unknown unit or
    adjacency.
    """
    check_terms(unit, adjacency)
    for event in events:
        if not isinstance(event, GaussianEvent):
            raise ConfigError(
                f"unknown event of type {type(event).__name__}; give a"
                " GaussianEvent or a LaplaceEvent"
            )
    if not events:
        raise ConfigError("events is empty; give at least one event for every release")


def check_distinct(batch: Iterable[ReleaseRequest | Reply]) -> None:
    """Raise an error if a batch contains the same request twice."""
    seen: set[tuple[str, str]] = set()
    for item in batch:
        if item.place in seen:
            raise ConfigError(
                f"request {item.request} of run {item.run} is in one batch twice, but a"
                " request is answered only once; give each release a different request id"
            )
        seen.add(item.place)


def check_id(name: str, value: str) -> None:
    """Raise an error for an id with unsafe characters.

    Ids come from a server and are shown in terminals and spreadsheets.
    """
    if not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} = {value[:40]!r}; an id has 1 to 128 letters, digits and . _ : / @ + -, and"
            " begins with a letter or a digit"
        )


def check_text(name: str, value: str, *, needed: bool = False) -> None:
    """Raise an error for text that is too long or cannot be printed on one line."""
    if not (value.isprintable() and len(value) <= _TEXT_LENGTH and (value.strip() or not needed)):
        raise ConfigError(
            f"{name} = {value[:40]!r}; it must be printable text of at most {_TEXT_LENGTH}"
            f" characters{', and not empty' if needed else ''}"
        )
