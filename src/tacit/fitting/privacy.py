"""The privacy statement of a fit (`Fit.privacy`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tacit.errors import ConfigError
from tacit.plan.plan import Plan
from tacit.privacy.guarantee import Guarantee
from tacit.results.summary import PrivacyFacts
from tacit.support.notebook import notebook_html
from tacit.support.type_info import prepare


@dataclass(frozen=True, kw_only=True)
class FitPrivacy:
    """The privacy guarantee of a fit. `str()` describes it; `guarantee` is None without privacy."""

    guarantee: Guarantee | None
    statement: str
    private: bool
    """True if differential privacy holds; False in a simulation with a known noise seed."""
    total_epsilon: float | None = field(default=None, compare=False)
    """Total ε, at this fit's δ, of this fit and all other fits in the ledger on the same records;
    the largest total of any party. None if no ledger was charged. If an earlier fit does not count
    for the unit and adjacency of this fit, the total is for a weaker unit and adjacency, which
    `str()` names. If there are none for which all fits count, the total is infinite.
    """
    ledger: str | None = field(default=None, compare=False)
    """The ledger that was charged."""
    _terms: str = field(default="", repr=False, compare=False)
    _plan: Plan | None = field(default=None, repr=False, compare=False)
    _frames: str | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.total_epsilon is None or self.guarantee is None:
            return self.statement
        total = f"ε = {self.total_epsilon:.4g} at δ = {self.guarantee.delta:g}{self._terms}"
        if math.isinf(self.total_epsilon):
            total = (
                "no bound on ε, because they have different units or adjacencies and cannot be "
                "added up; `tacit ledger show` lists ε of each"
            )
        return (
            f"{self.statement} All fits on these records so far: {total} (ledger: {self.ledger})."
        )

    def _repr_html_(self) -> str:
        guarantee = self.guarantee
        table = "" if guarantee is None else guarantee._repr_html_()
        title = "Private" if self.private else "Not private"
        return notebook_html(title, remarks=[self.statement]) + table

    @property
    def epsilon(self) -> float:
        """ε of this fit alone; infinite without differential privacy."""
        return math.inf if self.guarantee is None else self.guarantee.epsilon

    def threats(self, colluding: int | None = None) -> Any:
        """ε against each kind of attacker, for the party with the weakest guarantee.

        Parameters
        ----------
        colluding
            Number of colluding parties; by default all others.

        Returns
        -------
        DataFrame
            One row per attacker: what it sees, ε for one unit and for a whole party. ε is infinite
            if no bound below 50 can be proved. A frame of the same library as `Fit.summary`.
        """
        import polars as pl

        from tacit.data.frames import to_library
        from tacit.plan.explain import explain

        if self._plan is None:
            raise ConfigError(
                "this fit was loaded, and its files do not describe every release; call threats "
                "on the fit that tacit.fit returned, or use `tacit explain` on the study file"
            )
        if colluding is not None and not colluding >= 1:
            raise ConfigError(f"colluding = {colluding}; it must be at least 1")
        found = explain(self._plan, colluding=colluding)
        table = pl.DataFrame(
            {
                "attacker": [row.attacker for row in found.rows],
                "sees": [row.sees for row in found.rows],
                "epsilon": [_or_infinite(row.unit_epsilon) for row in found.rows],
                "party_epsilon": [_or_infinite(row.party_epsilon) for row in found.rows],
                "delta": found.delta,
                "unit": found.unit,
                "adjacency": found.adjacency,
                "remark": [row.remark for row in found.rows],
            }
        )
        return to_library(table, self._frames)

    @classmethod
    def of(cls, facts: PrivacyFacts, plan: Plan | None, frames: str | None = None) -> FitPrivacy:
        """Make the statement of a result.

        Parameters
        ----------
        facts
            The "privacy" block of the result.
        plan
            The plan, if the fit was made in this process.
        frames
            Library of the data frames that were fitted (`tacit.data.frames.frame_library`).
        """
        guarantee = None
        if facts.guarantee is not None:
            plain = msgspec.to_builtins(facts.guarantee)
            guarantee = msgspec.convert(plain, prepare(Guarantee))
        book = facts.ledger
        return cls(
            guarantee=guarantee,
            statement=facts.statement,
            private=facts.private,
            total_epsilon=None if book is None else book.epsilon_spent,
            ledger=None if book is None else book.path,
            _terms="" if book is None else book.other_terms,
            _plan=plan,
            _frames=frames,
        )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
