"""A party's side of secure sums: functions that return the party's next state and a message.

The caller stores the new state durably before it sends the message. If the state is lost, the party
needs a new set-up.

| function | required state | next state |
| --- | --- | --- |
| `offer_keys` | – | offered |
| `deal_shares` | offered | dealt |
| `accept_shares` | dealt | ready |
| `mask_vector` | ready, slot unused | slot masked |
| `sign_survivors` | slot masked | slot signed |
| `reveal_shares` | slot signed | slot revealed |

A repeated message with the same contents gets the same answer; a repeated message with different
contents is refused. A party that begins another set-up passes its earlier state to `offer_keys`.
Without this state a request could be answered under two sets of keys, and the difference of the two
sums would reveal the party's vector. A sum that failed is repeated under a new request, whose
vector has new noise and a new charge.
"""

from __future__ import annotations

import hashlib
import secrets as system
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from tacit.live.secure import shamir
from tacit.live.secure.checks import (
    SecureSumError,
    check_parcel,
    check_roster,
    check_survivors,
    is_share,
)
from tacit.live.secure.masks import agree, bound, derive, mask, pair_seed
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
from tacit.live.secure.signing import is_signed, public_bytes, read_public, sign
from tacit.live.secure.terms import Terms

_NONCE = bytes(12)
"""Each key encrypts one parcel only, so a constant nonce is safe."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A party's record of one slot: masked words, signed survivors, and whether it sent shares."""

    request: str
    words: bytes
    survivors: tuple[str, ...] | None = None
    signature: bytes = b""
    revealed: bool = False


class PartyState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a party must not lose. It contains secrets: keep it private."""

    offer: Offer
    sharing: bytes
    masking: tuple[bytes, ...]
    seeds: tuple[bytes, ...]
    roster: Roster | None = None
    own: bytes = b""
    """This party's shares of its own secrets."""
    answered: frozenset[str] = frozenset()
    """Requests of this run that were answered in earlier set-ups."""
    shares: dict[str, bytes] = {}
    """Shares of every dealer's secrets, once the set-up is complete."""
    rounds: dict[int, Round] = {}

    @property
    def name(self) -> str:
        """The party's name."""
        return self.offer.party


def offer_keys(
    terms: Terms,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    earlier: PartyState | None = None,
) -> tuple[PartyState, Offer]:
    """Create a party's secrets for all slots, and the offer with the corresponding public keys.

    `earlier` is this party's state of the last set-up of the same run, if there was one.
    """
    sharing = X25519PrivateKey.generate()
    masking = [X25519PrivateKey.generate() for _ in range(terms.slots)]
    seeds = tuple(system.token_bytes(32) for _ in range(terms.slots))
    offer = Offer(
        party=name,
        public_key=public_bytes(key.public_key()),
        sharing=sharing.public_key().public_bytes_raw(),
        masking=tuple(each.public_key().public_bytes_raw() for each in masking),
        seeds=tuple(hashlib.sha256(seed).digest() for seed in seeds),
    )
    offer = msgspec.structs.replace(offer, signature=sign(key, offer.signed(terms.digest)))
    state = PartyState(
        offer=offer,
        sharing=sharing.private_bytes_raw(),
        masking=tuple(each.private_bytes_raw() for each in masking),
        seeds=seeds,
        answered=frozenset() if earlier is None else earlier.answered | _requests(earlier),
    )
    return state, offer


def deal_shares(
    state: PartyState, terms: Terms, roster: Roster, key: ec.EllipticCurvePrivateKey
) -> tuple[PartyState, tuple[Parcel, ...]]:
    """Check the roster, and split this party's secrets into shares for all parties on the
    roster.
    """
    if state.roster is not None:
        raise SecureSumError(
            "the server sent a second roster for one set-up; begin with new keys instead"
        )
    check_roster(terms, roster)
    if state.offer not in roster.offers:
        raise SecureSumError(
            "the roster does not contain the keys that this party sent; begin with new keys"
        )
    points = range(1, len(roster.names) + 1)
    per_slot = [
        [
            shamir.split(int.from_bytes(secret, "big"), points, terms.threshold)
            for secret in (state.seeds[slot], state.masking[slot])
        ]
        for slot in range(terms.slots)
    ]
    parcels, own = [], b""
    for place, offer in enumerate(roster.offers):
        shares = [shamir.to_bytes(kind[place]) for kinds in per_slot for kind in kinds]
        if offer.party == state.name:
            own = b"".join(shares)
            continue
        parcels.append(_parcel(state, roster.digest, offer, shares, key))
    return msgspec.structs.replace(state, roster=roster, own=own), tuple(parcels)


def _parcel(
    state: PartyState,
    roster: bytes,
    to: Offer,
    shares: Sequence[bytes],
    key: ec.EllipticCurvePrivateKey,
) -> Parcel:
    private = X25519PrivateKey.from_private_bytes(state.sharing)
    context = (b"parcel", roster, state.name, to.party)
    box = ChaCha20Poly1305(derive(agree(private, to.sharing), *context)).encrypt(
        _NONCE, b"".join(shares), bound(*context)
    )
    parcel = Parcel(
        dealer=state.name,
        recipient=to.party,
        box=box,
        hashes=b"".join(hashlib.sha256(share).digest() for share in shares),
    )
    return msgspec.structs.replace(parcel, signature=sign(key, parcel.signed(roster)))


def accept_shares(state: PartyState, terms: Terms, parcels: Sequence[Parcel]) -> PartyState:
    """Check and store the other parties' shares; an error names the dealer at fault."""
    roster = _roster(state)
    others = sorted(set(roster.names) - {state.name})
    if sorted(parcel.dealer for parcel in parcels) != others:
        raise SecureSumError("shares of some parties are missing or repeated; request them again")
    shares = {state.name: state.own}
    for parcel in parcels:
        if parcel.recipient != state.name:
            raise SecureSumError(f"shares of {parcel.dealer!r} are addressed to another party")
        check_parcel(terms, roster, parcel)
        shares[parcel.dealer] = _open(state, roster, parcel, terms.slots)
    if state.shares and state.shares != shares:
        raise SecureSumError(
            "different shares arrived after the set-up was complete; begin with new keys"
        )
    return msgspec.structs.replace(state, shares=shares)


def _open(state: PartyState, roster: Roster, parcel: Parcel, slots: int) -> bytes:
    offers = {offer.party: offer for offer in roster.offers}
    private = X25519PrivateKey.from_private_bytes(state.sharing)
    context = (b"parcel", roster.digest, parcel.dealer, state.name)
    secret = agree(private, offers[parcel.dealer].sharing)
    try:
        body = ChaCha20Poly1305(derive(secret, *context)).decrypt(
            _NONCE, parcel.box, bound(*context)
        )
    except InvalidTag:
        raise SecureSumError(
            f"shares of {parcel.dealer!r} cannot be decrypted", parcel.dealer
        ) from None
    if len(body) != 2 * shamir.SHARE_BYTES * slots:
        raise SecureSumError(
            f"shares of {parcel.dealer!r} are incomplete; request them again", parcel.dealer
        )
    for slot in range(slots):
        for kind in (0, 1):
            if not is_share(parcel.hashes, slot, kind, _share(body, slot, kind)):
                raise SecureSumError(
                    f"a share of {parcel.dealer!r} does not match its signature", parcel.dealer
                )
    return body


def mask_vector(
    state: PartyState, slot: int, request: str, vector: np.ndarray
) -> tuple[PartyState, Masked]:
    """Mask integers for one request. A slot is used for one request, and a request for one slot.

    For a repeated request the stored words are returned, and `vector` is ignored.
    """
    roster = _roster(state)
    if not state.shares:
        raise SecureSumError("the set-up is not complete: shares of other parties are missing")
    known = state.rounds.get(slot)
    if known is not None:
        if known.request != request:
            raise SecureSumError(
                f"slot {slot} was used for request {known.request!r}; use another slot"
            )
        return state, _masked(state, slot, known)
    if request in state.answered | _requests(state):
        raise SecureSumError(
            f"request {request!r} was answered in another sum or after another set-up; send a new "
            "request"
        )
    if not 0 <= slot < len(state.masking):
        raise SecureSumError(
            f"slot {slot} does not exist; the set-up has {len(state.masking)} slots"
        )
    if vector.dtype != np.int64 or vector.ndim != 1:
        raise TypeError(
            "a secure sum needs a one-dimensional vector of type int64; convert the vector"
        )
    words = vector.view(np.uint64) + mask(state.seeds[slot], len(vector))
    private = X25519PrivateKey.from_private_bytes(state.masking[slot])
    for offer in roster.offers:
        if offer.party != state.name:
            names = (state.name, offer.party)
            seed = pair_seed(private, offer.masking[slot], roster.digest, names, slot, request)
            shared = mask(seed, len(vector))
            words = words + shared if state.name < offer.party else words - shared
    done = Round(request=request, words=words.astype("<u8").tobytes())
    state = msgspec.structs.replace(state, rounds=state.rounds | {slot: done})
    return state, _masked(state, slot, done)


def _requests(state: PartyState) -> frozenset[str]:
    return frozenset(done.request for done in state.rounds.values())


def _masked(state: PartyState, slot: int, done: Round) -> Masked:
    return Masked(party=state.name, slot=slot, request=done.request, words=done.words)


def sign_survivors(
    state: PartyState, terms: Terms, told: Survivors, key: ec.EllipticCurvePrivateKey
) -> tuple[PartyState, Consent]:
    """Sign the set of parties whose vectors are summed; only one set per slot is ever signed."""
    roster, done = _roster(state), _round(state, told.slot, told.request)
    check_survivors(terms, roster, told)
    if state.name not in told.names:
        raise SecureSumError(
            "the server sent a set of survivors without this party, although this party has sent "
            "its vector; look for the cause at the server"
        )
    if done.survivors is not None:
        if done.survivors != told.names:
            raise SecureSumError(
                f"the server sent a second set of survivors for slot {told.slot}; look for the "
                "cause at the server"
            )
        return state, Consent(party=state.name, slot=told.slot, signature=done.signature)
    signature = sign(key, told.signed(roster.digest))
    done = msgspec.structs.replace(done, survivors=told.names, signature=signature)
    state = msgspec.structs.replace(state, rounds=state.rounds | {told.slot: done})
    return state, Consent(party=state.name, slot=told.slot, signature=signature)


def reveal_shares(state: PartyState, terms: Terms, asked: Unmask) -> tuple[PartyState, Shares]:
    """Return this party's shares of the survivors' seeds and of the other parties' masking keys.

    For each party and slot, only one of the two kinds of shares is ever revealed. At least
    `threshold` survivors must have signed the same set of survivors as this party.
    """
    roster, done = _roster(state), _round(state, asked.slot, asked.request)
    if done.survivors is None:
        raise SecureSumError(
            "shares were requested before the set of survivors was signed; send that set first"
        )
    told = Survivors(slot=asked.slot, request=asked.request, names=done.survivors)
    _check_consents(terms, roster, told, asked.consents)
    seeds = {name: _share(state.shares[name], asked.slot, 0) for name in done.survivors}
    others = set(roster.names) - set(done.survivors)
    keys = {name: _share(state.shares[name], asked.slot, 1) for name in sorted(others)}
    done = msgspec.structs.replace(done, revealed=True)
    state = msgspec.structs.replace(state, rounds=state.rounds | {asked.slot: done})
    return state, Shares(party=state.name, slot=asked.slot, seeds=seeds, keys=keys)


def _check_consents(
    terms: Terms, roster: Roster, told: Survivors, consents: Sequence[Consent]
) -> None:
    offers: Mapping[str, Offer] = {offer.party: offer for offer in roster.offers}
    body = told.signed(roster.digest)
    signers = set()
    for consent in consents:
        if consent.party not in told.names or consent.slot != told.slot:
            raise SecureSumError(
                "a signature is from a party that is not a survivor of this slot; look for the "
                "cause at the server"
            )
        if not is_signed(read_public(offers[consent.party].public_key), consent.signature, body):
            raise SecureSumError(
                f"{consent.party!r} did not sign the set of survivors that this party signed; look "
                "for the cause at the server"
            )
        signers.add(consent.party)
    if len(signers) < terms.threshold:
        raise SecureSumError(
            f"the server sent {len(signers)} signatures over the survivors; at least "
            f"{terms.threshold} are needed"
        )


def _share(body: bytes, slot: int, kind: int) -> bytes:
    at = shamir.SHARE_BYTES * (2 * slot + kind)
    return body[at : at + shamir.SHARE_BYTES]


def _roster(state: PartyState) -> Roster:
    if state.roster is None:
        raise SecureSumError("there is no roster yet: the set-up has not begun")
    return state.roster


def _round(state: PartyState, slot: int, request: str) -> Round:
    done = state.rounds.get(slot)
    if done is None or done.request != request:
        raise SecureSumError(
            f"this party has sent no masked vector for slot {slot} and the named request"
        )
    return done
