"""Estimate θ and its posterior from released scores and curvatures. NumPy, post-processing only.

**Scores.** In round t the parties release a sum sₜ over n records. Its terms are scores ψ at the
point θₜ, transformed by a matrix W (`tacit.methods.scores.party`). Let V be the variance of ψ and
σₜ the sd of the noise. Then sₜ is about n E[ψ] + N(0, nV + σₜ²I). E[ψ] and V are simulated with
synthetic covariates (`tacit.methods.scores.expected`), and the released curvature corrects them.

**Correction.** Let H₀ be the simulated slope of E[ψ], and R the ratio of released to simulated
curvature, shrunk to 1 by empirical Bayes. The real slope is H = H₀^½ R H₀^½. The simulated E[ψ] is
multiplied by T = H₀^½ R H₀^(−½), and the simulated V is multiplied from both sides by G = H₀^½ R^½
H₀^(−½).

**Burn-in.** A burn-in round solves n T (E[ψ | θ′] − E[ψ | θₜ]) = sₜ for the next point θ′, taking
into account the prior, the noise and a proximal term.

**Posterior.** All main rounds use one W. Their scores are transferred to the last estimate m of θ
and averaged with weights aₜ. With A = n T ∂E[ψ]/∂θ and the sd σ̄ of the averaged noise,

    s̄ = Σ aₜ(sₜ − n T (E[ψₜ | m] − E[ψₜ | θₜ])) ~ N(A(θ − m), nV + σ̄²I).

This is a Gaussian likelihood of θ that includes the privacy noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.methods.scores.expected import Expected, Simulator
from tacit.methods.scores.party import trace_bound
from tacit.methods.scores.prior import PriorTerm

ACTIVE = 0.05
"""Directions with an eigenvalue of H₀ below this share of the largest are not corrected."""
LEAST_RATIO = 0.15
"""Smallest eigenvalue of the ratio R that is used."""
DRIFT = 0.05
"""Largest plausible change of an entry of R between two curvatures."""
TRANSPORT_ERROR = 0.15
"""Assumed relative error of the predicted change of a score between θₜ and the estimate m."""
WALKS, WALK = 8, 1.0
"""Number of steps in which a burn-in round is solved, and the largest length of a step."""
PROXIMAL_RANK = 20
"""Rank (1 for the largest) of the eigenvalue of the information that sets the proximal term."""
SCALE_STEP, MOST_STEPS = 1.25, 2
"""The scale of the map W is chosen among `SCALE_STEP`^k with integers |k| ≤ `MOST_STEPS`."""
CHANGED = 2.0
"""A map is recomputed only if the information in some direction has changed by more than this
factor.
"""
WORTH = 0.8
"""Earlier rounds are dropped when a new map is used. A new map is therefore used only if it reduces
the largest posterior variance to less than this share of its current value.
"""
STILL = 0.02
LONGEST = 2.0


class Ratio(NamedTuple):
    """The estimated matrix ratio of released to simulated curvature, and the variances of its
    entries.
    """

    mean: np.ndarray
    variance: np.ndarray


class Corrected(NamedTuple):
    """Matrices that correct the expectation (`change`) and the variance (`variance`) of simulated
    scores.

    `inverse_root` is the power −½ of the simulated slope H₀. Directions in which the eigenvalue of
    H₀ is negligible are left unchanged.
    """

    inverse_root: np.ndarray
    size: float
    """Mean of the active eigenvalues of H₀."""
    change: np.ndarray
    variance: np.ndarray


class History(NamedTuple):
    """The released score sums of the main rounds so far, one row per round.

    `points` are the points θ at which the scores were computed, and `noise_sds` the sds of the
    noise.
    """

    points: np.ndarray
    scores: np.ndarray
    noise_sds: np.ndarray


class Found(NamedTuple):
    """The posterior q(θ) ∝ prior(θ) · exp(linear·θ − ½ θᵀ information θ), with its mean and
    precision.
    """

    mean: np.ndarray
    precision: np.ndarray
    information: np.ndarray
    linear: np.ndarray
    moved: float
    """Distance by which the last iteration moved the mean, in posterior standard deviations."""


class Walked(NamedTuple):
    """The result of a burn-in round."""

    point: np.ndarray
    way: float
    """Length √(ΔᵀIΔ) of the move Δ, where I is the information of one record."""
    information: np.ndarray
    """Information about θ from all rounds so far, reduced if the round moved θ far."""


class Estimator:
    """The server's estimator of θ, for fixed synthetic covariates, prior and number of records."""

    def __init__(self, simulator: Simulator, prior: PriorTerm, records: float) -> None:
        self.simulator, self.prior, self.records = simulator, prior, records
        self.dimension = len(prior.mean)

    def mapping(self, theta: np.ndarray, ratio: Ratio) -> np.ndarray:
        """Return the matrix W by which scores are transformed.

        For n records, W whitens the sum of one record's information and 1/n of the prior's
        precision. It is scaled such that the whitened information of one record has the trace d,
        the number of parameters. Because the prior is included, directions that only the prior
        determines are not enlarged.
        """
        fisher = self.simulator.fisher(theta)
        whole = self._whole(fisher)
        scale = 1.0 / np.sqrt(np.diagonal(whole))
        values, vectors = np.linalg.eigh(np.outer(scale, scale) * whole)
        root = (vectors / np.sqrt(np.maximum(values, 1e-8))) @ vectors.T
        whiten = power_of(ratio.mean, -0.5) @ root * scale
        told = np.trace(power_of(ratio.mean, 0.5) @ whiten @ fisher @ whiten.T @ power_of(
            ratio.mean, 0.5))  # fmt: skip
        return whiten * np.sqrt(self.dimension / max(told, 1.0))

    def narrowest(self, theta: np.ndarray, ratio: Ratio, noise: float) -> np.ndarray:
        """Return the matrix W by which scores are transformed, scaled to minimise the volume of the
        expected posterior.

        `noise` is the sd of the noise in a score sum, which is the same for every W. A larger W
        therefore reduces the noise relative to the scores, but clips more scores, which loses
        information. The volume is minimised because it weighs all directions equally. Minimising
        the mean variance instead would favour a few rare levels.
        """
        mapping, found = self.mapping(theta, ratio), {}

        def width(step: int) -> float:
            if step not in found:
                scaled = SCALE_STEP**step * mapping
                variances = self._variances(theta, scaled, ratio, noise)
                found[step] = float(np.mean(np.log(variances)))
            return found[step]

        best = 0
        for way in (1, -1):
            while abs(best + way) <= MOST_STEPS and width(best + way) < width(best):
                best += way
            if best:
                break
        return SCALE_STEP**best * mapping

    def renewed(
        self,
        theta: np.ndarray,
        mapping: np.ndarray,
        made_at: np.ndarray,
        ratio: Ratio,
        noises: tuple[float, float],
    ) -> np.ndarray | None:
        """Return a new matrix W by which scores are transformed at θ = `theta`, or None to keep
        `mapping`.

        The current matrix `mapping` was computed for θ = `made_at`. A new matrix is returned if two
        conditions hold. First, the information of a record has changed between `made_at` and
        `theta`. Second, the remaining main rounds with the new matrix are more informative than all
        main rounds with the current one. `noises` has the sds of the noise in two means of score
        sums: over all main rounds, and over the remaining main rounds.
        """
        before, now = (self._whole(self.simulator.fisher(one)) for one in (made_at, theta))
        root = np.linalg.cholesky(before)
        changes = np.linalg.eigvalsh(np.linalg.solve(root, np.linalg.solve(root, now).T))
        if changes[-1] <= CHANGED and changes[0] >= 1.0 / CHANGED:
            return None
        noise, left = noises
        other = self.narrowest(theta, ratio, left)
        here, there = (
            float(np.max(self._variances(theta, *each)))
            for each in ((mapping, ratio, noise), (other, ratio, left))
        )
        return other if there < WORTH * here else None

    def _whole(self, fisher: np.ndarray) -> np.ndarray:
        return _symmetric(fisher) + np.diag(self.prior.precision) / self.records

    def _variances(
        self, theta: np.ndarray, mapping: np.ndarray, ratio: Ratio, noise: float
    ) -> np.ndarray:
        """Return the expected posterior variances with privacy, divided by those without privacy.

        The ratios are the eigenvalues of one covariance relative to the other, one per direction.
        """
        here = self._at(theta, mapping)
        corrected = self._corrected(here, mapping, ratio)
        spread = self.records * _symmetric(_sandwich(corrected.variance, here.variance))
        slope = self.records * corrected.change @ here.slope
        prior = np.diag(self.prior.precision)
        whole = slope.T @ np.linalg.solve(spread + noise**2 * np.eye(self.dimension), slope) + prior
        without = np.linalg.cholesky(_symmetric(self.records * here.fisher + prior))
        inverse = np.linalg.inv(_symmetric(whole))
        return np.linalg.eigvalsh(_symmetric(without.T @ inverse @ without))

    def updated_ratio(
        self,
        ratio: Ratio | None,
        released: np.ndarray,
        noise_sd: float,
        theta: np.ndarray,
        mapping: np.ndarray,
    ) -> Ratio:
        """Return the matrix ratio of released to simulated curvature, updated with one more
        released curvature.

        The curvature was released at θ = `theta`, with scores transformed by the matrix `mapping`.
        `noise_sd` is the sd of the noise in each entry of the released upper triangle.
        """
        expected = self._at(theta, mapping)
        values, vectors = np.linalg.eigh(_symmetric(expected.released))
        active = values > ACTIVE * values[-1]
        root = np.where(active, np.sqrt(np.maximum(values, 1e-300)), 1.0)
        inverse = (vectors / root) @ vectors.T
        seen = inverse @ (released / self.records) @ inverse
        chosen = vectors[:, active]
        inside = chosen @ chosen.T
        seen = inside @ seen @ inside + np.eye(self.dimension) - inside
        noise = noise_sd / self.records / float(np.mean(values[active]))
        return shrunk_ratio(ratio, _symmetric(seen), noise)

    def walked(
        self,
        theta: np.ndarray,
        mapping: np.ndarray,
        ratio: Ratio,
        score: np.ndarray,
        noise: float,
        earlier: np.ndarray | None = None,
    ) -> Walked:
        """Return the θ to which a burn-in round moves from `theta`.

        `score` is the released sum over all records, and `noise` the sd of its noise. `earlier` is
        the information about θ from earlier burn-in rounds. It acts as a Gaussian likelihood
        centred at `theta`. Several rounds then converge even if the noise of a single round would
        move θ too far.
        """
        seen, noise = score / self.records, noise / self.records
        start = self._at(theta, mapping)
        corrected = self._corrected(start, mapping, ratio)
        size = len(theta)
        near = self._proximal(start) + (np.zeros((size, size)) if earlier is None else earlier)
        point, here, way, information = theta, start, 0.0, np.zeros((size, size))
        for _ in range(WALKS):
            residual = seen - corrected.change @ (here.score - start.score)
            slope = corrected.change @ here.slope
            variance = _sandwich(corrected.variance, here.variance) / self.records
            spread = _symmetric(variance) + noise**2 * np.eye(self.dimension)
            gain = np.linalg.solve(spread, slope).T
            local = self.prior.local(point)
            information = gain @ slope
            precision = information + local.precision + near
            pull = gain @ residual + local.gradient - near @ (point - theta)
            step = np.linalg.solve(_symmetric(precision), pull)
            length = np.sqrt(max(step @ here.fisher @ step, 0.0))
            step = step * min(1.0, WALK / max(length, 1e-300))
            point, way = point + step, way + min(length, WALK)
            if length < STILL:
                break
            here = self.simulator.expected(theta, mapping, point, point)
            if not np.all(np.isfinite(here.slope)):
                return Walked(theta, np.inf, np.zeros((size, size)))
        total = _symmetric(information) if earlier is None else _symmetric(information) + earlier
        apart = point - theta
        return Walked(point, way, total / (1.0 + apart @ here.fisher @ apart))

    def posterior(
        self,
        history: History,
        mapping: np.ndarray,
        ratio: Ratio,
        start: np.ndarray,
        turns: int,
    ) -> Found:
        """Compute q from all main rounds, with at most `turns` iterations that start at the mean
        `start`.

        The result also has the Gaussian likelihood on which q is based.
        """
        mean, precision = start, np.diag(self.prior.precision)
        information, linear, moved = np.zeros_like(precision), np.zeros_like(mean), np.inf
        own = [self.simulator.score(point, mapping, point, point) for point in history.points]
        for _ in range(turns):
            here = self._at(mean, mapping)
            corrected = self._corrected(here, mapping, ratio)
            changes = self.records * np.stack(
                [
                    corrected.change @ (self.simulator.score(point, mapping, point, mean) - score)
                    for point, score in zip(history.points, own, strict=True)
                ]
            )
            wrong = TRANSPORT_ERROR**2 * np.mean(np.square(changes), axis=1)
            noise = np.square(history.noise_sds) + wrong
            share = (1.0 / noise) / np.sum(1.0 / noise)
            score = share @ (history.scores - changes)
            again = float(np.sum(np.square(share)))
            sampled = without_part(here.variance, here.drawn, 1.0 - again)
            spread = self.records * _symmetric(_sandwich(corrected.variance, sampled))
            spread = spread + np.sum(np.square(share) * noise) * np.eye(self.dimension)
            slope = self.records * corrected.change @ here.slope
            gain = np.linalg.solve(spread, slope).T
            information = _symmetric(gain @ slope)
            linear = gain @ score + information @ mean
            found, precision = self.prior.posterior(information, linear, mean)
            step = found - mean
            length = np.sqrt(max(step @ here.fisher @ step, 0.0))
            moved = float(np.sqrt(step @ precision @ step))
            mean = mean + step * min(1.0, LONGEST / max(length, 1e-300))
            if length**2 * self.records < STILL:
                break
        return Found(mean, _symmetric(precision), information, linear, moved)

    def _at(self, theta: np.ndarray, mapping: np.ndarray) -> Expected:
        return self.simulator.expected(theta, mapping, theta, theta)

    def _proximal(self, here: Expected) -> np.ndarray:
        """Return the precision of the term that keeps a burn-in round near its starting point.

        It is a multiple of the prior's precision. The factor is a quarter of the `PROXIMAL_RANK`-th
        largest eigenvalue of the information of one record, in coordinates in which the prior's sd
        is 1. Coordinates with little information therefore do not move far.
        """
        scale = 1.0 / np.sqrt(self.prior.precision)
        values = np.linalg.eigvalsh(_symmetric(np.outer(scale, scale) * here.fisher))[::-1]
        chosen = max(float(values[min(PROXIMAL_RANK, len(values)) - 1]), 0.0)
        return np.diag(0.25 * chosen * self.prior.precision)

    @staticmethod
    def _corrected(here: Expected, mapping: np.ndarray, ratio: Ratio) -> Corrected:
        values, vectors = np.linalg.eigh(_symmetric(here.slope @ mapping.T))
        active = values > ACTIVE * values[-1]
        root = np.where(active, np.sqrt(np.maximum(values, 1e-300)), 1.0)
        half, inverse = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
        return Corrected(
            inverse,
            float(np.mean(values[active])),
            half @ ratio.mean @ inverse,
            half @ power_of(ratio.mean, 0.5) @ inverse,
        )


def curvature_noise(noise_sd: float, dimension: int) -> float:
    """Return the sd of the noise in each entry of a released curvature.

    `noise_sd` is this sd divided by the norm bound of one record's contribution.
    """
    return noise_sd * trace_bound(dimension)


def shrunk_ratio(before: Ratio | None, seen: np.ndarray, noise: float) -> Ratio:
    """Return the matrix ratio of released to simulated curvature, updated with the noisy
    observation `seen`.

    The noise has the sd `noise` on the diagonal and `noise`/√2 off the diagonal. Without an earlier
    estimate `before`, the prior mean of the ratio is a multiple of the identity. The prior variance
    is then the observed variance minus the variance of the noise (empirical Bayes).
    """
    size = len(seen)
    diagonal = np.eye(size, dtype=bool)
    error = np.where(diagonal, noise**2, 0.5 * noise**2)
    if before is None:
        mean = np.eye(size) * np.mean(np.diagonal(seen))
        variance = np.zeros((size, size))
        for part in (diagonal, ~diagonal):
            if np.any(part):
                excess = np.mean(np.square((seen - mean)[part])) - np.mean(error[part])
                variance[part] = max(float(excess), 1e-4)
        variance = np.where(diagonal, variance + noise**2 / size, variance)
        before = Ratio(mean, variance)
    else:
        before = Ratio(before.mean, before.variance + DRIFT**2)
    keep = before.variance / (before.variance + error)
    mean = before.mean + keep * (seen - before.mean)
    values, vectors = np.linalg.eigh(_symmetric(mean))
    mean = (vectors * np.maximum(values, LEAST_RATIO)) @ vectors.T
    return Ratio(_symmetric(mean), before.variance * (1.0 - keep))


def without_part(whole: np.ndarray, part: np.ndarray, share: float) -> np.ndarray:
    """Return `whole` − `share` · `part`, after reducing `part` to at most `whole` in every
    direction.

    `part` is one component of the covariance `whole`. Both are simulated, so with heavy tails
    `part` may be larger than `whole`. The difference would then not be a covariance.
    """
    values, vectors = np.linalg.eigh(_symmetric(whole))
    root = np.sqrt(np.maximum(values, 1e-12 * np.max(values)))
    inside = (vectors / root).T @ part @ (vectors / root)
    shares, ways = np.linalg.eigh(_symmetric(inside))
    mixed = vectors * root @ ways
    return _symmetric((mixed * (1.0 - share * np.clip(shares, 0.0, 1.0))) @ mixed.T)


def power_of(matrix: np.ndarray, exponent: float) -> np.ndarray:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-12) ** exponent) @ vectors.T


def _sandwich(left: np.ndarray, middle: np.ndarray) -> np.ndarray:
    return left @ middle @ left.T


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
