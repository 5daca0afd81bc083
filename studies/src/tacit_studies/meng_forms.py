"""Forms of the report's dataset-level algorithm (Alg. 3): the unit is a party.

Every party's answer is Δ_m = s_m − t_m, with s_m its statistic and t_m its factor (MEng 4.29). A
neighbour has the same parties, but one of them contributes nothing and still adds its share of the
noise: add-or-remove-one with a public number of parties M. A round releases
R = Σ clip(Δ_m, C) + σC·N(0, I), and α·R is applied.

For a valid ε, given the earlier rounds, R must differ between neighbours by no more than the
sensitivity. If a factor keeps a share of the noise, the next answers subtract that share, summed
over all parties. This sum is R minus the answers, which include party m's answer. The noise of the
earlier rounds then no longer hides party m, and the sensitivity grows from round to round. The
published accounting (noise σ in every round, independent of earlier rounds) is therefore valid only
for forms whose factors keep no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp

from tacit.privacy.events import GaussianEvent, Poisson
from tacit_studies.meng_kernel import (
    Array,
    Noise,
    Problem,
    Setting,
    State,
    Step,
    clipped,
)

Events = Callable[[Setting, int, int], list[GaussianEvent]]


def roll_back(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(a) Alg. 3 corrected: t_m += α(clip(Δ_m, C) + σC·z_m/√M), q += their sum, or nothing.

    The server rejects a round that would make q improper; the factors then do not change.
    Sensitivity: C per message, with noise σC/√M. The form is valid with the ε of the messages, and
    then needs no trusted party. The ε of their sum with noise σC, which the report claims, is not
    valid, because the factors keep the shares of the noise.
    """
    spread = setting.noise * setting.clip / math.sqrt(len(state.t))
    update = setting.rate * (
        clipped(problem.statistic - state.t, setting.clip) + spread * noise.z
    )  # fmt: skip
    return _unless_improper(state, state.q + update.sum(axis=0), state.t + update)


def log_precision(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(b) Clip and noise on the scale of the public q: the change of log η₁, and of μ in sds.

    h_m = (Δ₁/η₁, (Δ₂ − μΔ₁)/√η₁), which is A⁻¹Δ_m for a matrix A that the public q
    determines; R = Σ clip(h_m, C) + σC·z. With x = αR₁ and f = 1 + x, or f = eˣ if x < 0: η₁ ← η₁·f
    and μ ← μ + αR₂/(√η₁·f). q is always proper, and for x ≥ 0 this equals η += αA·R.
    t_m += αA·clip(h_m, C), without noise.
    Sensitivity C: given the earlier rounds, A and the other parties' h are fixed. Valid.
    """
    precision, mean = state.q[0], state.q[1] / state.q[0]
    root = jnp.sqrt(precision)
    change = problem.statistic - state.t
    h = jnp.stack(
        [change[:, 0] / precision, (change[:, 1] - mean * change[:, 0]) / root], axis=-1
    )  # fmt: skip
    h = clipped(h, setting.clip)
    released = h.sum(axis=0) + _central(noise, setting)
    x = setting.rate * released[0]
    factor = jnp.where(x < 0, jnp.exp(jnp.minimum(x, 0.0)), 1.0 + x)
    precise = precision * factor
    moved = mean + setting.rate * released[1] / (root * factor)
    own = jnp.stack([precision * h[:, 0], root * h[:, 1] + mean * precision * h[:, 0]], axis=-1)
    q = jnp.stack([precise, precise * moved])
    return State(q, state.t + setting.rate * own, state.count)


def server_factor(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(c) t_m += α·clip(Δ_m, C); the noise stays in a separate factor of the server.

    q += α(Σ clip(Δ_m, C) + σC·z), rejected and rolled back if this is improper. Sensitivity C:
    factors are functions of their party's data and of the public rejections. Valid. No later answer
    subtracts the noise: after T rounds its sd is ασC√T in either parameter.
    """
    answer = clipped(problem.statistic - state.t, setting.clip)
    total = answer.sum(axis=0) + _central(noise, setting)
    following = state.t + setting.rate * answer
    return _unless_improper(state, state.q + setting.rate * total, following)


def server_side(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(d) A trusted server gets exact Δ_m, clips, adds noise and puts 1/M of it in each factor.

    t_m += α(clip(Δ_m, C) + σC·z/M). The sensitivity is C in the first round and larger in each
    later round (`feedback_sensitivity`). Valid with the ε of these sensitivities, not of C in every
    round. If the factors kept no noise, this would be (c), with noise added by the server.
    """
    answer = clipped(problem.statistic - state.t, setting.clip)
    update = setting.rate * (answer + _central(noise, setting) / len(state.t))
    return _unless_improper(state, state.q + update.sum(axis=0), state.t + update)


def random_subset(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(e) As (c), but each party secretly takes part in a round with probability `share`.

    Parties take part independently of each other (Poisson sampling, for which the accountant has a
    bound), so that their number varies. All parties add their share of the noise. Sensitivity C,
    sampled at rate `share`. Valid even if it is known which other parties take part.
    """
    taking = (noise.u < setting.share)[:, None]
    answer = jnp.where(taking, clipped(problem.statistic - state.t, setting.clip), 0.0)
    total = answer.sum(axis=0) + _central(noise, setting)
    following = state.t + setting.rate * answer
    return _unless_improper(state, state.q + setting.rate * total, following)


def equal_parts(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(g) As (a), but every factor is an equal part of the release: t_m = (q − prior)/M.

    The library's form "roll-back". Sensitivity C: given the public q, a party's answer
    depends only on its own data. Valid. Later answers subtract the noise, because it is in q. But a
    party's factor is not its true share, and a clip smaller than the difference biases q.
    """
    factor = (state.q - problem.prior) / len(state.t)
    total = clipped(problem.statistic - factor, setting.clip).sum(axis=0) + _central(noise, setting)
    q = state.q + setting.rate * total
    part = jnp.broadcast_to((q - problem.prior) / len(state.t), state.t.shape)
    return _unless_improper(state, q, part)


def even(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(h) As (g), with score and precision clipped together, and a floor for the precision.

    The library's form "even": h_m = (Δ₂ − μΔ₁, κΔ₁), κ = 0.2; η₁ ← max(η₁ + αR₁/κ, floor), where
    the floor is the prior's η₁ or, if larger, 1.5 sd of the noise that remains in η₁ with damping;
    μ ← μ + αR₂/η₁.
    Sensitivity C, as (g). Valid.
    """
    weight, doubts = 0.2, 1.5
    mean = state.q[1] / state.q[0]
    change = problem.statistic - (state.q - problem.prior) / len(state.t)
    h = jnp.stack([weight * change[:, 0], change[:, 1] - mean * change[:, 0]], axis=-1)
    released = clipped(h, setting.clip).sum(axis=0) + _central(noise, setting)
    left = setting.rate / (2.0 - setting.rate)
    floor = doubts * setting.noise * setting.clip / weight * jnp.sqrt(left)
    floor = jnp.maximum(problem.prior[0], floor)
    precision = jnp.maximum(state.q[0] + setting.rate * released[0] / weight, floor)
    q = jnp.stack([precision, precision * mean + setting.rate * released[1]])
    part = jnp.broadcast_to((q - problem.prior) / len(state.t), state.t.shape)
    return State(q, part, state.count)


def published_invalid(state: State, problem: Problem, setting: Setting, noise: Noise) -> State:
    """(f) The published form, MEng 4.28: as (a), but a party's precision update is at least −t_m1.

    NOT VALID as claimed: a sum of truncated normals is not N(·, σ²C²), and the factors keep the
    noise. It has no ε here. `count` is the number of truncations.
    """
    spread = setting.noise * setting.clip / math.sqrt(len(state.t))
    update = setting.rate * (
        clipped(problem.statistic - state.t, setting.clip) + spread * noise.z
    )  # fmt: skip
    cut = update[:, 0] < -state.t[:, 0]
    update = update.at[:, 0].set(jnp.maximum(update[:, 0], -state.t[:, 0]))
    return State(state.q + update.sum(axis=0), state.t + update, state.count + cut.sum())


def _central(noise: Noise, setting: Setting) -> Array:
    """σC·N(0, I): the sum of M shares of sd σC/√M."""
    return setting.noise * setting.clip * noise.z.sum(axis=0) / math.sqrt(len(noise.z))


def _unless_improper(state: State, q: Array, t: Array) -> State:
    keep = q[0] > 0
    return State(
        jnp.where(keep, q, state.q), jnp.where(keep, t, state.t), state.count + (1.0 - keep)
    )


def feedback_sensitivity(clip: float, rate: float, parties: int, rounds: int) -> list[float]:
    """Sensitivity of each round's sum if every factor keeps a known part of the noise.

    Let d_j be the difference of party j's factor between the two neighbours, given the same R, and
    p_j the difference of its answer. The mean of R differs by e ≤ C + Σ|p_j|. clip is a projection
    on a ball, so ⟨p, d⟩ ≥ |p|², hence |d − αp|² ≤ |d|² − α(2 − α)|p|². The inferred noise differs
    by e, so Σ|d'| ≤ Σ|d − αp| + αe. Maximised over |p|, this is Σ|d'| ≤ Σ|d|/√(1 − α/2) + αC. No
    answer changes by more than 2C.

    >>> [round(e, 3) for e in feedback_sensitivity(1.0, 0.1, 20, 3)]
    [1.0, 1.1, 1.203]
    """
    apart, found = 0.0, []
    for _ in range(rounds):
        found.append(min(clip + apart, (2 * parties - 1) * clip))
        apart = apart / math.sqrt(1.0 - rate / 2.0) + rate * clip
    return found


def _of_sum(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    del parties
    sampling = None if setting.share >= 1 else Poisson(rate=float(setting.share))
    sd = float(setting.noise * setting.clip)
    return [GaussianEvent(clip=float(setting.clip), noise_sd=sd, count=rounds, sampling=sampling)]


def _of_messages(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    sd = float(setting.noise * setting.clip) / math.sqrt(parties)
    return [GaussianEvent(clip=float(setting.clip), noise_sd=sd, count=rounds)]


def _of_feedback(setting: Setting, parties: int, rounds: int) -> list[GaussianEvent]:
    sd = float(setting.noise * setting.clip)
    moves = feedback_sensitivity(float(setting.clip), float(setting.rate), parties, rounds)
    return [GaussianEvent(clip=move, noise_sd=sd) for move in moves]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of the algorithm and the events of its releases; without `events` it has no ε."""

    name: str
    label: str
    step: Step
    unit: str
    sensitivity: str
    trust: str
    events: Events | None
    adjacency: str = "add-or-remove-one"

    @property
    def valid(self) -> bool:
        """True if a valid ε is known for the form."""
        return self.events is not None


_SERVER = "the aggregator"
DATASET_FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form(
            name="roll_back",
            label="(a) reject and roll back",
            step=roll_back,
            unit="party",
            sensitivity="C, noise σC/√M per message",
            trust="none",
            events=_of_messages,
        ),
        Form(
            name="log_precision",
            label="(b) log-precision",
            step=log_precision,
            unit="party",
            sensitivity="C, noise σC",
            trust=_SERVER,
            events=_of_sum,
        ),
        Form(
            name="server_factor",
            label="(c) noise in a server factor",
            step=server_factor,
            unit="party",
            sensitivity="C, noise σC",
            trust=_SERVER,
            events=_of_sum,
        ),
        Form(
            name="server_side",
            label="(d) server clips, noise spread",
            step=server_side,
            unit="party",
            sensitivity="growing from C, noise σC",
            trust=_SERVER,
            events=_of_feedback,
        ),
        Form(
            name="random_subset",
            label="(e) random subset",
            step=random_subset,
            unit="party",
            sensitivity="C, Poisson-sampled, noise σC",
            trust=_SERVER,
            events=_of_sum,
        ),
        Form(
            name="equal_parts",
            label="(g) reject, equal public factors",
            step=equal_parts,
            unit="party",
            sensitivity="C, noise σC",
            trust=_SERVER,
            events=_of_sum,
        ),
        Form(
            name="even",
            label="(h) score and precision, floor",
            step=even,
            unit="party",
            sensitivity="C, noise σC",
            trust=_SERVER,
            events=_of_sum,
        ),
        Form(
            name="published_invalid",
            label="(f) published, invalid",
            step=published_invalid,
            unit="party",
            sensitivity="none derived",
            trust="–",
            events=None,
        ),
    )
}
