"""Assertions that compare a value with its expected value, with a bound or with an average over
draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.testing.families import STANDARD_ERRORS

CLOSE = 1e-5
"""Relative tolerance in float64 for comparisons with a difference quotient."""
EXACT = 1e-8
"""Relative tolerance in float64."""


def expect_close(what: str, found: Any, expected: Any, tolerance: float = EXACT) -> None:
    """Assert that two arrays are equal up to a tolerance.

    The tolerance is `tolerance` times the largest absolute entry of `expected`, or `tolerance`
    itself if that entry is below 1.
    """
    found, expected = np.broadcast_arrays(
        np.asarray(found, np.float64), np.asarray(expected, np.float64)
    )
    gap = np.abs(found - expected)
    allowed = tolerance * max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    place = np.unravel_index(int(np.argmax(gap)), gap.shape) if gap.ndim else ()
    assert np.all(gap <= allowed), (
        f"{what}: found {found[place]:.6g}, expected {expected[place]:.6g} "
        f"(tolerance {allowed:.2g})"
    )


def expect_at_most(what: str, found: Any, bound: Any, slack: float = EXACT) -> None:
    """Assert that no entry of `found` is above the corresponding entry of `bound`."""
    found, bound = np.broadcast_arrays(np.asarray(found, np.float64), np.asarray(bound, np.float64))
    over = found - bound - slack * np.maximum(1.0, np.abs(bound))
    over = np.where(bound == np.inf, -np.inf, over)
    place = np.unravel_index(int(np.argmax(over)), over.shape) if over.ndim else ()
    assert np.all(over <= 0), f"{what}: found {found[place]:.6g}, at most {bound[place]:.6g}"


def expect_average(
    what: str, found: Any, draws: np.ndarray, *, noisy: bool = False, slack: float = 1e-3
) -> None:
    """Assert that `found` is within five standard errors of the mean of `draws` over the first
    axis.

    Set `noisy` to True if `found` is itself an average over the same number of other draws. `slack`
    is a relative tolerance for errors of quadrature.
    """
    average = draws.mean(axis=0)
    error = draws.std(axis=0) / np.sqrt(len(draws)) * (np.sqrt(2.0) if noisy else 1.0)
    allowed = STANDARD_ERRORS * error + slack * np.maximum(np.abs(average), slack)
    gap = np.abs(np.asarray(found, np.float64) - average)
    worst = int(np.argmax(gap - allowed))
    assert np.all(gap <= allowed), (
        f"{what}: found {np.ravel(found)[worst]:.6g}, an average over draws is "
        f"{np.ravel(average)[worst]:.6g} ± {np.ravel(error)[worst]:.2g}"
    )
