"""Priors in `WideSolver`: values and derivatives with respect to z, where φ = mean + scale·z."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.methods.natural.subspace import Products
from tacit.methods.natural.wide_columns import Columns
from tacit.models.learnt_scale import CONSTANT_SCALE, LearntScalePrior, units_of_columns

UNITS, CENTRE, FIXED = "prior.units", "prior.centre", "prior.fixed"
"""Names of the prior's arrays in the server's memory."""


class WideTerm(NamedTuple):
    """The prior's part of the objective, and its derivatives.

    `value` is E_q[log p(θ)] or a lower bound of it, up to a constant. `gradient` is its gradient,
    `diagonal` the diagonal of the negative Hessian, and `products` a function that multiplies rows
    by the negative Hessian.
    """

    value: float
    gradient: np.ndarray
    diagonal: np.ndarray
    products: Products


class NormalPrior(NamedTuple):
    """Prior of independent normals. All arrays are 0 if the parties add shares of the log-prior to
    their replies.
    """

    precision: np.ndarray
    linear: np.ndarray
    learnt: bool = False

    @classmethod
    def of(cls, prior: Natural | None, size: int) -> NormalPrior:
        if prior is None:
            return cls(np.zeros(size), np.zeros(size))
        return cls(-2.0 * np.asarray(prior["quadratic"]), np.asarray(prior["linear"]))

    def precisions(self, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the precisions of the prior, which do not depend on q."""
        del mean, scale
        return self.precision

    def term(
        self,
        mean: np.ndarray,
        scale: np.ndarray,
        spread: float = 1.0,
        precision: np.ndarray | None = None,
    ) -> WideTerm:
        del precision
        diagonal = scale * scale * self.precision
        value = self.linear @ mean - 0.5 * self.precision @ (mean * mean)
        return WideTerm(
            float(value) - 0.5 * spread**2 * float(np.sum(diagonal)),
            scale * (self.linear - self.precision * mean),
            diagonal,
            lambda rows: rows * diagonal,
        )


class ScalesPrior(NamedTuple):
    """The default prior of regressions (`tacit.models.learnt_scale`), computed without dense
    matrices.

    It is a density of units∘φ. The vector φ has the coefficients and, instead of the intercepts,
    the linear predictors at the centre of the columns (`wide_columns`). `units` are the scales of
    the columns.
    """

    facts: ScaleFacts
    units: np.ndarray
    centre: np.ndarray
    inflation: np.ndarray | float = 1.0
    """Ratio of the variances of φ to those of the mean-field q. The variances of a mean-field q
    alone would make the learned scales too small.
    """
    fixed: np.ndarray | None = None
    """Fixed precisions of a normal prior of units∘φ; None if the precisions are learned."""

    @property
    def learnt(self) -> bool:
        """True if the precisions of the prior change with q."""
        return self.fixed is None

    @classmethod
    def known(cls, facts: ScaleFacts | None, memory: Arrays) -> ScalesPrior | None:
        if facts is None or UNITS not in memory:
            return None
        return cls(facts, memory[UNITS], memory[CENTRE], fixed=memory.get(FIXED))

    @staticmethod
    def measured(facts: ScaleFacts, information: np.ndarray, row: np.ndarray) -> Arrays:
        """Compute `units`, the scales of the columns, and return them under their name in the
        server's memory.

        Both arguments are parts of the information matrix at θ = 0: `information` is its diagonal,
        and `row` is the row of the intercept.
        """
        layout, columns = facts.model.layout, Columns.of(facts.model)
        matrix = np.diag(information[: len(layout)])
        if columns is not None:
            matrix[columns.constant] = row[: len(layout)]
        units = np.array(units_of_columns(layout, matrix)[0])
        if columns is not None:
            units[columns.constant] = 1.0
        outputs, further = divmod(len(facts.mean), len(layout))
        sd = np.asarray(facts.model.prior_sd, np.float64)
        tail = CONSTANT_SCALE * facts.unit / sd[len(sd) - further :]
        return {UNITS: np.concatenate([np.tile(units, outputs), tail])}

    @property
    def density(self) -> LearntScalePrior:
        """The prior as a density of θ instead of units∘φ. It contains a dense matrix, so it is for
        models with few parameters.
        """
        size = len(self.facts.mean)
        return self.facts.prior((self._phi(np.eye(size)) * self.units).T)

    def precisions(self, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the prior's precision of each coordinate of units∘φ if φ has the distribution q =
        N(mean, scale²).
        """
        return self._density_term(self._apart(mean), scale, 1.0)[1]

    def term(
        self,
        mean: np.ndarray,
        scale: np.ndarray,
        spread: float = 1.0,
        precision: np.ndarray | None = None,
    ) -> WideTerm:
        """Return the prior's part of the objective at q = N(mean, scale²).

        `precision`, if given, replaces the prior's precisions at q. At a point (`spread` = 0) a
        normal prior with the scale `facts.unit` for coefficients is used instead.
        """
        apart = self._apart(mean)
        if spread == 0:
            wide = np.where(self.facts.column >= 0, 1.0, CONSTANT_SCALE) * self.facts.unit
            precision = wide**-2.0
            value = -0.5 * float(precision @ (apart * apart))
        else:
            value, found = self._density_term(apart, scale, spread)
            precision = found if precision is None else precision
        reach = scale * self.units
        diagonal = reach * reach * precision
        return WideTerm(value, -reach * precision * apart, diagonal, lambda rows: rows * diagonal)

    def _phi(self, rows: np.ndarray) -> np.ndarray:
        columns = Columns.of(self.facts.model)
        return rows if columns is None else columns.phi(rows, self.centre)

    def _apart(self, mean: np.ndarray) -> np.ndarray:
        """Return `units` times the distance of φ from the prior's mean."""
        return (mean - self._phi(self.facts.mean)) * self.units

    def _density_term(
        self, apart: np.ndarray, scale: np.ndarray, spread: float
    ) -> tuple[float, np.ndarray]:
        square = apart * apart + spread**2 * self.inflation * np.square(scale * self.units)
        if self.fixed is not None:
            return -0.5 * float(self.fixed @ square), self.fixed
        flat = self.facts.prior(np.zeros((0, 0)))  # `term_of` does not use the transform
        found = flat.term_of(square)
        return found.value, found.precision
