"""Effects of NumPyro models in standardised form."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.methods.natural.effects import chosen_effects
from tacit.models.capabilities import HasEffects
from tacit.models.numpyro.model import NumPyroModel
from tacit.testing import check_model
from tacit.testing.model_effects import check_effects
from tacit.testing.models import _subject

GROUPS = 4
RECORDS = {"group": np.arange(12) % GROUPS, "y": np.random.default_rng(0).normal(size=12)}


def effects_of_every_form(group, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    sds = numpyro.sample("sds", dist.HalfNormal(2.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", GROUPS):
        level = numpyro.sample("level", dist.StudentT(4.0, mean, scale))
        pair = numpyro.sample(
            "pair",
            dist.MultivariateNormal(jnp.stack([mean, 0.0]), scale_tril=sds[:, None] * factor),
        )
        positive = numpyro.sample("positive", dist.LogNormal(mean, scale))
    flat = numpyro.sample("flat", dist.Normal(jnp.zeros(3), scale).to_event(1))
    eta = level[group] + pair[group, 0] + flat[group % 3] + 0.1 * positive[group]
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("y", dist.Normal(eta, 1.0), obs=y)


@pytest.fixture(scope="module")
def model():
    return tacit.from_numpyro(effects_of_every_form, RECORDS)


def test_the_suite_checks_effects(model):
    assert isinstance(model, HasEffects)
    assert "HasEffects" in check_model(model, records=RECORDS)


def test_which_coordinates_are_effects(model):
    rng = np.random.default_rng(1)
    thetas = rng.normal(size=(5, model.dimension))
    psi, scales = model.standardised(thetas, np.ones(model.dimension, bool))
    place = {name: number for number, name in enumerate(model.names)}
    scale = np.exp(thetas[:, place["scale"]])
    mean = thetas[:, place["mean"]]
    for group in range(GROUPS):
        at = place[f"level[{group}]"]
        np.testing.assert_allclose(scales[:, at], scale)
        np.testing.assert_allclose(psi[:, at], (thetas[:, at] - mean) / scale)
    sds = np.exp(thetas[:, [place["sds[0]"], place["sds[1]"]]])
    np.testing.assert_allclose(scales[:, [place["pair[0,0]"], place["pair[0,1]"]]], sds)
    varying = np.std(scales, axis=0) > 0
    effects = {
        name.partition("[")[0] for name, one in zip(model.names, varying, strict=True) if one
    }
    assert effects == {"level", "pair", "flat"}, "LogNormal is not on the real line"


def test_effects_with_little_information_are_chosen():
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(4_000, 1))
    known, unknown = 0.05 * rng.normal(size=4_000), np.exp(logs[:, 0]) * rng.normal(size=4_000)
    theta = np.column_stack([known, unknown, unknown])
    assert chosen_effects(theta, np.exp(logs) * [1.0, 1.0, np.nan]).tolist() == [False, True, False]
    assert not np.any(chosen_effects(theta, np.full(theta.shape, 2.0))), "the scale is known"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("unstandardised", lambda found: (found[0], 0.9 * found[1]), "log-determinant"),
        ("unstandardised", lambda found: (1.001 * found[0], found[1]), "unstandardised"),
        ("standardised_slopes", lambda found: 1.01 * found, "standardised_slopes"),
    ],
)
def test_wrong_maps_are_refused(name, change, words):
    def wrong(self, *arguments):
        return change(getattr(NumPyroModel, name)(self, *arguments))

    kind = type("Wrong", (NumPyroModel,), {name: wrong})
    broken = kind(effects_of_every_form, RECORDS, arguments={}, seed=0)
    with pytest.raises(AssertionError, match=words):
        check_effects(_subject(broken, RECORDS, 0))
