"""Forms of `PrivateUpdate`: coordinates in which a change is clipped and noised.

| form            | coordinates of Δ = (Δb, ΔΛ) | an improper q       | a party's factor       |
|-----------------|-----------------------------|---------------------|------------------------|
| "even"          | ((Δb − ΔΛ∘m)/A, ΔΛ/B)       | cannot occur: floor | an equal part of q     |
| "roll-back"     | (Δb, ΔΛ), MEng Alg. 3       | the round is void   | an equal part of q     |
| "server-factor" | (Δb, ΔΛ)                    | the round is void   | its own, without noise |
| "log-precision" | ((Δb − ΔΛ∘m)/√Λ, ΔΛ/Λ)      | cannot occur        | its own, without noise |

m and Λ are mean and precision of q, A = (Λ/max Λ)^¼ and B = A²/κ. Every map depends on q alone,
which is public, and so does the server's handling of an improper q (MEng §4.3.3): both are
post-processing. MEng 4.28, a limit on the precision at each party after noising, is not offered:
the accountant does not cover a sum of truncated normals.

**Which factor.** A sum R = Σ clip(Δₘ) + noise has the ε of its noise only if, given the earlier
sums, the parties' answers do not depend on earlier unobserved noise. A factor that contains its
party's share of the noise violates this: the next answers remove that share and its protection
(docs/studies/linear.md shows ε ≥ 56 where 10 was claimed). Two kinds of factor are sound: an equal
share of the releases, which is public, and the party's own clipped changes without noise, which
stay at the party. The first corrects noise in later rounds, but is biased if the clip is smaller
than the differences between parties. The second is unbiased, but its noise accumulates in q.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tacit.expfam import Family, Natural, namespace
from tacit.methods.base import Array
from tacit.pvi import multiply
from tacit.server.combine import Combine, RoundSum, Shared, floored_step
from tacit.support.compiler import jnp

FormName = Literal["even", "roll-back", "server-factor", "log-precision"]
SCALE_EXPONENT = 0.25
Floor = Callable[[Natural, int], Any]


@dataclass(frozen=True)
class Form(abc.ABC):
    """Public maps between a change of natural parameters and the coordinates that are clipped."""

    precision_weight: float
    own_factor: ClassVar[bool] = False
    centred: ClassVar[bool] = True
    """True if the first coordinate is the score Δb − ΔΛ∘m instead of Δb."""

    @abc.abstractmethod
    def scales(self, q: Natural) -> dict[str, Array]:
        """Return the number by which each coordinate is divided."""

    def coordinates(self, q: Natural, change: Natural) -> dict[str, Array]:
        """Map a change of natural parameters to the coordinates that are clipped."""
        added = -2.0 * change["quadratic"]
        score = change["linear"] - added * self._mean(q)
        scales = self.scales(q)
        return {"score": score / scales["score"], "precision": added / scales["precision"]}

    def natural(self, q: Natural, value: dict[str, Array]) -> Natural:
        """Map coordinates back to a change of natural parameters: the inverse of `coordinates`."""
        scales = self.scales(q)
        score, added = (value[name] * scales[name] for name in ("score", "precision"))
        return {"linear": score + added * self._mean(q), "quadratic": -0.5 * added}

    def combine(self, floor: Floor) -> Combine:
        """Return the server's half; by default updates are multiplied, and an improper q is
        refused.

        `floor` is the minimum precision of a form with a floor.
        """
        del floor
        return _multiplied

    def _mean(self, q: Natural) -> Array:
        if not self.centred:
            return 0.0
        return q["linear"] / (-2.0 * q["quadratic"])


class Even(Form):
    """Clips coordinates that are scaled by powers of q's precision."""

    def scales(self, q: Natural) -> dict[str, Array]:
        precision = -2.0 * q["quadratic"]
        even = (precision / namespace(precision).max(precision)) ** SCALE_EXPONENT
        return {"score": even, "precision": even * even / self.precision_weight}

    def combine(self, floor: Floor) -> Combine:
        return floored_step(floor)


class RollBack(Form):
    """Clips changes of natural parameters unscaled; a round with an improper q is void. This is
    MEng Alg. 3 (docs/sources.md) without its limit on the precision at each party.
    """

    centred: ClassVar[bool] = False

    def scales(self, q: Natural) -> dict[str, Array]:
        del q
        return {"score": 1.0, "precision": 1.0}


class ServerFactor(RollBack):
    """`RollBack` with factors that never contain noise."""

    own_factor: ClassVar[bool] = True


class LogPrecision(Form):
    """Clips changes of log Λ, and changes of m in standard deviations.

    With x the released change of Λ over Λ, Λ ← Λ(1 + x) for x ≥ 0 and Λeˣ otherwise, so that q is
    proper for any noise; m ← m + score/Λ with the new Λ.
    """

    own_factor: ClassVar[bool] = True

    def scales(self, q: Natural) -> dict[str, Array]:
        precision = -2.0 * q["quadratic"]
        return {"score": namespace(precision).sqrt(precision), "precision": precision}

    def combine(self, floor: Floor) -> Combine:
        del floor

        def step(shared: Shared, answers: RoundSum) -> Shared:
            q = shared.q
            moved = self.coordinates(q, answers.total)
            x = moved["precision"]
            factor = np.where(x < 0, np.exp(np.minimum(x, 0.0)), 1.0 + x)
            precision = -2.0 * q["quadratic"] * factor
            mean = self._mean(q) + moved["score"] * self.scales(q)["score"] / precision
            following = {"linear": precision * mean, "quadratic": -0.5 * precision}
            return shared._replace(q=following)

        return step


FORMS: dict[FormName, type[Form]] = {
    "even": Even,
    "roll-back": RollBack,
    "server-factor": ServerFactor,
    "log-precision": LogPrecision,
}


def _multiplied(shared: Shared, answers: RoundSum) -> Shared:
    return shared._replace(q=multiply(shared.q, answers.total))


NAMES = ("score", "precision")
_PARTS = ("factor", "last", "asked")


def blank(family: Family) -> Natural:
    """Return the memory of a party before its first visit."""
    return {f"{part}.{name}": value for part in _PARTS for name, value in family.zero().items()}


def own_factor(memory: Natural, q: Natural) -> Natural:
    """Return the party's factor, including its last change unless the server voided that round.

    The round was voided if q has not changed since: noise moves every accepted q.
    """
    factor, last, asked = ({name: memory[f"{part}.{name}"] for name in q} for part in _PARTS)
    same = jnp.all(jnp.stack([jnp.all(asked[name] == q[name]) for name in q]))
    return multiply(factor, {name: jnp.where(same, 0.0, value) for name, value in last.items()})


def remembered(factor: Natural, last: Natural, q: Natural) -> Natural:
    """Return the memory of a party after an answer."""
    parts = dict(zip(_PARTS, (factor, last, q), strict=True))
    return {f"{part}.{name}": parts[part][name] for part in _PARTS for name in q}
