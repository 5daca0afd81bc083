"""The server's side of secure sums: functions that return the server's next state.

The server learns only sums.

A *slot* is one sum. The *roster* lists the public keys (*offers*) of all participants. A *parcel*
holds the encrypted shares that one party, the *dealer*, makes for another. The *survivors* of a
slot are the parties whose masked vectors are summed.

| function | requires | adds |
| --- | --- | --- |
| `take_offer` | no roster | offers |
| `make_roster` | offers of a quorum | roster |
| `take_parcels` | roster | parcels of one more dealer |
| `parcels_for` | parcels of all | – |
| `take_masked` | slot open | one more masked vector |
| `close_slot` | vectors of a quorum | survivors fixed |
| `take_consent` | survivors | one more signature |
| `unmask_request` | signatures of a threshold | – |
| `take_shares` | survivors | one more set of shares |
| `unmasked_sum` | shares of a threshold | the sum |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.live.secure import shamir
from tacit.live.secure.checks import (
    SecureSumError,
    check_offer,
    check_parcel,
    check_roster,
    check_survivors,
    is_share,
)
from tacit.live.secure.masks import mask, pair_seed
from tacit.live.secure.messages import (
    Consent,
    Masked,
    Offer,
    Parcel,
    Roster,
    Shares,
    Survivors,
    Unmask,
)
from tacit.live.secure.signing import is_signed, read_public
from tacit.live.secure.terms import Terms


@dataclass(frozen=True)
class Slot:
    """The server's state of one secure sum."""

    request: str
    length: int
    masked: dict[str, bytes] = field(default_factory=dict)
    survivors: tuple[str, ...] | None = None
    consents: dict[str, Consent] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """Everything that the server stores: public keys, encrypted shares, masked vectors."""

    terms: Terms
    offers: dict[str, Offer] = field(default_factory=dict)
    roster: Roster | None = None
    parcels: dict[str, dict[str, Parcel]] = field(default_factory=dict)
    """Encrypted shares: `parcels[dealer][recipient]`."""
    slots: dict[int, Slot] = field(default_factory=dict)


def take_offer(state: ServerState, offer: Offer) -> ServerState:
    """Accept a party's keys."""
    if state.roster is not None:
        raise SecureSumError(
            "keys arrived after the participants were fixed; wait for the next set-up"
        )
    check_offer(state.terms, offer)
    if state.offers.get(offer.party, offer) != offer:
        raise SecureSumError(
            f"{offer.party!r} sent two different sets of keys in one set-up; look for the cause at "
            "that party"
        )
    return replace(state, offers=state.offers | {offer.party: offer})


def make_roster(state: ServerState) -> ServerState:
    """Fix the participants of the run: the parties whose keys have arrived."""
    roster = Roster(offers=tuple(offer for _, offer in sorted(state.offers.items())))
    check_roster(state.terms, roster)
    return replace(state, roster=roster)


def take_parcels(state: ServerState, dealer: str, parcels: Sequence[Parcel]) -> ServerState:
    """Accept the encrypted shares that one party made for all others."""
    roster = _roster(state)
    if sorted(parcel.recipient for parcel in parcels) != sorted(set(roster.names) - {dealer}):
        raise SecureSumError(
            f"{dealer!r} has not sent shares for every other party; look for the cause at that "
            "party",
            dealer,
        )
    for parcel in parcels:
        if parcel.dealer != dealer:
            raise SecureSumError(
                f"{dealer!r} sent shares in the name of {parcel.dealer!r}; look for the cause at "
                "that party",
                dealer,
            )
        check_parcel(state.terms, roster, parcel)
    dealt = {parcel.recipient: parcel for parcel in parcels}
    if state.parcels.get(dealer, dealt) != dealt:
        raise SecureSumError(
            f"{dealer!r} sent two different sets of shares in one set-up; look for the cause at "
            "that party",
            dealer,
        )
    return replace(state, parcels=state.parcels | {dealer: dealt})


def parcels_for(state: ServerState, recipient: str) -> tuple[Parcel, ...]:
    """Return the encrypted shares for one party; raise an error if a dealer has not sent any."""
    missing = sorted(set(_roster(state).names) - set(state.parcels))
    if missing:
        raise SecureSumError(f"{', '.join(missing)} have not sent their shares yet; wait for them")
    return tuple(
        dealt[recipient] for dealer, dealt in sorted(state.parcels.items()) if dealer != recipient
    )


def open_slot(state: ServerState, slot: int, request: str, length: int) -> ServerState:
    """Begin a secure sum of vectors of this length."""
    used = any(each.request == request for each in state.slots.values())
    if slot in state.slots or used or not 0 <= slot < state.terms.slots:
        raise SecureSumError(
            f"slot {slot} cannot be opened for request {request!r}: one of them was used before, "
            f"or the slot is not one of the {state.terms.slots} agreed slots"
        )
    return replace(state, slots=state.slots | {slot: Slot(request=request, length=length)})


def take_masked(state: ServerState, message: Masked) -> ServerState:
    """Accept one party's masked vector while the set of survivors is not fixed."""
    slot = _slot(state, message.slot)
    if message.party not in _roster(state).names or message.request != slot.request:
        raise SecureSumError(
            f"{message.party!r} sent a vector that was not requested; look for the cause at that "
            "party"
        )
    if slot.survivors is not None:
        raise SecureSumError(
            f"the vector of {message.party!r} is late: the sum continues without it"
        )
    if len(message.words) != 8 * slot.length:
        raise SecureSumError(
            f"{message.party!r} sent {len(message.words)} bytes for {slot.length} numbers of 8 "
            "bytes; look for the cause at that party",
            message.party,
        )
    if slot.masked.get(message.party, message.words) != message.words:
        raise SecureSumError(
            f"{message.party!r} sent two vectors for one request; look for the cause at that party",
            message.party,
        )
    slot = replace(slot, masked=slot.masked | {message.party: message.words})
    return replace(state, slots=state.slots | {message.slot: slot})


def close_slot(state: ServerState, number: int) -> tuple[ServerState, Survivors]:
    """Fix the survivors of a sum: the parties whose vectors have arrived."""
    slot = _slot(state, number)
    names = slot.survivors or tuple(sorted(slot.masked))
    told = Survivors(slot=number, request=slot.request, names=names)
    check_survivors(state.terms, _roster(state), told)
    slot = replace(slot, survivors=names)
    return replace(state, slots=state.slots | {number: slot}), told


def take_consent(state: ServerState, consent: Consent) -> ServerState:
    """Accept a survivor's signature over the set of survivors."""
    slot, told = _closed(state, consent.slot)
    offer = state.offers.get(consent.party)
    if offer is None or consent.party not in told.names:
        raise SecureSumError(
            f"{consent.party!r} sent a signature, but its vector is not in the sum; look for the "
            "cause at that party"
        )
    body = told.signed(_roster(state).digest)
    if not is_signed(read_public(offer.public_key), consent.signature, body):
        raise SecureSumError(
            f"{consent.party!r} signed a set of survivors that the server did not send; look for "
            "the cause at that party",
            consent.party,
        )
    slot = replace(slot, consents=slot.consents | {consent.party: consent})
    return replace(state, slots=state.slots | {consent.slot: slot})


def unmask_request(state: ServerState, number: int) -> Unmask:
    """Return the request for shares, with all signatures over the set of survivors."""
    slot, _ = _closed(state, number)
    if len(slot.consents) < state.terms.threshold:
        raise SecureSumError(
            f"only {len(slot.consents)} of {state.terms.threshold} signatures over the survivors "
            "have arrived; wait for more"
        )
    consents = tuple(consent for _, consent in sorted(slot.consents.items()))
    return Unmask(slot=number, request=slot.request, consents=consents)


def take_shares(state: ServerState, shares: Shares) -> ServerState:
    """Accept the shares that one survivor reveals.

    If a share is not the one that its dealer signed, the error names the survivor that sent it.
    """
    slot, told = _closed(state, shares.slot)
    others = set(_roster(state).names) - set(told.names)
    if shares.party not in told.names:
        raise SecureSumError(
            f"{shares.party!r} sent shares, but its vector is not in the sum; look for the cause "
            "at that party"
        )
    if set(shares.seeds) != set(told.names) or set(shares.keys) != others:
        raise SecureSumError(
            f"shares of {shares.party!r} do not match the request; look for the cause at that "
            "party",
            shares.party,
        )
    for kind, found in enumerate((shares.seeds, shares.keys)):
        for dealer, share in found.items():
            if dealer == shares.party:  # its own share, which has no signed hash
                if not shamir.is_share(share):
                    raise SecureSumError(
                        f"{dealer!r} sent a malformed share; look for the cause at that party",
                        dealer,
                    )
                continue
            hashes = state.parcels[dealer][shares.party].hashes
            if not is_share(hashes, shares.slot, kind, share):
                raise SecureSumError(
                    f"{shares.party!r} sent a share of {dealer!r} that {dealer!r} did not deal; "
                    "look for the cause at that party",
                    shares.party,
                )
    slot = replace(slot, shares=slot.shares | {shares.party: shares})
    return replace(state, slots=state.slots | {shares.slot: slot})


def unmasked_sum(state: ServerState, number: int) -> np.ndarray:
    """Return the sum of the survivors' vectors, as int64."""
    slot, told = _closed(state, number)
    roster, need = _roster(state), state.terms.threshold
    if len(slot.shares) < need:
        raise SecureSumError(
            f"only {len(slot.shares)} of {need} sets of shares have arrived; wait for more"
        )
    total = np.zeros(slot.length, np.uint64)
    for name in told.names:
        total += np.frombuffer(slot.masked[name], "<u8")
    secrets = _Secrets(state, slot)
    for offer in roster.offers:
        if offer.party in told.names:
            total -= mask(secrets.seed(offer, number), slot.length)
            continue
        private = secrets.key(offer, number)
        for other in roster.offers:
            if other.party in told.names:
                names = (offer.party, other.party)
                seed = pair_seed(
                    private, other.masking[number], roster.digest, names, number, slot.request
                )
                shared = mask(seed, slot.length)
                total = total - shared if other.party < offer.party else total + shared
    return total.view(np.int64)


class _Secrets:
    """Reconstructs seeds and keys from shares.

    If a seed or a key does not match its public counterpart, the error names the party that made
    the shares.
    """

    def __init__(self, state: ServerState, slot: Slot) -> None:
        self._shares, self._threshold = slot.shares, state.terms.threshold
        self._points = {name: place for place, name in enumerate(_roster(state).names, 1)}
        self._weights: dict[tuple[int, ...], dict[int, int]] = {}

    def _combined(self, dealer: str, kind: str) -> bytes:
        found = {
            self._points[name]: shamir.from_bytes(getattr(shares, kind)[dealer])
            for name, shares in sorted(self._shares.items())
        }
        # The dealer's own share has no signed hash: it is used only if it is needed.
        own = self._points[dealer]
        order = sorted(found, key=lambda point: (point == own, point))[: self._threshold]
        chosen = tuple(sorted(order))
        if chosen not in self._weights:
            self._weights[chosen] = shamir.lagrange_at_zero(chosen)
        secret = shamir.combine(found, self._weights[chosen])
        return (secret % 2**256).to_bytes(32, "big")

    def seed(self, offer: Offer, slot: int) -> bytes:
        seed = self._combined(offer.party, "seeds")
        if hashlib.sha256(seed).digest() != offer.seeds[slot]:
            raise SecureSumError(
                f"the shares of {offer.party!r} do not match its seed", offer.party
            )
        return seed

    def key(self, offer: Offer, slot: int) -> X25519PrivateKey:
        private = X25519PrivateKey.from_private_bytes(self._combined(offer.party, "keys"))
        if private.public_key().public_bytes_raw() != offer.masking[slot]:
            raise SecureSumError(f"the shares of {offer.party!r} do not match its key", offer.party)
        return private


def _roster(state: ServerState) -> Roster:
    if state.roster is None:
        raise SecureSumError("the participants of the run are not fixed yet; wait for the roster")
    return state.roster


def _slot(state: ServerState, number: int) -> Slot:
    if number not in state.slots:
        raise SecureSumError(f"secure sum {number} has not begun; wait for it")
    return state.slots[number]


def _closed(state: ServerState, number: int) -> tuple[Slot, Survivors]:
    slot = _slot(state, number)
    if slot.survivors is None:
        raise SecureSumError(
            f"secure sum {number}: the set of survivors is not fixed yet; wait for it"
        )
    return slot, Survivors(slot=number, request=slot.request, names=slot.survivors)
