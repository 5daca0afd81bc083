"""Bounds on the result of several noisy `DPSGD` steps.

With several steps per visit the released sums cannot be recovered from the reply. But each sum has
a bounded norm, and the rule that computes the reply from the sums is public.

**One step.** Let r and R be the linear term and the precision of the cavity, raised to the power
`_prior_share` (by default 1). Let b and L be the linear term and the precision of the party's
factor. The local posterior has the precision P = max(R + L, floor) and the mean m = (r + b)/P.
Release number t gives the gradient G and the information K. With momentum β, velocity v and step
length η, a step is

    v ← βv + G + r − (P − L)m,    b ← b + ηv + ΔL m,    L ← L + ΔL,    ΔL = (K − L)/(t + 1).

**Bounds.** Bounds on |G| and |K| follow from clip, number of records and noise
(`reply_bounds_private.longest`), so L stays in an interval. Let P', m' and L' be the values after
the step. The step has P'm' = (P + ΔL)m + ηv and P + ΔL = R + L' + e, where e = max(0, floor − (R +
L)) is the precision that the floor adds. Therefore

    |m'| ≤ max(1 + e/P', −(R + L')/P')·|m| + η|v|/P'.

The bound on |m| gives |b| ≤ P|m| + |r|, and then the bounds of the next step. The party sends the
mean of (b, L) over the last steps.

**Adam and SGD.** Such steps move the mean and the log-sd of the local posterior. The length of
Adam's step is bounded for any gradient (`largest_adam_move`). The gradient of SGD in the mean is at
most |G| + |r| + |R||m|, and its gradient in the log-sd is clipped to ±1. After the steps, the
factor has b = P∘m − r and L = P − R.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.expfam import MeanFieldGaussian
from tacit.methods.adaptive import WITHIN, clip_scale, tally_weight
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.dpsgd.optimiser import LIMIT, largest_adam_move
from tacit.methods.private import Terms
from tacit.methods.reply_bounds import BrokenBound, Exchange
from tacit.models import Model
from tacit.models.capabilities import GaussianExpectations
from tacit.pvi import divide, power

ROUNDING_MARGIN = 1e-3
"""Margin for the relative rounding error of releases (float32) and of noise (lattice)."""


class Reach(NamedTuple):
    """Bounds on the linear term and the precision of a party's factor after its steps, one per
    coordinate.
    """

    linear: np.ndarray
    """Upper bound on |b|."""
    least: np.ndarray
    """Lower bound on L."""
    most: np.ndarray


class Steps(NamedTuple):
    """One visit with several steps, and bounds on its released sums."""

    model: Model
    family: MeanFieldGaussian
    method: DPSGD
    exchange: Exchange
    clip: float
    longest: float
    """Upper bound on the norm of a released sum."""
    noise: float
    """Upper bound on the norm of the noise in a released sum."""
    noise_sd: float
    """Lower bound on the sd of the noise. With less noise, steps may be longer and precisions
    smaller, so the smallest possible sd gives the widest bounds.
    """

    @property
    def scale(self) -> float:
        """Scale S by which an adaptive clip divides contributions at this visit. It is 1 if the
        clip is not adaptive.
        """
        if self.method.adaptive is None:
            return 1.0
        return float(clip_scale(self.exchange.public))

    def length(self, known: np.ndarray, number: float) -> np.ndarray:
        """Return an upper bound on the step length after release number `number`.

        `known` is an upper bound on the precision of q minus that of the prior. The step length
        increases with it.
        """
        exchange, settled = self.exchange, self.exchange.settled
        terms = Terms(
            settled.clip, self.scale * self.noise_sd, settled.shares, settled.units,
            settled.releases, None, None, exchange.visit / max(1, settled.visits - 1),
        )  # fmt: skip
        found = np.asarray(self.method._length(self.model, np.mean(known), number, terms))
        found = found * self.method.step_end**terms.progress
        return found * np.square(np.asarray(self.model.clip_scales(), np.float64))


def broken_steps(steps: Steps) -> BrokenBound | None:
    """Return a bound that the reply violates in some coordinate, or None if it satisfies all
    bounds.
    """
    exchange, names = steps.exchange, steps.model.names
    with np.errstate(all="ignore"):
        reach = _reach(steps)
        site, slack = exchange.site["linear"], exchange.slack("linear")
        limit = reach.linear * (1.0 + ROUNDING_MARGIN) + slack
        over = np.flatnonzero(np.abs(site) > limit)  # a NaN limit bounds nothing
        if len(over):
            worst = int(over[np.argmax(np.abs(site[over]) / np.maximum(limit[over], 1e-300))])
            name = f"linear term of {names[worst]!r}"
            return BrokenBound(name, abs(float(site[worst])), float(limit[worst]))
        precision = -2.0 * exchange.site["quadratic"]
        loose = ROUNDING_MARGIN * np.maximum(np.abs(reach.least), np.abs(reach.most))
        loose = loose + 2.0 * exchange.slack("quadratic")
        for sign, adjacency, bound in (
            (1.0, "at most", reach.most + loose),
            (-1.0, "at least", reach.least - loose),
        ):
            over = np.flatnonzero(sign * precision > sign * bound)
            if len(over):
                worst = int(over[np.argmax(sign * (precision - bound)[over])])
                name = f"precision of {names[worst]!r}"
                return BrokenBound(name, float(precision[worst]), float(bound[worst]), adjacency)
    return _broken_tally(steps)


def _broken_tally(steps: Steps) -> BrokenBound | None:
    """Return a `BrokenBound` if the reported count of units within the clip is impossibly large."""
    if steps.method.adaptive is None:
        return None
    exchange = steps.exchange
    value = abs(float(exchange.released[WITHIN])) / exchange.damping
    limit = steps.longest / (tally_weight(steps.clip) * steps.method.sampling_rate)
    limit *= 1.0 + ROUNDING_MARGIN
    limit += float(exchange.slack(WITHIN))
    return None if value <= limit else BrokenBound("count within the clip", value, limit)


class Start(NamedTuple):
    """Quantities at the start of the steps of a visit, for each coordinate."""

    factor: dict[str, np.ndarray]
    r: np.ndarray
    """Linear term of the cavity to the power of `_prior_share`."""
    others: np.ndarray
    """Precision of the cavity to the power of `_prior_share`."""
    prior: np.ndarray
    gradient: np.ndarray
    """Upper bound on |G|."""
    unit: float
    """Upper bound on the norm of a released sum, scaled to all records."""


def _start(steps: Steps) -> Start:
    model, method, exchange = steps.model, steps.method, steps.exchange
    names = ("linear", "quadratic")
    q, factor = ({name: part[name] for name in names} for part in (exchange.q, exchange.factor))
    rest = power(divide(q, factor), method._prior_share)
    prior = -2.0 * model.prior(steps.family)["quadratic"] * method._prior_share
    unit = steps.scale * steps.longest / method.sampling_rate
    gradient = unit / np.abs(np.asarray(model.clip_scales(), np.float64))
    return Start(factor, rest["linear"], -2.0 * rest["quadratic"], prior, gradient, unit)


def _free_reach(steps: Steps) -> Reach:
    """Return bounds on the party's factor after steps of Adam or SGD in mean and log-sd."""
    model, method, settled = steps.model, steps.method, steps.exchange.settled
    factor, r, others, prior, gradient, _ = _start(steps)
    progress = steps.exchange.visit / max(1, settled.visits - 1)
    number = np.asarray(float(settled.releases * method.parties))
    rates = method._rates(model, prior, number, np.asarray(progress))
    low = high = np.maximum(others - 2.0 * factor["quadratic"], prior)
    mean = np.abs((r + factor["linear"]) / low)
    velocity = slope = 0.0
    kept: list[Reach] = []
    for step in range(method.steps):
        if method.optimiser == "adam":
            velocity = slope = largest_adam_move(method.beta, step)
        else:
            velocity = method.beta * velocity + gradient + np.abs(r) + np.abs(others) * mean
            slope = method.beta * slope + LIMIT
        mean = mean + rates["location"] * velocity
        if method._precision(model) != "fixed":
            wide = np.exp(2.0 * rates["scale"] * slope)
            low, high = np.maximum(low / wide, prior), np.maximum(high * wide, prior)
        kept.append(Reach(high * mean + np.abs(r), low - others, high - others))
    return _averaged(method, kept)


def _averaged(method: DPSGD, kept: list[Reach]) -> Reach:
    kept = kept[-max(1, math.ceil(method.average_last * method.steps)) :]
    return Reach(*(np.mean(np.broadcast_arrays(*part), axis=0) for part in zip(*kept, strict=True)))


def _reach(steps: Steps) -> Reach:
    model, method, exchange = steps.model, steps.method, steps.exchange
    if method.optimiser != "natural":
        return _free_reach(steps)
    factor, r, others, prior, gradient, unit = _start(steps)
    information = unit / method._weight(model)
    # The mean information is a sum of squares: only noise makes it negative.
    squares = isinstance(model, GaussianExpectations) and method.unit == "record"
    negative = information
    if squares and method._precision(model) == "isotropic":
        negative = information * min(1.0, steps.noise / steps.longest + ROUNDING_MARGIN)
    learns = method._precision(model) != "fixed"
    doubt = method.precision_noise(model, 1.0) * steps.scale * steps.noise_sd

    def floor_at(number: float) -> np.ndarray:
        return prior + (doubt / math.sqrt(number) if number > 0 else 0.0)

    first = float(exchange.visit * method.steps)
    least = most = -2.0 * factor["quadratic"]
    floor = floor_at(first)
    mean = np.abs((r + factor["linear"]) / np.maximum(others + least, floor))
    linear, velocity = np.abs(factor["linear"]), np.zeros_like(mean)
    kept: list[Reach] = []
    for step in range(method.steps):
        number = first + step
        excess = np.maximum(floor - (others + least), 0.0)
        pull = np.maximum(np.abs(others), np.abs(np.maximum(others, floor - least)))
        velocity = method.beta * velocity + gradient + np.abs(r) + pull * mean
        push = steps.length(others + most - prior, number) * velocity
        change = 0.0
        if learns:
            weight = 1.0 / (number + 1.0)
            change = weight * np.maximum(np.abs(information - least), np.abs(negative + most))
            least = (1.0 - weight) * least - weight * negative
            most = (1.0 - weight) * most + weight * information
        linear = linear + push + change * mean
        floor = floor_at(number + 1.0)
        low, high = np.maximum(others + least, floor), np.maximum(others + most, floor)
        ratio = np.maximum(1.0 + excess / low, -(others + least) / low)
        mean = np.fmin((np.abs(r) + linear) / low, ratio * mean + push / low)
        linear = np.fmin(linear, high * mean + np.abs(r))
        kept.append(Reach(linear, least, most))
    return _averaged(method, kept)
