"""`FactorModel`: probabilistic principal components and factor analysis.

The model of a record is x = μ + Wz + e with factors z ~ N(0, I) and noise e ~ N(0, Ψ). With Ψ = σ²I
it is probabilistic PCA (Tipping and Bishop 1999), and with a diagonal Ψ it is factor analysis. The
likelihood depends on the records only through their number, mean and covariance. These do not
depend on q, so every stage (`tacit.models.conjugate`) is visited once, and the server computes the
posterior from the four sums:

    size          number of records, and their squared distances from the middle of the bounds
    mean          sum of the records, clipped at √2 times their root mean square distance
    size-again    as `size`, with distances from the mean m that was released
    moment        Σ (x − m)(x − m)ᵀ, clipped at 1 to 4 times the mean squared distance; the clip is
                  smaller if there is more noise

Two contributions to `size`, `size-again` or `moment` have an inner product of at least 0. In units
of the clip, replacing a record therefore moves these sums by at most √2, and the sum `mean` by at
most 2. The eigenvalues of a noisy covariance are corrected for the effect of the noise. q is a
normal distribution with independent coordinates around the estimate. Its variances are those of the
likelihood for one fixed rotation of the factors, and do not include the privacy noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, MeanFieldGaussian, Natural
from tacit.models.base import ColumnUnits, Description, ModelSchema, Records
from tacit.models.columns import ColumnModel, check_numeric
from tacit.models.conjugate import NoStatistics, RowStatistics, StageSum, StatisticsStage
from tacit.models.predictive import Prediction
from tacit.models.settings import FactorSettings
from tacit.models.statistics import Statistics

SIZE, MEAN, SIZE_AGAIN, MOMENT = "size", "mean", "size-again", "moment"
SHARES = (0.02, 0.10, 0.02, 0.86)
HALF = math.sqrt(0.5)
MEAN_REACH = 2.0
"""For the release of the mean, squared distances are clipped at this multiple of their mean."""
NARROWEST, WIDEST, NOISE_SHARE = 1.0, 4.0, 0.1
"""Constants of `_moment_reach`. NARROWEST and WIDEST are the smallest and largest clip of squared
distances, as multiples of their mean. The clip is smallest if the relative noise is NOISE_SHARE or
more.
"""
RELIABLE, MOST_RESCALED = 0.05, 3.0
"""If the relative error of the mean squared distance is below the first number, the covariance is
multiplied by a factor that makes its trace equal to this distance. The factor is at most the second
number.
"""
WIDER = 4.0
"""The second release of the squared distance is clipped at this multiple of the first estimate."""
LARGEST_ASKED = 1e12
EM_STEPS, EM_TOLERANCE = 2000, 1e-9
LEAST_NOISE = 1e-4
"""Smallest variance of the noise in a column, relative to the variance of the column."""
MOST_LOADINGS = 8
"""Number of columns that a table names per factor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentStatistics(Statistics):
    """Statistics of each record: the matrix zzᵀ, where z is its row of `rows`.

    A matrix is released as its upper triangle, with off-diagonal entries times √2. `sizes` are the
    norms ‖zzᵀ‖.
    """

    rows: np.ndarray
    sizes: np.ndarray

    def norms(self) -> np.ndarray:
        """Return ‖zzᵀ‖ = ‖z‖² for each row z."""
        return self.sizes

    def total(self, weights: Array) -> np.ndarray:
        weights = np.asarray(weights, np.float64)
        kept = weights > 0
        rows = np.where(kept[:, None], self.rows, 0.0)
        rows = rows * np.sqrt(np.where(kept, weights, 0.0))[:, None]
        matrix = rows.T @ rows
        i, j = np.triu_indices(len(matrix))
        return matrix[i, j] * np.where(i == j, 1.0, math.sqrt(2.0))


class Factors(NamedTuple):
    """Parameters of a model with d columns and k factors: mean (d,), loadings (d, k) and noise
    variances (d,).
    """

    mean: np.ndarray
    loadings: np.ndarray
    noise: np.ndarray


class FactorModel(ColumnModel):
    """A model in which the columns of x depend on `factors` common factors.

    Parameters
    ----------
    columns
        Names of the columns of x.
    factors
        Number of factors, less than the number of columns.
    noise
        "common": all columns have the same noise variance (probabilistic PCA). "columns": each
        column has a separate noise variance (factor analysis).
    bounds
        (low, high), the smallest and largest value of every column. A private run needs them,
        unless the columns are standardised or `layout` contains bounds.
    layout
        Public description of each column of x.

    Examples
    --------
    >>> FactorModel(("a", "b", "c"), factors=1).dimension
    7
    """

    kind: ClassVar[str] = "factors"
    Settings = FactorSettings
    repeats: ClassVar[bool] = False
    private_rounds: ClassVar[int] = 4
    uncalibrated: ClassVar[str | None] = (
        "Intervals of loadings are not calibrated: they hold for one rotation of the factors and "
        "treat coordinates as independent."
    )

    def __init__(
        self,
        columns: Sequence[str],
        *,
        factors: int = 2,
        noise: Literal["common", "columns"] = "common",
        bounds: tuple[Any, Any] | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(columns, bounds, layout)
        whole = isinstance(factors, int | np.integer) and not isinstance(factors, bool)
        if not (whole and 1 <= factors < len(self.columns)):
            raise ConfigError(
                f"factors = {factors!r}; it must be a whole number, at least 1 and less than "
                f"{len(self.columns)}, the number of columns"
            )
        if noise not in ("common", "columns"):
            raise ConfigError(f"noise = {noise!r}; choose 'common' or 'columns'")
        self.factors, self.noise = int(factors), noise

    @classmethod
    def build(cls, settings: FactorSettings, schema: ModelSchema) -> FactorModel:
        check_numeric(cls.kind, schema.layout)
        return cls(
            schema.names, factors=settings.factors, noise=settings.noise, layout=schema.layout
        )

    @property
    def dimension(self) -> int:
        noises = 1 if self.noise == "common" else self.width
        return self.width * (1 + self.factors) + noises

    @cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        noises = ("all columns",) if self.noise == "common" else self.columns
        return (
            *(f"mean of {name}" for name in self.columns),
            *(f"{name} on factor {k + 1}" for name in self.columns for k in range(self.factors)),
            *(f"log noise variance of {name}" for name in noises),
        )

    @property
    def prediction_words(self) -> tuple[str, tuple[str, ...]]:
        return "score on each factor", tuple(f"factor {k + 1}" for k in range(self.factors))

    @property
    def own_family(self) -> MeanFieldGaussian:
        return MeanFieldGaussian(self.dimension)

    # Prior and posterior

    def prior(self, family: Family) -> Natural:
        """Return the natural parameters of the prior: independent normals that are wide relative to
        the bounds of the columns.
        """
        del family
        mean, sd = self._prior_moments()
        return self.own_family.natural(mean=mean, sd=sd)

    def _prior_moments(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.bounds
        half = 0.5 * (high - low)
        noise = 2.0 * np.log(half)
        if self.noise == "common":
            noise = np.array([np.mean(noise)])
        loadings = np.zeros(self.width * self.factors)
        mean = np.concatenate([0.5 * (low + high), loadings, noise - 2.0])
        sd = np.concatenate([half, np.repeat(half, self.factors), np.full(len(noise), 3.0)])
        return mean, sd

    def _posterior(self, found: Factors, count: float) -> Natural:
        """Return the natural parameters of q, the prior times an approximate likelihood of `count`
        records.

        The approximate likelihood is a product of normal densities, one per coordinate, with its
        maximum at `found`.
        """
        d = self.width
        variance = np.sum(np.square(found.loadings), axis=1) + found.noise
        noises, each = np.log(found.noise), np.full(d, 0.5 * count)
        if self.noise == "common":
            noises, each = noises[:1], np.array([0.5 * count * d])
        mean = np.concatenate([found.mean, found.loadings.reshape(-1), noises])
        precision = np.concatenate(
            [count / variance, np.repeat(count / found.noise, self.factors), each]
        )
        before, sd = self._prior_moments()
        return {
            "linear": precision * mean + before / sd**2,
            "quadratic": -0.5 * (precision + sd**-2.0),
        }

    def parts(self, natural: Natural) -> Factors:
        """Return the mean, loadings and noise variances that correspond to the mean of q."""
        theta = natural["linear"] / (-2.0 * natural["quadratic"])
        return self._split(np.asarray(theta, np.float64))

    def _split(self, theta: np.ndarray) -> Factors:
        d, k = self.width, self.factors
        noise = np.exp(theta[d * (1 + k) :])
        return Factors(
            theta[:d], theta[d : d * (1 + k)].reshape(d, k), np.broadcast_to(noise, (d,))
        )

    # Stages

    @property
    def stages(self) -> tuple[StatisticsStage, ...]:
        names = (SIZE, MEAN, SIZE_AGAIN, MOMENT)
        return tuple(
            StatisticsStage(name, share, name != MEAN)
            for name, share in zip(names, SHARES, strict=True)
        )

    def stage_size(self, stage: str) -> int:
        d = self.width
        return {SIZE: 2, MEAN: d, SIZE_AGAIN: 2, MOMENT: d * (d + 1) // 2}[stage]

    def public_shapes(self, stage: str) -> dict[str, tuple[int, ...]]:
        del stage
        return {"centre": (self.width,), "square": ()}

    def first_public(self) -> Arrays:
        low, high = self.bounds
        return {
            "centre": 0.5 * (low + high),
            "square": np.asarray(np.sum(np.square(0.5 * (high - low)))),
        }

    def stage_statistics(self, stage: str, public: Arrays, records: Records) -> Statistics:
        x = np.asarray(records["x"], np.float64)
        square = max(float(public["square"]), 1e-300)
        sane = np.all(np.abs(public["centre"]) <= LARGEST_ASKED) and square <= LARGEST_ASKED**2
        if not sane:  # the computation would overflow
            return NoStatistics(records=len(x), size=self.stage_size(stage))
        rows = (x - public["centre"]) / math.sqrt(square)
        squares = np.zeros(len(rows))
        for column in rows.T:
            squares = squares + column * column
        if stage in (SIZE, SIZE_AGAIN):
            squares = np.minimum(squares, 1.0)
            right = HALF * np.stack([np.ones(len(rows)), squares], axis=1)
            sizes = HALF * np.sqrt(1.0 + squares * squares)
            return RowStatistics(left=np.ones((len(rows), 1)), right=right, sizes=sizes)
        if stage == MEAN:
            left = np.ones((len(rows), 1))
            return RowStatistics(left=left, right=rows, sizes=np.sqrt(squares))
        return MomentStatistics(rows=rows, sizes=squares)

    def advance(self, known: Arrays, answer: StageSum) -> tuple[Arrays, Natural | None]:
        square, centre = float(known["square"]), known["centre"]
        if answer.stage in (SIZE, SIZE_AGAIN):
            noise = answer.noise_sd / HALF
            count = max(float(answer.total[0]) / HALF, noise, 1.0)
            share = max(float(answer.total[1]) / HALF, noise, 1e-12 * count) / count
            found = min(share, 1.0) * square
            kept = {
                "count": np.asarray(count),
                "found": np.asarray(found),
                "found_error": np.asarray(noise / (share * count)),
            }
            reach = MEAN_REACH
            if answer.stage == SIZE_AGAIN:
                reach = self._moment_reach(answer.noise_sd, count)
            return {"centre": centre, "square": np.asarray(reach * found), **kept}, None
        count = float(known["count"])
        if answer.stage == MEAN:
            moved = centre + math.sqrt(square) * answer.total / count
            wider = np.asarray(WIDER * float(known["found"]))
            return {"centre": moved, "square": wider, "count": known["count"]}, None
        scale = square / count
        i, j = np.triu_indices(self.width)
        if answer.noise_sd > 0.0 and float(known["found_error"]) < RELIABLE:
            # Clipping makes the trace too small; the mean squared distance is its true value.
            trace = max(float(np.sum(answer.total[i == j])) * scale, 1e-300)
            scale *= min(max(float(known["found"]) / trace, 1.0), MOST_RESCALED)
        upper = answer.total * np.where(i == j, 1.0, HALF) * scale
        covariance = np.zeros((self.width, self.width))
        covariance[i, j] = upper
        covariance[j, i] = upper
        found = self._estimated(centre, covariance, answer.noise_sd * scale)
        return dict(known), self._posterior(found, count)

    def _moment_reach(self, noise_sd: float, count: float) -> float:
        """Return the clip of the second moments, as a multiple of the mean squared distance from
        the centre.

        `noise_sd` is the standard deviation of the noise in the previous stage. A small clip biases
        eigenvalues, and a large clip adds noise that rotates axes. The clip is therefore large only
        if little noise is expected.
        """
        d = self.width
        coming = noise_sd * math.sqrt(SHARES[2] / SHARES[3])  # both stages are acute
        relative = coming * math.sqrt(2.0 * d) * d / count
        return min(max(NOISE_SHARE / max(relative, 1e-300), NARROWEST), WIDEST)

    def _estimated(self, mean: np.ndarray, covariance: np.ndarray, noise_sd: float) -> Factors:
        """Estimate loadings and noise variances by maximum likelihood from a noisy covariance
        matrix. `noise_sd` is the standard deviation of the noise in its diagonal entries.
        """
        d, k = self.width, self.factors
        sizes, axes = np.linalg.eigh(covariance)
        sizes, axes = sizes[::-1], axes[:, ::-1]
        # Noise of sd t on the diagonal and t/√2 off it moves an eigenvalue λ to λ + dt²/2λ.
        true = np.sqrt(np.maximum(np.sign(sizes) * sizes**2 - 2.0 * d * noise_sd**2, 0.0))
        variance = np.diagonal(covariance)
        least = LEAST_NOISE * max(float(np.mean(variance)), 1e-300)
        if noise_sd == 0.0:
            true = np.maximum(sizes, 0.0)
        rest = max((float(np.sum(variance)) - float(np.sum(true[:k]))) / (d - k), least)
        loadings = axes[:, :k] * np.sqrt(np.maximum(true[:k] - rest, 0.0))
        if self.noise == "common":
            return Factors(mean, _signed(loadings), np.full(d, rest))
        repaired = (axes * true) @ axes.T
        repaired[np.arange(d), np.arange(d)] = np.maximum(variance, least)
        return _factor_analysis(mean, repaired, loadings, LEAST_NOISE)

    # Results

    def scores(self, natural: Natural, x: Array) -> np.ndarray:
        """Return the expected factors of each record, given x and the mean of q. The shape is
        (number of records, number of factors).
        """
        found = self.parts(natural)
        scaled = found.loadings / found.noise[:, None]
        inner = np.eye(self.factors) + found.loadings.T @ scaled
        return np.linalg.solve(inner, scaled.T @ (np.asarray(x, np.float64) - found.mean).T).T

    def reconstruct(self, natural: Natural, records: Records) -> np.ndarray:
        """Return the projection μ + W(WᵀW)⁻¹Wᵀ(x − μ) of each record x onto the space of the
        factors. W are the loadings and μ is the mean.
        """
        found = self.parts(natural)
        axes = _axes(found.loadings)
        gap = np.asarray(records["x"], np.float64) - found.mean
        return found.mean + (gap @ axes) @ axes.T

    def log_density(self, found: Factors, x: Array) -> np.ndarray:
        """Return log N(x; μ, WWᵀ + Ψ) of each record, with mean μ, loadings W and diagonal noise
        variances Ψ.
        """
        gap = np.asarray(x, np.float64) - found.mean
        scaled = found.loadings / found.noise[:, None]
        inner = np.eye(self.factors) + found.loadings.T @ scaled
        pulled = gap @ scaled
        squares = np.sum(np.square(gap) / found.noise, axis=1)
        squares -= np.sum(pulled * np.linalg.solve(inner, pulled.T).T, axis=1)
        size = np.sum(np.log(found.noise)) + np.linalg.slogdet(inner)[1]
        return -0.5 * (squares + size + self.width * math.log(2.0 * math.pi))

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """Return the expected factors and the log density of each record."""
        del family, draws, seed
        x = records["x"]
        return Prediction(self.scores(natural, x), self.log_density(self.parts(natural), x), None)

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float]:
        """Return the mean log density of held-out records, and the share of their variance that
        lies in the space spanned by the loadings.
        """
        del seed
        x = np.asarray(records["x"], np.float64)
        gap = x - np.mean(x, axis=0)
        axes = _axes(self.parts(natural).loadings)
        captured = float(np.sum(np.square(gap @ axes)) / np.sum(np.square(gap)))
        density = float(np.mean(self.log_density(self.parts(natural), x)))
        return {"log_predictive_density": density, "captured_variance": captured}

    def described(self, natural: Natural, units: ColumnUnits) -> list[Description]:
        """Return a table with the share of variance and the largest loadings of each factor."""
        found = self.parts(natural)
        scale = np.array([units.get(name, (0.0, 1.0))[1] for name in self.columns])
        loadings, noise = scale[:, None] * found.loadings, scale**2 * found.noise
        whole = float(np.sum(np.square(loadings)) + np.sum(noise))
        rows = []
        for k in range(self.factors):
            column = loadings[:, k]
            order = np.argsort(-np.abs(column), kind="stable")[:MOST_LOADINGS]
            words = ", ".join(f"{self.columns[j]} {column[j]:+.3g}" for j in order)
            rows.append((str(k + 1), f"{float(column @ column) / whole:.1%}", words))
        heading = ("Factor", "Share of variance", "Largest loadings, in the columns' units")
        return [Description("Factors", heading, rows)]

    def log_likelihood(self, theta: Array, records: Records) -> np.ndarray:
        """Compute log p(record | θ) of each record, in NumPy."""
        return self.log_density(self._split(np.asarray(theta, np.float64)), records["x"])

    def response(self, theta: Array, records: Records) -> np.ndarray:
        """Return the expected factors of each record given θ. The shape is (number of records,
        number of factors).
        """
        theta = np.asarray(theta, np.float64)
        fixed = {"linear": theta, "quadratic": np.full(len(theta), -0.5)}
        return self.scores(fixed, records["x"])


def _axes(loadings: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the space spanned by the loadings, one column per
    direction.
    """
    axes, sizes, _ = np.linalg.svd(loadings, full_matrices=False)
    return axes[:, sizes > 1e-9 * max(float(np.max(sizes)), 1e-300)]


def _signed(loadings: np.ndarray) -> np.ndarray:
    """Change the signs of the columns of `loadings` such that the largest loading of each factor is
    positive.
    """
    largest = loadings[np.argmax(np.abs(loadings), axis=0), np.arange(loadings.shape[1])]
    return loadings * np.where(largest < 0, -1.0, 1.0)


def _factor_analysis(
    mean: np.ndarray, covariance: np.ndarray, start: np.ndarray, least: float
) -> Factors:
    """Fit a factor analysis to a covariance matrix by expectation-maximisation (Rubin and Thayer
    1982).

    `start` are the first loadings. The noise variance of a column is at least `least` times the
    variance of the column.
    """
    variance = np.diagonal(covariance)
    loadings = start + 1e-3 * np.sqrt(np.mean(variance)) * np.eye(*start.shape)
    noise = np.maximum(variance - np.sum(loadings**2, axis=1), 0.1 * variance)
    before = -math.inf
    for _ in range(EM_STEPS):
        scaled = loadings / noise[:, None]
        inner = np.linalg.inv(np.eye(start.shape[1]) + loadings.T @ scaled)
        gain = inner @ scaled.T
        cross = covariance @ gain.T
        second = inner + gain @ cross
        fit = -0.5 * (
            np.sum(np.log(noise))
            - np.linalg.slogdet(inner)[1]
            + np.sum(variance / noise)
            - np.sum(scaled * cross)
        )
        loadings = np.linalg.solve(second, cross.T).T
        noise = np.maximum(variance - np.sum(loadings * cross, axis=1), least * variance)
        if fit - before < EM_TOLERANCE:
            break
        before = fit
    root = np.sqrt(noise)
    axes, sizes, _ = np.linalg.svd(loadings / root[:, None], full_matrices=False)
    return Factors(mean, _signed(root[:, None] * axes * sizes), noise)
