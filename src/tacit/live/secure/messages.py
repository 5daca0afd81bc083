"""Messages of secure sums. A signature covers the bytes that the method `signed` returns."""

from __future__ import annotations

import hashlib

import msgspec

from tacit.live.secure.masks import bound


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A party's public keys for all slots (one slot per sum), signed by its certificate's key."""

    party: str
    public_key: bytes
    """The certificate's public key, in DER; its fingerprint is in the agreed terms."""
    sharing: bytes
    """X25519 key for shares addressed to this party."""
    masking: tuple[bytes, ...]
    """X25519 key of each slot, from which pairwise masks are derived."""
    seeds: tuple[bytes, ...]
    """SHA-256 of the self-mask seed of each slot."""
    signature: bytes = b""

    def signed(self, terms: bytes) -> bytes:
        """Return the bytes that the signature covers."""
        keys = b"".join((self.sharing, *self.masking, *self.seeds))
        return bound(b"offer", terms, self.party, self.public_key, len(self.masking), keys)


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """The public keys (`Offer`) of all parties of a run, ordered by party name."""

    offers: tuple[Offer, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Party names in order; a party's position (1, 2, …) is the point at which its Shamir
        shares are evaluated.
        """
        return tuple(offer.party for offer in self.offers)

    @property
    def digest(self) -> bytes:
        """Digest of all public keys of the roster; later signatures of the parties cover this
        digest.
        """
        return hashlib.sha256(b"roster" + msgspec.msgpack.encode(self.offers)).digest()


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """The shares that one party (the dealer) made for another, encrypted and with signed hashes."""

    dealer: str
    recipient: str
    box: bytes
    """For each slot a share of the seed and one of the masking key, encrypted together."""
    hashes: bytes
    """SHA-256 of each share in `box`, in order."""
    signature: bytes = b""

    def signed(self, roster: bytes) -> bytes:
        """Return the bytes that the signature covers; `roster` is the digest of the roster."""
        return bound(b"parcel", roster, self.dealer, self.recipient, self.box, self.hashes)


class Masked(msgspec.Struct, frozen=True, kw_only=True):
    """A masked vector of little-endian 64-bit words, sent over the party's TLS connection."""

    party: str
    slot: int
    request: str
    words: bytes


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """The parties whose masked vectors the server adds up ("survivors"), for one slot."""

    slot: int
    request: str
    names: tuple[str, ...]

    def signed(self, roster: bytes) -> bytes:
        """Return the bytes that every survivor signs."""
        return bound(b"survivors", roster, self.slot, self.request, *self.names)


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """A survivor's signature over the set of survivors that the server announced."""

    party: str
    slot: int
    signature: bytes


class Unmask(msgspec.Struct, frozen=True, kw_only=True):
    """Request for shares, with the signatures that prove that there is only one set of
    survivors.
    """

    slot: int
    request: str
    consents: tuple[Consent, ...]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The shares that a party reveals for one slot: of the survivors' seeds, and of the masking
    keys of the parties that are not survivors.
    """

    party: str
    slot: int
    seeds: dict[str, bytes]
    keys: dict[str, bytes]
