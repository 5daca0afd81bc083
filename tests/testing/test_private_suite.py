"""check_private_method accepts a method that releases sums, and rejects versions of it that leak.

The wrong versions declare, charge and report the same events as the right one.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

from tacit.errors import ConfigError
from tacit.methods import Answer
from tacit.methods.private import PrivateMethod
from tacit.models import LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.bounded import clip_units
from tacit.privacy.events import GaussianEvent
from tacit.privacy.mechanisms import Gaussian
from tacit.privacy.settings import Privacy
from tacit.pvi import cavity, multiply
from tacit.server.combine import Run
from tacit.testing import check_private_method, synthetic_records

MODEL = LogisticRegression(("intercept", "a"), prior_sd=1.0)
RECORDS = synthetic_records(MODEL, count=6)


@dataclass(frozen=True, kw_only=True)
class Slopes(PrivateMethod):
    """Releases gradients at the mean of q, and counts. The field `wrong` selects an error."""

    kind: ClassVar[str] = "slopes"
    usual_rounds: ClassVar[int] = 1
    damping: ClassVar[float | None] = 0.3
    clip: float = 1.0
    dtype: str = "float64"
    wrong: str = ""

    def check(self, model, family):
        """Serves every model with columns x and y."""

    def release(self, *, clip, noise_sd, units):
        event = GaussianEvent(clip=clip, noise_sd=noise_sd)
        count = {"no event": 0, "two events": 2}.get(self.wrong, 1)
        return (event,) * count

    def release_size(self, model, family, stage):
        return (1 if self.wrong == "size" else 2) * model.dimension

    def answer(self, model, family, key, task):
        terms, used = task.terms, task.weights > 0
        mean = family.usual(task.q)["mean"]
        slopes = jax.jacrev(lambda at: model.log_likelihood(at, task.records))(mean)
        rows = jnp.concatenate([slopes, jnp.ones_like(slopes)], axis=1)
        exact = jnp.sum(jnp.where(used[:, None], rows, 0.0), axis=0)
        if self.wrong == "shrinks":  # depends on all records
            many = jnp.sum(jnp.where(used, task.records["y"], 0.0)) > 3
            rows = jnp.where(many, 0.5, 1.0) * rows
        mask = None if self.wrong == "padding" else used
        bounded = clip_units(rows, terms.clips[0], mask)
        noisy = Gaussian(noise_sd=terms.noise_sds[0], lattice=terms.lattice)
        found = noisy.release(task.noise[0], bounded)
        value = found.value
        if self.wrong == "exact where large":
            value = jnp.where(jnp.abs(value) > 6 * terms.noise_sds[0], exact, value)
        if self.wrong == "exact at 999":
            marked = jnp.any(used & (task.records["x"][:, 0] == 999.0))
            value = jnp.where(marked, exact, value)
        if self.wrong == "exact if the norm is large":
            value = jnp.where(jnp.linalg.norm(value) > 100.0, exact, value)
        slope, count = jnp.split(value, 2)
        most = jnp.abs(exact[:2]) + 9.0 if self.wrong == "bound from records" else terms.units
        precision = jnp.clip(count, 1.0, most)
        least = -jnp.abs(exact[:2]) - 9.0 if self.wrong == "lower bound from records" else -1e9
        slope = jnp.maximum(slope, least)
        site = {"linear": slope + precision * mean, "quadratic": -0.5 * precision}
        cost = found.cost
        if self.wrong == "half of the cost":
            cost = jax.tree.map(lambda leaf: 0.5 * leaf, cost)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], cost)
        return Answer(multiply(cavity(task.q, task.factor), site), None, costs)


def test_a_right_method_is_accepted():
    assert 0.9 < check_private_method(Slopes(), MODEL, rounds=1) <= 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("exact where large", r"reply: visit 0, question 1, releases times 1000, neighbour"),
        ("exact if the norm is large", r"reply: .* releases times 1000, .*bypasses the mechanism"),
        ("exact at 999", r"reply: visit 0, .*bypasses the mechanism"),
        ("bound from records", r"reply: .* releases times 1000, .*released\['quadratic'\] differs"),
        ("lower bound from records", r"reply: .* releases times -?1000, .*released\['linear'\]"),
        ("shrinks", r"sensitivity: visit 0, question 0: one unit moves the sum by"),
        ("padding", r"padding: visit 0: rows of weight 0 move the sum by"),
        ("no event", r"cost: `release` returns no event"),
        ("size", r"answer: visit 0, question 0: the method raised TypeError: noise is int64"),
        ("half of the cost", r"cost: visit 0, question 0: "),
    ],
)
def test_wrong_methods_are_rejected(wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_private_method(Slopes(wrong=wrong), MODEL, rounds=1)


class FullSlopes(Slopes):
    """Prefers a full covariance, which the default `server` does not support."""

    kind: ClassVar[str] = "full-slopes"
    wants_full: ClassVar[bool] = True


class StepsItself(FullSlopes):
    """Has a server step for a full covariance."""

    def server(self, run):
        raise NotImplementedError


def test_a_full_covariance_without_a_server_step_is_refused_before_the_run():
    parties, privacy = {"a": RECORDS}, Privacy(epsilon=1.0, delta=1e-3)
    words = r"family is 'full', but `PrivateMethod.server`.*posterior = 'mean-field', or override"
    with pytest.raises(ConfigError, match=words) as refused:
        make_plan(MODEL, parties, method=FullSlopes(), privacy=privacy)
    assert refused.value.exit_code == 2
    with pytest.raises(ConfigError, match=words):
        make_plan(MODEL, parties, method=Slopes(), family="full", privacy=privacy)
    with pytest.raises(ConfigError, match=words):
        check_private_method(FullSlopes(), MODEL, rounds=1)
    plan = make_plan(MODEL, parties, method=FullSlopes(), family="mean-field", privacy=privacy)
    assert plan.family.kind == "mean-field"
    own = make_plan(MODEL, parties, method=StepsItself(), privacy=privacy)
    assert own.family.kind == "full"
    run = Run(
        MODEL, own.family, parties=1, asked=1, rounds=1,
        damping_at=lambda _: 1.0, noise_sd=lambda _: 1.0,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        Slopes().server(run)


def test_two_events_per_visit_are_refused_before_the_run():
    with pytest.raises(ConfigError, match=r"'slopes' has 2 events at visit 0.*return one event"):
        make_plan(
            MODEL, {"a": RECORDS}, method=Slopes(wrong="two events"),
            privacy=Privacy(epsilon=1.0, delta=1e-3),
        )  # fmt: skip
