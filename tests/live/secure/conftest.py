"""Parties and a server of secure sums in one process."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.live.secure import party as party_side
from tacit.live.secure import server as server_side
from tacit.live.secure.signing import fingerprint, public_bytes
from tacit.live.secure.terms import Terms
from tacit.privacy.secure_sums import SecureSums


@dataclass
class Group:
    """A complete set-up, with everybody honest until a test says otherwise."""

    terms: Terms
    keys: dict
    parties: dict = field(default_factory=dict)
    server: server_side.ServerState = None

    @classmethod
    def make(cls, count, *, slots=2, colluding=1, quorum=None, threshold=None, until="ready"):
        names = [f"p{number:03d}" for number in range(count)]
        keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
        agreed = SecureSums(colluding=colluding, quorum=quorum, threshold=threshold).among(count)
        prints = {n: fingerprint(public_bytes(k.public_key())) for n, k in keys.items()}
        terms = Terms(
            run="run-1", configuration="digest", parties=prints, threshold=agreed.threshold,
            quorum=agreed.quorum, colluding=colluding, slots=slots,
        )  # fmt: skip
        group = cls(terms, keys, server=server_side.ServerState(terms))
        group.offer()
        if until == "ready":
            group.deal()
        return group

    def offer(self):
        for name, key in self.keys.items():
            self.parties[name], offer = party_side.offer_keys(self.terms, name, key)
            self.server = server_side.take_offer(self.server, offer)
        self.server = server_side.make_roster(self.server)

    def deal(self):
        for name, key in self.keys.items():
            self.parties[name], parcels = party_side.deal_shares(
                self.parties[name], self.terms, self.server.roster, key
            )
            self.server = server_side.take_parcels(self.server, name, parcels)
        for name in self.keys:
            self.parties[name] = party_side.accept_shares(
                self.parties[name], self.terms, server_side.parcels_for(self.server, name)
            )

    def mask(self, name, slot, request, vector):
        self.parties[name], masked = party_side.mask_vector(
            self.parties[name], slot, request, vector
        )
        return masked

    def consent(self, name, told):
        self.parties[name], consent = party_side.sign_survivors(
            self.parties[name], self.terms, told, self.keys[name]
        )
        return consent

    def reveal(self, name, asked):
        self.parties[name], shares = party_side.reveal_shares(self.parties[name], self.terms, asked)
        return shares

    def collect(self, vectors, slot=0, request="r0", *, drop=()):
        """Masked vectors of all but `drop`, up to the closed set of survivors."""
        length = len(next(iter(vectors.values())))
        self.server = server_side.open_slot(self.server, slot, request, length)
        for name, vector in vectors.items():
            masked = self.mask(name, slot, request, vector)
            if name not in drop:
                self.server = server_side.take_masked(self.server, masked)
        self.server, told = server_side.close_slot(self.server, slot)
        return told

    def sum(self, vectors, slot=0, request="r0", *, drop=(), unsigned=(), silent=()):
        """The sum, with parties that stop before each of the three steps."""
        told = self.collect(vectors, slot, request, drop=drop)
        for name in told.names:
            if name not in unsigned:
                self.server = server_side.take_consent(self.server, self.consent(name, told))
        asked = server_side.unmask_request(self.server, slot)
        for name in told.names:
            if name not in unsigned and name not in silent:
                self.server = server_side.take_shares(self.server, self.reveal(name, asked))
        return server_side.unmasked_sum(self.server, slot)


@pytest.fixture
def make_group():
    return Group.make


@pytest.fixture
def vectors():
    def make(names, length, seed=0):
        rng = np.random.default_rng(seed)
        info = np.iinfo(np.int64)
        return {n: rng.integers(info.min, info.max, length, endpoint=True) for n in names}

    return make
