"""Bounds on the norm of private replies, which are noisy sums of clipped contributions.

A party of at most n units releases S = Σ cᵢ + ξ, a vector of k numbers. The contribution cᵢ of unit
i has norm at most the clip C. The noise is ξ ~ N(0, σ²I/M), where M is the number of parties that
share the noise. C, σ and M are public, and

    ‖S‖ ≤ n C + (σ/√M) √(k + 2√(kx) + 2x)

except with probability e⁻ˣ (Laurent and Massart 2000, lemma 1). With x = 28 this probability is
7·10⁻¹³. The server recovers the release from the reply by inverting the method's public
post-processing.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from tacit.arrays import Arrays
from tacit.expfam import Dirichlets, Family, Gaussian, MeanFieldGaussian
from tacit.methods.adaptive import WITHIN, clip_scale, norm_of, tally_weight
from tacit.methods.base import LocalMethod
from tacit.methods.conjugate.method import PrivateConjugateStages
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.hybrid import Hybrid
from tacit.methods.private import PrivateMethod, Terms
from tacit.methods.reply_bounds import BrokenBound, Exchange
from tacit.methods.reply_bounds_steps import Steps, broken_steps
from tacit.methods.scores.method import PrivateScores
from tacit.methods.scoring.method import PrivateScoring
from tacit.methods.scoring.stages import COUNTS
from tacit.methods.scoring.units import counted_columns
from tacit.methods.statistics.method import PrivateStatistics
from tacit.methods.update.method import PrivateUpdate
from tacit.methods.whitening import MOMENT, Whitened
from tacit.models import Model
from tacit.models.capabilities import Scores
from tacit.models.statistics import whole
from tacit.privacy.events import GaussianEvent, LaplaceEvent
from tacit.pvi import power

TAIL_EXPONENT = 28.0
ROUNDING = 1e-4
"""Relative error of contributions rounded to float32 and noise rounded to a lattice."""


def broken_private_bound(
    model: Model, family: Family, method: LocalMethod, exchange: Exchange
) -> BrokenBound | None:
    """Return the violated bound if the norm of a private release is impossibly large; otherwise
    return None.

    Clip, number of records and noise determine how large the norm may be.
    """
    if exchange.settled is None or not isinstance(method, PrivateMethod):
        return None
    if isinstance(method, Whitened):
        return _broken_whitened(model, method, exchange)
    if isinstance(method, Hybrid):
        return _broken_by(
            model, family, method.first if exchange.visit == 0 else method.then, exchange
        )
    return _broken_by(model, family, method, exchange)


def _broken_by(
    model: Model, family: Family, method: PrivateMethod, exchange: Exchange
) -> BrokenBound | None:
    event = _event(exchange)
    if isinstance(method, PrivateScoring):
        return _broken_scoring(model, method, exchange, event)
    if isinstance(method, PrivateScores):
        return _broken_scores(model, method, exchange, event)
    if isinstance(method, PrivateConjugateStages):
        stage = method.stage_at(exchange.visit).name
        lost = event.clip * float(np.linalg.norm(exchange.slack(stage)))
        released = [exchange.released[stage] * event.clip]
        return _compared("statistics", released, lost, exchange, event, exchange.records)
    if isinstance(method, PrivateStatistics):
        return _broken_statistics(model, family, method, exchange, event)
    if isinstance(method, PrivateUpdate):
        return _broken_update(method, exchange, event)
    if isinstance(method, DPSGD) and isinstance(family, MeanFieldGaussian):
        if method.steps == 1 and method._prior_share == 1.0:
            return _broken_gradient(model, family, method, exchange, event)
        numbers = 2 * model.dimension + 1
        noise = longest(event, exchange.settled.shares, 0.0, numbers)
        most = exchange.records * event.clip + noise
        return broken_steps(
            Steps(model, family, method, exchange, event.clip, most, noise, event.noise_sd)
        )
    return None


def _event(exchange: Exchange) -> GaussianEvent:
    # A visit without events repeats the release of the first visit.
    events = exchange.settled.events_at(exchange.visit) or exchange.settled.events_at(0)
    return events[0]


def longest(event: GaussianEvent, shares: int, contributions: float, numbers: int) -> float:
    """Return a bound that the norm of one party's release exceeds with probability at most 7·10⁻¹³.

    The release is a sum of at most `contributions` vectors, each clipped to the event's clip, and
    has `numbers` coordinates. `shares` parties share the event's noise.
    """
    if isinstance(event, LaplaceEvent):
        # Σ |ξ| is a gamma variable: b(k + √(2kx) + x) except with probability e⁻ˣ.
        noise = numbers + math.sqrt(2.0 * numbers * TAIL_EXPONENT) + TAIL_EXPONENT
        return contributions * event.clip + event.scale * noise
    noise = math.sqrt(numbers + 2.0 * math.sqrt(numbers * TAIL_EXPONENT) + 2.0 * TAIL_EXPONENT)
    return contributions * event.clip + event.noise_sd / math.sqrt(shares) * noise


def broken_sum_bound(
    method: PrivateMethod,
    settled: Any,
    visit: int,
    terms: int,
    records: float,
    integers: Arrays,
) -> BrokenBound | None:
    """Return a `BrokenBound` if the sum of the integers that `terms` parties released has an
    impossibly large norm; otherwise return None.

    The bound allows for `records` contributions whose norm is the clip, for the noise of `terms`
    parties, and for rounding.
    """
    event = settled.events_at(visit) or settled.events_at(0)
    clip, step = event[0].clip, event[0].step
    contributions = records
    inner = method.bound_inner if isinstance(method, Whitened) else method
    if method.unit == "party":
        contributions = float(terms)
    elif isinstance(inner, PrivateUpdate) and (inner.shards or inner.objective == "averaged"):
        contributions = max(records, float(terms * inner.shards_of(0)))
    parts = [step * np.ravel(value).astype(np.float64) for value in integers.values()]
    norm = float(np.linalg.norm(np.concatenate(parts)))
    numbers = sum(part.size for part in parts)
    noise = msgspec.structs.replace(event[0], noise_sd=event[0].noise_sd * math.sqrt(terms))
    limit = longest(noise, settled.shares, 0.0, numbers) + contributions * clip
    limit = limit * (1.0 + ROUNDING) + step * terms * math.sqrt(numbers)
    return None if norm <= limit else BrokenBound("norm of the sum", norm, limit)


def _compared(
    name: str, released: list[Any], lost: float, exchange: Exchange, event: GaussianEvent,
    contributions: float,
) -> BrokenBound | None:  # fmt: skip
    parts = [np.ravel(np.asarray(part, np.float64)) for part in released]
    norm = float(np.linalg.norm(np.concatenate(parts)))
    numbers = sum(part.size for part in parts)
    limit = longest(event, exchange.settled.shares, contributions, numbers)
    limit = limit * (1.0 + ROUNDING) + lost
    return None if norm <= limit else BrokenBound(f"norm of its {name}", norm, limit)


def _lost(exchange: Exchange, scale: float = 1.0) -> float:
    """Return a bound on the rounding error of the norm of the released arrays times `scale`."""
    return scale * math.sqrt(
        sum(float(np.sum(np.square(exchange.slack(name)))) for name in exchange.released)
    )


def _broken_scoring(
    model: Model, method: PrivateScoring, exchange: Exchange, event: GaussianEvent
) -> BrokenBound | None:
    """Check the norm of the released counts, second moment or scores.

    They are the arrays of the reply times a public constant.
    """
    assert isinstance(model, Scores)
    stage = method.stage_at(exchange.visit).name
    unit = event.clip
    if stage == COUNTS:
        unit /= math.sqrt(counted_columns(model).columns)
    lost = unit * float(np.linalg.norm(exchange.slack(stage)))
    released = [exchange.released[stage] * unit]
    return _compared(stage, released, lost, exchange, event, exchange.records)


def _broken_scores(
    model: Model, method: PrivateScores, exchange: Exchange, event: GaussianEvent
) -> BrokenBound | None:
    """Check the norm of the released sum, which is the array of the reply times a public
    constant.
    """
    stage = method.stage_at(exchange.visit).name
    unit = event.clip / method.bound_of(model, stage)
    lost = unit * float(np.linalg.norm(exchange.slack(stage)))
    released = [exchange.released[stage] * unit]
    return _compared(stage, released, lost, exchange, event, exchange.records)


def _broken_statistics(
    model: Model,
    family: Family,
    method: PrivateStatistics,
    exchange: Exchange,
    event: GaussianEvent,
) -> BrokenBound | None:
    """Return the bound that the norm of a party's released statistics violates, or None if the norm
    is within its bound.

    The party's reply is a factor, which is a linear function of the released statistics
    (`gaussian_factor`). The statistics are computed back from the factor. Their norm is bounded by
    the clip, the number of records and the noise in `event`.
    """
    site, scale = exchange.site, method.sampling_rate / model.statistics_unit
    counted = []
    if method.adaptive is not None:
        scale /= float(clip_scale(exchange.public))
    if WITHIN in exchange.released:
        share = method.sampling_rate * exchange.released[WITHIN] / exchange.damping
        counted = [tally_weight(event.clip, norm_of(event)) * share]
    if isinstance(family, Dirichlets):
        released = [scale * site["log"], *counted]
        return _compared(
            "counts", released, _lost(exchange, scale), exchange, event, exchange.records
        )
    if not isinstance(family, Gaussian):
        return None
    precision = -2.0 * site["quadratic"]
    linear, weight = site["linear"], method.precision_weight
    spread = 1.0
    if not whole(family):
        mean = exchange.q["linear"] / (-2.0 * exchange.q["quadratic"])
        linear, spread = linear - precision * mean, 1.0 + float(np.max(np.abs(mean), initial=0.0))
    elif precision.ndim == 2:
        rows, columns = np.triu_indices(len(precision))
        precision = precision[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))
    released = [scale * linear, scale * weight * precision, *counted]
    lost = _lost(exchange, 4.0 * scale * spread * max(1.0, weight))
    return _compared("statistics", released, lost, exchange, event, exchange.records)


def _broken_update(
    method: PrivateUpdate, exchange: Exchange, event: GaussianEvent
) -> BrokenBound | None:
    """Check the norm of an update: the sum of one clipped vector per shard, plus noise."""
    form, scale, counted = method._form, 1.0, []
    change = power(exchange.released, 1.0 / exchange.damping)
    if method.adaptive is not None:
        scale = float(clip_scale(exchange.public))
        counted = [tally_weight(method._contributed(event.clip)) * change.pop(WITHIN)]
    released = power(form.coordinates(exchange.q, change), 1.0 / scale)
    scales = form.scales(exchange.q)
    widest = max(float(np.max(1.0 / np.asarray(value))) for value in scales.values())
    mean = exchange.q["linear"] / (-2.0 * exchange.q["quadratic"])
    spread = 4.0 * widest * (1.0 + float(np.max(np.abs(mean), initial=0.0))) / scale
    shards = math.inf
    if method.shards is not None or method.objective == "averaged":
        shards = method.shards_of(0)
    elif math.isfinite(exchange.records):
        shards = method.shards_of(math.ceil(exchange.records))
    # Under add-or-remove-one the event has 2C, twice what one shard contributes: the bound holds.
    return _compared(
        "update", [*released.values(), *counted], _lost(exchange, spread), exchange, event, shards
    )


def _broken_gradient(
    model: Model, family: MeanFieldGaussian, method: DPSGD, exchange: Exchange, event: GaussianEvent
) -> BrokenBound | None:
    """Check the norm of the released sum of a method with one step per visit. The sum is recovered
    from the reply.
    """
    names = ("linear", "quadratic")
    q, factor, delta = (
        {name: natural[name] for name in names}
        for natural in (exchange.q, exchange.factor, exchange.released)
    )
    scale = 1.0 if method.adaptive is None else float(clip_scale(exchange.public))
    # If the server makes the step, the reply is a full step: length 1, without averaging.
    whole_step = method.steps_at_server
    settled, number = exchange.settled, 0.0 if whole_step else float(exchange.visit)
    noise_sd = scale * event.noise_sd
    least = -2.0 * model.prior(family)["quadratic"]
    doubt = method.precision_noise(model, 1.0) * noise_sd
    floor = least + (doubt / math.sqrt(max(number, 1.0)) if number > 0 else 0.0)
    precision = -2.0 * q["quadratic"]
    mean = q["linear"] / np.maximum(precision, floor)
    terms = Terms(
        settled.clip, noise_sd, settled.shares, settled.units, settled.releases, None, None,
        exchange.visit / max(1, settled.visits - 1),
    )  # fmt: skip
    known = np.mean(precision - least)
    length = np.ones(())
    if not whole_step:
        length = np.asarray(method._length(model, known, number, terms), np.float64)
        length = length * method.step_end**terms.progress
        length = length * np.square(np.asarray(model.clip_scales()))
    change = power(delta, 1.0 / exchange.damping)
    added, old = -2.0 * change["quadratic"], -2.0 * factor["quadratic"]
    information = old + (number + 1.0) * added
    length = np.broadcast_to(length, mean.shape)
    moved = change["linear"] - added * mean
    # A step of length 0 only moves by rounding and reveals nothing about the gradient.
    still = length < np.finfo(np.float64).tiny
    if np.any(np.abs(moved[still]) > 8.0 * _lost(exchange, 1.0 + float(np.max(np.abs(mean))))):
        return BrokenBound("step of length 0", float(np.max(np.abs(moved[still]))), 0.0)
    length = np.where(still, 1.0, length)
    gradient = np.where(still, 0.0, moved / length + factor["linear"] - old * mean)
    free = {"location": mean, "scale": -0.5 * np.log(np.maximum(precision, floor))}
    maps = method._maps(model, free, np.ones(()))
    maps = {name: np.asarray(value, np.float64) for name, value in maps.items()}
    unit = method.sampling_rate / scale
    released = [maps["location"] * gradient * unit]
    if "information" in maps:
        released.append(maps["information"] * np.mean(information) * unit)
    if "scale" in maps:
        released.append(maps["scale"] * information * np.exp(2.0 * free["scale"]) * unit)
    if method.adaptive is not None:
        share = method.sampling_rate * exchange.released[WITHIN] / exchange.damping
        released.append(tally_weight(event.clip) * share)
    widest = max(float(np.max(np.abs(value))) for value in maps.values()) * unit
    widest *= (1.0 + float(np.max(np.abs(mean)))) * max(float(np.max(1.0 / length)), number + 1.0)
    return _compared(
        "gradient", released, _lost(exchange, 8.0 * widest), exchange, event, exchange.records
    )


def _broken_whitened(model: Model, method: Whitened, exchange: Exchange) -> BrokenBound | None:
    event = _event(exchange)
    if exchange.visit == 0:
        lost = float(np.linalg.norm(exchange.slack(MOMENT)))
        released = [exchange.released[MOMENT]]
        return _compared("second moment", released, lost, exchange, event, exchange.records)
    settled = exchange.settled
    answers = settled.answers[1:] if len(settled.answers) > 1 else settled.answers
    inner = exchange._replace(
        visit=exchange.visit - 1,
        settled=msgspec.structs.replace(settled, visits=settled.visits - 1, answers=answers),
    )
    return _broken_by(model, MeanFieldGaussian(model.dimension), method.bound_inner, inner)
