"""Sigmoid belief network with one hidden layer (Neal 1992; VIPS, full paper)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Array
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, MeanFieldGaussian, Natural
from tacit.models.base import GaussianPriorModel, ModelSchema, Output, Records
from tacit.models.belief.statistics import (
    PARTS,
    BeliefStatistics,
    Hidden,
    Layers,
    infer,
    lower_bound,
)
from tacit.models.settings import BeliefNetworkSettings
from tacit.models.statistics import Statistics

CHUNK = 1000
MEASURED_DRAWS = 10
START_MEAN, START_SD = 0.1, 0.01


class BeliefNetwork(GaussianPriorModel):
    """Sigmoid belief network of binary hidden units z and binary visible units x.

    z_k ~ Bernoulli(σ(b_k)) and x_j ~ Bernoulli(σ(w_j·z + c_j)), where σ is the sigmoid, w_j is row
    j of the weights W, and b and c are biases. A record is {"x": array} with one 0 or 1 for each
    visible unit. θ consists of W (row by row), c and b. Each element has the prior N(0, prior_sd²),
    and q is mean-field.

    For each record, a distribution q(z) with independent hidden units is fitted in `sweeps` steps.
    Pólya–Gamma variables make the log-likelihood quadratic in the logits of visible and hidden
    units (`tacit.models.belief.statistics`).

    Parameters
    ----------
    visible
        Number of visible units, the columns of x.
    hidden
        Number of hidden units.
    prior_sd
        Prior standard deviation of every weight.
    sweeps
        Number of updates of the hidden units of each record.
    start_seed
        Seed of the starting point, which all parties share.
    """

    kind: ClassVar[str] = "belief-network"
    Settings = BeliefNetworkSettings
    serves: ClassVar[tuple[Output, ...]] = ("other",)
    seeded: ClassVar[bool] = True
    listed: ClassVar[bool] = False
    output: Output = "other"
    ties_at_prior: ClassVar[bool] = True
    rounding_grows: ClassVar[bool] = True
    summed_parts: ClassVar[float] = PARTS

    def __init__(
        self,
        visible: int,
        *,
        hidden: int = 50,
        prior_sd: float = 1.0,
        sweeps: int = 10,
        start_seed: int = 0,
    ) -> None:
        for key, value in (("visible", visible), ("hidden", hidden), ("sweeps", sweeps)):
            if not value >= 1:
                raise ConfigError(f"model.{key} = {value}; it must be at least 1")
        names = (
            *(f"W[{j},{k}]" for j in range(visible) for k in range(hidden)),
            *(f"c[{j}]" for j in range(visible)),
            *(f"b[{k}]" for k in range(hidden)),
        )
        super().__init__(names, 0.0, prior_sd)
        self.visible, self.hidden = visible, hidden
        self.sweeps, self.start_seed = sweeps, start_seed

    @classmethod
    def build(cls, settings: BeliefNetworkSettings, schema: ModelSchema) -> BeliefNetwork:
        numbers = [one.source for one in schema.layout or () if one.kind != "level"]
        if numbers:
            raise ConfigError(
                f"model 'belief-network' needs columns of two levels, but column {numbers[0]!r} is "
                'numeric; declare levels = ["no", "yes"] and reference = "no" for it'
            )
        return cls(
            len(schema.names),
            hidden=settings.hidden,
            prior_sd=settings.prior_sd,
            sweeps=settings.sweeps,
            start_seed=schema.seed,
        )

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float]:
        """Compute a lower bound of the log-likelihood of held-out records, in nats per record."""
        found = self.bound(natural, records, draws=MEASURED_DRAWS, seed=seed)
        return {"log_likelihood_bound": float(np.mean(found))}

    @property
    def statistics_unit(self) -> float:
        """Typical norm of a record's statistics: the norm if all residuals of visible units are ¼
        and a quarter of the hidden units are on.
        """
        return 0.25 * math.sqrt(self.visible * (1.0 + 0.25 * self.hidden))

    def prior(self, family: Family) -> Natural:
        return super().prior(_mean_field(family))

    def start(self, family: Family) -> Natural:
        """Return a starting point for q with random means, drawn from N(0, 0.1²) with `start_seed`.

        At the prior, all hidden units are equal and would stay equal. All parties use the same
        starting point, so that hidden unit k has the same meaning at every party.
        """
        rng = np.random.default_rng([self.start_seed, self.dimension])
        mean = START_MEAN * rng.normal(size=self.dimension)
        return _mean_field(family).natural(mean=mean, sd=np.full(self.dimension, START_SD))

    def check_records(self, party: str, records: Records) -> None:
        x = np.asarray(records["x"])
        if x.shape[1:] != (self.visible,) or not np.all((x == 0) | (x == 1)):
            raise DataError(
                f"party {party!r}: x has shape {x.shape} and values from {np.min(x):g} to "
                f"{np.max(x):g}, but model 'belief-network' needs {self.visible} columns of zeros "
                "and ones; convert x"
            )

    def statistics(
        self,
        family: Family,
        q: Natural,
        records: Records,
        weights: Array,
        *,
        balance: float = 1.0,
        key: Array = None,
    ) -> Statistics:
        del family, weights, key
        x = _floats(records["x"])
        mean, variance = self._moments(q, x.dtype)
        found = infer(mean, variance, x, self.sweeps)
        unit = self.statistics_unit
        return BeliefStatistics.at(mean, variance, x, found, unit=unit, balance=balance)

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        """Return a lower bound of log p(x | θ) for each record. The exact value would be a sum over
        all states of the hidden units.
        """
        mean, none, x = self._point(theta, records)
        return lower_bound(mean, none, x, infer(mean, none, x, self.sweeps))

    def response(self, theta: Array, records: Records) -> Array:
        """Return, for each record, the mean of its reconstruction over the visible units, which is
        the expected share of units that are on.
        """
        import jax

        mean, none, x = self._point(theta, records)
        return jax.nn.sigmoid(infer(mean, none, x, self.sweeps).mean).mean(axis=1)

    def bound(self, q: Natural, records: Records, *, draws: int = 0, seed: int = 0) -> np.ndarray:
        """Compute a lower bound of E_q[log p(x | θ)] for each record, in nats.

        First q(z), the distribution of the record's hidden units z, is fitted. With `draws` = 0 the
        result is the training objective, a looser bound that also replaces the likelihood by its
        Pólya–Gamma bound. With `draws` > 0 the result is an unbiased estimate of the bound that is
        usually published: E[log p(x, z | θ) − log q(z)], where z ~ q(z) and θ is the mean of q.
        """
        import jax

        run = _compiled(self, draws)
        keys = jax.random.key(seed)
        return self._chunked(records, lambda x, n: run(q, x, jax.random.fold_in(keys, n)))

    def reconstruct(self, q: Natural, records: Records) -> np.ndarray:
        """Return the reconstruction σ(E[η]) of every visible unit of each record.

        σ is the sigmoid. E[η] is the expected logit of the unit, given the fitted distribution of
        the record's hidden units.
        """
        run = _compiled(self, -1)
        return self._chunked(records, lambda x, _: run(q, x, None))

    def sample(self, q: Natural, count: int, *, seed: int = 0) -> np.ndarray:
        """Draw `count` states of the hidden units, and return the probabilities of the visible
        units given each state.

        The parameters are at the mean of q. The result has shape (count, `visible`).
        """
        mean = self._layers(q["linear"] / (-2.0 * q["quadratic"]))
        z = np.random.default_rng(seed).random((count, self.hidden)) < _sigmoid(mean.hidden)
        return _sigmoid(z @ mean.weights.T + mean.visible)

    def filters(self, q: Natural) -> np.ndarray:
        """Return the posterior mean of the weights, with one row per hidden unit and one column per
        visible unit.
        """
        return self._layers(q["linear"] / (-2.0 * q["quadratic"])).weights.T

    def _chunked(self, records: Records, run: Callable[[Array, int], Array]) -> np.ndarray:
        """Return the results of `run` for all records, computed in chunks of `CHUNK` records. The
        last chunk is padded with copies of the first record.
        """
        x = np.asarray(records["x"])
        found = []
        for number, begin in enumerate(range(0, len(x), CHUNK)):
            own = x[begin : begin + CHUNK]
            padded = np.concatenate([own, np.repeat(x[:1], CHUNK - len(own), axis=0)])
            found.append(np.asarray(run(padded, number))[: len(own)])
        return np.concatenate(found)

    def _point(self, theta: Array, records: Records) -> tuple[Layers, Layers, Array]:
        x = _floats(records["x"])
        mean = self._layers(theta.astype(x.dtype))
        return mean, Layers(*(0.0 * part for part in mean)), x

    def _moments(self, q: Natural, dtype: Any = np.float32) -> tuple[Layers, Layers]:
        variance = -0.5 / q["quadratic"]
        mean = q["linear"] * variance
        return self._layers(mean.astype(dtype)), self._layers(variance.astype(dtype))

    def _layers(self, theta: Array) -> Layers:
        split = self.visible * self.hidden
        return Layers(
            theta[:split].reshape(self.visible, self.hidden),
            theta[split : split + self.visible],
            theta[split + self.visible :],
        )


@functools.lru_cache(maxsize=8)
def _compiled(model: BeliefNetwork, draws: int) -> Callable[[Natural, Array, Array], Array]:
    """Return a compiled function of q, a chunk of records and a random key. It is cached per model.

    For each record, the function computes what `BeliefNetwork.bound` returns for this `draws`. If
    `draws` is −1, it computes the reconstruction.
    """
    import jax
    import jax.numpy as jnp

    def run(q: Natural, x: Array, key: Array) -> Array:
        x = _floats(x)
        mean, variance = model._moments(q, x.dtype)
        found = infer(mean, variance, x, model.sweeps)
        if draws < 0:
            return jax.nn.sigmoid(found.mean)
        if draws == 0:
            return lower_bound(mean, variance, x, found)
        each = jax.random.split(key, draws)
        return jnp.mean(jax.lax.map(lambda one: _sampled(mean, x, found, one), each), axis=0)

    return jax.jit(run)


def _sampled(mean: Layers, x: Array, found: Hidden, key: Array) -> Array:
    """Compute log p(x, z | θ) − log q(z) for each record, at one draw of its hidden units z from
    q(z).
    """
    import jax
    import jax.numpy as jnp

    z = (jax.random.uniform(key, found.h.shape) < found.h).astype(x.dtype)
    eta = z @ mean.weights.T + mean.visible
    visible = jnp.sum(x * eta - jax.nn.softplus(eta), axis=1)
    prior = z * mean.hidden - jax.nn.softplus(mean.hidden)
    own = z * found.logit - jax.nn.softplus(found.logit)
    return visible + jnp.sum(prior - own, axis=1)


def _mean_field(family: Family) -> MeanFieldGaussian:
    if not isinstance(family, MeanFieldGaussian):
        raise ConfigError(
            f"model 'belief-network' does not support posterior = {family.kind!r}; set posterior = "
            "'mean-field'"
        )
    return family


def _floats(x: Array) -> Array:
    """Convert integer records to float32."""
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(np.float32)


def _sigmoid(value: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * value))
