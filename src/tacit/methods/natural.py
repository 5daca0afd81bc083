"""`NaturalVI`: natural-gradient steps on the local ELBO of a generalised linear model.

With g = E_q[ℓ'(η)] and h = −E_q[ℓ''(η)] for each record (one-dimensional quadrature), the
likelihood looks, from q, like the Gaussian site

    P = Xᵀ diag(h) X,   b = Xᵀ (g + h η)        (P's diagonal for a mean-field q)

and λ ← (1 − β) λ + β (λ_cavity + (b, −½P)) is a natural-gradient step of length β (Khan and
Lin 2017). Its fixed point is the local optimum of TMLR eq. 3.5; there is no learning rate to tune
to the data and no Monte Carlo noise. With a full covariance, a federation of ten Adult parties
agrees with central VI after six rounds, under label skew too (`make bench`).

**Units.** A step commutes with x → Ax, θ → A⁻ᵀθ, so the units of the columns do not matter as
long as the start does not depend on them and no step is too long. The start is the site at
predictors taken from each record's own outcome (`GaussianSites.data_site`), as in
iteratively reweighted least squares: it needs no q, and the product of the parties' sites is the
site of all records. The length of a step is found by backtracking: on the local free energy where
a party answers alone, on the sum of the parties' losses at the server where every party answers
every round (`Rules.line_search`). Records are float64, because a column may vary little in
comparison with its mean.
Not private.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from tacit.arrays import cholesky, namespace, solve_lower
from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.methods.base import Answer, Array, LocalMethod, RunFacts, Task
from tacit.models import Model
from tacit.models.capabilities import GaussianSites
from tacit.pvi import cavity, multiply, power
from tacit.support.compiler import jax, jnp
from tacit.support.validation import check_fields

MAX_EVALUATIONS = 200
"""Of the local free energy in one answer."""
SHORTEST_STEP = 1e-5
SETTLED = 1e-9
"""Nats: a whole step that gains less ends a local optimisation."""
ENERGY_SLACK = 1e-7
"""Nats by which a step may raise the free energy: quadrature is no better."""
ROUNDED_PRECISION = 1e-13
"""Relative to a diagonal element: less precision than this is not told from rounding."""
ENERGY_ROUNDING = 1e-12
"""Relative to the free energy: differences below it are rounding errors."""


@dataclass(frozen=True, kw_only=True)
class NaturalVI(LocalMethod):
    """Natural-gradient steps on all records, safeguarded by default.

    With `steps` and `step_size` left out, a party optimises its local free energy by steps of
    length 1 (mean-field: 0.15, with several levels 0.05) that are halved until the free energy
    falls. Where every party answers every round and the covariance is full, it makes one whole
    step per round instead, and the server shortens the step of all parties together: a synchronous
    round is then a safeguarded step of central VI, however the records are divided.

    Given either, a party makes exactly `steps` steps (1, mean-field 40) of that length per round
    from the model's starting point, without a safeguard.

    Parameters
    ----------
    steps
        Steps per round, without a safeguard; left out, safeguarded steps.
    step_size
        Length of each step, in (0, 1].
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "natural-vi"
    second_order: ClassVar[bool] = True
    usual_rounds: ClassVar[int] = 50
    steps: int | None = None
    step_size: float | None = None
    dtype: str = "float64"
    _together: bool = False
    """Whether every party answers every round; set by the plan."""

    def __post_init__(self) -> None:
        check_fields(self, "method")
        if self.steps is not None and not self.steps >= 1:
            raise ConfigError(f"method.steps = {self.steps}; at least 1 step a round is needed")
        if self.step_size is not None and not 0 < self.step_size <= 1:
            raise ConfigError(f"method.step_size = {self.step_size}; it must be in (0, 1]")

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, GaussianSites) or not isinstance(family, Gaussian):
            raise ConfigError(
                f"method.kind = 'natural-vi' needs a generalised linear model and a Gaussian "
                f"family, not {model.kind!r} with {family.kind!r}; use method.kind = 'gradient-vi'"
            )

    @property
    def starts_at_q(self) -> bool:
        return self._safeguarded

    @property
    def _safeguarded(self) -> bool:
        return self.steps is None and self.step_size is None

    @property
    def step_share(self) -> float:
        if self._safeguarded or self.step_size is None:
            return 1.0
        return min(1.0, (self.steps or 1) * self.step_size)

    def for_run(self, facts: RunFacts) -> LocalMethod:
        together = facts.schedule == "synchronous" and facts.everybody and not facts.quorum
        return replace(self, _together=together)

    def whole_steps(self, family: Family) -> bool:
        return self._together and self._safeguarded and isinstance(family, FullGaussian)

    def begin(self, family: Family, start: Natural) -> dict[str, Array]:
        return _usual(family, start)

    def steps_of(self, model: GaussianSites, family: Family) -> int:
        """How many steps an answer takes."""
        del model
        return self.steps or (1 if isinstance(family, FullGaussian) else 40)

    def length_of(self, model: GaussianSites, family: Family) -> float:
        """The length of a step; the first of all may be 1 instead."""
        if self.step_size is not None or isinstance(family, FullGaussian):
            return self.step_size or 1.0
        return model.mean_field_step

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        assert isinstance(model, GaussianSites)
        if not self._safeguarded:
            return self._plain_steps(model, family, task)
        rest = cavity(task.q, task.factor)
        if not self.whole_steps(family):
            return _optimise(model, family, rest, task, self.length_of(model, family))
        at_q = task.begun or _usual(family, task.start)
        site, loss = likelihood_site(model, family, at_q, task)
        later, first = multiply(rest, site), data_start(model, family, rest, task)
        natural = {name: jnp.where(task.initial, first[name], later[name]) for name in later}
        return Answer(natural, loss)

    def _plain_steps(self, model: GaussianSites, family: Family, task: Task) -> Answer:
        rest = cavity(task.q, task.factor)
        steps, length = self.steps_of(model, family), self.length_of(model, family)

        def step(
            natural: Natural, length: Any, usual: dict[str, Array] | None = None
        ) -> tuple[Natural, Array]:
            site, loss = likelihood_site(model, family, usual or family.usual(natural), task)
            target = power(multiply(rest, site), length)
            return multiply(power(natural, 1.0 - length), target), loss

        # The first step stands outside the scan: alone, it is one fused pass over the numbers.
        constant = length == 1.0 or not model.first_step_whole
        first = length if constant else jnp.where(task.initial, 1.0, length)
        natural, loss = step(task.start, first, task.begun)
        if steps > 1:
            natural, _ = jax.lax.scan(
                lambda natural, _: (step(natural, length)[0], None), natural, length=steps - 1
            )
        return Answer(natural, loss)


class _Walk(NamedTuple):
    """Where a local optimisation is."""

    natural: Natural
    target: Natural
    """Where a whole step from there leads."""
    energy: Array
    length: Array
    evaluations: Array
    settled: Array


def _optimise(
    model: GaussianSites, family: Family, rest: Natural, task: Task, longest: float
) -> Answer:
    """Safeguarded steps to the minimum of −E_q[log p(xₘ|θ)] + KL(q ‖ cavity).

    A party that has not answered before starts at its data's own predictors: q may be so wide in
    their units that no quadrature node is where the likelihood bends.
    """
    at_q = task.begun or _usual(family, task.start)
    centre = at_q["mean"]
    _, loss = likelihood_site(model, family, at_q, task)
    new = data_start(model, family, rest, task)
    first = jnp.asarray(task.visit) == 0
    start = {name: jnp.where(first, new[name], task.start[name]) for name in rest}

    def look(natural: Natural) -> tuple[Natural, Array]:
        """Where a whole step leads, and the free energy."""
        usual = _usual(family, natural)
        site, loss = likelihood_site(model, family, usual, task)
        return multiply(rest, site), loss + _divergence(family, usual, rest, centre)

    def go_on(walk: _Walk) -> Array:
        more = walk.evaluations < MAX_EVALUATIONS
        return more & ~walk.settled & (walk.length >= SHORTEST_STEP)

    def step(walk: _Walk) -> _Walk:
        moved = multiply(power(walk.natural, 1.0 - walk.length), power(walk.target, walk.length))
        target, energy = look(moved)
        rounding = ENERGY_ROUNDING * jnp.abs(walk.energy)
        better = energy <= walk.energy + ENERGY_SLACK + rounding  # not a number is not better
        little = walk.energy - energy < longest**2 * SETTLED + rounding
        settled = better & little & (walk.length >= longest)
        natural = {name: jnp.where(better, moved[name], walk.natural[name]) for name in moved}
        target = {name: jnp.where(better, target[name], walk.target[name]) for name in target}
        energy = jnp.where(better, energy, walk.energy)
        longer = jnp.minimum(2.0 * walk.length, longest)
        length = jnp.where(better, longer, 0.5 * walk.length)
        return _Walk(natural, target, energy, length, walk.evaluations + 1, settled)

    length = jnp.asarray(longest, jnp.float64)
    walk = _Walk(start, *look(start), length, jnp.asarray(1), jnp.asarray(False))
    walk = jax.lax.while_loop(go_on, step, walk)
    # Where no step lowers the free energy the answer is the whole step: small at an optimum, and
    # anywhere else too large to be taken for one.
    stuck = ~walk.settled & ((walk.length < SHORTEST_STEP) | jnp.isnan(walk.energy))
    return Answer(
        {name: jnp.where(stuck, walk.target[name], walk.natural[name]) for name in rest}, loss
    )


def _usual(family: Family, natural: Natural) -> dict[str, Array]:
    """Mean and sd, or mean, covariance S and a root R with S = RᵀR: a variance |Rx|² is ≥ 0."""
    if not isinstance(family, FullGaussian):
        return family.usual(natural)
    precision = -(natural["quadratic"] + natural["quadratic"].T)
    xp = namespace(precision)
    # Directions that the prior alone knows may be below the rounding of the others.
    precision = precision + xp.diag(ROUNDED_PRECISION * xp.diagonal(precision))
    factor = cholesky(precision)
    root = solve_lower(factor, xp.eye(factor.shape[0]))
    covariance = root.T @ root
    mean = root.T @ (root @ natural["linear"])
    return {"mean": mean, "covariance": covariance, "root": root}


def _divergence(family: Family, usual: dict[str, Array], rest: Natural, centre: Array) -> Array:
    """−⟨λ_rest, E_q[T]⟩ − H(q) up to a constant, for any rest, proper or not.

    Written around `centre`: a mean that is many standard deviations from 0 leaves few digits in
    the square of itself.
    """
    moved = usual["mean"] - centre
    quadratic = rest["quadratic"]
    if isinstance(family, FullGaussian):
        slope = rest["linear"] + 2.0 * (quadratic @ centre)
        second = moved @ quadratic @ moved + jnp.sum(quadratic * usual["covariance"])
        entropy = jnp.sum(jnp.log(jnp.diagonal(usual["root"])))
    else:
        slope = rest["linear"] + 2.0 * quadratic * centre
        second = jnp.sum(quadratic * (moved * moved + jnp.square(usual["sd"])))
        entropy = jnp.sum(jnp.log(usual["sd"]))
    return -(slope @ moved + second + entropy)


def likelihood_site(
    model: GaussianSites, family: Family, usual: dict[str, Array], task: Task
) -> tuple[Natural, Array]:
    """(b, −½P) at the q of those usual parameters, float64, and −E_q[log p(xₘ|θ)]."""
    return model.expected_site(family, usual, task.records, task.weights)


def data_start(model: GaussianSites, family: Family, rest: Natural, task: Task) -> Natural:
    """The cavity times the site at predictors that each record's own outcome suggests.

    It depends on no q. Mean-field: the cavity's mean with that precision, because a step for each
    coordinate alone would add up to far too much.
    """
    site = model.data_site(family, task.records, task.weights)
    if isinstance(family, FullGaussian):
        return multiply(rest, site)
    quadratic = rest["quadratic"] + site["quadratic"]
    return {"linear": rest["linear"] * quadratic / rest["quadratic"], "quadratic": quadratic}
