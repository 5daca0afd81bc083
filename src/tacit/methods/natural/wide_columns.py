"""Coordinates for many parameters in which the columns of a regression are centred.

The constant of a regression is correlated with the coefficients of columns whose mean is far from
0, and a q of independent parameters cannot describe that: the linear predictor of a record would
have many times its variance. The solver therefore works with φ. The coefficients are those of θ,
and each constant is the linear predictor at the centre of the columns:

    φ_constant = θ_constant + Σ centre_j θ_j,    θ = B φ,    x·θ = (Bᵀx)·φ,

where Bᵀx is x with centred columns. The centre is a sum over parties, from the first exchange.

This is done only for the default prior, whose learned scales belong to φ and depend on the
variances. A declared prior has independent θ: in φ it would correlate the coefficients with each
other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.models.capabilities import LearnsScale


class Columns(NamedTuple):
    """Number of columns, and the index of the intercept among them.

    θ is one block of columns per output, and then parameters that belong to no column.
    """

    count: int
    constant: int

    @classmethod
    def of(cls, model: object) -> Columns | None:
        """Return the columns of a model; None if it has no columns, no intercept, or a declared
        prior.
        """
        if not isinstance(model, LearnsScale) or model.scale_unit is None:
            return None
        kinds = [feature.kind for feature in model.layout]
        return cls(len(kinds), kinds.index("intercept")) if "intercept" in kinds else None

    def constants(self, size: int) -> np.ndarray:
        """Return the indices of the intercepts of all outputs."""
        return self.constant + self.count * np.arange(size // self.count)

    def centre(self, row: np.ndarray) -> np.ndarray:
        """Compute the means of the columns from the first intercept's row of the information
        matrix.

        There is one mean per parameter: the same for every output, and 0 for parameters without a
        column.
        """
        means = np.where(row[self.constant] > 0, row[: self.count] / row[self.constant], 0.0)
        means[self.constant] = 0.0
        outputs, further = divmod(len(row), self.count)
        return np.concatenate([np.tile(means, outputs), np.zeros(further)])

    def of_constants(self, values: Array) -> Array:
        """Return, for each parameter, the value of its output's intercept; 0 if it belongs to no
        output.
        """
        xp = namespace(values)
        outputs, further = divmod(values.shape[-1], self.count)
        own = values[..., self.constant : outputs * self.count : self.count]
        zeros = xp.zeros((*values.shape[:-1], further), values.dtype)
        return xp.concatenate([xp.repeat(own, self.count, axis=-1), zeros], axis=-1)

    def _shifted(self, rows: Array, centre: Array, sign: float) -> Array:
        xp = namespace(rows, centre)
        outputs = rows.shape[-1] // self.count
        head = (rows * centre)[..., : outputs * self.count]
        sums = xp.sum(head.reshape(*rows.shape[:-1], outputs, self.count), axis=-1)
        here = np.zeros((outputs, rows.shape[-1]))
        here[np.arange(outputs), self.constants(rows.shape[-1])] = sign
        return rows + sums @ here

    def theta(self, phi: Array, centre: Array) -> Array:
        """Convert each row from φ to θ = B φ."""
        return self._shifted(phi, centre, -1.0)

    def phi(self, theta: Array, centre: Array) -> Array:
        """The inverse of `theta`."""
        return self._shifted(theta, centre, 1.0)

    def back(self, rows: Array, centre: Array) -> Array:
        """Multiply each row by Bᵀ, which converts gradients in θ to gradients in φ and centres
        columns.
        """
        return rows - centre * self.of_constants(rows)

    def functionals(self, centre: np.ndarray) -> np.ndarray:
        """Return rows b such that b·φ are the intercepts in θ."""
        places = self.constants(len(centre))
        rows = np.zeros((len(places), len(centre)))
        rows[np.arange(len(places)), places] = 1.0
        return self.back(rows, centre)
