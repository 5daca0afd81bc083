"""Published numbers of the thesis (Tables 4.1 and 4.2), for comparison."""

from __future__ import annotations

from typing import NamedTuple


class Scalar(NamedTuple):
    """A row of Table 4.1."""

    mean: float
    variance: float


class Regression(NamedTuple):
    """A row of Table 4.2: α, β₁, β₂, β₃."""

    mean: tuple[float, float, float, float]
    scale: tuple[float, float, float, float]


TABLE_4_1 = {
    "sequential": Scalar(5.019, 2.443e-6),
    "synchronous": Scalar(5.038, 3.312e-4),
    "asynchronous": Scalar(4.967, 4.480e-4),
}

TABLE_4_2 = {
    "sequential": Regression(
        (9.693, -3.431, -0.425, 0.906), (8.358e-05, 1.644e-4, 3.961e-05, 4.974e-05)
    ),
    "synchronous": Regression(
        (9.236, -1.944, -0.211, 0.388), (2.658e-6, 3.806e-6, 5.411e-7, 2.283e-6)
    ),
    "asynchronous": Regression(
        (9.236, -1.968, -0.208, 0.407), (1.388e-6, 5.135e-6, 3.402e-7, 1.527e-6)
    ),
}
