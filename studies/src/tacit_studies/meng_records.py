"""Forms of the report's datapoint-level algorithm: the unit is a record, added or removed.

A form is a variant of the algorithm (`tacit_studies.meng_kernel`). A party's message protects its
own records, so no other party is trusted. Unlike in `tacit_studies.meng_forms`, a factor may
contain noise: it depends only on the messages of its party, and each record is at one party.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tacit.privacy.events import GaussianEvent, Poisson
from tacit_studies.meng_forms import Form
from tacit_studies.meng_kernel import Array, Noise, Problem, Setting, State, clipped

LARGEST_MOVE = 0.5
"""Largest change of the log-variance in one DP-SGD step (the report's gradient threshold)."""


def _noisy(problem: Problem, setting: Setting, noise: Noise) -> Array:
    """(Σ clip((x², xy), C) + σC·z)/σ_e², for a problem whose statistic is already clipped."""
    return problem.statistic + problem.scale * setting.noise * setting.clip * noise.z


def _towards(state: State, setting: Setting, statistic: Array, count: Array) -> State:
    change = setting.rate * (statistic - state.t)
    return State(state.q + change.sum(axis=0), state.t + change, state.count + count)


def truncated_statistics(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """MEng 4.20–4.23: t_m += α(s̃_m − t_m), s̃_m1 = max{0, Σ clip(x²) + σC·z₁}/σ_e².

    Sensitivity C: a record is in one sum, with norm ≤ C. Valid: max is applied to
    private numbers. It biases the precision upwards (4.26). `count` is the number of truncations.
    """
    found = _noisy(problem, setting, noise)
    cut = found[:, 0] < 0
    found = found.at[:, 0].set(jnp.maximum(found[:, 0], 0.0))
    return _towards(state, setting, found, cut.sum())


def raw_statistics(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """As `truncated_statistics` without the max, so that the statistics are unbiased.

    Sensitivity C. Valid. q may be improper; it is made proper before it is evaluated (`proper`).
    """
    return _towards(state, setting, _noisy(problem, setting, noise), jnp.zeros(()))


def fixed_likelihood(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """MEng §5.1: the statistic is released once; all later updates use it at no further cost.

    t_m += α(s̃_m − t_m) with one s̃_m in all rounds: the noise is that of the first round
    (`simulate(constant=True)`). Sensitivity C, one release. Valid.
    """
    return _towards(state, setting, _noisy(problem, setting, noise), jnp.zeros(()))


def noisy_gradient(
    at: Array, problem: Problem, setting: Setting, noise: tuple[Array, Array], cavity: Array
) -> Array:
    """∂F/∂(μ, ln σ²) of every party (MEng 4.16–4.19), with a clipped and noisy likelihood part.

    A record's part is (−(x²μ − xy), −x²σ²/2)/σ_e², clipped to C; the batch's sum gets σC·z and is
    divided by the sampling probability. The part of the cavity N(c₂/c₁, 1/c₁), which depends on no
    record, is added afterwards: (c₂ − c₁μ, ½ − c₁σ²/2).
    """
    mean, variance = at[:, 0, None], jnp.exp(at[:, 1, None])
    parts = jnp.stack(
        [problem.x * problem.y - problem.x**2 * mean, -0.5 * problem.x**2 * variance], axis=-1
    )
    z, u = noise
    taken = (u < setting.share)[..., None] * clipped(parts * problem.scale, setting.clip)
    data = (taken.sum(axis=-2) + setting.noise * setting.clip * z) / setting.share
    mean, variance = mean[:, 0], variance[:, 0]
    rest = jnp.stack(
        [cavity[:, 1] - cavity[:, 0] * mean, 0.5 - 0.5 * cavity[:, 0] * variance], axis=-1
    )
    return data + rest


def dpsgd(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """MEng §4.2.1: every party takes steps of DP-SGD on (μ, ln σ²) from q; then t_m += (q_m − q)/M.

    It uses the sum of the CLIPPED gradients (Alg. 1 line 8 corrected). Sensitivity C per step,
    Poisson-sampled at `share`. Valid. q stays proper, because it is the mean of the parties' q_m.
    """
    parties = len(state.t)
    begin = jnp.array([state.q[1] / state.q[0], -jnp.log(state.q[0])])
    cavity = state.q - state.t
    pace = jnp.array([setting.step, setting.step * setting.ratio])

    def local(at: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
        move = pace * noisy_gradient(at, problem, setting, one, cavity)
        limit = jnp.array([jnp.inf, LARGEST_MOVE])
        return at + jnp.clip(move, -limit, limit), None

    end = jax.lax.scan(local, jnp.tile(begin, (parties, 1)), (noise.z, noise.u))[0]
    precision = jnp.exp(-end[:, 1])
    change = (jnp.stack([precision, precision * end[:, 0]], axis=-1) - state.q) / parties
    return State(state.q + change.sum(axis=0), state.t + change, state.count)


def _of_statistics(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    del parties
    sd = float(setting.noise * setting.clip)
    return [GaussianEvent(clip=float(setting.clip), noise_sd=sd, count=rounds)]


def _of_one(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    del rounds
    return _of_statistics(setting, parties, 1)


def _of_steps(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    del parties
    sd = float(setting.noise * setting.clip)
    sampling = None if setting.share >= 1 else Poisson(rate=float(setting.share))
    count = rounds * int(setting.local)
    return [GaussianEvent(clip=float(setting.clip), noise_sd=sd, count=count, sampling=sampling)]


RECORD_FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form(
            name="truncated_statistics",
            label="statistics, max{0, ·}",
            step=truncated_statistics,
            unit="record",
            sensitivity="C, noise σC",
            trust="none",
            events=_of_statistics,
        ),
        Form(
            name="raw_statistics",
            label="statistics, unbiased",
            step=raw_statistics,
            unit="record",
            sensitivity="C, noise σC",
            trust="none",
            events=_of_statistics,
        ),
        Form(
            name="fixed_likelihood",
            label="fixed private likelihood",
            step=fixed_likelihood,
            unit="record",
            sensitivity="C, noise σC, once",
            trust="none",
            events=_of_one,
        ),
        Form(
            name="dp-sgd",
            label="DP-SGD",
            step=dpsgd,
            unit="record",
            sensitivity="C per step, Poisson-sampled",
            trust="none",
            events=_of_steps,
        ),
    )
}
