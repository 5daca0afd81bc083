"""The one-parameter regression y = θx + e of the MEng report as one compiled simulation.

q, the parties' factors and their clipped answers are arrays. A round is one step of a `lax.scan`;
seeds and settings are axes of a `vmap`. Parameters are natural parameters: η₁ the precision,
η₂ precision times mean (MEng 4.4). A form of the algorithm is a pure function of a round's state
and its noise; the forms are in meng_forms.py (unit: party) and meng_records.py (unit: record).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PRIOR_SD = 5.0
DOZEN = 12
NOISE_RANGE = (0.5, 2.0)
"""σ_e of the dataset-level figures is uniform between these."""


class Records(NamedTuple):
    """The parties' records x and y, (parties, records), with the θ and σ_e that generated them."""

    theta: Array
    noise_sd: Array
    x: Array
    y: Array


class Problem(NamedTuple):
    """Inputs of a form: one statistic per party, and the parties' records."""

    statistic: Array
    """(parties, 2): (Σx², Σxy)/σ_e², of all records or of clipped ones."""
    scale: Array
    """1/σ_e², which is public."""
    prior: Array
    x: Array
    y: Array


class Setting(NamedTuple):
    """Hyperparameters of a run; each is a number, or an array with one entry per setting."""

    clip: Any = 5.0
    rate: Any = 0.1
    """α, the share of an update (signal and noise) that is applied."""
    noise: Any = 5.0
    """σ, the noise sd of the sum divided by the clip."""
    share: Any = 1.0
    """The probability that a party takes part in a round, or a record in a step."""
    step: Any = 1e-5
    """DP-SGD's step size for the mean; for the log-variance it is `ratio` times as large."""
    ratio: Any = 5.0
    local: Any = 50
    """Number of DP-SGD steps at a party between two exchanges."""


class State(NamedTuple):
    """q and the factors after a round; `count` is the number of rejections or truncations."""

    q: Array
    t: Array
    count: Array


class Noise(NamedTuple):
    """Standard normals, and uniforms that decide who takes part."""

    z: Array
    u: Array


Step = Callable[[State, Problem, Setting, Noise], State]


class Trace(NamedTuple):
    """q after every round, (settings, seeds, rounds, 2), and `count` up to that round."""

    q: Array
    count: Array
    t: Array
    """The final factors, (settings, seeds, parties, 2)."""


def make_records(
    seed: int,
    seeds: int,
    *,
    parties: int = 20,
    records: int = 10,
    theta: float | None = None,
    noise_sd: float | tuple[float, float] = NOISE_RANGE,
    prior_sd: float = PRIOR_SD,
    uniform: bool = False,
) -> Records:
    """Records for `seeds` seeds: θ from the prior or given, x ~ N(0, 1) or uniform of variance 1.

    `noise_sd` is σ_e, or the range from which it is drawn. Seed k has the same records for any
    number of seeds.
    """
    low, high = noise_sd if isinstance(noise_sd, tuple) else (noise_sd, noise_sd)
    numbers = jnp.array([low, high, prior_sd, 0.0 if theta is None else theta])
    keys = _keys(seed, seeds, 0)
    return _made(keys, numbers, shape=(parties, records), drawn=theta is None, uniform=uniform)


@partial(jax.jit, static_argnames=("shape", "drawn", "uniform"))
def _made(
    keys: Array, numbers: Array, *, shape: tuple[int, int], drawn: bool, uniform: bool
) -> Records:
    low, high, prior_sd, theta = numbers

    def one(key: Array) -> Records:
        a, b, c, d = jax.random.split(key, 4)
        slope = prior_sd * jax.random.normal(a) if drawn else theta
        spread = low + (high - low) * jax.random.uniform(b)
        root = 3.0**0.5
        x = (
            jax.random.uniform(c, shape, minval=-root, maxval=root)
            if uniform
            else jax.random.normal(c, shape)
        )
        return Records(slope, spread, x, slope * x + spread * jax.random.normal(d, shape))

    return jax.vmap(one)(keys)


def noise_keys(seed: int, seeds: int) -> Array:
    """Keys of the privacy noise; the records use other keys."""
    return _keys(seed, seeds, 1)


def _keys(seed: int, seeds: int, purpose: int) -> Array:
    root = jax.random.fold_in(jax.random.key(seed), purpose)
    return jax.vmap(partial(jax.random.fold_in, root))(jnp.arange(seeds))


def natural_prior(prior_sd: float = PRIOR_SD) -> Array:
    """The prior N(0, sd²)."""
    return jnp.array([prior_sd**-2, 0.0])


def clipped(vectors: Array, bound: Any) -> Array:
    """Vectors along the last axis; longer ones are scaled down to norm `bound`."""
    norm = jnp.sqrt(jnp.sum(vectors**2, axis=-1, keepdims=True))
    return vectors / jnp.maximum(1.0, norm / bound)


def whole_statistics(records: Records, setting: Setting, prior: Array) -> Problem:
    """(Σx², Σxy)/σ_e² of all of a party's records: MEng 4.9–4.10."""
    del setting
    return _problem(records, jnp.inf, prior)


def record_statistics(records: Records, setting: Setting, prior: Array) -> Problem:
    """As `whole_statistics`, with every record's (x², xy) clipped to norm C (MEng 4.20–4.22)."""
    return _problem(records, setting.clip, prior)


def _problem(records: Records, bound: Any, prior: Array) -> Problem:
    pairs = jnp.stack([records.x**2, records.x * records.y], axis=-1)
    scale = records.noise_sd**-2
    return Problem(clipped(pairs, bound).sum(axis=-2) * scale, scale, prior, records.x, records.y)


def draw_round(key: Array, parties: int, records: int, local: int) -> Noise:
    """Draw the random numbers of one round.

    Without local steps, these are normals (parties, 2) and uniforms (parties,); with local steps,
    normals (local, parties, 2) and uniforms (local, parties, records).
    """
    a, b = jax.random.split(key)
    if local:
        shape = (local, parties)
        return Noise(jax.random.normal(a, (*shape, 2)), jax.random.uniform(b, (*shape, records)))
    return Noise(jax.random.normal(a, (parties, 2)), jax.random.uniform(b, (parties,)))


def start(problem: Problem) -> State:
    """The initial state: q is the prior, every factor is 1."""
    return State(problem.prior, jnp.zeros_like(problem.statistic), jnp.zeros(()))


def draw_rounds(keys: Array, *, parties: int, rounds: int, constant: bool = False) -> Noise:
    """The noise of all rounds, (seeds, rounds, …); if `constant`, the first round's is repeated."""
    if not constant:
        return _drawn(keys, parties=parties, rounds=rounds)
    once = _drawn(keys, parties=parties, rounds=1)
    return Noise(*(jnp.repeat(part, rounds, axis=1) for part in once))


@partial(jax.jit, static_argnames=("parties", "rounds"))
def _drawn(keys: Array, *, parties: int, rounds: int) -> Noise:
    def one(key: Array) -> Noise:
        each = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(rounds))
        return jax.vmap(lambda own: draw_round(own, parties, 1, 0))(each)

    return jax.vmap(one)(keys)


def simulate(
    step: Step,
    prepare: Callable[[Records, Setting, Array], Problem],
    records: Records,
    keys: Array,
    settings: Setting,
    prior: Array,
    *,
    rounds: int,
    local: int = 0,
    constant: bool = False,
    begin: tuple[Array, Array] | None = None,
) -> Trace:
    """Simulate all rounds for every setting and seed.

    Every field of `settings` is an array with one entry per setting. A seed has the same noise in
    all settings. If `constant`, the noise of the first round is used in all rounds, as if one
    release were reused. `begin` is the q and the factors to start from, with the leading axes
    (settings, seeds). `local` is the number of local steps; if it is not 0, the noise is drawn
    round by round, because that of all rounds would need too much memory.
    """
    parties = records.x.shape[1]
    drawn = None
    if not local:
        drawn = draw_rounds(keys, parties=parties, rounds=rounds, constant=constant)
    return _simulate(
        step, prepare, records, keys, settings, prior, drawn, begin, rounds=rounds, local=local
    )


@partial(jax.jit, static_argnames=("step", "prepare", "rounds", "local"))
def _simulate(
    step: Step,
    prepare: Callable[[Records, Setting, Array], Problem],
    records: Records,
    keys: Array,
    settings: Setting,
    prior: Array,
    noise: Noise | None,
    begin: tuple[Array, Array] | None,
    *,
    rounds: int,
    local: int,
) -> Trace:
    def one(setting: Setting, data: Records, key: Array, drawn: Any, begun: Any) -> Trace:
        problem = prepare(data, setting, prior)
        parties, number = data.x.shape
        first = start(problem)
        if begun is not None:
            first = first._replace(q=begun[0], t=begun[1])

        def advance(state: State, item: Any) -> tuple[State, tuple[Array, Array]]:
            if drawn is None:
                item = draw_round(jax.random.fold_in(key, item), parties, number, local)
            following = step(state, problem, setting, item)
            return following, (following.q, following.count)

        items = jnp.arange(rounds) if drawn is None else drawn
        last, (q, count) = jax.lax.scan(advance, first, items)
        return Trace(q, count, last.t)

    over_seeds = jax.vmap(one, in_axes=(None, 0, 0, 0, 0))
    over_settings = jax.vmap(over_seeds, in_axes=(0, None, None, None, 0))
    return over_settings(settings, records, keys, noise, begin)


def settings_of(*each: Setting) -> Setting:
    """Combine settings into one `Setting`, whose fields are arrays with one entry per setting."""
    return Setting(*(jnp.asarray(column, float) for column in zip(*each, strict=True)))


def summarised(records: Records) -> Records:
    """One record per party with the same Σx² and Σxy; the dataset level uses only these sums."""
    x, y = np.asarray(records.x), np.asarray(records.y)
    root = np.sqrt(np.sum(x**2, axis=-1, keepdims=True))
    product = np.sum(x * y, axis=-1, keepdims=True)
    return records._replace(x=jnp.asarray(root), y=jnp.asarray(product / root))


def padded(settings: Sequence[Setting]) -> Setting:
    """Combine settings like `settings_of`, and repeat the last to a multiple of `DOZEN` settings.

    Calls with different numbers of settings then share one compiled program.
    """
    few = list(settings)
    return settings_of(*few, *[few[-1]] * (-len(few) % DOZEN))


def exact_posterior(records: Records, prior: Array) -> np.ndarray:
    """Natural parameters of the exact posterior of each seed, (seeds, 2)."""
    x, y, sd = (np.asarray(part) for part in (records.x, records.y, records.noise_sd))
    sums = np.stack([np.sum(x**2, axis=(1, 2)), np.sum(x * y, axis=(1, 2))], axis=-1)
    return np.asarray(prior) + sums / sd[:, None] ** 2


def proper(q: Any, least: float = PRIOR_SD**-2) -> np.ndarray:
    """Return q with a precision of at least `least`, by default that of the prior.

    An exact posterior has at least the precision of the prior. This is applied to a q before it is
    evaluated, never to the q of the simulation, which stays unbiased.
    """
    q = np.asarray(q)
    return np.stack([np.maximum(q[..., 0], least), q[..., 1]], axis=-1)


def divergence(q: Any, p: Any) -> np.ndarray:
    """KL(q ‖ p) of Gaussians with natural parameters along the last axis.

    >>> float(divergence([2.0, 1.0], [2.0, 1.0]))
    0.0
    """
    q, p = np.asarray(q, float), np.asarray(p, float)
    ratio = p[..., 0] / q[..., 0]
    apart = q[..., 1] / q[..., 0] - p[..., 1] / p[..., 0]
    return 0.5 * (ratio - 1.0 - np.log(ratio) + p[..., 0] * apart**2)
