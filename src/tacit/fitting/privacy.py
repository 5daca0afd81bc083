"""The privacy statement of a fit (`Fit.privacy`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tacit.errors import ConfigError
from tacit.plan.plan import Plan
from tacit.privacy.guarantee import Guarantee
from tacit.results.summary import PrivacyFacts
from tacit.support.notebook import notebook_html
from tacit.support.type_info import prepare

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class FitPrivacy:
    """The privacy guarantee of a fit. `str()` describes it; `guarantee` is None without privacy."""

    guarantee: Guarantee | None
    statement: str
    private: bool
    """True if differential privacy holds; False in a simulation with a known noise seed."""
    total_epsilon: float | None = field(default=None, compare=False)
    """Total ε, at this fit's δ, of all fits in the ledger on the same records, this fit included;
    for the party with the largest total. None if no ledger was charged.
    """
    ledger: str | None = field(default=None, compare=False)
    """The ledger that was charged."""
    _plan: Plan | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.total_epsilon is None or self.guarantee is None:
            return self.statement
        total = f"ε = {self.total_epsilon:.4g} at δ = {self.guarantee.delta:g}"
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

    def threats(self, colluding: int | None = None) -> pl.DataFrame:
        """ε against each kind of attacker, for the party with the weakest guarantee.

        Parameters
        ----------
        colluding
            Number of colluding parties; by default all others.

        Returns
        -------
        polars.DataFrame
            One row per attacker: what it sees, ε for one unit and for a whole party. ε is infinite
            if no bound below 50 can be proved.
        """
        import polars as pl

        from tacit.plan.explain import explain

        if self._plan is None:
            raise ConfigError(
                "this fit was loaded, and its files do not describe every release; call threats "
                "on the fit that tacit.fit returned, or use `tacit explain` on the study file"
            )
        if colluding is not None and not colluding >= 1:
            raise ConfigError(f"colluding = {colluding}; it must be at least 1")
        found = explain(self._plan, colluding=colluding)
        return pl.DataFrame(
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

    @classmethod
    def of(cls, facts: PrivacyFacts, plan: Plan | None) -> FitPrivacy:
        """Make the statement from a result and, if the fit was made in this process, its plan."""
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
            _plan=plan,
        )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
