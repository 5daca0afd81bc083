"""Server side of private scoring: computes q from noisy sums. NumPy, post-processing only.

**Model of a score.** Let s(θₜ) be the score that was released at the point θₜ, clipped and with
noise of sd σₜ, and θ the true parameter. Near the truth

    s(θₜ) ≈ H(θ − θₜ) + e,    e ~ N(0, V + σₜ²I).

H = n E[w ψ' zzᵀ] is the expected slope and V = n E[w² Var(ψ) zzᵀ] the sampling variance, for n
records with weights w, residuals ψ and features z (`tacit.methods.scoring.party`).

**All rounds together.** All rounds use the same records. Averages over rounds with weights aₜ
therefore reduce the noise but not V:

    s̄ + H θ̄ ~ N(H θ, V + σ̄² I),    s̄ = Σ aₜ sₜ,  θ̄ = Σ aₜ θₜ,  σ̄² = Σ aₜ² σₜ².

**Posterior.** With the prior N(m₀, P₀⁻¹) and the gain K = H(V + σ̄²I)⁻¹, q is normal with

    precision K H + P₀,    mean m from (K H + P₀) m = K(s̄ + H θ̄ − r) + P₀ m₀.

Its variance includes the noise. H and V are expectations under q, not values at its mean.

**Correction r.** The variance of q changes the expected score by r = n E[w p z], where p is the
mean of ψ at m over outcomes that are drawn for θ ~ q. With this correction, the score is zero on
average over q, as in variational inference. Without it, a wide q would predict rare outcomes far
too often.

**Error of H.** H is computed from a noisy second moment and noisy counts. An error E in H adds E(θ
− θ̄) to the equation. The variance of this term is added to V + σ̄²I for the reported precision.
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
    """The released scores, one row per round.

    `points` are the parameters at which the scores were computed, as coefficients of the features
    x. `scores` are the released scores, for coefficients of the transformed features z. `noise_sds`
    are the sds of the noise in the scores.
    """

    points: np.ndarray
    scores: np.ndarray
    noise_sds: np.ndarray


class Prior(NamedTuple):
    """Normal prior N(mean, sd²) of each coefficient of x."""

    mean: np.ndarray
    sd: np.ndarray


class Solved(NamedTuple):
    """Mean and precision of q over the coefficients of x.

    `width` is the variance of the predictor η under q, for each synthetic row. With K levels, it is
    the covariance of the K − 1 coordinates of η that `tacit.models.glm.softmax_scores` defines.
    """

    mean: np.ndarray
    precision: np.ndarray
    width: np.ndarray


class Heard(NamedTuple):
    """The scores of all rounds, combined at one point.

    `curvature` is the expected slope of a score and `noise` its covariance. `share` contains the
    weights of the rounds. `gain` is slope times inverse covariance, and `information` is gain times
    slope. `score` is the weighted mean of the scores, after each was extrapolated to the point.
    """

    curvature: np.ndarray
    noise: np.ndarray
    share: np.ndarray
    gain: np.ndarray
    information: np.ndarray
    score: np.ndarray


class Public(NamedTuple):
    """Public quantities that do not change between rounds of scores."""

    likelihood: ScoreLikelihood
    reach: float
    synthetic: Synthetic
    records: float
    bend: np.ndarray
    """The map B = I − WᵀW."""
    apart: np.ndarray
    """Matrix that removes the part of coefficients that does not change η (`marginals.apart`)."""
    to_x: np.ndarray
    """Matrix from coefficients of z to coefficients of x, for all levels if there are several."""
    to_z: np.ndarray


def coordinates(
    centre: np.ndarray, scale: np.ndarray, bend: np.ndarray, bias: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix from coefficients of z to coefficients of x, and its inverse.

    z is bend·(scale∘(x − centre)), and `bias` is the column of the constant, whose coefficient
    absorbs the centre.
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
    """Return (1/C, k) with the smallest expected loss, where C is the norm bound of a score and k
    is the bound on the residual ψ.

    The expected loss in log-likelihood per record is ½ tr(H₁ S), with the information H₁ of an
    unclipped record and the posterior's covariance S, both at the predictor η = `start`. Several
    pairs may have a loss within the factor `CLOSE` of the smallest. Of these, the pair with the
    largest k, and then with the largest C, is returned, because it changes the scores least.
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
    """Compute q from the scores of all rounds, starting at the point of the last round.

    `width` is the variance of the linear predictors under the last q. The expected slope of the
    scores depends on the variance of q, which in turn depends on the slope. Alternating updates
    could oscillate between a wide and a narrow q. All iterations except the first therefore make
    only half of the step. They end once a full step is shorter than `STILL` standard deviations per
    coordinate.
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
    """Return the scores of all rounds, combined at `mean`.

    The change of the expected score that is due to the variance of q is subtracted.
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
    """Return a move of the coefficients, shortened if the root mean square change of the predictors
    exceeds the allowed step.
    """
    far = public.likelihood.rms_change(public.synthetic.z, move)
    return move * min(1.0, public.likelihood.step(public.reach) / max(far, 1e-300))


def _shares(noise_sds: np.ndarray, change: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Return the weights of the rounds in the mean of their scores. The weights add up to 1.

    Later rounds and scores with less noise have larger weights. `change` is the change of each
    round's score from the point of the round to the current mean, computed with synthetic records.
    `linear` is the linear approximation of `change`. Two errors count as noise: `change` −
    `linear`, and the share `CURVATURE_ERROR` of `change`.
    """
    rounds = np.arange(1, len(noise_sds) + 1)
    wrong = np.mean(np.square(change - linear), axis=1)
    wrong = wrong + CURVATURE_ERROR**2 * np.mean(np.square(change), axis=1)
    share = np.sqrt(rounds) / (np.square(noise_sds) + wrong)
    return share / np.sum(share)


def _steeper(points: np.ndarray, history: History, curvature: np.ndarray) -> float:
    """Return max(1, observed slope/predicted slope) of the score over the last move of the mean.

    If the predicted slope were below half of the true one, the steps would oscillate with growing
    amplitude. The noise of two scores is subtracted from the observed change. The noise of the
    score before the move is subtracted completely, because the move depends on it. The noise of the
    score after the move is independent of the move, and `DOUBTS` standard deviations are
    subtracted.
    """
    if len(points) < 2:
        return 1.0
    move = points[-1] - points[-2]
    seen = move @ (history.scores[-2] - history.scores[-1])
    noise = np.sqrt(len(move)) * history.noise_sds[-2] + DOUBTS * history.noise_sds[-1]
    said = move @ curvature @ move
    return max(1.0, float((seen - np.linalg.norm(move) * noise) / said)) if said > 0 else 1.0


def _reported(public: Public, heard: Heard, before: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Return the precision of q, reduced because the slope of the scores is uncertain
    (`ScoreLikelihood.curvature_doubt`).
    """
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
    """Return the result of `integrated`, for coefficients of the transformed features z.

    `pull` is the linear term of the likelihood relative to the prior's mean.
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
    """Return n·E[w c zzᵀ], the mean over the rows of z, times n = `records`.

    The values w and c of a row are its entries in `weight` and `each`. If the entries of `each` are
    matrices C, the result is n·E[w C ⊗ zzᵀ].
    """
    if each.ndim == 1:
        return weighted_moment(z, weight * each, records)
    return np.kron(each, weighted_moment(z, weight, records))


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
