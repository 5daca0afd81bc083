"""Thresholds of secure sums: how many parties may drop out or collude.

A secure sum contains at least q parties (the quorum). Any t parties together can unmask a sum (the
threshold), and up to c parties may collude with the server. Each party adds noise of variance σ²/(q
− c). At least q − c parties of a sum do not collude, so the variance of their total noise is at
least σ². The proof is in docs/methods/secure-sums.md.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from tacit.errors import ConfigError
from tacit.support.tables import Table
from tacit.support.validation import Count

LEAST_PARTIES, MOST_PARTIES = 3, 1000
PLACE = "privacy.secure"


class Thresholds(NamedTuple):
    """Number of parties of a federation, and the thresholds of its secure sums.

    `threshold` is the number of parties that can unmask a sum together, `quorum` the smallest
    number of parties in a sum, and `colluding` the number of parties that may collude with the
    server.
    """

    parties: int
    threshold: int
    quorum: int
    colluding: int

    @property
    def shares(self) -> int:
        """Number of parties whose total noise is enough for the guarantee: quorum − colluding."""
        return self.quorum - self.colluding

    @property
    def trust(self) -> str:
        """The trust assumption of these secure sums, as a sentence."""
        return (
            f"No trusted server: it sees only sums of at least {self.quorum} of the "
            f"{self.parties} parties, and ε holds against it together with {_few(self.colluding)}"
        )

    def words(self) -> list[str]:
        """Return sentences that explain quorum, collusion and threshold."""
        gone = self.parties - self.quorum
        return [
            f"the server learns sums of at least {self.quorum} of the {self.parties} parties' "
            "messages and no single message (quorum)",
            f"ε holds against the server together with {_few(self.colluding)} (colluding); each "
            f"party adds 1/√{self.shares} of the noise, so that the others' noise is enough",
            f"{self.threshold} parties can unmask a sum together (threshold); "
            + (
                "no party may drop out of a round"
                if gone == 0
                else f"up to {gone} of the {self.parties} parties may drop out of a round"
            ),
        ]


def _few(colluding: int) -> str:
    return "any 1 of the parties" if colluding == 1 else f"any {colluding} of the parties"


class SecureSums(Table, frozen=True, kw_only=True):
    """Settings of secure sums (`privacy.aggregation = "secure"`). The defaults depend on the number
    of parties.

    Parameters
    ----------
    colluding
        Number of parties that may collude with the server without weakening the guarantee.
    quorum
        Smallest number of parties in a sum.
    threshold
        Number of parties that can unmask a sum together.
    """

    place: ClassVar[str] = PLACE

    colluding: Count | None = None
    """Number of parties that may collude with the server without weakening the guarantee; by
    default a tenth of all parties, and at least 1, because a party that reads the result can
    subtract the noise that it added.
    """
    quorum: Count | None = None
    """Smallest number of parties in a sum; by default halfway between the smallest allowed
    threshold and the number of all parties.
    """
    threshold: Count | None = None
    """Number of parties that can unmask a sum together. It must be more than half of (number of
    parties + `colluding`). The default is the quorum minus half the number of parties that may be
    missing, or the smallest allowed value if that is larger. A larger threshold hides single
    messages from more colluders; a smaller one allows more dropouts.
    """

    def among(self, parties: int) -> Thresholds:
        """Return the thresholds for this number of parties. Unsafe settings raise an error.

        Parameters
        ----------
        parties
            Number of parties.

        Examples
        --------
        >>> SecureSums().among(10)
        Thresholds(parties=10, threshold=7, quorum=8, colluding=1)
        """
        colluding = self.colluding or max(1, parties // 10)
        least, quorum = _least_threshold(parties, colluding), self.quorum
        if quorum is None:
            quorum = max(default_quorum(parties, colluding), min(self.threshold or 0, parties))
        threshold = self.threshold
        if threshold is None:
            missing = parties - quorum
            threshold = max(least, quorum - (missing + 1) // 2) if missing >= 0 else least
        found = Thresholds(parties, threshold, quorum, colluding)
        check_thresholds(found)
        return found


def check_thresholds(found: Thresholds) -> None:
    """Raise an error for thresholds with which the message of a single party could be computed from
    sums.
    """
    n, t, q, c = found
    if not LEAST_PARTIES <= n <= MOST_PARTIES:
        raise ConfigError(
            f"{n} parties with privacy.aggregation = 'secure'; a secure sum needs "
            f"{LEAST_PARTIES} to {MOST_PARTIES} parties: use privacy.aggregation = 'plain'"
        )
    if not 1 <= c <= n - 2:
        raise ConfigError(
            f"{PLACE}.colluding = {c} with {n} parties; use a number from 1 to {n - 2}: "
            "every sum must contain two parties that do not collude"
        )
    if not 2 * t > n + c:
        raise ConfigError(
            f"{PLACE}.threshold = {t}; with {n} parties, of which {c} may collude, it must be at "
            f"least {_least_threshold(n, c)}; otherwise two different sums of one round could be "
            "unmasked"
        )
    if not t <= q <= n:
        raise ConfigError(
            f"{PLACE}.quorum = {q}; it must be from {t} (the threshold) to {n} (all parties)"
        )
    if not q - c >= 2:
        raise ConfigError(
            f"{PLACE}.quorum = {q} with {PLACE}.colluding = {c}; the quorum must be at least "
            f"{c + 2}; otherwise a sum could contain only one party that does not collude"
        )


def _least_threshold(parties: int, colluding: int) -> int:
    """Return the smallest threshold that is more than half of (parties + colluding)."""
    return (parties + colluding) // 2 + 1


def default_quorum(parties: int, colluding: int) -> int:
    """Return the default quorum: halfway between the smallest safe threshold and the number of
    parties.

    >>> default_quorum(3, 1), default_quorum(10, 1), default_quorum(200, 20)
    (3, 8, 156)
    """
    least = _least_threshold(parties, colluding)
    quorum = max(least, colluding + 2, -(-(least + parties) // 2))
    return min(quorum, parties)
