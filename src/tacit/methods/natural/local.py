"""Local optimisation of `NaturalVI`, for runs in which each party chooses its own steps.

The party minimises its free energy −E_q[log p(xₘ|θ)] + KL(q ‖ cavity) over q, where xₘ are its
records, by natural-gradient steps. A step is halved until the free energy decreases. The reply is
the change of the party's factor.

The starting point is the received q, except at a party's first visit. The starting point of the
first visit is computed from the outcomes of the records if the model supports this
(`GaussianSites.data_site`). Otherwise it is the mode of cavity × likelihood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tacit.arrays import cholesky, namespace, solve_lower
from tacit.expfam import Family, FullGaussian, Natural
from tacit.methods.base import Answer, Array, Task
from tacit.methods.natural import party
from tacit.methods.natural.curvature import absolute_eigen
from tacit.methods.natural.search import find_mode, only_finite
from tacit.models import Model
from tacit.models.capabilities import GaussianSites, WhitenedDerivatives
from tacit.pvi import cavity, multiply, power
from tacit.support.compiler import jax, jnp

if TYPE_CHECKING:
    from tacit.methods.natural.method import NaturalVI

MAX_EVALUATIONS = 200
"""Largest number of evaluations of the local free energy in one answer."""
SHORTEST_STEP = 1e-5
SETTLED = 1e-9
"""The optimisation ends when a full step lowers the free energy by less than this many nats."""
ENERGY_SLACK = 1e-7
"""A step may raise the free energy by this many nats, because quadrature is not exact."""
ROUNDED_PRECISION = 1e-13
"""Share of its diagonal that is added to a precision matrix, as a margin for rounding errors."""
ENERGY_ROUNDING = 1e-12
"""Differences of the free energy below this multiple of its value are rounding errors."""
LEAST_CURVATURE, MOST_CURVATURE = 0.25, 1e6
"""Bounds on the precision after one step, relative to the precision of q."""
GENERIC_MEAN_FIELD_STEP = 0.15


def answer(method: NaturalVI, model: Model, family: Family, task: Task) -> Answer:
    """Return the local answer of one party: the natural parameters of its local posterior qₘ."""
    if not method.safeguarded:
        assert isinstance(model, GaussianSites)
        return _plain_steps(method, model, family, task)
    full = isinstance(family, FullGaussian)
    step = getattr(model, "mean_field_step", GENERIC_MEAN_FIELD_STEP)
    return _optimise(model, family, cavity(task.q, task.factor), task, 1.0 if full else step)


def _plain_steps(method: NaturalVI, model: GaussianSites, family: Family, task: Task) -> Answer:
    rest = cavity(task.q, task.factor)
    steps, length = method.steps_of(model, family), method.length_of(model, family)

    def step(
        natural: Natural, length: Any, usual: dict[str, Array] | None = None
    ) -> tuple[Natural, Array]:
        usual = usual or family.usual(natural)
        site, loss = model.expected_site(family, usual, task.records, task.weights)
        target = power(multiply(rest, site), length)
        return multiply(power(natural, 1.0 - length), target), loss

    # The first step is outside the scan, so that it compiles to one fused pass over the numbers.
    constant = length == 1.0 or not model.first_step_whole
    first = length if constant else jnp.where(task.initial, 1.0, length)
    natural, loss = step(task.start, first, task.begun)
    if steps > 1:
        natural, _ = jax.lax.scan(
            lambda natural, _: (step(natural, length)[0], None), natural, length=steps - 1
        )
    return Answer(natural, loss)


class _Walk(NamedTuple):
    natural: Natural
    target: Natural
    """Natural parameters after a full step."""
    energy: Array
    length: Array
    evaluations: Array
    settled: Array


def _optimise(model: Model, family: Family, rest: Natural, task: Task, longest: float) -> Answer:
    """Minimise −E_q[log p(xₘ|θ)] + KL(q ‖ cavity) over q, by natural-gradient steps of length at
    most `longest`.

    `rest` is the cavity. At its first visit, a party starts at a site computed from its records,
    because the received q may be so wide that no quadrature node is in the region where the
    likelihood is curved.
    """
    at_q = task.begun or moments(family, task.start)
    centre = at_q["mean"]
    _, loss = likelihood_site(model, family, at_q, task)
    new = task.start if model.is_prior else first_start(model, family, rest, task, centre)
    first = jnp.asarray(task.visit) == 0
    start = {name: jnp.where(first, new[name], task.start[name]) for name in rest}

    def look(natural: Natural) -> tuple[Natural, Array]:
        usual = moments(family, natural)
        site, loss = likelihood_site(model, family, usual, task)
        target = whole_step(model, family, usual, rest, site)
        return target, loss + _divergence(family, usual, rest, centre)

    def go_on(walk: _Walk) -> Array:
        more = walk.evaluations < MAX_EVALUATIONS
        return more & ~walk.settled & (walk.length >= SHORTEST_STEP)

    def step(walk: _Walk) -> _Walk:
        moved = multiply(power(walk.natural, 1.0 - walk.length), power(walk.target, walk.length))
        target, energy = look(moved)
        rounding = ENERGY_ROUNDING * jnp.abs(walk.energy)
        better = energy <= walk.energy + ENERGY_SLACK + rounding  # False for NaN
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
    # If no step lowers the free energy, the answer is the full step. It is small at an optimum;
    # elsewhere it is too large to be mistaken for convergence.
    stuck = ~walk.settled & ((walk.length < SHORTEST_STEP) | jnp.isnan(walk.energy))
    return Answer(
        {name: jnp.where(stuck, walk.target[name], walk.natural[name]) for name in rest}, loss
    )


def moments(family: Family, natural: Natural) -> dict[str, Array]:
    """Return mean and sd of q or, for a full covariance S, the mean, S, R and L.

    S is returned as "covariance". R with S = RᵀR is returned as "root", and its inverse L as
    "factor". A variance xᵀSx that is computed as |Rx|² is never negative, even with rounding
    errors.
    """
    if not isinstance(family, FullGaussian):
        return family.usual(natural)
    precision = -(natural["quadratic"] + natural["quadratic"].T)
    xp = namespace(precision)
    # In directions that only the prior determines, the precision may be below rounding errors.
    precision = precision + xp.diag(ROUNDED_PRECISION * xp.diagonal(precision))
    factor = cholesky(precision)
    root = solve_lower(factor, xp.eye(factor.shape[0]))
    covariance = root.T @ root
    mean = root.T @ (root @ natural["linear"])
    return {"mean": mean, "covariance": covariance, "root": root, "factor": factor}


def _divergence(family: Family, usual: dict[str, Array], rest: Natural, centre: Array) -> Array:
    """Return −E_q[log cavity] minus the entropy of q, up to a constant. The cavity `rest` may be
    improper.

    Means are taken relative to `centre`, because the square of a mean that is many standard
    deviations from 0 would lose digits.
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
    model: Model, family: Family, usual: dict[str, Array], task: Task
) -> tuple[Natural, Array]:
    """Return a Gaussian approximation of a party's likelihood at q, and −E_q[log p(xₘ|θ)], in
    float64.

    The approximation, called a site, has the natural parameters (b, −½P) with linear term b and
    precision P. `usual` contains the `moments` of q.
    """
    if isinstance(model, GaussianSites):
        return model.expected_site(family, usual, task.records, task.weights)
    mean, likelihood = usual["mean"], party.log_likelihood(model, task)
    full = isinstance(family, FullGaussian)
    root = usual["root"].T if full else jnp.diag(usual["sd"])
    found = party.by_cubature(party.in_z(likelihood, mean, root), jnp.ones(()), len(mean))
    if full:
        form = -usual["factor"] @ found.hessian @ usual["factor"].T
        form, slope = 0.5 * (form + form.T), usual["factor"] @ found.gradient
        return {"linear": slope + form @ mean, "quadratic": -0.5 * form}, -found.value
    form = -jnp.diagonal(found.hessian) / jnp.square(usual["sd"])
    slope = found.gradient / usual["sd"]
    return {"linear": slope + form * mean, "quadratic": -0.5 * form}, -found.value


def whole_step(
    model: Model, family: Family, usual: dict[str, Array], rest: Natural, site: Natural
) -> Natural:
    """Return the natural parameters of q after a step of length 1, which is the product of `rest`
    and `site`.

    For models without exact sites, the precision of the result, relative to the precision of q, is
    clipped to [`LEAST_CURVATURE`, `MOST_CURVATURE`]. `usual` has the moments of q.
    """
    target = multiply(rest, site)
    if isinstance(model, GaussianSites):
        return target
    mean, form = usual["mean"], -2.0 * target["quadratic"]
    if not isinstance(family, FullGaussian):
        square = jnp.square(usual["sd"])
        slope = target["linear"] - form * mean
        form = jnp.clip(jnp.abs(form * square), LEAST_CURVATURE, MOST_CURVATURE) / square
        return {"linear": slope + form * mean, "quadratic": -0.5 * form}
    slope = target["linear"] - form @ mean
    seen = usual["root"] @ form @ usual["root"].T
    values, vectors = jnp.linalg.eigh(0.5 * (seen + seen.T))
    values = jnp.clip(jnp.abs(values), LEAST_CURVATURE, MOST_CURVATURE)
    outer = usual["factor"] @ vectors
    form = (outer * values) @ outer.T
    form = 0.5 * (form + form.T)
    return {"linear": slope + form @ mean, "quadratic": -0.5 * form}


def first_start(model: Model, family: Family, rest: Natural, task: Task, centre: Array) -> Natural:
    """Return the natural parameters at which a party starts at its first visit; `rest` is the
    cavity.

    For a generalised linear model the start is `rest` times a site that is computed from the
    outcomes (`GaussianSites.data_site`). For a mean-field q the start has the precision of this
    product, but the mean of `rest`, because separate steps of all coordinates would together be
    much too long. For other models the start is the normal approximation at the mode of cavity ×
    likelihood. The search for the mode starts at `centre`.
    """
    if isinstance(model, GaussianSites):
        site = model.data_site(family, task.records, task.weights)
        if isinstance(family, FullGaussian):
            return multiply(rest, site)
        quadratic = rest["quadratic"] + site["quadratic"]
        return {"linear": rest["linear"] * quadratic / rest["quadratic"], "quadratic": quadratic}

    def log_cavity(theta: Array) -> Array:
        parts = family.statistics(theta)
        return sum(jnp.sum(rest[name] * parts[name]) for name in rest)

    likelihood = party.log_likelihood(model, task)

    def look(theta: Array) -> WhitenedDerivatives:
        def log_joint(theta: Array) -> Array:
            return likelihood(theta) + log_cavity(theta)

        return party.with_hessian(log_joint, theta, len(theta))

    mode = find_mode(look, centre)
    eigen = absolute_eigen(-only_finite(look(mode))[0].hessian)
    scaled = (eigen.vectors * eigen.values) @ eigen.vectors.T
    form = scaled * eigen.scale[:, None] * eigen.scale
    if isinstance(family, FullGaussian):
        return {"linear": form @ mode, "quadratic": -0.5 * form}
    form = jnp.diagonal(form)
    return {"linear": form * mode, "quadratic": -0.5 * form}
