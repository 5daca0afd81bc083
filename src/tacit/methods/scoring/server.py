"""The server's half of private scoring: from noisy sums to q. NumPy, post-processing only.

Near the truth the score at θₜ, clipped and with noise, is s(θₜ) ≈ H(θ − θₜ) + e, e ~ N(0, V +
σₜ²I), with H = n E[w ψ' zzᵀ] its expected slope and V = n E[w² Var(ψ) zzᵀ] its sampling variance.
All rounds use the same records, so V is common and only the noise averages out:

    s̄ + H θ̄ ~ N(H θ, V + σ̄² I),    s̄ = Σ aₜ sₜ,  θ̄ = Σ aₜ θₜ,  σ̄² = Σ aₜ² σₜ².

With the prior N(m₀, P₀⁻¹) and the gain K = H(V + σ̄²I)⁻¹ this is a Gaussian posterior,

    precision K H + P₀,    (K H + P₀) m = K(s̄ + H θ̄ − r) + P₀ m₀,

whose variance includes the noise. H and V are expectations under q, not values at its mean, and r =
n E[w (E_q ψ-mean − its value at m) z] is the change of the expected score due to the variance of q:
the score is zero on average over q, as in variational inference. Without r, a wide q would predict
rare outcomes far too often.

H is computed from a noisy second moment and noisy counts. An error E in H adds E(θ − θ̄) to the
equation. The variance of this term is added to V + σ̄²I for the reported precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tacit.methods.scoring.learnt import Integrated, integrated
from tacit.methods.scoring.synthetic import Synthetic
from tacit.models.learnt_scale import LearntScalePrior
from tacit.models.scores import ScoreLikelihood, weighted_moment

CURVATURE_ERROR = 0.3
"""Assumed relative error of the change of a score from θₜ to m, computed on synthetic records."""
SCALES = 2.0 ** np.arange(-2, 7)
CLOSE = 1.01
DOUBTS = 3.0
PASSES = 4
STILL = 0.2


class History(NamedTuple):
    """For each round t: the point θₜ in units of x, the score in units of z, and its noise's sd."""

    points: np.ndarray
    scores: np.ndarray
    noise_sds: np.ndarray


class Prior(NamedTuple):
    """Normal prior N(mean, sd²) of each weight on x."""

    mean: np.ndarray
    sd: np.ndarray


class Solved(NamedTuple):
    """Mean and precision of q over the weights on x, and the variance of η under q for each row of
    z.

    With K levels, `width` is the covariance of K − 1 numbers: see
    `tacit.models.glm.softmax_scores`.
    """

    mean: np.ndarray
    precision: np.ndarray
    width: np.ndarray


class Heard(NamedTuple):
    """All rounds combined at one point: H, V + σ̄²I, aₜ, K, K H and the score (module
    docstring).
    """

    curvature: np.ndarray
    noise: np.ndarray
    share: np.ndarray
    gain: np.ndarray
    information: np.ndarray
    score: np.ndarray


class Public(NamedTuple):
    """Public quantities that all rounds of scores share."""

    likelihood: ScoreLikelihood
    reach: float
    synthetic: Synthetic
    records: float
    bend: np.ndarray
    """The map B = I − WᵀW."""
    apart: np.ndarray
    """Matrix that removes the part of weights on y that does not change η (`marginals.apart`)."""
    to_x: np.ndarray
    """Matrix from weights on z to weights on x, for all levels if there are several."""
    to_z: np.ndarray


def coordinates(
    centre: np.ndarray, scale: np.ndarray, bend: np.ndarray, bias: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices (to_x, to_z) between weights on x and on z = bend·(scale∘(x − centre)).
    The weight of the constant absorbs the centre.
    """
    to_x = scale[:, None] * bend
    if bias is not None:
        others = np.arange(len(scale)) != bias
        to_x[bias] -= centre[others] @ to_x[others]
    return to_x, np.linalg.inv(to_x)


def choose_scale(
    likelihood: ScoreLikelihood,
    z: np.ndarray,
    records: float,
    prior: np.ndarray,
    score_sd: float,
    start: Any,
) -> tuple[float, float]:
    """Return (1/C, k), the factor of the map and the limit of ψ that minimise the expected loss.

    The expected loss in log-likelihood is ½ tr(H₁ S) per record, where H₁ is the unclipped
    information and S the posterior's covariance, both at η = `start`. Among nearly equal values the
    largest C is used, because it changes the scores least.
    """
    length = np.sqrt(np.sum(z * z, axis=1))
    origin = start if likelihood.levels else np.full(len(z), start)
    whole = likelihood.slope(origin, likelihood.reaches[-1])
    plain = _information(z, whole, np.ones(len(z)), records)
    losses = {}
    for reach in likelihood.reaches:
        bound = np.maximum(likelihood.bound(origin, reach) * length, 1e-300)
        slope, variance = likelihood.slope(origin, reach), likelihood.variance(origin, reach)
        typical = np.median(bound)
        for clip in SCALES * typical:
            weight = np.minimum(1.0, clip / bound)
            curvature = _information(z, slope, weight, records)
            noise = _information(z, variance, weight**2, records)
            noise += (score_sd * clip) ** 2 * np.eye(len(noise))
            precision = curvature @ np.linalg.solve(noise, curvature) + prior
            losses[clip, reach] = np.trace(np.linalg.solve(precision, plain))
    least = min(losses.values())
    clip, reach = max(
        (key for key, loss in losses.items() if loss <= CLOSE * least),
        key=lambda key: (key[1], key[0]),
    )
    return 1.0 / clip, reach


def solve(
    public: Public,
    history: History,
    prior: Prior | LearntScalePrior,
    width: np.ndarray,
) -> Solved:
    """Compute the posterior of all rounds, starting at the last point. `width` is the variance of η
    under the last q.

    H, r and the variance of q depend on each other and on m, and alternating updates can oscillate
    between a wide q and a narrow one. Every pass after the first is damped by ½, as long as m moves
    by more than `STILL` of its sd.
    """
    points = history.points @ public.to_z.T
    start, last, mean = public.to_z @ prior.mean, points[-1], points[-1]
    z = public.synthetic.z
    steeper, precision, before, between = 1.0, None, np.zeros(0), np.zeros(())
    for turn in range(PASSES):
        part = 0.5 if turn else 1.0
        heard = _heard(public, history, points, mean, width)
        pull = heard.gain @ heard.score
        if not turn:
            steeper = _steeper(points, history, heard.curvature)
            if isinstance(prior, LearntScalePrior):
                whole = pull + heard.information @ (mean - start)
                before, between = _learnt(public, prior, heard.information, whole)
            else:
                before = _prior_precision(public, prior)
        slope = pull - before @ (mean - start)
        step = np.linalg.solve(heard.information + before, slope)
        if precision is not None and step @ slope < STILL**2 * len(mean):
            break
        mean = last + _limited(public, mean - last + part * step)
        precision = _reported(public, heard, before, mean - heard.share @ points)
        if np.any(between):
            precision = _symmetric(np.linalg.inv(np.linalg.inv(precision) + between))
        wide = public.likelihood.predictor_width(z, np.linalg.inv(precision))
        width = width + part * (wide - width)
    return Solved(
        public.to_x @ (last + (mean - last) / steeper),
        _symmetric(public.to_z.T @ precision @ public.to_z),
        width,
    )


def _heard(
    public: Public, history: History, points: np.ndarray, mean: np.ndarray, width: np.ndarray
) -> Heard:
    """Combine all scores at `mean`, after subtracting the effect of q's variance on expected
    outcomes.
    """
    there = np.vstack([points, mean])
    curvature, sampling, widened, change = public.likelihood.expected_scores(
        public.synthetic.z, public.records, there, width, public.reach
    )
    moved = (mean - points) @ curvature
    share = _shares(history.noise_sds, change[:-1], moved)
    noise = sampling + np.sum(np.square(share * history.noise_sds)) * np.eye(len(mean))
    gain = np.linalg.solve(noise, curvature).T
    return Heard(
        curvature,
        noise,
        share,
        gain,
        _symmetric(gain @ curvature),
        share @ (history.scores - moved) - widened,
    )


def _limited(public: Public, move: np.ndarray) -> np.ndarray:
    """Return the move, shortened so that η changes by at most the length of a step."""
    far = public.likelihood.rms_change(public.synthetic.z, move)
    return move * min(1.0, public.likelihood.step(public.reach) / max(far, 1e-300))


def _shares(noise_sds: np.ndarray, change: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Return the weights aₜ of the rounds: larger for later rounds and less noise, ≈ 0 if θₜ is far
    from m.

    A score is moved from θₜ to m by H(m − θₜ). The error of this linear step is estimated from the
    same change over the synthetic records, plus a share of that change, and counts as noise.
    """
    rounds = np.arange(1, len(noise_sds) + 1)
    wrong = np.mean(np.square(change - linear), axis=1)
    wrong = wrong + CURVATURE_ERROR**2 * np.mean(np.square(change), axis=1)
    share = np.sqrt(rounds) / (np.square(noise_sds) + wrong)
    return share / np.sum(share)


def _steeper(points: np.ndarray, history: History, curvature: np.ndarray) -> float:
    """Return the observed slope of the score over the last move, relative to that under H; at least
    1.

    The change of the score over a move Δ is −HΔ if H is right. With an H below half of the true
    slope, the steps would oscillate with growing amplitude. The noise is subtracted first: Δ
    depends on the noise of the score before the move, so all of it may be in the observed change;
    the noise of the score after the move is independent.
    """
    if len(points) < 2:
        return 1.0
    move = points[-1] - points[-2]
    seen = move @ (history.scores[-2] - history.scores[-1])
    noise = np.sqrt(len(move)) * history.noise_sds[-2] + DOUBTS * history.noise_sds[-1]
    said = move @ curvature @ move
    return max(1.0, float((seen - np.linalg.norm(move) * noise) / said)) if said > 0 else 1.0


def _reported(public: Public, heard: Heard, before: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Return the precision, reduced by the uncertainty of H (`ScoreLikelihood.curvature_doubt`)."""
    (z, uncertain), bend = public.synthetic, public.bend
    curvature, information, told = heard.curvature, heard.information, public.apart @ bend
    for _ in range(2):
        spread = np.linalg.inv(information + before)
        doubt = public.likelihood.curvature_doubt(z, bend, told, uncertain, curvature, spread, gap)
        gain = np.linalg.solve(heard.noise + doubt, curvature).T
        information = _symmetric(gain @ curvature)
    return information + before


def _learnt(
    public: Public, prior: LearntScalePrior, information: np.ndarray, pull: np.ndarray
) -> Integrated:
    """Return `integrated` in the coordinates of z; `pull` is the linear term at the prior's
    mean.
    """
    to_phi = prior.transform @ public.to_x
    to_z = np.linalg.inv(to_phi)
    found = integrated(prior, to_z.T @ information @ to_z, to_z.T @ pull)
    return Integrated(
        _symmetric(to_phi.T @ found.precision @ to_phi), to_z @ found.between @ to_z.T
    )


def _prior_precision(public: Public, prior: Prior) -> np.ndarray:
    scaled = public.to_x / prior.sd[:, None]
    return scaled.T @ scaled


def _information(z: np.ndarray, each: np.ndarray, weight: np.ndarray, records: float) -> np.ndarray:
    """Return n E[w c zzᵀ] for one number c per record, or n E[w C ⊗ zzᵀ] for one matrix C for
    all.
    """
    if each.ndim == 1:
        return weighted_moment(z, weight * each, records)
    return np.kron(each, weighted_moment(z, weight, records))


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
