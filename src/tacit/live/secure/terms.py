"""Terms of secure sums that the operators agree on: the participants, and three thresholds.

n parties are approved. A sum includes at least `quorum` (q) of them. Any `threshold` (t) of them
can unmask a sum together. Up to `colluding` (c) of them may collude with the server without
learning more than the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from tacit.errors import ConfigError
from tacit.privacy.secure_sums import Thresholds, check_thresholds

MAX_SLOTS = 10_000


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The agreed terms of secure sums in one run.

    Parameters
    ----------
    run, configuration
        Name of the run, and digest of the agreed file.
    parties
        A dict from names of approved parties to fingerprints of their public keys.
    threshold, quorum, colluding
        Numbers t, q and c of parties. With n approved parties they must satisfy t > (n + c)/2, t ≤
        q ≤ n and q − c ≥ 2.
    slots
        Number of sums that the set-up allows: one per round.
    """

    run: str
    configuration: str
    parties: Mapping[str, str]
    threshold: int
    quorum: int
    colluding: int
    slots: int

    def __post_init__(self) -> None:
        check_thresholds(self.thresholds)
        if len(set(self.parties.values())) != len(self.parties):
            raise ConfigError("two parties have the same public key; issue one key per party")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ConfigError(f"slots = {self.slots}; use 1 to {MAX_SLOTS}")

    @property
    def thresholds(self) -> Thresholds:
        """The numbers n (all parties), t (threshold), q (quorum) and c (colluding)."""
        return Thresholds(len(self.parties), self.threshold, self.quorum, self.colluding)

    @property
    def digest(self) -> bytes:
        """Digest of all terms, which every signature covers."""
        body = [self.run, self.configuration, sorted(self.parties.items())]
        body += [self.threshold, self.quorum, self.colluding, self.slots]
        return hashlib.sha256(b"tacit secure sum" + msgspec.msgpack.encode(body)).digest()
