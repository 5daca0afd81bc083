"""`GaussianMixture`: a mixture of normals with full covariance matrices, for columns of numbers.

**Model** (Bishop 2006, section 10.2). The weights are π ~ Dirichlet(α₀). Each component has a
precision matrix Λ with a Wishart prior, and a mean μ | Λ ~ N(m₀, (β₀Λ)⁻¹). q is a Dirichlet
distribution times one normal-Wishart per component (`tacit.expfam.normal_wishart`). The prior is
that of scikit-learn's `BayesianGaussianMixture` with its defaults: it is centred at the mean of all
records, scaled by their covariance, and as strong as one record.

**Stages** (`tacit.models.conjugate`). Given q, a record y belongs to component k with a probability
r_k, called its responsibility. It contributes r ⊗ (1, y, yyᵀ) to the update of q. All stages
release sums of such second moments (`tacit.models.mixture.rows`):

    columns (twice)        counts, sums and squares of each column, which give centre and scale
    moment                 second moment of the scaled columns, which gives a whitening
    cells (three times)    moments of the records nearest to each of several public centres; the
                           server fits a starting point to them
    update (repeated)      moments weighted by responsibilities, which give q

In the stages "cells" and "update", moments are taken around the public centre of a cell or
component, in units of its width. The noise is then small even compared with a narrow component.

docs/methods/conjugate.md derives the sensitivities. Intervals of a private fit are not calibrated,
because q does not include the noise, and because it describes only one of the equivalent modes that
differ in the order of components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam.normal_wishart import NormalWisharts
from tacit.models.base import ColumnUnits, Description, ModelSchema, Records
from tacit.models.columns import ColumnModel, check_numeric
from tacit.models.conjugate import NoStatistics, RowStatistics, StageSum, StatisticsStage
from tacit.models.mixture.moments import (
    Moments,
    Repaired,
    averaged,
    moved,
    positive_root,
    read_moments,
    repaired,
)
from tacit.models.mixture.rows import (
    ComponentStatistics,
    Units,
    diagonal_rows,
    nearest_cells,
    outer_rows,
    own_coordinates,
    product_statistics,
    responsibilities,
    rowwise_product,
)
from tacit.models.mixture.start import POINTS, drawn_points, fitted_components
from tacit.models.predictive import Prediction
from tacit.models.settings import MixtureSettings
from tacit.models.statistics import Statistics

COLUMNS, MOMENT, CELLS, UPDATE = "columns", "moment", "cells", "update"
MAP_SHARES, CELL_SHARES = (0.02, 0.02, 0.04), (0.10, 0.10, 0.20)
NARROW = 4.0
"""In the second visit of the stage "columns", the range of a column is its first estimated mean ±
this many standard deviations, but not wider than the declared range.
"""
LARGEST_ASKED = 1e12
"""A request with larger numbers could cause an overflow and is answered with a sum of zeros."""
SUMS = ("sum_count", "sum_linear", "sum_quadratic")
"""Names of the arrays in which the server stores the moments of the whitened records y, averaged
over earlier updates. The sd of their noise is stored as `noise`.
"""
STEP_POWER = 0.7
"""Exponent of the step sizes ρ_t = (1 + t)^−0.7 that average noisy sums over rounds (VIPS, Alg.
1).
"""


class GaussianMixture(ColumnModel):
    """A mixture of `components` normals over the columns of x.

    Parameters
    ----------
    columns
        Names of the columns of x.
    components
        Number of components K.
    concentration
        Dirichlet parameter of the weights; by default 1/K, which allows components to become empty.
    start_seed
        Seed of the centres of the first cells and of the server's random restarts.
    bounds
        (low, high), the smallest and largest value of every column. A private run needs them,
        unless the columns are standardised or `layout` contains bounds.
    layout
        Public description of each column of x.

    Examples
    --------
    >>> GaussianMixture(("age", "weight"), components=3).own_family
    NormalWisharts(3, 2)
    """

    kind: ClassVar[str] = "mixture"
    Settings = MixtureSettings
    reads_columns: ClassVar[bool] = True
    seeded: ClassVar[bool] = True
    private_rounds: ClassVar[int] = 14
    uncalibrated: ClassVar[str | None] = (
        "Intervals of clusters are not calibrated: they hold for one of several equally good "
        "labellings and assume that the records come from such a mixture."
    )

    def __init__(
        self,
        columns: Sequence[str],
        *,
        components: int = 3,
        concentration: float | None = None,
        start_seed: int = 0,
        bounds: tuple[Any, Any] | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(columns, bounds, layout)
        whole = isinstance(components, int | np.integer) and not isinstance(components, bool)
        if not (whole and components >= 1):
            raise ConfigError(f"components = {components!r}; it must be a whole number, at least 1")
        if concentration is not None and not 0 < concentration < math.inf:
            raise ConfigError(f"concentration = {concentration}; it must be a finite number > 0")
        self.components, self.start_seed = int(components), int(start_seed)
        self.concentration = 1.0 / components if concentration is None else float(concentration)

    @classmethod
    def build(cls, settings: MixtureSettings, schema: ModelSchema) -> GaussianMixture:
        check_numeric(cls.kind, schema.layout)
        return cls(
            schema.names,
            components=settings.components,
            concentration=settings.concentration,
            start_seed=schema.seed,
            layout=schema.layout,
        )

    @property
    def dimension(self) -> int:
        return self.own_family.dimension

    @cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        groups = [f"cluster {k + 1}" for k in range(self.components)]
        return (
            *(f"{group}: weight" for group in groups),
            *(f"{group}: mean of {name}" for group in groups for name in self.columns),
            *(
                f"{group}: precision of {one} and {other}"
                for group in groups
                for one in self.columns
                for other in self.columns
            ),
        )

    @property
    def prediction_words(self) -> tuple[str, tuple[str, ...]]:
        names = tuple(f"cluster {k + 1}" for k in range(self.components))
        return "probability of each cluster", names

    @property
    def own_family(self) -> NormalWisharts:
        return NormalWisharts(self.components, self.width)

    @property
    def cells(self) -> int:
        """Number of cells into which records are sorted; the server computes a starting point from
        their moments.
        """
        return max(4 * self.components, 20)

    @property
    def _units(self) -> Units:
        return Units(math.sqrt(self.width + 4.0))

    # Prior and posterior

    def prior(self, family: Family) -> Natural:
        """Return the prior, scaled to the declared bounds of the columns.

        During a fit, the prior is rescaled to the released centre and covariance of the records.
        """
        del family
        low, high = self.bounds
        return self._prior(0.5 * (low + high), np.diag(0.5 * (high - low)))

    def _prior(self, centre: np.ndarray, root: np.ndarray) -> Natural:
        k, d = self.components, self.width
        return self.own_family.natural(
            concentration=np.full(k, self.concentration),
            mean=np.tile(centre, (k, 1)),
            mean_precision=np.ones(k),
            scale=np.tile(root @ root.T, (k, 1, 1)),
            degrees=np.full(k, float(d)),
        )

    def _posterior(self, known: Arrays, found: Repaired) -> Natural:
        """Return q, the posterior of a mixture of records x = centre + root·y, given the counts,
        means and covariances of y in each component.
        """
        centre, root = known["centre"], known["root"]
        mean = centre + found.mean @ root.T
        covariance = root @ found.covariance @ root.T
        moment = covariance + mean[:, :, None] * mean[:, None, :]
        before = self._prior(centre, root)
        count = found.count
        return {
            "log": before["log"] + count,
            "count": before["count"] + count,
            "linear": before["linear"] + count[:, None] * mean,
            "quadratic": before["quadratic"] + count[:, None, None] * moment,
            "degrees": before["degrees"] + count,
        }

    # Stages

    @property
    def stages(self) -> tuple[StatisticsStage, ...]:
        shares = (*MAP_SHARES, *CELL_SHARES)
        names = (COLUMNS, COLUMNS, MOMENT, *(CELLS for _ in CELL_SHARES))
        first = [StatisticsStage(*one, acute=True) for one in zip(names, shares, strict=True)]
        return (*first, StatisticsStage(UPDATE, 1.0 - sum(shares), acute=True))

    def stage_size(self, stage: str) -> int:
        d = self.width
        if stage == COLUMNS:
            return 1 + 2 * d
        rows = {MOMENT: 1, CELLS: self.cells, UPDATE: self.components}[stage]
        return rows * (1 + d + d * (d + 1) // 2)

    def public_shapes(self, stage: str) -> dict[str, tuple[int, ...]]:
        k, d = self.components, self.width
        shapes: dict[str, tuple[int, ...]] = {"centre": (d,), "root": (d, d)}
        if stage == CELLS:
            shapes |= {"cell_centres": (self.cells, d), "cell_factor": (d, d)}
        if stage == UPDATE:
            shapes |= {"log_weight": (k,), "mean": (k, d), "factor": (k, d, d)}
        return shapes

    def first_public(self) -> Arrays:
        low, high = self.bounds
        return {"centre": 0.5 * (low + high), "root": np.diag(0.5 * (high - low))}

    def stage_statistics(self, stage: str, public: Arrays, records: Records) -> Statistics:
        x = np.asarray(records["x"], np.float64)
        if not all(np.all(np.abs(value) <= LARGEST_ASKED) for value in public.values()):
            return NoStatistics(records=len(x), size=self.stage_size(stage))
        gap = x - public["centre"]
        if stage == COLUMNS:
            y = np.clip(gap / np.maximum(np.diagonal(public["root"]), 1e-12), -1.0, 1.0)
            packed, norms = diagonal_rows(y, Units(1.0))
            return RowStatistics(left=np.ones((len(x), 1)), right=packed, sizes=norms)
        y = rowwise_product(gap, np.linalg.pinv(public["root"]))
        if stage == UPDATE:
            own = own_coordinates(y, public["mean"], public["factor"])
            weights = responsibilities(own, public["log_weight"])
            return ComponentStatistics(weights=weights, coordinates=own, units=self._units)
        if stage == MOMENT:
            packed, norms = outer_rows(y, self._units)
            return RowStatistics(left=np.ones((len(x), 1)), right=packed, sizes=norms)
        cells = nearest_cells(y, public["cell_centres"])
        gap = y - public["cell_centres"][np.argmax(cells, axis=1)]
        packed, norms = outer_rows(rowwise_product(gap, public["cell_factor"]), self._units)
        return product_statistics(cells, packed, norms)

    def advance(self, known: Arrays, answer: StageSum) -> tuple[Arrays, Natural | None]:
        if answer.stage == COLUMNS:
            found = self._after_columns(known, answer)
        elif answer.stage == MOMENT:
            found = self._after_moment(known, answer)
        elif answer.stage == CELLS:
            found = self._after_cells(known, answer)
        else:
            return self._after_update(known, answer)
        return found, None

    def _after_columns(self, known: Arrays, answer: StageSum) -> Arrays:
        # After the first visit, the scale is half the range that the second visit uses (`NARROW`).
        half = np.diagonal(known["root"])
        units = Units(1.0)
        moments = read_moments(answer.total, self.width, units, answer.noise_sd, diagonal=True)
        count = max(float(moments.count[0]), moments.count_sd, 1.0)
        mean = np.clip(moments.linear[0] / count, -1.0, 1.0)
        square = np.diagonal(moments.quadratic[0]) / count
        noise = moments.quadratic_sd / count
        variance = np.clip(square - mean * mean, max(noise, 1e-6), 1.0)
        centre, sd = known["centre"] + half * mean, half * np.sqrt(variance)
        if answer.following == COLUMNS:
            return {"centre": centre, "root": np.diag(np.minimum(half, NARROW * sd))}
        return {"centre": centre, "root": np.diag(sd)}

    def _after_moment(self, known: Arrays, answer: StageSum) -> Arrays:
        # With x = centre + root·y, y has mean 0 and covariance I.
        moments = read_moments(answer.total, self.width, self._units, answer.noise_sd)
        count = max(float(moments.count[0]), moments.count_sd, 1.0)
        mean = moments.linear[0] / count
        covariance = moments.quadratic[0] / count - np.outer(mean, mean)
        root = positive_root(covariance, moments.quadratic_sd / count)
        rng = np.random.default_rng([self.start_seed, 1])
        return {
            "centre": known["centre"] + known["root"] @ mean,
            "root": known["root"] @ root,
            "cell_centres": rng.standard_normal((self.cells, self.width)),
            "cell_factor": np.eye(self.width),
        }

    def _after_cells(self, known: Arrays, answer: StageSum) -> Arrays:
        moments = read_moments(answer.total, self.width, self._units, answer.noise_sd)
        root = np.linalg.inv(known["cell_factor"])
        found = repaired(moments, known["cell_centres"], np.tile(root, (self.cells, 1, 1)))
        rng = np.random.default_rng([self.start_seed, 2, answer.number])
        points = drawn_points(found, POINTS, rng)
        if answer.following == CELLS:
            centres = np.where(
                (found.count > 2.0 * moments.count_sd + 1.0)[:, None],
                found.mean,
                points[rng.permutation(len(points))[: self.cells]],
            )
            pooled = np.einsum("k,kij->ij", found.count / np.sum(found.count), found.covariance)
            factor = np.linalg.inv(positive_root(pooled, 0.0))
            return {**_map(known), "cell_centres": centres, "cell_factor": factor}
        start = fitted_components(points, self.components, rng)
        count = start.count * np.sum(found.count)
        q = self._posterior(known, start._replace(count=count))
        return {**_map(known), **self._request(known, q)}

    def _after_update(self, known: Arrays, answer: StageSum) -> tuple[Arrays, Natural]:
        mean, factor = known["mean"], known["factor"]
        root = np.linalg.inv(factor)
        found = read_moments(answer.total, self.width, self._units, answer.noise_sd)
        if found.noisy and answer.number > 0:
            # The sums of earlier rounds, in the coordinates of this one.
            shift = -np.einsum("kij,kj->ki", factor, mean)
            before = moved(Moments(*(known[name] for name in SUMS)), factor, shift)
            before = before.with_noise(found, float(known["noise"]) / answer.noise_sd)
            found = averaged(before, found, (1.0 + answer.number) ** -STEP_POWER)
        q = self._posterior(known, repaired(found, mean, root))
        kept = dict(zip(SUMS, moved(found, root, mean)[:3], strict=True))
        noise = {"noise": np.asarray(found.count_sd * self._units.count)}
        return {**_map(known), **self._request(known, q), **kept, **noise}, q

    def _request(self, known: Arrays, q: Natural) -> Arrays:
        # Parties compute responsibilities in the coordinates y from these arrays (Bishop 2006, eq.
        # 10.46).
        usual = self.own_family.usual(q)
        inverse = np.linalg.inv(known["root"])
        mean = (usual["mean"] - known["centre"]) @ inverse.T
        scale = inverse @ usual["scale"] @ inverse.T
        precision = usual["degrees"][:, None, None] * np.linalg.inv(scale)
        alpha = usual["concentration"]
        from scipy.special import digamma

        log_weight = digamma(alpha) - digamma(np.sum(alpha))
        log_weight += 0.5 * self.own_family.log_determinant(scale, usual["degrees"])
        log_weight -= 0.5 * self.width / usual["mean_precision"]
        factor = np.swapaxes(
            np.linalg.cholesky(0.5 * (precision + np.swapaxes(precision, 1, 2))), 1, 2
        )
        return {"log_weight": log_weight - np.max(log_weight), "mean": mean, "factor": factor}

    # Results

    def log_predictive(self, natural: Natural, x: Array) -> np.ndarray:
        """Return log(weight × predictive density) for every record (row) and component (column).

        The predictive density of a component is a Student-t.
        """
        from scipy.special import gammaln

        usual, d = self.own_family.usual(natural), self.width
        x = np.asarray(x, np.float64)
        share = usual["concentration"] / np.sum(usual["concentration"])
        result = np.empty((len(x), self.components))
        for k in range(self.components):
            free = usual["degrees"][k] + 1.0 - d
            beta = usual["mean_precision"][k]
            root = np.linalg.cholesky(usual["scale"][k] * (1.0 + beta) / (beta * free))
            turned = np.linalg.solve(root, (x - usual["mean"][k]).T)
            size = 2.0 * np.sum(np.log(np.diagonal(root)))
            square = np.sum(turned * turned, axis=0)
            result[:, k] = (
                math.log(share[k])
                + gammaln(0.5 * (free + d))
                - gammaln(0.5 * free)
                - 0.5 * (d * math.log(free * math.pi) + size)
                - 0.5 * (free + d) * np.log1p(square / free)
            )
        return result

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """Return each record's cluster probabilities and log predictive density."""
        del family, draws, seed
        logs = self.log_predictive(natural, records["x"])
        largest = np.max(logs, axis=1, keepdims=True)
        weights = np.exp(logs - largest)
        whole = np.sum(weights, axis=1, keepdims=True)
        return Prediction(weights / whole, largest[:, 0] + np.log(whole[:, 0]), None)

    def described(self, natural: Natural, units: ColumnUnits) -> list[Description]:
        """Return a table with the share, mean and standard deviation of every cluster, on the
        original scales of the columns. The largest cluster is first.
        """
        usual = self.own_family.usual(natural)
        share = usual["concentration"] / np.sum(usual["concentration"])
        spread = np.maximum(usual["degrees"] - self.width - 1.0, 1.0)
        sd = np.sqrt(np.diagonal(usual["scale"], axis1=1, axis2=2) / spread[:, None])
        known = [units.get(name, (0.0, 1.0)) for name in self.columns]
        centre, scale = (np.array(part) for part in zip(*known, strict=True))
        mean, sd = centre + scale * usual["mean"], scale * sd
        order = np.argsort(-share, kind="stable")
        rows = [
            (
                str(k + 1),
                f"{share[k]:.1%}",
                *(f"{m:.4g} ± {s:.3g}" for m, s in zip(mean[k], sd[k], strict=True)),
            )
            for k in order
        ]
        heading = ("Cluster", "Share", *self.columns)
        return [Description("Clusters: mean ± standard deviation of their records", heading, rows)]

    def weight_of(self, natural: Natural) -> float:
        return float(np.sum(natural["count"]))

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float]:
        """Return the mean log predictive density of x over held-out records."""
        found = self.predict(self.own_family, natural, records, draws=1, seed=seed)
        return {"log_predictive_density": float(np.mean(found.log_density))}

    def log_likelihood(self, theta: Array, records: Records) -> np.ndarray:
        """Return log p(record | θ) of each record, in NumPy."""
        return _log_total(self._log_parts(theta, records))

    def response(self, theta: Array, records: Records) -> np.ndarray:
        """Return the cluster probabilities of each record given θ, one column per cluster."""
        logs = self._log_parts(theta, records)
        return np.exp(logs - _log_total(logs)[:, None])

    def _log_parts(self, theta: Array, records: Records) -> np.ndarray:
        weights, means, precisions = self.own_family.parts(np.asarray(theta, np.float64))
        gap = np.asarray(records["x"], np.float64)[:, None, :] - means
        squares = np.einsum("nki,kij,nkj->nk", gap, precisions, gap)
        size = np.linalg.slogdet(precisions)[1] - self.width * math.log(2.0 * math.pi)
        return np.log(weights) + 0.5 * (size - squares)


def _log_total(logs: np.ndarray) -> np.ndarray:
    largest = np.max(logs, axis=1)
    return largest + np.log(np.sum(np.exp(logs - largest[:, None]), axis=1))


def _map(known: Arrays) -> Arrays:
    return {"centre": known["centre"], "root": known["root"]}
