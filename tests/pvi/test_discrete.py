"""A posterior over a few hypotheses: parties' exact factors give the posterior of all records."""

import numpy as np
import pytest
from scipy import stats

from tacit.engines.execute import carry_out
from tacit.expfam import Bernoulli, Categorical
from tacit.methods.base import Answer, LocalMethod
from tacit.models import Model
from tacit.plan.plan import make_plan
from tacit.pvi import cavity, multiply
from tacit.server.schedule import SCHEDULES

MEANS = np.array([0.0, 0.4, 1.0])
PRIOR = np.array([0.5, 0.3, 0.2])


class WhichMean(Model):
    """y ~ N(means[level], 1) with an unknown level."""

    kind, output = "which-mean", "other"

    def __init__(self, family, levels):
        self.names = tuple(f"level {k}" for k in range(family.dimension))
        self._family, self.levels = family, levels

    @property
    def own_family(self):
        return self._family

    def each(self, records, weights):
        """log p(records | level) for every level."""
        gap = records["y"][:, None] - MEANS[: self.levels]
        return -0.5 * (weights[:, None] * gap**2).sum(axis=0)

    def log_likelihood(self, theta, records):
        return -0.5 * (records["y"] - self._mean(theta)) ** 2

    def response(self, theta, records):
        return self._mean(theta) + 0.0 * records["y"]

    def _mean(self, theta):
        """θ is the level as a unit vector, or for two levels 0 or 1."""
        return theta @ MEANS if self.levels == 3 else theta[0] * MEANS[1]

    def prior(self, family):
        if isinstance(family, Bernoulli):
            return family.natural(probability=PRIOR[1:2] / PRIOR[:2].sum())
        return family.natural(probability=PRIOR)


class Enumerated(LocalMethod):
    """The exact factor of a model with few levels."""

    kind, dtype = "enumerated", "float64"

    def check(self, model, family):
        assert isinstance(family, Bernoulli | Categorical)

    def answer(self, model, family, key, task):
        each = model.each(task.records, task.weights)
        if isinstance(family, Bernoulli):
            factor = {"linear": each[1:] - each[:1]}
        else:
            factor = {"linear": each[:-1] - each[-1:]}
        return Answer(multiply(cavity(task.q, task.factor), factor), 0.0 * each.sum())


@pytest.mark.parametrize("mode", SCHEDULES)
@pytest.mark.parametrize("levels", [2, 3])
def test_factors_of_parties_give_the_posterior_of_all_records(mode, levels):
    rng = np.random.default_rng(levels)
    parties = {name: {"y": rng.normal(0.5, 1.0, 7)} for name in ("north", "south", "west")}
    family = Bernoulli(1) if levels == 2 else Categorical(3)
    plan = make_plan(
        WhichMean(family, levels),
        parties,
        method=Enumerated(),
        schedule=SCHEDULES[mode](rounds=4, damping=1.0),
    )
    q = carry_out(plan).posterior.natural
    y = np.concatenate([one["y"] for one in parties.values()])
    weights = PRIOR[:levels] * [np.prod(stats.norm.pdf(y, mean)) for mean in MEANS[:levels]]
    expected = weights / weights.sum()
    found = family.usual(q)["probability"]
    np.testing.assert_allclose(found, expected[1:] if levels == 2 else expected, rtol=1e-9)
