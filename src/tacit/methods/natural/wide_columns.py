"""Coordinates for many parameters in which the columns of a regression are centred.

The intercept of a regression is correlated with the coefficients of columns whose mean is not near
zero. A mean-field q cannot describe this correlation, and under q the linear predictor of a record
would have many times its actual variance. The solver therefore works with coordinates φ. They have
the same coefficients as θ, but each intercept is replaced by the linear predictor at the centre of
the columns. With the matrix B that converts φ to θ,

    φ_intercept = θ_intercept + Σ centre_j θ_j,    θ = B φ,    x·θ = (Bᵀx)·φ,

where Bᵀx is the record x with centred columns. The centre is computed from sums over parties in the
first exchange.

The coordinates φ are used only for the default prior, which is defined in φ and whose learned
scales depend on the variances. Under a declared prior the coordinates of θ are independent, and
those of φ would be correlated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.models.capabilities import LearnsScale


class Columns(NamedTuple):
    """Number of columns of a regression, and the index of the intercept among them.

    θ has one block of columns for each output, followed by parameters that belong to no column.
    """

    count: int
    constant: int

    @classmethod
    def of(cls, model: object) -> Columns | None:
        """Return the columns of a model.

        The result is None if the model has no columns, no intercept, or a declared prior.
        """
        if not isinstance(model, LearnsScale) or model.scale_unit is None:
            return None
        kinds = [feature.kind for feature in model.layout]
        return cls(len(kinds), kinds.index("intercept")) if "intercept" in kinds else None

    def constants(self, size: int) -> np.ndarray:
        """Return the indices of the intercepts of all outputs."""
        return self.constant + self.count * np.arange(size // self.count)

    def centre(self, row: np.ndarray) -> np.ndarray:
        """Return the means of the columns. `row` is the row of the information matrix that belongs
        to the first intercept.

        The result has one mean per parameter. The means are the same for every output, and 0 for
        parameters without a column.
        """
        means = np.where(row[self.constant] > 0, row[: self.count] / row[self.constant], 0.0)
        means[self.constant] = 0.0
        outputs, further = divmod(len(row), self.count)
        return np.concatenate([np.tile(means, outputs), np.zeros(further)])

    def of_constants(self, values: Array) -> Array:
        """Return, for each parameter, the entry of `values` at the intercept of the same output.
        The result is 0 for parameters that belong to no output.
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
        """Convert parameters of centred columns to θ, the parameters of the original columns.

        Each row of `phi` is one vector of parameters, and `centre` has the means of the columns.
        """
        return self._shifted(phi, centre, -1.0)

    def phi(self, theta: Array, centre: Array) -> Array:
        """Convert θ to parameters of centred columns, whose intercepts are linear predictors at the
        centre.

        Each row of `theta` is one vector of parameters, and `centre` has the means of the columns.
        """
        return self._shifted(theta, centre, 1.0)

    def back(self, rows: Array, centre: Array) -> Array:
        """Convert gradients in θ to gradients in the parameters of centred columns, one per row.

        Applied to records, the function centres their columns.
        """
        return rows - centre * self.of_constants(rows)

    def functionals(self, centre: np.ndarray) -> np.ndarray:
        """Return one row b for each intercept of θ, such that b·φ is the intercept."""
        places = self.constants(len(centre))
        rows = np.zeros((len(places), len(centre)))
        rows[np.arange(len(places)), places] = 1.0
        return self.back(rows, centre)


def intercepts(model: object) -> tuple[int, ...]:
    """Return the indices of the intercepts of a regression, with or without a declared prior."""
    if not isinstance(model, LearnsScale):
        return ()
    kinds = [feature.kind for feature in model.layout]
    if "intercept" not in kinds:
        return ()
    columns = Columns(len(kinds), kinds.index("intercept"))
    return tuple(int(place) for place in columns.constants(len(model.prior_mean)))
