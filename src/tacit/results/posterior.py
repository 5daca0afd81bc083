"""The posterior as returned to the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.models import Model, Records
from tacit.plan.plan import Plan
from tacit.support.blas import one_blas_thread

INTERVAL = 0.95


@dataclass(frozen=True, repr=False)
class Posterior:
    """q(θ): a member of an exponential family over the model's named coordinates."""

    model: Model
    family: Family
    natural: Natural

    def __repr__(self) -> str:
        return f"Posterior({self.model.kind}, {self.family!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of θ."""
        return self.model.names

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean of each coordinate."""
        return self._location_scale()[0]

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviation of each coordinate."""
        return self._location_scale()[1]

    def _location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        with one_blas_thread():  # the same bits on any number of cores, in any process
            location, scale = self.family.location_scale(self.natural)
        return np.asarray(location), np.asarray(scale)

    def table(self) -> dict[str, list[Any]]:
        """Return names, means and sds of all coordinates as lists, for result.json. The lists are
        empty if there are too many coordinates to list.
        """
        if not self.model.listed:
            return {"names": [], "mean": [], "sd": []}
        return {
            "names": list(self.names),
            "mean": self.mean.tolist(),
            "sd": self.sd.tolist(),
        }

    def interval(self, level: float = INTERVAL) -> tuple[np.ndarray, np.ndarray]:
        """Compute central intervals of a Gaussian posterior, coordinate by coordinate.

        Parameters
        ----------
        level
            Probability of each interval, between 0 and 1.

        Returns
        -------
        low, high : numpy.ndarray
            Lower and upper ends.
        """
        from statistics import NormalDist

        if not 0 < level < 1:
            raise ConfigError(f"interval level = {level}; it must be between 0 and 1")
        reach = NormalDist().inv_cdf(0.5 + level / 2) * self.sd
        return self.mean - reach, self.mean + reach

    def sample(self, count: int = 1000, *, seed: int = 0) -> np.ndarray:
        """Draw the parameters θ.

        Parameters
        ----------
        count
            Number of draws.
        seed
            Seed of the draws.

        Returns
        -------
        numpy.ndarray
            Draws of shape (count, dimension).
        """
        import jax

        return np.asarray(self.family.sample(jax.random.key(seed), self.natural, (count,)))

    def draws(self, count: int = 1000, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Draw the model's quantities on their original scale, e.g. the sites of a NumPyro model.

        Parameters
        ----------
        count
            Number of draws.
        seed
            Seed of the draws; the same seed gives the draws of `sample`.

        Returns
        -------
        dict
            An array of shape (count, …) for each quantity; empty for a model whose θ is not
            transformed, such as a regression.
        """
        if type(self.model).constrain is Model.constrain:  # θ itself
            return {}
        values = self.model.constrain(self.sample(count, seed=seed))
        return {name: np.asarray(value) for name, value in values.items()}

    def to_arviz(self, count: int = 1000, *, seed: int = 0, records: Records | None = None) -> Any:
        """Return draws in ArviZ's format; needs `pip install tacit[arviz]`.

        Parameters
        ----------
        count
            Number of draws.
        seed
            Seed of the draws.
        records
            Prepared records with their outcomes, e.g. ``federation.test``. They add the group
            `log_likelihood`, for `arviz.loo`, and, if the model can simulate outcomes, the groups
            `posterior_predictive` and `observed_data`, for `arviz.plot_ppc`. The result then
            contains those outcomes, which no guarantee covers.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            InferenceData up to ArviZ 0.2x, DataTree from ArviZ 1.0 on, with a group `posterior`.
        """
        from tacit.results.arviz_groups import arviz_of

        return arviz_of(self, count, seed=seed, records=records)


def posterior_of(plan: Plan, natural: Natural, public: Arrays | None = None) -> Posterior:
    """Make the posterior from the server's state.

    Parameters
    ----------
    plan
        The plan of the run.
    natural
        Natural parameters, as in the server's state.
    public
        The server's public arrays; some methods need them to interpret the posterior.
    """
    with one_blas_thread():  # the same bits as at the end of a live federation
        read = plan.method.read(plan.model, plan.family, natural, public or {})
    return Posterior(plan.model, *read)
