"""A party's secure sums with durable state: everything is stored before it is sent.

The file contains secrets. If a party has answered requests of a run and then loses the file, it
creates no new keys for that run, because one of its vectors could otherwise be part of two sums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.arrays import Arrays
from tacit.errors import ConfigError, DataError
from tacit.live.protocol import messages as m
from tacit.live.secure import party
from tacit.live.secure.agreed import Shapes, sum_id, to_vector
from tacit.live.secure.checks import SecureSumError
from tacit.live.secure.messages import Parcel, Roster, Survivors, Unmask
from tacit.live.secure.signing import fingerprint, public_bytes
from tacit.live.secure.terms import Terms
from tacit.server.messages import Request
from tacit.support.storage import sealed, unsealed, write_durably, writing
from tacit.support.type_info import prepare


class LostKeysError(ConfigError):
    """The secrets of a run in which this party has replied are lost; it can only leave the run."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    terms: bytes
    """Digest of the terms of the run."""
    state: party.PartyState
    parcels: tuple[Parcel, ...] = ()
    """The shares that this party dealt, to be sent again unchanged."""


class KeptParty:
    """One party's side of the secure sums of one run.

    Parameters
    ----------
    path
        File of the durable state.
    name
        The party's name.
    key
        Private key of its certificate.
    terms_of
        Function that takes the id that the server gave to a run, and returns the terms of the run.
    answered
        Function that takes the id of a run, and returns True if this party has answered a request
        of the run.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        terms_of: Callable[[str], Terms],
        answered: Callable[[str], bool],
    ) -> None:
        self._path, self._name, self._key = path, name, key
        self._terms_of, self._answered = terms_of, answered
        self._kept: _Kept | None = None
        self._terms: Terms | None = None
        self._lock = threading.Lock()
        if path.exists():
            try:
                body = unsealed(path.read_bytes())
                self._kept = msgspec.msgpack.decode(body, type=prepare(_Kept))
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{path} cannot be read ({' '.join(str(error).split())}); move it away and "
                    "take part in a new run (an older copy could answer one sum twice)"
                ) from None

    def enter(self, run: str) -> None:
        """Use the terms of this run.

        Stored state of another run is not used, and is overwritten when this party creates keys
        for this run.
        """
        self._terms = self._terms_of(run)

    @property
    def _state(self) -> party.PartyState:
        kept = self._kept
        if kept is None or kept.terms != self._agreed.digest:
            self._refuse_if_lost()
            raise SecureSumError(
                "this party has made no keys for this run; the server must request its keys first"
            )
        return kept.state

    @property
    def _agreed(self) -> Terms:
        if self._terms is None:
            raise SecureSumError(
                "a message of a secure sum arrived before this party joined a run; join first"
            )
        return self._terms

    def check(self, request: Request) -> None:
        """Refuse, before anything is charged, a request that cannot be answered in a secure sum."""
        with self._lock:
            state = self._state
            if not state.shares:
                raise SecureSumError(
                    "the set-up of the secure sums is not complete; nothing was charged"
                )
            done = state.rounds.get(request.visit)
            if done is not None and done.request != sum_id(request):
                raise SecureSumError(
                    f"visit {request.visit} was already answered in another secure sum; nothing "
                    "was charged for this request"
                )

    def masked(self, request: Request, released: Arrays, shapes: Shapes) -> m.MaskedUpdate:
        """Mask the released arrays, store the message and return it.

        The number of the slot is the visit number of the request.
        """
        with self._lock:
            state, masked = party.mask_vector(
                self._state, request.visit, sum_id(request), to_vector(released, shapes)
            )
            self._store(state)
            return m.MaskedUpdate(slot=masked.slot, request=masked.request, words=masked.words)

    def answer(self, message: m.ServerMessage) -> m.ClientMessage | None:
        """Store the state after a message of a secure sum, then return the answer to the
        message.
        """
        with self._lock:
            if isinstance(message, m.RequestKeys):
                return self._offered()
            if isinstance(message, m.KeyRoster):
                return self._dealt(Roster(offers=message.offers))
            if isinstance(message, m.PartyShares):
                self._store(party.accept_shares(self._state, self._agreed, message.parcels))
                return None
            if isinstance(message, m.SurvivorSet):
                return self._signed(message)
            assert isinstance(message, m.UnmaskRequest)
            return self._revealed(message)

    def _offered(self) -> m.OfferedKeys:
        terms = self._agreed
        if self._kept is not None and self._kept.terms == terms.digest:
            return m.OfferedKeys(offer=self._kept.state.offer)
        self._refuse_if_lost()
        state, offer = party.offer_keys(terms, self._name, self._key)
        self._write(_Kept(terms=terms.digest, state=state))
        return m.OfferedKeys(offer=offer)

    def _refuse_if_lost(self) -> None:
        run = self._agreed.run
        if self._answered(run):
            raise LostKeysError(
                f"this party has answered requests of {run}, but {self._path} is missing or of "
                "another run; take part in a new run (with new keys one reply could be in two sums)"
            )

    def _dealt(self, roster: Roster) -> m.DealtShares:
        state = self._state
        assert self._kept is not None
        if state.roster is None or state.roster != roster:
            if len(roster.names) != len(self._agreed.parties):
                raise SecureSumError(
                    f"the roster lists {len(roster.names)} parties; all "
                    f"{len(self._agreed.parties)} agreed parties must take part in the set-up"
                )
            state, parcels = party.deal_shares(state, self._agreed, roster, self._key)
            self._write(msgspec.structs.replace(self._kept, state=state, parcels=parcels))
        return m.DealtShares(parcels=self._kept.parcels)

    def _signed(self, told: m.SurvivorSet) -> m.SurvivorSignature:
        survivors = Survivors(slot=told.slot, request=told.request, names=told.names)
        state, consent = party.sign_survivors(self._state, self._agreed, survivors, self._key)
        self._store(state)
        return m.SurvivorSignature(
            slot=told.slot, request=told.request, signature=consent.signature
        )

    def _revealed(self, asked: m.UnmaskRequest) -> m.UnmaskShares:
        unmask = Unmask(slot=asked.slot, request=asked.request, consents=asked.consents)
        state, shares = party.reveal_shares(self._state, self._agreed, unmask)
        self._store(state)
        return m.UnmaskShares(
            slot=asked.slot, request=asked.request, seeds=shares.seeds, keys=shares.keys
        )

    def _store(self, state: party.PartyState) -> None:
        assert self._kept is not None
        if state != self._kept.state:
            self._write(msgspec.structs.replace(self._kept, state=state))

    def _write(self, kept: _Kept) -> None:
        with writing(self._path):
            write_durably(self._path, sealed(msgspec.msgpack.encode(kept)))
        self._kept = kept


def signing_key(key: object, approved: str, party_name: str) -> ec.EllipticCurvePrivateKey:
    """Return the certificate's private key; refuse a key that cannot sign, or whose fingerprint is
    not the agreed one.
    """
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"the key of party {party_name!r} is not an elliptic-curve key; secure sums need one: "
            "have the certificate authority issue a certificate for an elliptic-curve key"
        )
    found = fingerprint(public_bytes(key.public_key()))
    if found != approved:
        raise ConfigError(
            f"keys.{party_name} = {approved[:16]}… in the agreed file, but this party's key is "
            f"{found[:16]}…; compare with: tacit certs fingerprint"
        )
    return key
