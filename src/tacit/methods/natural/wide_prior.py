"""Priors in `WideSolver`: value, gradient, diagonal and products, in z with θ = mean + scale·z."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.data.schema.layout import Layout
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.methods.natural.subspace import Products
from tacit.models.learnt_scale import CONSTANT_SCALE, LearntScalePrior, units_of_columns

UNITS, CENTRE, FIXED = "prior.units", "prior.centre", "prior.fixed"
"""Names in the server's memory."""


class WideTerm(NamedTuple):
    """log p(θ) under q up to a constant, with the diagonal of −∇² and products with −∇²."""

    value: float
    gradient: np.ndarray
    diagonal: np.ndarray
    products: Products


class NormalPrior(NamedTuple):
    """Independent normals; zeros if the parties add shares of the prior to their replies."""

    precision: np.ndarray
    linear: np.ndarray
    learnt: bool = False

    @classmethod
    def of(cls, prior: Natural | None, size: int) -> NormalPrior:
        if prior is None:
            return cls(np.zeros(size), np.zeros(size))
        return cls(-2.0 * np.asarray(prior["quadratic"]), np.asarray(prior["linear"]))

    def precisions(self, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Precisions, which do not depend on q."""
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
    """The default prior of regressions (`tacit.models.learnt_scale`) without matrices over all θ.

    Every output has one coefficient φ per column in the units of the column, and the intercept φ at
    the centre of the columns: φ = T(θ − mean), where T is diagonal except for the rows of the
    intercepts.
    """

    facts: ScaleFacts
    units: np.ndarray
    centre: np.ndarray
    """Row of T of the intercept; zeros without one."""
    inflation: np.ndarray | float = 1.0
    """Variances of θ relative to a mean-field q, whose variances would make scales too small."""
    fixed: np.ndarray | None = None
    """Precisions of φ that are kept fixed for now: the prior is then normal."""

    @property
    def learnt(self) -> bool:
        """True if precisions change with q."""
        return self.fixed is None

    @classmethod
    def known(cls, facts: ScaleFacts | None, memory: Arrays) -> ScalesPrior | None:
        if facts is None or UNITS not in memory:
            return None
        return cls(facts, memory[UNITS], memory[CENTRE], fixed=memory.get(FIXED))

    @staticmethod
    def measured(facts: ScaleFacts, information: np.ndarray, row: np.ndarray) -> Arrays:
        """Units of the columns, from the diagonal of the information at 0 and the row of the
        intercept.
        """
        layout = facts.model.layout
        matrix = np.diag(information[: len(layout)])
        constant = constant_of(layout)
        if constant is not None:
            matrix[constant] = row[: len(layout)]
        units, centre = units_of_columns(layout, matrix)
        units = units.copy()
        row = np.zeros(len(layout))
        if constant is not None:
            row = np.asarray(centre, np.float64).copy()
            row[constant], units[constant] = 1.0, 0.0
        return {UNITS: units, CENTRE: row}

    @property
    def density(self) -> LearntScalePrior:
        """The same with a dense transform; for few parameters."""
        size = len(self.facts.mean)
        return self.facts.prior(self._phi(np.eye(size)).T)

    def precisions(self, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Precision of each φ, at q = N(mean, scale²)."""
        return self._density_term(mean, scale, 1.0)[1]

    def term(
        self,
        mean: np.ndarray,
        scale: np.ndarray,
        spread: float = 1.0,
        precision: np.ndarray | None = None,
    ) -> WideTerm:
        """The term at q, or with given precisions; at a point (spread 0) with normal priors of
        scale u.
        """
        phi = self._phi(mean - self.facts.mean)
        if spread == 0:
            wide = np.where(self.facts.column >= 0, 1.0, CONSTANT_SCALE) * self.facts.unit
            precision = wide**-2.0
            value = -0.5 * float(precision @ (phi * phi))
        else:
            value, found = self._density_term(mean, scale, spread)
            precision = found if precision is None else precision
        return WideTerm(
            value,
            -scale * self._back(precision * phi),
            scale * scale * self._back_squares(precision),
            lambda rows: scale * self._back(precision * self._phi(rows * scale)),
        )

    def _density_term(
        self, mean: np.ndarray, scale: np.ndarray, spread: float
    ) -> tuple[float, np.ndarray]:
        phi = self._phi(mean - self.facts.mean)
        square = phi * phi + spread**2 * self._squares(self.inflation * scale * scale)
        if self.fixed is not None:
            return -0.5 * float(self.fixed @ square), self.fixed
        flat = self.facts.prior(np.zeros((0, 0)))  # a function of squares of φ alone
        found = flat.term_of(square)
        return found.value, found.precision

    # T, its transpose, and both with squared elements; θ is one block of columns per output, and
    # then parameters that belong to no column.

    @property
    def _tail(self) -> np.ndarray:
        further = len(self.facts.mean) % len(self.units)
        sd = np.asarray(self.facts.model.prior_sd, np.float64)
        return CONSTANT_SCALE * self.facts.unit / sd[len(sd) - further :]

    def _parts(self, rows: np.ndarray, power: int) -> tuple[np.ndarray, np.ndarray]:
        """One row of columns per output, and the parameters that belong to no column, scaled."""
        outputs, further = divmod(rows.shape[-1], len(self.units))
        head = rows[..., : outputs * len(self.units)]
        blocks = head.reshape(*rows.shape[:-1], outputs, len(self.units))
        return blocks, rows[..., rows.shape[-1] - further :] * self._tail**power

    def _apply(self, rows: np.ndarray, power: int) -> np.ndarray:
        blocks, tail = self._parts(rows, power)
        constant = constant_of(self.facts.model.layout)
        found = blocks * self.units**power
        if constant is not None:
            found[..., constant] = blocks @ self.centre**power
        return np.concatenate(
            [found.reshape(*rows.shape[:-1], blocks.shape[-2] * blocks.shape[-1]), tail], axis=-1
        )

    def _apply_back(self, rows: np.ndarray, power: int) -> np.ndarray:
        blocks, tail = self._parts(rows, power)
        constant = constant_of(self.facts.model.layout)
        found = blocks * self.units**power
        if constant is not None:
            found = found + blocks[..., constant, None] * self.centre**power
        return np.concatenate(
            [found.reshape(*rows.shape[:-1], blocks.shape[-2] * blocks.shape[-1]), tail], axis=-1
        )

    def _phi(self, rows: np.ndarray) -> np.ndarray:
        return self._apply(rows, 1)

    def _squares(self, rows: np.ndarray) -> np.ndarray:
        return self._apply(rows, 2)

    def _back(self, rows: np.ndarray) -> np.ndarray:
        return self._apply_back(rows, 1)

    def _back_squares(self, rows: np.ndarray) -> np.ndarray:
        return self._apply_back(rows, 2)


def constant_of(layout: Layout) -> int | None:
    """Index of the intercept among the columns."""
    found = [place for place, feature in enumerate(layout) if feature.kind == "intercept"]
    return found[0] if found else None
