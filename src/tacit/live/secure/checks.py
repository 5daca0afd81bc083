"""Checks that both ends make on received messages; errors name the party at fault."""

from __future__ import annotations

import hashlib

from tacit.errors import PeerError
from tacit.live.secure import shamir
from tacit.live.secure.messages import Offer, Parcel, Roster, Survivors
from tacit.live.secure.signing import fingerprint, is_signed, read_public
from tacit.live.secure.terms import Terms

KEY_BYTES = 32
_CURVE = 2**255 - 19
_LOW_ORDER = frozenset((
    0,
    1,
    _CURVE - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
))  # fmt: skip
"""Points of Curve25519 whose order divides 8: a key exchange with such a point always gives 0."""


class SecureSumError(PeerError):
    """A message of a secure sum was refused; `culprit` names a party that is provably at fault."""

    def __init__(self, message: str, culprit: str | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit


def check_offer(terms: Terms, offer: Offer) -> None:
    """Refuse public keys (`offer`) that are incomplete or not from an approved party."""
    who = f"the keys of party {offer.party!r}"
    approved = terms.parties.get(offer.party)
    if approved is None:
        raise SecureSumError(f"{who} are refused: the agreed file does not list this party")
    if fingerprint(offer.public_key) != approved:
        raise SecureSumError(
            f"{who} are signed with an unapproved key; compare its fingerprint with the agreed file"
        )
    if not is_signed(read_public(offer.public_key), offer.signature, offer.signed(terms.digest)):
        raise SecureSumError(f"{who} have an invalid signature; request them again")
    keys = (offer.sharing, *offer.masking, *offer.seeds)
    if len(offer.masking) != terms.slots or len(offer.seeds) != terms.slots:
        raise SecureSumError(
            f"{who} are for {len(offer.masking)} slots, but {terms.slots} slots were "
            "agreed; create new keys",
            offer.party,
        )
    if any(len(key) != KEY_BYTES for key in keys) or len(set(keys)) != len(keys):
        raise SecureSumError(f"{who} are malformed or repeated; create new keys", offer.party)
    if not all(is_point(key) for key in (offer.sharing, *offer.masking)):
        raise SecureSumError(
            f"{who} include a key of small order or in a non-canonical form; create new keys",
            offer.party,
        )


def check_roster(terms: Terms, roster: Roster) -> None:
    """Refuse a roster with too few parties, in a wrong order, or with the same key twice."""
    names = roster.names
    if list(names) != sorted(set(names)):
        raise SecureSumError(
            "a roster must name each party once, in the order of the names; look for the cause at "
            "the server"
        )
    if len(names) < terms.quorum:
        raise SecureSumError(
            f"the roster has {len(names)} parties; a secure sum needs at least {terms.quorum}"
        )
    for offer in roster.offers:
        check_offer(terms, offer)
    keys = [key for offer in roster.offers for key in (offer.sharing, *offer.masking)]
    seeds = [seed for offer in roster.offers for seed in offer.seeds]
    if len(set(keys)) != len(keys) or len(set(seeds)) != len(seeds):
        raise SecureSumError(
            "two parties of a roster have the same key, so one of them copied it; begin a new "
            "set-up"
        )


def check_parcel(terms: Terms, roster: Roster, parcel: Parcel) -> None:
    """Refuse encrypted shares (`parcel`) that their dealer did not sign for this roster and
    recipient.
    """
    offers = {offer.party: offer for offer in roster.offers}
    if parcel.dealer not in offers or parcel.recipient not in offers:
        raise SecureSumError(
            "encrypted shares are from or for a party that is not on the roster; look for the "
            "cause at their sender"
        )
    signer = read_public(offers[parcel.dealer].public_key)
    whole = len(parcel.hashes) == 2 * KEY_BYTES * terms.slots
    if not whole or not is_signed(signer, parcel.signature, parcel.signed(roster.digest)):
        raise SecureSumError(
            f"shares of {parcel.dealer!r} for {parcel.recipient!r} are not signed by "
            f"{parcel.dealer!r}; begin a new set-up"
        )


def check_survivors(terms: Terms, roster: Roster, told: Survivors) -> None:
    """Refuse a set of survivors that is too small or contains unknown parties."""
    names = told.names
    if list(names) != sorted(set(names)) or not set(names) <= set(roster.names):
        raise SecureSumError(
            "a set of survivors names a party twice, or a party that is not on the roster; look "
            "for the cause at the server"
        )
    if len(names) < terms.quorum:
        raise SecureSumError(
            f"the sum is over {len(names)} parties; at least {terms.quorum} were agreed, to "
            "protect each of them: wait for more parties"
        )


def is_point(key: bytes) -> bool:
    """True if the bytes are the canonical encoding of an X25519 public key that is not of small
    order.

    X25519 ignores the highest bit and reduces modulo 2²⁵⁵ − 19. Without this check, several
    encodings of one key could pass as different keys.
    """
    value = int.from_bytes(key, "little")
    return value < _CURVE and value not in _LOW_ORDER


def is_share(hashes: bytes, slot: int, kind: int, share: bytes) -> bool:
    """True if a share is valid and matches the hash that its dealer signed.

    `kind` is 0 for a share of a seed and 1 for a share of a key.
    """
    at = KEY_BYTES * (2 * slot + kind)
    if not shamir.is_share(share):
        return False
    return hashlib.sha256(share).digest() == hashes[at : at + KEY_BYTES]
