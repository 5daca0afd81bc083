"""What the operators agree on for secure sums: who takes part, and three thresholds.

n parties are approved. A sum has at least `quorum` (q) of them. `threshold` (t) of them can unmask
together. Up to `colluding` (c) of them may work with the server without learning more than the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from tacit.errors import ConfigError

MAX_PARTIES = 1000
MAX_SLOTS = 10_000


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Agreed facts of one run.

    Parameters
    ----------
    run, configuration
        Name of the run, and digest of the agreed file.
    parties
        Fingerprint of each approved party's public key, by name.
    threshold, quorum, colluding
        t, q and c: t > (n + c)/2, t ≤ q ≤ n and q − c ≥ 2.
    slots
        Number of sums that the set-up allows: one per round, plus some for rounds that failed.
    """

    run: str
    configuration: str
    parties: Mapping[str, str]
    threshold: int
    quorum: int
    colluding: int
    slots: int

    def __post_init__(self) -> None:
        n, t, q, c = len(self.parties), self.threshold, self.quorum, self.colluding
        if not 3 <= n <= MAX_PARTIES:
            raise ConfigError(f"{n} parties; a secure sum needs 3 to {MAX_PARTIES}")
        if len(set(self.parties.values())) != n:
            raise ConfigError("two parties have the same public key; issue one key per party")
        if not c >= 1:
            raise ConfigError(
                f"colluding = {c}; at least 1: a party that reads the result knows its own noise"
            )
        if not 2 * t > n + c:
            least = (n + c) // 2 + 1
            raise ConfigError(
                f"threshold = {t}; with {n} parties of which {c} may collude it must be at least "
                f"{least}, or two different sums of one round could be unmasked"
            )
        if not t <= q <= n:
            raise ConfigError(f"quorum = {q}; it must be from the threshold {t} to {n} parties")
        if not q - c >= 2:
            raise ConfigError(
                f"quorum = {q} with {c} colluding; at least {c + 2}, or a sum could have one "
                "honest term"
            )
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ConfigError(f"slots = {self.slots}; use 1 to {MAX_SLOTS}")

    @property
    def digest(self) -> bytes:
        """Digest of all terms, which every signature covers."""
        body = [self.run, self.configuration, sorted(self.parties.items())]
        body += [self.threshold, self.quorum, self.colluding, self.slots]
        return hashlib.sha256(b"tacit secure sum" + msgspec.msgpack.encode(body)).digest()


def default_thresholds(parties: int, colluding: int = 1) -> tuple[int, int]:
    """Threshold and quorum that tolerate as many dropouts as is safe with these parties.

    >>> default_thresholds(3), default_thresholds(10), default_thresholds(200, 20)
    ((3, 3), (6, 8), (111, 156))
    """
    threshold = (parties + colluding) // 2 + 1
    quorum = max(threshold, colluding + 2, -(-(threshold + parties) // 2))
    return threshold, min(quorum, parties)
