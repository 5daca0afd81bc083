"""Private methods that say more than they are charged for, each refused by the suite.

Every one of them declares its events, reports their costs and passes `check_released`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.methods import DPSGD, Answer, PrivateStatistics, PrivateUpdate
from tacit.models import LinearRegression, LogisticRegression
from tacit.privacy.bounded import clip_units
from tacit.privacy.events import GaussianEvent
from tacit.privacy.mechanisms import UNSAMPLED, Gaussian
from tacit.testing import check_private_method
from tacit.testing.laws import moment_faults

LINEAR = LinearRegression(("a", "b"), prior_sd=1.0)
LOGISTIC = LogisticRegression(("a", "b"), prior_sd=1.0)


def exact_sum(task):
    return jnp.sum(jnp.where(task.weights > 0, 1.0, 0.0) @ jnp.nan_to_num(task.records["x"]))


def plus(answer, name, value):
    """With a number of about `value`·10⁶ steps added to released integers."""
    more = answer.released[name] + jnp.rint(1e6 * value).astype(jnp.int64)
    return answer._replace(released=answer.released | {name: more})


class LeakyStatistics(PrivateStatistics):
    """Adds an exact sum to what it released."""

    def answer(self, model, family, key, task):
        return plus(super().answer(model, family, key, task), "linear", exact_sum(task))


class LeakyGradients(DPSGD):
    """The same, in the released information."""

    def answer(self, model, family, key, task):
        found = super().answer(model, family, key, task)
        return plus(found, "information", 1e-5 * exact_sum(task))


class LeakyUpdate(PrivateUpdate):
    """Sends the clipped sum exactly, to which the server adds noise, and an outcome with it."""

    def answer(self, model, family, key, task):
        return plus(super().answer(model, family, key, task), "score", task.records["y"][0, 0])


class LeakyLoss(PrivateStatistics):
    """Sends an exact loss, as a method without privacy does."""

    def answer(self, model, family, key, task):
        return super().answer(model, family, key, task)._replace(loss=exact_sum(task))


class LeakyMemory(PrivateStatistics):
    """Keeps an exact sum at the party, which it may, and sends it at its next visit."""

    def memory(self, model, family):
        return {"sum": np.zeros(())}

    def answer(self, model, family, key, task):
        found = super().answer(model, family, key, task)._replace(memory={"sum": exact_sum(task)})
        return plus(found, "linear", task.memory["sum"])


class Factor(PrivateStatistics):
    """Multiplies what it released by a number that depends on records."""

    def answer(self, model, family, key, task):
        found = super().answer(model, family, key, task)
        more = jnp.where(exact_sum(task) > 10.0, 2, 1)
        return found._replace(released=found.released | {"linear": more * found.released["linear"]})


class SecondRelease(PrivateStatistics):
    """Releases another sum with another key, and reports the first one's cost only."""

    def answer(self, model, family, key, task):
        found = super().answer(model, family, key, task)
        again = super().answer(model, family, key, task._replace(noise=-task.noise))
        both = {name: found.released[name] + again.released[name] for name in found.released}
        return found._replace(released=both)


class SometimesTwice(PrivateStatistics):
    """Releases a second time where a record is large: how often depends on the records."""

    def answer(self, model, family, key, task):
        found = super().answer(model, family, key, task)

        def twice(noise: Any) -> Any:
            return (
                super(SometimesTwice, self)
                .answer(model, family, key, task._replace(noise=noise))
                .released
            )

        other = -task.noise
        released = jax.lax.cond(exact_sum(task) > 10.0, twice, lambda _: found.released, other)
        return found._replace(released=released)


@dataclass(frozen=True, kw_only=True)
class QuietCoordinates(Gaussian):
    """Adds `factor` times the noise that it states."""

    factor: Any = 1.0

    def release(self, noise, bounded, drawn=UNSAMPLED):
        found = super().release(noise, bounded, drawn)
        noise = found.value - bounded.value
        return found._replace(value=bounded.value + self.factor * noise)


@dataclass(frozen=True, kw_only=True)
class TwoSums(DPSGD):
    """Two releases a visit of a sum of 70 numbers; `wrong` says what is wrong with the second."""

    wrong: str = ""

    def release(self, *, clip, noise_sd, units):
        del units
        return (GaussianEvent(clip=clip, noise_sd=noise_sd, count=2),)

    def release_size(self, model, family, stage):
        del model, family, stage
        return 70

    def integer_shapes(self, model, family, stage):
        del model, family, stage

    def answer(self, model, family, key, task):
        del model, family, key
        signs = jnp.where(task.records["x"][:, :1] > 0, 1.0, -1.0) * jnp.ones(70)
        bounded = clip_units(signs, task.terms.clips[0], task.weights)
        first, second = task.noise
        second = first if self.wrong == "same key" else second
        factor = jnp.ones(70)
        if self.wrong == "half of one":
            factor = factor.at[69].set(0.5)
        if self.wrong == "half":
            factor = 0.5 * factor
        if self.wrong == "half later":
            factor = jnp.where(task.visit > 0, 0.5, 1.0) * factor
        sd = task.terms.noise_sds[0]
        lattice = task.terms.lattice
        one = Gaussian(noise_sd=sd, lattice=lattice).release(first, bounded)
        quiet = QuietCoordinates(noise_sd=sd, factor=factor, lattice=lattice)
        two = quiet.release(second, bounded)
        costs = jax.tree.map(lambda *leaves: jnp.stack(leaves), one.cost, two.cost)
        moved = jnp.mean(one.value) + jnp.mean(two.value)
        return Answer(task.q | {"linear": task.q["linear"] + moved}, None, costs)


@pytest.mark.parametrize(
    ("method", "model", "how", "said"),
    [
        (LeakyStatistics(), LINEAR, {}, r"reply: visit 0, .*released\['linear'\] differs"),
        (LeakyGradients(), LOGISTIC, {}, r"reply: visit 0, .*released\['information'\] differs"),
        (LeakyUpdate(shards=1), LINEAR, {"unit": "party", "aggregation": "server"},
         r"reply: visit 0, .*released\['score'\] differs"),
        (LeakyLoss(), LINEAR, {}, "reply: visit 0, .*: loss differs"),
        (LeakyMemory(), LINEAR, {}, r"reply: visit 1, .*released\['linear'\] differs"),
        (Factor(), LINEAR, {}, r"reply: visit 0, .*released\['linear'\] differs"),
        (SecondRelease(), LINEAR, {}, "releases: visit 0: .* but only 81 are charged"),
        (SometimesTwice(), LINEAR, {}, "reply: visit 0, .* differs"),
        (TwoSums(wrong="half"), LOGISTIC, {}, "noise: visit 0, event 1: variance"),
        (TwoSums(wrong="half of one"), LOGISTIC, {}, "event 1: variance .*at coordinate 69"),
        (TwoSums(wrong="half later"), LOGISTIC, {}, "noise: visit 1, event 1: variance"),
        (TwoSums(wrong="same key"), LOGISTIC, {}, "visit 0, all its events: independence"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, DPSGD) else None,
)  # fmt: skip
def test_what_passes_around_the_mechanism_is_found(method, model, how, said):
    with pytest.raises(AssertionError, match=said):
        check_private_method(method, model, rounds=2, **how)


def test_two_sums_with_all_of_their_noise_are_accepted():
    assert 0.9 < check_private_method(TwoSums(), LOGISTIC, rounds=2) <= 1.0


def test_one_of_many_coordinates_with_less_noise_is_found():
    noise = np.random.default_rng(0).normal(size=(2_000, 5_000))
    assert not moment_faults(noise, 1.0)
    noise[:, 4_321] *= 0.8
    (fault,) = moment_faults(noise, 1.0)
    assert fault.startswith("variance")
    assert "coordinate 4321" in fault
