"""The prior at the server: any differentiable density, and the resulting posterior.

With a Gaussian prior the posterior is exact. With any other prior p, q is the Gaussian that
minimises the free energy. The natural gradient of the free energy uses averages of ∇log p and ∇²log
p over fixed antithetic draws from q. A step is taken only if the free energy does not increase. If
the posterior is not normal, its moments are computed from several such q, one for each of several
values of one coordinate (the divided posterior).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.models import Model
from tacit.support.compiler import jax, jnp

DRAWS = 64
STEPS = 100
STILL = 1e-6
NORMAL_ENOUGH = 0.95
"""A posterior counts as normal if the effective share of draws from q is at least this value."""
AXES = 8
"""Number of coordinates considered as the axis of a divided posterior."""
NEGLIGIBLE, MOST_NODES = 9.0, 60
"""On each side of a divided posterior, nodes are added until the log-weight is `NEGLIGIBLE` nats
below the maximum, or until there are `MOST_NODES` nodes.
"""
CUT_OFF = 1e-3
"""The divided posterior counts as truncated if its first or last node has a weight above this."""


class Local(NamedTuple):
    """Gradient of a log-density at a point, and a positive definite approximation of its negative
    Hessian.
    """

    gradient: np.ndarray
    precision: np.ndarray


class Likelihood(NamedTuple):
    """The Gaussian likelihood exp(linear·θ − ½ θᵀ information θ)."""

    information: np.ndarray
    linear: np.ndarray


class Node(NamedTuple):
    """A normal approximation of some coordinates of θ, given fixed values of the other
    coordinates.
    """

    mean: np.ndarray
    """Mean of all coordinates."""
    precision: np.ndarray
    evidence: float
    """Log of the integral of the density over the free coordinates, up to a constant."""
    share: float
    """Effective share of draws from q, weighted to represent the exact posterior."""


class Evaluation(NamedTuple):
    """The free energy of q, up to a constant, and the averages of gradient and Hessian of the
    log-prior under q.

    `evidence` and `share` are those of `Node`.
    """

    energy: float
    gradient: np.ndarray
    hessian: np.ndarray
    evidence: float
    share: float


class Moments(NamedTuple):
    """Mean and precision of the posterior, and the effective share of draws from its normal
    approximation.
    """

    mean: np.ndarray
    precision: np.ndarray
    share: float


class PriorTerm:
    """The log-prior log p(θ) of a model, with mean and precision of a Gaussian approximation."""

    def __init__(
        self,
        model: Model,
        mean: np.ndarray,
        precision: np.ndarray,
        log_density: Callable[[Any], Any] | None = None,
    ) -> None:
        """Store the mean and the precision (a diagonal) of the prior, or of a Gaussian
        approximation.

        If `log_density` is given, it replaces the model's log-prior.
        """
        self.mean, self.precision = mean, precision
        self.exact = log_density is None and not model.has_site_prior
        self.log_density = log_density or model.log_prior
        normal = np.random.default_rng(0x5C0E).standard_normal((DRAWS, len(mean)))
        normal = normal / np.sqrt(np.mean(np.square(normal), axis=0))
        self.draws = np.concatenate([normal, -normal])
        self._run: Any = None

    def local(self, point: np.ndarray) -> Local:
        """Return the gradient of the prior's Gaussian approximation at `point`, and its precision.

        The burn-in uses the approximation, because the exact prior may have no mode. For example,
        the density of a hierarchical model is unbounded if all groups are equal and their spread
        goes to 0.
        """
        return Local(self.precision * (self.mean - point), np.diag(self.precision))

    def posterior(
        self, information: np.ndarray, linear: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and precision of q(θ) ∝ p(θ) exp(linear·θ − ½ θᵀ information θ), where p is
        the prior.

        `start` is the mean at which iterations start.
        """
        if self.exact:
            precision = information + np.diag(self.precision)
            return np.linalg.solve(precision, linear + self.precision * self.mean), precision
        precision = _symmetric(information + np.diag(self.precision))
        likelihood = Likelihood(information, linear)
        found = self._variational(likelihood, start, precision, np.arange(len(start)))
        return found.mean, found.precision

    def moments(
        self, information: np.ndarray, linear: np.ndarray, mean: np.ndarray, precision: np.ndarray
    ) -> Moments:
        """Return mean and precision of the exact posterior; `mean` and `precision` are a first
        estimate.

        The posterior may not be normal, for example with the spread of a hierarchical model. If
        importance weights show this, the result is averaged over values of one coordinate. Given
        such a value, the other coordinates are nearly normal.
        """
        if self.exact:
            return Moments(mean, precision, 1.0)
        likelihood = Likelihood(information, linear)
        every = np.arange(len(mean))
        whole = self._variational(likelihood, mean, precision, every)
        if whole.share >= NORMAL_ENOUGH:
            return Moments(whole.mean, whole.precision, whole.share)
        axis = self._axis(likelihood, whole)
        free = np.delete(every, axis)
        alone, among = whole.precision[axis, axis], np.linalg.inv(whole.precision)[axis, axis]
        step = max(0.5 / np.sqrt(alone), 0.1 * np.sqrt(among))  # the sides end within `MOST_NODES`
        nodes = self._nodes(likelihood, whole, axis, free, step)
        evidence = np.array([node.evidence for node in nodes])
        weight = np.exp(evidence - np.max(evidence))
        weight /= np.sum(weight)
        means = np.array([node.mean for node in nodes])
        middle = weight @ means
        covariance = (weight[:, None] * (means - middle)).T @ (means - middle)
        for node, part in zip(nodes, weight, strict=True):
            covariance[np.ix_(free, free)] += part * np.linalg.inv(node.precision)
        share = float(weight @ np.array([node.share for node in nodes]))
        if max(weight[0], weight[-1]) > CUT_OFF:
            share = 0.0
        return Moments(middle, _symmetric(np.linalg.inv(covariance)), share)

    def _nodes(
        self, likelihood: Likelihood, whole: Node, axis: int, free: np.ndarray, step: float
    ) -> list[Node]:
        """Return normal approximations of the coordinates `free` at several values of the
        coordinate `axis`.

        Neighbouring values differ by `step`. The values extend in both directions until their
        weight is negligible.
        """
        start = whole._replace(precision=whole.precision[np.ix_(free, free)])
        middle = self._variational(likelihood, start.mean, start.precision, free)
        top, sides = middle.evidence, []
        for way in (step, -step):
            side, last = [], middle
            while len(side) < MOST_NODES and last.evidence > top - NEGLIGIBLE:
                mean = last.mean.copy()
                mean[axis] += way
                last = self._variational(likelihood, mean, last.precision, free)
                side.append(last)
                top = max(top, last.evidence)
            sides.append(side)
        return [*reversed(sides[1]), middle, *sides[0]]

    def _axis(self, likelihood: Likelihood, whole: Node) -> int:
        """Return the coordinate whose fixed value makes the other coordinates closest to normal.

        Only `AXES` coordinates are tried: those along which the prior's curvature changes most,
        relative to the precision of q.
        """
        covariance, every = np.linalg.inv(whole.precision), np.arange(len(whole.mean))
        shifts = covariance / np.sqrt(np.diagonal(covariance))
        root = np.linalg.cholesky(covariance)
        above, below = (self._evaluated(whole.mean + sign * shifts.T)[2] for sign in (1.0, -1.0))
        changes = np.linalg.norm(root.T @ (above - below) @ root, axis=(1, 2))
        tried = np.argsort(-np.nan_to_num(changes), kind="stable")[:AXES]
        shares = []
        for axis in tried:
            free = np.delete(every, axis)
            inner = whole.precision[np.ix_(free, free)]
            shares.append(self._variational(likelihood, whole.mean, inner, free).share)
        return int(tried[int(np.argmax(shares))])

    def _variational(
        self, likelihood: Likelihood, mean: np.ndarray, precision: np.ndarray, free: np.ndarray
    ) -> Node:
        """Fit a normal q of the coordinates `free`; the other coordinates are fixed at their values
        in `mean`.
        """
        inner = np.ix_(free, free)
        information = likelihood.information[inner]
        least = 1e-3 * self.precision[free]  # keeps q proper where log p is not concave
        here = self._evaluation(likelihood, mean, precision, free)
        rate = 0.5
        for _ in range(STEPS):
            # A floor relative to the current q in every direction: coordinates in raw units are
            # correlated, and a floor per coordinate would make q too narrow in weakly determined
            # directions.
            root = np.linalg.cholesky(precision)
            wanted = _whitened(root, _symmetric(information - here.hessian))
            values, vectors = np.linalg.eigh(wanted)
            wanted = root @ (vectors * np.maximum(values, 0.05)) @ vectors.T @ root.T
            wanted = wanted + np.diag(least)
            following = (1.0 - rate) * precision + rate * wanted
            pull = (likelihood.linear - likelihood.information @ mean)[free] + here.gradient
            moved = mean.copy()
            moved[free] += rate * np.linalg.solve(following, pull)
            found = self._evaluation(likelihood, moved, following, free)
            if not found.energy <= here.energy + 1e-9 * (1.0 + abs(here.energy)):
                rate *= 0.5
                if rate < 1e-3:
                    break
                continue
            gained = here.energy - found.energy
            mean, precision, here = moved, _symmetric(following), found
            if gained < STILL and rate >= 0.5:
                break
            rate = min(1.0, 1.5 * rate)
        return Node(mean, precision, here.evidence, here.share)

    def _evaluation(
        self, likelihood: Likelihood, mean: np.ndarray, precision: np.ndarray, free: np.ndarray
    ) -> Evaluation:
        """Return the free energy and the expected derivatives for a q of the coordinates `free`.

        They are averages over draws from q.
        """
        still = np.zeros(len(free)), np.zeros((len(free), len(free)))
        nowhere = Evaluation(np.inf, *still, -np.inf, 0.0)
        try:
            factor = np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            return nowhere
        normal = self.draws[:, : len(free)]
        points = np.tile(mean, (len(normal), 1))
        points[:, free] += np.linalg.solve(factor.T, normal.T).T
        values, gradients, hessians = self._evaluated(points)
        values = values + points @ likelihood.linear
        values = values - 0.5 * np.sum(points @ likelihood.information * points, axis=1)
        entropy = -float(np.sum(np.log(np.diagonal(factor))))
        energy = -(float(np.mean(values)) + entropy)
        weights = values + 0.5 * np.sum(np.square(normal), axis=1)
        top = float(np.max(weights))
        gradient, hessian = np.mean(gradients, axis=0), np.mean(hessians, axis=0)
        if not all(np.all(np.isfinite(one)) for one in (energy, top, gradient, hessian)):
            return nowhere
        weights = np.exp(weights - top)
        share = float(np.sum(weights) ** 2 / np.sum(np.square(weights)) / len(weights))
        evidence = top + float(np.log(np.mean(weights))) + entropy
        return Evaluation(energy, gradient[free], hessian[np.ix_(free, free)], evidence, share)

    def _evaluated(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the log-prior, its gradients and its Hessians at the points, one row per point.

        All batches have the same size, so the function is compiled only once.
        """
        if self._run is None:
            log_prior = self.log_density

            def one(theta: Any) -> Any:
                value, gradient = jax.value_and_grad(log_prior)(theta)
                return value, gradient, jax.hessian(log_prior)(theta)

            self._run = jax.jit(jax.vmap(one))
        size, parts = len(self.draws), []
        for first in range(0, len(points), size):
            some = points[first : first + size]
            padded = np.concatenate([some, np.tile(some[:1], (size - len(some), 1))])
            found = self._run(jnp.asarray(padded))
            parts.append([np.asarray(value, np.float64)[: len(some)] for value in found])
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))  # pyright: ignore


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def _whitened(root: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return root⁻¹ · matrix · root⁻ᵀ for a lower-triangular `root`."""
    return _symmetric(np.linalg.solve(root, np.linalg.solve(root, matrix).T))
