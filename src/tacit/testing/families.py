"""Conformance suite of exponential families."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.pvi import divide, multiply

STANDARD_ERRORS = 5.0
DIRECTIONS = 6
"""Number of directions in which the variance of sufficient statistics is checked."""
LogDensity = Callable[..., Any]


def check_family(
    family: Family,
    sample_naturals: Iterable[Natural],
    *,
    log_density: LogDensity | None = None,
    draws: int = 20_000,
    seed: int = 0,
) -> None:
    """Assert that a family implements `tacit.expfam.Family` correctly.

    With `log_density`, the log-partition function, base measure and entropy are compared with it;
    otherwise they are only compared with each other.

    Parameters
    ----------
    family
        The family to check.
    sample_naturals
        Natural parameters of two or more proper members, of moderate scale so that float64 is
        precise enough.
    log_density
        `log_density(theta, **usual)` is an independent normalised log-density of θ in the usual
        parameters, for example from SciPy.
    draws
        Number of draws for Monte Carlo comparisons.
    seed
        Seed of everything random.
    """
    naturals = [dict(natural) for natural in sample_naturals]
    assert len(naturals) >= 2, "check_family needs at least two natural parameters to compare"
    _check_structure(family, naturals[0])
    for natural in naturals:
        _check_propriety(family, natural)
        _check_round_trips(family, natural)
        _check_gradient(family, natural)
        _check_backends(family, natural, naturals[0])
    again = _draw(family, naturals[0], draws, seed)
    thetas = [_draw(family, natural, draws, seed) for natural in naturals]
    assert np.array_equal(thetas[0], again), "sample: the same key gave two different samples"
    for i, natural in enumerate(naturals):
        other = naturals[i - 1]
        _check_algebra(family, natural, other, thetas[i][:100])
        _check_moments(family, natural, thetas[i])
        _check_covariance(family, natural, thetas[i])
        _check_kl(family, natural, other, thetas[i])
        if log_density is not None:
            _check_density(family, natural, thetas[i], log_density)


def _check_structure(family: Family, natural: Natural) -> None:
    zero = family.zero()
    assert set(zero) == set(family.shapes), f"zero: names {sorted(zero)} are not those of shapes"
    for name, shape in family.shapes.items():
        value = zero[name]
        assert np.shape(value) == shape, f"zero: '{name}' has shape {np.shape(value)}, not {shape}"
        assert np.asarray(value).dtype == np.float64, f"zero: '{name}' is not float64"
        assert not np.any(value), f"zero: '{name}' is not 0, so it is not the factor 1"
    _same("zero: natural parameters plus zero", multiply(natural, zero), natural, 0.0)
    family.check(natural, what="check_family")
    wrong = {
        "a missing name": dict(list(natural.items())[1:]),
        "a further name": {**natural, "further": np.zeros(1)},
        "a wrong shape": {k: np.zeros((*np.shape(v), 2)) for k, v in natural.items()},
        "NaN": {k: np.full(np.shape(v), np.nan) for k, v in natural.items()},
    }
    for what, bad in wrong.items():
        try:
            family.check(bad, what="check_family")
        except ConfigError:
            continue
        raise AssertionError(
            f"check: the family accepts natural parameters with {what}, expected a ConfigError"
        )


def _check_propriety(family: Family, natural: Natural) -> None:
    assert family.is_proper(natural) is True, f"is_proper: refuses the proper member {natural}"
    for name, value in natural.items():
        for bad in (np.nan, np.inf, -np.inf):
            for index in np.ndindex(np.shape(value)):
                spoilt = np.array(value, dtype=np.float64)
                spoilt[index] = bad
                assert family.is_proper({**natural, name: spoilt}) is False, (
                    f"is_proper: accepts {bad} at {index} of '{name}'"
                )
    location, scale = family.location_scale(natural)
    assert np.all(np.isfinite(location)), f"location_scale: location {location} is not finite"
    assert np.all(np.isfinite(scale)), f"location_scale: scale {scale} is not finite"
    assert np.all(np.asarray(scale) > 0), f"location_scale: scale {scale} is not > 0"


def _check_round_trips(family: Family, natural: Natural) -> None:
    usual = family.natural(**family.usual(natural))
    _same("natural -> usual -> natural", usual, natural, 1e-9)
    mean = family.from_mean(family.mean(natural))
    _same("natural -> mean -> natural", mean, natural, 1e-6)
    for name, value in {**usual, **family.mean(natural)}.items():
        assert np.asarray(value).dtype == np.float64, f"round trips: '{name}' is not float64"


def _check_gradient(family: Family, natural: Natural) -> None:
    import jax

    gradient = jax.grad(lambda at: family.log_partition(at))(_on_device(natural))
    _same("gradient of log_partition = mean", gradient, family.mean(natural), 1e-8)


def _check_backends(family: Family, natural: Natural, other: Natural) -> None:
    import jax

    device, other_device = _on_device(natural), _on_device(other)
    pairs = {
        "usual": (family.usual(natural), family.usual(device)),
        "mean": (family.mean(natural), family.mean(device)),
        "log_partition": (family.log_partition(natural), family.log_partition(device)),
        "entropy": (family.entropy(natural), family.entropy(device)),
        "kl": (family.kl(natural, other), family.kl(device, other_device)),
        "location_scale": (family.location_scale(natural), family.location_scale(device)),
    }
    for what, (first, second) in pairs.items():
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            assert not isinstance(a, jax.Array), f"{what}: NumPy arguments gave a JAX array"
            size = max(1.0, float(np.max(np.abs(a))), abs(float(family.log_partition(natural))))
            gap = float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
            assert gap <= 1e-10 * size, f"{what}: NumPy and JAX differ by {gap:.3g}"


def _check_algebra(family: Family, first: Natural, second: Natural, theta: Any) -> None:
    """Check that sums and differences of natural parameters correspond to products and quotients of
    densities.
    """
    one, two = _log_kernel(family, first, theta), _log_kernel(family, second, theta)
    scale = 1.0 + np.max(np.abs(one)) + np.max(np.abs(two))
    for what, natural, expected in (
        ("product", multiply(first, second), one + two),
        ("quotient", divide(first, second), one - two),
        ("quotient by itself", divide(first, first), np.zeros_like(one)),
    ):
        gap = float(np.max(np.abs(_log_kernel(family, natural, theta) - expected)))
        assert gap <= 1e-9 * scale, f"{what}: log-densities differ by {gap:.3g}"


def _check_moments(family: Family, natural: Natural, theta: np.ndarray) -> None:
    for name, expected in family.mean(natural).items():
        statistic = np.asarray(family.statistics(theta)[name])
        _close(f"sampling: E[T] of '{name}'", statistic, np.asarray(expected))
    location, scale = (np.asarray(value) for value in family.location_scale(natural))
    _close("sampling: location", theta, location)
    _close("sampling: scale", (theta - location) ** 2, scale**2)


def _check_covariance(family: Family, natural: Natural, theta: np.ndarray) -> None:
    """Check the covariance of the sufficient statistics T, which is the Hessian of the
    log-partition function.

    The variance of d·T is compared with dᵀ∇²A d for directions d of single draws: d = T(θ) − E[T].
    For matrices that must be symmetric, these d are symmetric too. A sampler that uses one random
    number for several coordinates has the right mean and variance of each coordinate, but a wrong
    variance of d·T.
    """
    import jax

    slope = jax.grad(family.log_partition)
    mean = {name: np.asarray(value) for name, value in family.mean(natural).items()}
    centred = {
        name: np.asarray(value) - mean[name] for name, value in family.statistics(theta).items()
    }
    for row in range(DIRECTIONS):
        direction = {name: value[row] for name, value in centred.items()}
        _, change = jax.jvp(slope, (_on_device(natural),), (_on_device(direction),))
        products = [
            (value * direction[name]).reshape(len(theta), -1) for name, value in centred.items()
        ]
        expected = sum(
            float(np.sum(direction[name] * np.asarray(value))) for name, value in change.items()
        )
        along = np.concatenate(products, axis=1).sum(axis=1)
        _close("sampling: covariance of T", np.square(along), np.array(expected))


def _check_kl(family: Family, first: Natural, second: Natural, theta: np.ndarray) -> None:
    for natural in (first, second):
        itself = float(family.kl(natural, natural))
        assert itself == 0, f"kl: KL of a member to itself is {itself}, not 0"
    value = float(family.kl(first, second))
    rounding = 1e-12 * (1.0 + abs(float(family.log_partition(first))))
    assert value >= -rounding, f"kl: {value} is negative"
    log_ratio = _log_density(family, first, theta) - _log_density(family, second, theta)
    _close("kl against Monte Carlo", log_ratio, np.array(value))


def _check_density(
    family: Family, natural: Natural, theta: np.ndarray, log_density: LogDensity
) -> None:
    expected = np.asarray(log_density(theta, **family.usual(natural)))
    found = _log_density(family, natural, theta) + float(family.expected_log_base(natural))
    gap = float(np.max(np.abs(found - expected) / (1.0 + np.abs(expected))))
    assert gap <= 1e-8, f"log-density: differs from the given one by {gap:.3g}"
    _close("entropy against Monte Carlo", -expected, np.asarray(family.entropy(natural)))


def _draw(family: Family, natural: Natural, draws: int, seed: int) -> np.ndarray:
    import jax

    key = jax.random.key(seed)
    theta = np.asarray(family.sample(key, natural, (draws // 4, 4)))
    expected = (draws // 4, 4, family.dimension)
    assert theta.shape == expected, f"sample: shape {theta.shape}, expected {expected}"
    assert theta.dtype == np.float64, f"sample: {theta.dtype}, expected float64"
    return theta.reshape(-1, family.dimension)


def _log_kernel(family: Family, natural: Natural, theta: np.ndarray) -> np.ndarray:
    parts = [
        (np.asarray(natural[name]) * value).reshape(len(theta), -1)
        for name, value in family.statistics(theta).items()
    ]
    return np.concatenate(parts, axis=1).sum(axis=1)


def _log_density(family: Family, natural: Natural, theta: np.ndarray) -> np.ndarray:
    return _log_kernel(family, natural, theta) - float(family.log_partition(natural))


def _close(what: str, sample: np.ndarray, expected: np.ndarray) -> None:
    """Check that the mean of `sample` is within five standard errors of `expected`."""
    error = sample.std(axis=0) / np.sqrt(len(sample))
    gap = np.abs(sample.mean(axis=0) - expected)
    worst = float(np.max(gap / (error + 1e-12 * (1.0 + np.abs(expected)))))
    assert worst <= STANDARD_ERRORS, (
        f"{what}: off by {worst:.1f} standard errors "
        f"(mean of {len(sample)} draws {sample.mean(axis=0)}, expected {expected})"
    )


def _same(what: str, found: Natural, expected: Natural, relative: float) -> None:
    assert set(found) == set(expected), f"{what}: names {sorted(found)}, not {sorted(expected)}"
    for name, value in expected.items():
        scale = 1.0 + float(np.max(np.abs(value)))
        gap = float(np.max(np.abs(np.asarray(found[name]) - np.asarray(value))))
        assert gap <= relative * scale, f"{what}: '{name}' differs by {gap:.3g}"


def _on_device(natural: Natural) -> Natural:
    import jax.numpy as jnp

    return {name: jnp.asarray(value) for name, value in natural.items()}
