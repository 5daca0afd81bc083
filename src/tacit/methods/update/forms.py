"""Forms of `PrivateUpdate`: coordinates in which a change is clipped and noised.

A change Δ = (Δb, ΔΛ) has a linear term and a precision. The current q has mean m and precision Λ.

| form            | coordinates of Δ            | an improper q       | a party's factor       |
|-----------------|-----------------------------|---------------------|------------------------|
| "even"          | ((Δb − ΔΛ∘m)/A, ΔΛ/B)       | cannot occur: floor | an equal share of q    |
| "roll-back"     | (Δb, ΔΛ), MEng Alg. 3       | the round is void   | an equal share of q    |
| "server-factor" | (Δb, ΔΛ)                    | the round is void   | its own, without noise |
| "log-precision" | ((Δb − ΔΛ∘m)/√Λ, ΔΛ/Λ)      | cannot occur        | its own, without noise |

Here A = (Λ/max Λ)^¼ and B = A²/κ, where κ is `precision_weight`. Both the coordinates and the
server's handling of an improper q (MEng §4.3.3) depend only on q, which is public. They are
therefore post-processing. MEng 4.28, which limits the precision at each party after noise was
added, is not offered, because the accountant does not cover a sum of truncated normals.

**Which factor.** A sum Σ clip(Δₘ) + noise over parties m has the ε of its noise only under one
condition: given the earlier sums, the parties' answers must not depend on earlier unobserved noise.
A factor that contains its party's share of the noise violates this condition, because the party's
next answers would subtract this noise and remove its protection (docs/studies/linear.md shows ε ≥
56 where 10 was claimed). Two kinds of factor satisfy the condition:

* An equal share of the releases, which is public. With this factor, later rounds correct the noise,
  but q is biased if the clip is smaller than the differences between parties.
* The party's own clipped changes without noise, which stay at the party. Such a factor is unbiased,
  but the noise of all rounds accumulates in q.
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
    """Base class of forms: coordinates in which a change of natural parameters is clipped.

    The coordinates depend only on q, which is public.
    """

    precision_weight: float
    own_factor: ClassVar[bool] = False
    centred: ClassVar[bool] = True
    """True if the first coordinate is the score Δb − ΔΛ∘m instead of Δb."""

    @abc.abstractmethod
    def scales(self, q: Natural) -> dict[str, Array]:
        """Return the numbers by which the coordinates "score" and "precision" are divided before
        clipping.
        """

    def coordinates(self, q: Natural, change: Natural) -> dict[str, Array]:
        """Return the coordinates in which a `change` of natural parameters is clipped."""
        added = -2.0 * change["quadratic"]
        score = change["linear"] - added * self._mean(q)
        scales = self.scales(q)
        return {"score": score / scales["score"], "precision": added / scales["precision"]}

    def natural(self, q: Natural, value: dict[str, Array]) -> Natural:
        """Return the change of natural parameters for clipped coordinates: the inverse of
        `coordinates`.
        """
        scales = self.scales(q)
        score, added = (value[name] * scales[name] for name in ("score", "precision"))
        return {"linear": score + added * self._mean(q), "quadratic": -0.5 * added}

    def combine(self, floor: Floor) -> Combine:
        """Return the function with which the server applies the sum of a round's updates to q.

        By default q is multiplied by the updates, and an improper q is refused. `floor(q, round)`
        is the smallest precision that q may have after a round. Only the form "even" uses it.
        """
        del floor
        return _multiplied

    def _mean(self, q: Natural) -> Array:
        if not self.centred:
            return 0.0
        return q["linear"] / (-2.0 * q["quadratic"])


class Even(Form):
    """The form "even": coordinates are divided by powers of q's precision, and the server keeps q's
    precision above a minimum.
    """

    def scales(self, q: Natural) -> dict[str, Array]:
        precision = -2.0 * q["quadratic"]
        even = (precision / namespace(precision).max(precision)) ** SCALE_EXPONENT
        return {"score": even, "precision": even * even / self.precision_weight}

    def combine(self, floor: Floor) -> Combine:
        return floored_step(floor)


class RollBack(Form):
    """The form "roll-back": changes of natural parameters are clipped without scaling, and a round
    that would make q improper is void.

    This is MEng Alg. 3 (docs/sources.md) without its limit on the precision at each party.
    """

    centred: ClassVar[bool] = False

    def scales(self, q: Natural) -> dict[str, Array]:
        del q
        return {"score": 1.0, "precision": 1.0}


class ServerFactor(RollBack):
    """The form "server-factor": like `RollBack`, but each party's factor contains only the changes
    of this party, without noise.
    """

    own_factor: ClassVar[bool] = True


class LogPrecision(Form):
    """The form "log-precision": clips relative changes of the precision of q, and changes of its
    mean in standard deviations.

    Let q have mean m and precision Λ, and let x be the released relative change of Λ. The server
    multiplies Λ by 1 + x if x ≥ 0 and by eˣ otherwise, so q is proper for any noise. It then adds
    s/Λ to m, where s is the released score and Λ the new precision.
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
    """Return the method memory of a party before its first visit: zeros."""
    return {f"{part}.{name}": value for part in _PARTS for name, value in family.zero().items()}


def own_factor(memory: Natural, q: Natural) -> Natural:
    """Return the party's factor, including its last change unless the server voided the last round.

    If q has not changed since the last round, that round was voided, because the noise of an
    accepted round always changes q.
    """
    factor, last, asked = ({name: memory[f"{part}.{name}"] for name in q} for part in _PARTS)
    same = jnp.all(jnp.stack([jnp.all(asked[name] == q[name]) for name in q]))
    return multiply(factor, {name: jnp.where(same, 0.0, value) for name, value in last.items()})


def remembered(factor: Natural, last: Natural, q: Natural) -> Natural:
    """Return the method memory of a party after an answer: its factor, its last change and the q of
    the request.
    """
    parts = dict(zip(_PARTS, (factor, last, q), strict=True))
    return {f"{part}.{name}": parts[part][name] for part in _PARTS for name in q}
