"""Expected statistics of a sigmoid belief network: infer hidden units, then compute the statistics.

**Notation.** The network has D visible and K hidden units. A record has visible units x and hidden
units z, and h = E[z]. The means of q(θ) are M (D × K) for the weights, c for the biases of visible
units and b for the biases of hidden units. The variances of q(θ) are V, v_c and v_b. Squares of
matrices and products with ∘ are taken entry by entry.

**Hidden units.** If z and θ are random, the logits η of the visible units have the moments

    E[η] = Mh + c,    Var[η] = M²(h∘(1 − h)) + Vh + v_c.

The Pólya–Gamma variable of visible unit j has the parameter √E[η_j²], which determines its mean ω_j
(`tacit.models.polya_gamma`). Given ω and all other hidden units, the best h_k is

    logit h_k = b_k + Σ_j M_jk (x_j − ½ − ω_j E[η_j]) + (Σ_j ω_j M_jk²)(h_k − ½) − ½ Σ_j ω_j V_jk.

A sweep moves the logits of all hidden units of all records half of the way to these values. The
number of sweeps is fixed.

**Statistics.** The expected log-likelihood of x and z is then quadratic in θ. Let a = x − ½ −
ω∘E[η] and u = h∘(1 − h), and let ω_b be the means of the Pólya–Gamma variables of the hidden units.
At the means of q, the gradient and the diagonal of the precision are

    parameters            gradient              precision
    weights               a hᵀ − M∘(ω uᵀ)       ω hᵀ
    biases of visible     a                     ω
    biases of hidden      h − ½ − ω_b∘b         ω_b

Their norms need only products with M and M², so no D × K matrix per record is formed.

**Rounding.** The values of a record depend on the record, on q and, by rounding, on the shape of
the batch. For some q, rounding errors grow over the sweeps until they are as large as the values.
With privacy the shape must therefore be public, as it is under replace-one adjacency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, computed_once, kept_rows, namespace
from tacit.models.polya_gamma import expected_weight, log_scale
from tacit.models.statistics import Statistics

PARTS = 8.0
"""The gradient of the weights is a difference of two matrices. After clipping, the norms of the two
matrices add up to at most this multiple of the clip.
"""
LOGIT_STEP = 0.5
"""Share of the full step that a sweep makes in the logits of h. With full steps (1), hidden units
that affect the same visible units would oscillate.
"""


class Layers(NamedTuple):
    """One number per parameter of a network with D visible and K hidden units.

    `weights` has shape (D, K). `visible` (D,) and `hidden` (K,) belong to the biases of the visible
    and hidden units.
    """

    weights: Array
    visible: Array
    hidden: Array


class Hidden(NamedTuple):
    """The distribution q(z) of the K hidden units of n records.

    `h` contains the probabilities that units are on, and `logit` the log-odds of these, both of
    shape (n, K). `mean` and `spread` are mean and variance of the logits of the D visible units, of
    shape (n, D).
    """

    h: Array
    logit: Array
    mean: Array
    spread: Array

    @property
    def reach(self) -> Array:
        """√E[η²] for the logit η of each visible unit, which is the parameter of its Pólya–Gamma
        variable.
        """
        return namespace(self.mean).sqrt(namespace(self.mean).square(self.mean) + self.spread)


def infer(mean: Layers, variance: Layers, x: Array, sweeps: int) -> Hidden:
    """Fit the distribution q(z) of the hidden units z for each record x, in `sweeps` sweeps.

    The first sweep starts from the prior probabilities. `mean` and `variance` are those of θ.
    """
    import jax
    import jax.numpy as jnp

    squares = jnp.square(mean.weights)
    both = jnp.concatenate([squares, variance.weights], axis=1)
    units = mean.hidden.shape[0]

    def hidden(logit: Array) -> Hidden:
        h = jax.nn.sigmoid(logit)
        spread = jnp.concatenate([h * (1.0 - h), h], axis=1) @ both.T + variance.visible
        return Hidden(h, logit, h @ mean.weights.T + mean.visible, spread)

    def sweep(_: int, logit: Array) -> Array:
        now = hidden(logit)
        weight = expected_weight(now.reach)
        pull = weight @ both
        best = mean.hidden + (x - 0.5 - weight * now.mean) @ mean.weights
        best = best + pull[:, :units] * (now.h - 0.5) - 0.5 * pull[:, units:]
        return logit + LOGIT_STEP * (best - logit)

    start = jnp.broadcast_to(mean.hidden, (x.shape[0], units))
    return hidden(jax.lax.fori_loop(0, sweeps, sweep, start))


def lower_bound(mean: Layers, variance: Layers, x: Array, found: Hidden) -> Array:
    """Return the Pólya–Gamma lower bound of E[log p(x, z | θ)] − E[log q(z)] for each record.

    x are the visible and z the hidden units of the record.
    """
    import jax
    import jax.numpy as jnp

    visible = (x - 0.5) * found.mean + log_scale(found.reach)
    reach = jnp.sqrt(jnp.square(mean.hidden) + variance.hidden)
    hidden = (found.h - 0.5) * mean.hidden + log_scale(reach)
    # H = −h·log h − (1 − h)·log(1 − h) = log(1 + e^l) − h·l, without a logarithm of 0.
    entropy = jax.nn.softplus(found.logit) - found.h * found.logit
    return jnp.sum(visible, axis=1) + jnp.sum(hidden + entropy, axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class BeliefStatistics(Statistics):
    """The statistics of each record: a gradient and the diagonal of a precision matrix (module
    docstring).

    Both are divided by `unit`, and the precision is multiplied by `balance`.
    """

    mean: Layers
    residual: Array
    weight: Array
    found: Hidden
    hidden_weight: Array
    unit: float
    balance: float

    @classmethod
    def at(
        cls, mean: Layers, variance: Layers, x: Array, found: Hidden, *, unit: float, balance: float
    ) -> BeliefStatistics:
        """Return the statistics of the records x, given the distribution `found` of their hidden
        units.
        """
        xp = namespace(x)
        weight = expected_weight(found.reach)
        own = expected_weight(xp.sqrt(xp.square(mean.hidden) + variance.hidden))
        parts = (mean, x - 0.5 - weight * found.mean, weight, found, own)
        mean, residual, weight, found, own = computed_once(parts)
        return cls(
            mean=mean,
            residual=residual,
            weight=weight,
            found=found,
            hidden_weight=own,
            unit=unit,
            balance=balance,
        )

    def norms(self) -> Array:
        """Return the norm of each record's statistics.

        The gradient of the weights is the difference of two matrices. If an adversarial q makes
        them nearly equal, the rounding errors in `total` could exceed the norm of the difference.
        The norm used here is therefore at least the sum of the norms of the two matrices, divided
        by `PARTS`.
        """
        # In the notation of the module docstring, ‖a hᵀ − M∘(ω uᵀ)‖² = ‖a‖²‖h‖² − 2(a∘ω)ᵀM(h∘u) +
        # (ω²)ᵀM²(u²).
        parts = (self.residual, self.weight, self.found.h, self.mean.weights, self.hidden_weight)
        a, weight, h, matrix, own = (part.astype(np.float64) for part in parts)
        xp = namespace(a)
        u = h * (1.0 - h)
        size = 1.0 + xp.sum(xp.square(h), axis=1)
        crossed = xp.sum(((a * weight) @ matrix) * (h * u), axis=1)
        curved = xp.sum((xp.square(weight) @ xp.square(matrix)) * xp.square(u), axis=1)
        plain = xp.sum(xp.square(a), axis=1) * size
        apart = xp.square((xp.sqrt(plain) + xp.sqrt(curved)) / PARTS)
        gradient = xp.maximum(plain - 2.0 * crossed + curved, apart)
        gradient = gradient + xp.sum(xp.square(self._hidden_score(h)), axis=1)
        precision = xp.sum(xp.square(weight), axis=1) * size + xp.sum(xp.square(own))
        return xp.sqrt(gradient + self.balance**2 * precision) / self.unit

    def total(self, weights: Array) -> dict[str, Array]:
        """Return the weighted sums over records of the gradients ("linear") and of the precisions
        ("precision"), as flat arrays.
        """
        weights = weights.astype(np.float64)
        xp = namespace(weights)
        parts = (self.residual, self.weight, self.found.h)
        a, weight, h = (kept_rows(weights, part) for part in parts)
        matrix, own = (part.astype(np.float64) for part in (self.mean.weights, self.hidden_weight))
        a, weight = a * weights[:, None], weight * weights[:, None]
        score = a.T @ h - matrix * (weight.T @ (h * (1.0 - h)))
        kept = xp.where(weights > 0, weights, 0.0)
        first = (score.ravel(), xp.sum(a, axis=0), kept @ self._hidden_score(h))
        second = ((weight.T @ h).ravel(), xp.sum(weight, axis=0), xp.sum(kept) * own)
        return {
            "linear": xp.concatenate(first) / self.unit,
            "precision": self.balance / self.unit * xp.concatenate(second),
        }

    def _hidden_score(self, h: Array) -> Array:
        own, bias = (part.astype(np.float64) for part in (self.hidden_weight, self.mean.hidden))
        return h - 0.5 - own * bias
