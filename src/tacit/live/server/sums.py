"""The server's side of secure sums in a live run: the next messages to each party, and the sums.

A slot is the secure sum of one round, and its survivors are the parties whose vectors are in the
sum. The set-up is stored once it is complete, and a slot once its survivors are fixed. A restarted
server requests everything else again, and the parties repeat their messages.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.errors import DataError
from tacit.live.protocol import messages as m
from tacit.live.secure import server as pure
from tacit.live.secure.agreed import Shapes, from_vector, length_of, sum_id
from tacit.live.secure.checks import SecureSumError
from tacit.live.secure.messages import Consent, Masked, Offer, Parcel, Shares
from tacit.live.secure.server import ServerState, Slot
from tacit.live.secure.terms import Terms
from tacit.server.messages import Request
from tacit.support.storage import sealed, unsealed, write_durably, writing
from tacit.support.type_info import prepare

SETUP, SLOT = "secure-setup", "secure-slot"
KEYS, ROSTER, SHARES = "keys", "roster", "shares"
"""Keys that identify the messages of the set-up (`Due`)."""


class LateError(SecureSumError):
    """A message for a secure sum that is not open, for example because it arrived after the sum was
    closed.
    """


class KeptSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A complete set-up: public keys and encrypted shares."""

    terms: bytes
    offers: dict[str, Offer]
    parcels: dict[str, dict[str, Parcel]]


class KeptSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A closed slot, as stored on disk: its survivors and their masked vectors."""

    terms: bytes
    number: int
    request: str
    length: int
    masked: dict[str, bytes]
    survivors: tuple[str, ...]


class Due(NamedTuple):
    """A message to a party. `key` identifies the message, so that it is not sent twice."""

    key: str
    message: m.ServerMessage


class ServerSums:
    """The server's secure sums of one run: the set-up, and the slot that is open now.

    Parameters
    ----------
    directory
        State directory of the server.
    terms
        Agreed terms of the run.
    """

    def __init__(self, directory: Path, terms: Terms) -> None:
        self._directory, self.terms = directory, terms
        self.state = ServerState(terms)
        self.open: int | None = None
        """Number of the slot in which a sum is being made."""
        self._since = time.monotonic()
        self.unmasking = False
        """True once shares have been requested."""
        self.stored = False
        """True once the set-up is complete and stored."""
        self._load()

    @property
    def ready(self) -> bool:
        """True once every party has sent keys and shares."""
        roster = self.state.roster
        return roster is not None and set(self.state.parcels) == set(roster.names)

    def due(self, party: str, told: Container[str]) -> list[Due]:
        """Return the messages about secure sums that the server should send to a party now.

        `told` has the keys of the messages that were already sent to the party. These messages are
        not returned again. Requests for updates are not returned either, because another part of
        the server sends them.
        """
        state, found = self.state, []
        if state.roster is None:
            if party not in state.offers and KEYS not in told:
                found.append(Due(KEYS, m.RequestKeys()))
            return found
        if not self.ready:
            if party not in state.parcels and ROSTER not in told:
                found.append(Due(ROSTER, m.KeyRoster(offers=state.roster.offers)))
            return found
        if SHARES not in told:
            parcels = pure.parcels_for(state, party)
            found.append(Due(SHARES, m.PartyShares(parcels=parcels)))
        slot, number = self._slot, self.open
        if number is None or slot is None or party not in (slot.survivors or ()):
            return found
        key = f"survivors {number}"
        if party not in slot.consents and key not in told:
            assert slot.survivors is not None
            names = slot.survivors
            message = m.SurvivorSet(slot=number, request=slot.request, names=names)
            found.append(Due(key, message))
        key = f"unmask {number}"
        if self.unmasking and party not in slot.shares and key not in told:
            consents = pure.unmask_request(state, number).consents
            message = m.UnmaskRequest(slot=number, request=slot.request, consents=consents)
            found.append(Due(key, message))
        return found

    @property
    def _slot(self) -> Slot | None:
        return None if self.open is None else self.state.slots.get(self.open)

    @property
    def waited_s(self) -> float:
        """Seconds since the server began to wait for the messages of the current step."""
        return time.monotonic() - self._since

    def begin(self, request: Request, shapes: Shapes) -> None:
        """Open the slot of a round's secure sum. A slot that was closed before a restart stays
        closed.
        """
        number = request.visit
        self._since, self.unmasking = time.monotonic(), False
        if number not in self.state.slots:
            length = length_of(shapes)
            self.state = pure.open_slot(self.state, number, sum_id(request), length)
        elif self.state.slots[number].request != sum_id(request):
            raise DataError(
                f"{self._directory / SLOT} and the checkpoint are from different rounds; "
                "restore both from the same copy"
            )
        self.open = number

    @property
    def closed(self) -> bool:
        """True once the survivors of the open slot are final. No further masked update is then
        accepted.
        """
        slot = self._slot
        return slot is not None and slot.survivors is not None

    @property
    def arrived(self) -> tuple[str, ...]:
        """Parties whose masked updates have arrived."""
        slot = self._slot
        return () if slot is None else tuple(sorted(slot.masked))

    @property
    def revealed(self) -> Container[str]:
        """Parties that have sent their shares for the open slot."""
        slot = self._slot
        return () if slot is None else slot.shares

    @property
    def step(self) -> str:
        """Name of the messages that the server waits for, such as "vectors of sum 3"."""
        if not self.ready:
            return KEYS if self.state.roster is None else SHARES
        name = "shares" if self.unmasking else "signatures" if self.closed else "vectors"
        return f"{name} of sum {0 if self.open is None else self.open + 1}"

    def missing(self, asked: Collection[str]) -> set[str]:
        """Return the parties whose next message is missing.

        During the set-up the server waits for all parties of the run. It then waits for the vectors
        of the parties in `asked`, and, once the slot is closed, for messages of the slot's
        survivors.
        """
        if self.state.roster is None:
            return set(self.terms.parties) - self.state.offers.keys()
        if not self.ready:
            return set(self.terms.parties) - self.state.parcels.keys()
        slot = self._slot
        if slot is None:
            return set()
        if slot.survivors is None:
            return set(asked) - slot.masked.keys()
        return set(slot.survivors) - (slot.shares if self.unmasking else slot.consents).keys()

    def take(self, party: str, message: m.ClientMessage) -> bool:
        """Check and process a party's message; return False if the message is not needed any more.

        Raises LateError if the message is for a sum that is not open, and SecureSumError if the
        message is refused for another reason.
        """
        state, number = self.state, getattr(message, "slot", None)
        if number is not None and number != self.open:
            if isinstance(message, m.MaskedUpdate) or number not in state.slots:
                raise LateError(f"{party!r} answers for slot {number}, which is not open")
            return False
        if isinstance(message, m.OfferedKeys):
            if message.offer.party != party:
                raise SecureSumError(f"{party!r} offers keys of another party", party)
            if state.offers.get(party) != message.offer:
                self.state = pure.take_offer(state, message.offer)
        elif isinstance(message, m.DealtShares):
            self.state = pure.take_parcels(state, party, message.parcels)
        elif isinstance(message, m.MaskedUpdate):
            self._take_masked(party, message)
        elif isinstance(message, m.SurvivorSignature):
            consent = Consent(party=party, slot=message.slot, signature=message.signature)
            self.state = pure.take_consent(state, consent)
        else:
            assert isinstance(message, m.UnmaskShares)
            if not self.unmasking:
                raise SecureSumError(f"{party!r} sent shares that were not requested", party)
            shares = Shares(party=party, slot=message.slot, seeds=message.seeds, keys=message.keys)
            self.state = pure.take_shares(state, shares)
        return True

    def _take_masked(self, party: str, message: m.MaskedUpdate) -> None:
        slot = self._slot
        if slot is not None and slot.survivors is not None and party not in slot.survivors:
            raise LateError(f"the vector of {party!r} is late: the sum continues without it")
        if slot is not None and slot.masked.get(party) == message.words:
            return
        masked = Masked(
            party=party, slot=message.slot, request=message.request, words=message.words
        )
        self.state = pure.take_masked(self.state, masked)

    def advance(self, asked: Collection[str], deadline_s: float | None) -> str | None:
        """Take the next step of the set-up or of the open sum, if the received messages allow it;
        return a description of the step, or None.

        A sum accepts no further vectors when all `asked` parties have answered, or when the
        deadline has passed and a quorum has answered. For each later step, answers from a threshold
        number of survivors are needed.
        """
        if self.state.roster is None:
            if set(self.state.offers) == set(self.terms.parties):
                self.state = pure.make_roster(self.state)
                self._since = time.monotonic()
                return "roster"
            return None
        if not self.ready:
            return None
        if not self.stored:
            self._store_setup()
            return "set-up"
        slot = self._slot
        if slot is None or self.open is None:
            return None
        if slot.survivors is None:
            return self._close(self.open, slot, asked, deadline_s)
        if not self.unmasking:
            self.unmasking = len(slot.consents) >= self.terms.threshold
            if self.unmasking:
                self._since = time.monotonic()
            return "unmask" if self.unmasking else None
        return "sum" if len(slot.shares) >= self.terms.threshold else None

    def _close(
        self, number: int, slot: Slot, asked: Collection[str], deadline_s: float | None
    ) -> str | None:
        late = deadline_s is not None and self.waited_s > deadline_s
        if not set(asked) <= slot.masked.keys() and not late:
            return None
        if len(slot.masked) < self.terms.quorum:
            return None
        state, told = pure.close_slot(self.state, number)
        kept = KeptSlot(
            terms=self.terms.digest,
            number=number,
            request=slot.request,
            length=slot.length,
            masked=dict(slot.masked),
            survivors=told.names,
        )
        self._write(SLOT, kept)  # before any party is told
        self.state, self._since = state, time.monotonic()
        return "survivors"

    def total(self, shapes: Shapes) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
        """Return the survivors of the open slot, and the sum of their vectors as arrays of these
        shapes.

        If a wrong share prevents the sum from being unmasked, the error names the party that sent
        the share.
        """
        slot = self._slot
        assert self.open is not None
        assert slot is not None
        assert slot.survivors is not None
        return slot.survivors, from_vector(pure.unmasked_sum(self.state, self.open), shapes)

    def finish(self) -> None:
        """Remove the slot whose sum was applied."""
        assert self.open is not None
        done = self.state.slots[self.open]
        used = Slot(request=done.request, length=done.length, survivors=done.survivors)
        self.state = replace(self.state, slots=self.state.slots | {self.open: used})
        self.open = None

    def _store_setup(self) -> None:
        kept = KeptSetup(
            terms=self.terms.digest, offers=self.state.offers, parcels=self.state.parcels
        )
        self._write(SETUP, kept)
        self.stored = True

    def _write(self, name: str, kept: Any) -> None:
        path = self._directory / name
        with writing(path):
            write_durably(path, sealed(msgspec.msgpack.encode(kept)))

    def _load(self) -> None:
        setup = read_kept(self._directory / SETUP, KeptSetup)
        if setup is None or setup.terms != self.terms.digest:
            return
        state = pure.make_roster(replace(self.state, offers=setup.offers))
        self.state, self.stored = replace(state, parcels=setup.parcels), True
        slot = read_kept(self._directory / SLOT, KeptSlot)
        if slot is not None and slot.terms == self.terms.digest:
            found = Slot(
                request=slot.request,
                length=slot.length,
                masked=slot.masked,
                survivors=slot.survivors,
            )
            self.state = replace(self.state, slots={slot.number: found})


def read_kept(path: Path, kind: Any) -> Any:
    """Read and decode a state file of the server; return None if the file does not exist."""
    if not path.exists():
        return None
    try:
        return msgspec.msgpack.decode(unsealed(path.read_bytes()), type=prepare(kind))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({' '.join(str(error).split())}); restore it from a copy or "
            "start a new run in another state directory"
        ) from None
