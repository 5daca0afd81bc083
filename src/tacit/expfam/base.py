"""Base class of exponential families on a vector θ, in natural parameters λ.

    q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ))

λ is a `Natural`: a dictionary of named float64 arrays of one fixed structure. Multiplying or
dividing densities adds or subtracts these dictionaries (`tacit.pvi`), and the all-zero λ is the
factor 1. Every family passes the suite in `tacit.testing.check_family`.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Array, Arrays, Natural, namespace
from tacit.errors import ConfigError

Mean = dict[str, Array]


class Family(abc.ABC):
    """An exponential family for θ of a fixed dimension."""

    kind: ClassVar[str]
    dimension: int

    @property
    @abc.abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the natural parameters."""

    @abc.abstractmethod
    def natural(self, **usual: Array) -> Natural:
        """Convert the usual parameters (mean and sd, shape and rate, …) to natural parameters."""

    @abc.abstractmethod
    def usual(self, natural: Natural) -> dict[str, Array]:
        """Convert natural parameters to the usual ones."""

    @abc.abstractmethod
    def statistics(self, theta: Array) -> Mean:
        """Compute the sufficient statistics T(θ) of each θ (last axis), as a dictionary of arrays
        like λ.
        """

    @abc.abstractmethod
    def mean(self, natural: Natural) -> Mean:
        """Compute the mean parameters E[T(θ)] = ∇A(λ), as a dictionary of arrays like λ."""

    @abc.abstractmethod
    def from_mean(self, mean: Mean) -> Natural:
        """Return the natural parameters whose mean parameters are `mean`."""

    @abc.abstractmethod
    def log_partition(self, natural: Natural) -> Array:
        """Compute the log-partition function A(λ)."""

    @abc.abstractmethod
    def expected_log_base(self, natural: Natural) -> Array:
        """E[log h(θ)] for the base measure h; a constant for every family of this library."""

    @abc.abstractmethod
    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        """Draw θ; the result has shape `shape + (dimension,)`."""

    @abc.abstractmethod
    def is_proper(self, natural: Natural) -> bool:
        """True if λ is finite and A(λ) exists; only then is q a distribution."""

    @abc.abstractmethod
    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        """Compute mean and standard deviation of each coordinate of θ."""

    def zero(self) -> Natural:
        """Return the natural parameters of the constant factor 1."""
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}

    def kl(self, first: Natural, second: Natural) -> Array:
        """Return the Kullback-Leibler divergence KL(first ‖ second).

        It is ⟨λ₁ − λ₂, E₁[T]⟩ − A(λ₁) + A(λ₂), where λ₁ and λ₂ are the two natural parameters,
        E₁[T] the mean parameters of `first`, and A the log-partition function.
        """
        gap = sum(
            (namespace(mean).sum((first[name] - second[name]) * mean))
            for name, mean in self.mean(first).items()
        )
        return gap - self.log_partition(first) + self.log_partition(second)

    def entropy(self, natural: Natural) -> Array:
        """Compute the entropy A(λ) − ⟨λ, E[T]⟩ − E[log h]."""
        inner = sum(
            namespace(mean).sum(natural[name] * mean) for name, mean in self.mean(natural).items()
        )
        return self.log_partition(natural) - inner - self.expected_log_base(natural)

    def check(self, natural: Natural, *, what: str) -> Natural:
        """Validate names, shapes and finiteness; returns float64 arrays."""
        return check_arrays(natural, self.shapes, what=what)

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.dimension == other.dimension

    def __hash__(self) -> int:
        return hash((type(self), self.dimension))


def check_arrays(arrays: Arrays, shapes: dict[str, tuple[int, ...]], *, what: str) -> Arrays:
    """Convert to finite float64 arrays of the given names and shapes, or raise a ConfigError.

    Parameters
    ----------
    arrays
        The arrays to check.
    shapes
        Required names and shapes.
    what
        Description of the arrays, for the error message.
    """
    if set(arrays) != set(shapes):
        raise ConfigError(
            f"{what}: found the arrays {', '.join(sorted(arrays)) or '(none)'}; it must have "
            f"exactly the arrays {', '.join(sorted(shapes))}: add or remove arrays"
        )
    checked = {}
    for name, shape in shapes.items():
        array = np.asarray(arrays[name], dtype=np.float64)
        if array.shape != shape:
            raise ConfigError(
                f"{what}: '{name}' has shape {array.shape}, expected {shape}; "
                "use the same model and family at server and party"
            )
        if not np.all(np.isfinite(array)):
            raise ConfigError(
                f"{what}: '{name}' has a value that is not finite; "
                "lower the learning rate or the damping, or check the data"
            )
        checked[name] = array
    return checked


MAX_INTEGER = 2**62


def check_integers(arrays: Arrays, shapes: dict[str, tuple[int, ...]], *, what: str) -> Arrays:
    """Convert to int64 arrays of the given names and shapes, or raise a ConfigError.

    Parameters
    ----------
    arrays
        The arrays to check.
    shapes
        Required names and shapes.
    what
        Description of the arrays, for the error message.
    """
    for name, value in arrays.items():
        if np.asarray(value).dtype != np.int64:
            raise ConfigError(
                f"{what}: '{name}' has type {np.asarray(value).dtype}, but a private release needs "
                "int64; use the same version of tacit at server and party"
            )
        if np.any(value > MAX_INTEGER) or np.any(value < -MAX_INTEGER):
            raise ConfigError(
                f"{what}: '{name}' has an integer above 2^62 or below -2^62; send smaller integers"
            )
    check_arrays(arrays, shapes, what=what)
    return {name: np.asarray(arrays[name], np.int64) for name in shapes}
