"""The NumPyro adapter: NumPyro's own log-density is the oracle, and each refusal has its case."""

import inspect
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, potential_energy

import tacit
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models.numpyro.model import NumPyroModel, from_numpyro

jax.config.update("jax_enable_x64", True)

N = 5
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 2))
Y = RNG.normal(size=N)
GROUP = np.array([0, 1, 2, 1, 0])
CLICK = np.array([0, 1, 1, 0, 1])
PAIR = RNG.normal(size=(N, 2))


def hierarchical(x, group, y=None, groups=3):
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", groups):
        effect = numpyro.sample("effect", dist.Normal(0.0, tau))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.deterministic("ratio", tau / sigma)
    mean = numpyro.deterministic("mean", x @ beta + effect[group])
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def simplex(group, y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("records", len(group)):
        numpyro.sample("group", dist.Categorical(weights), obs=group)
        numpyro.sample("y", dist.StudentT(4.0, 0.0, rate), obs=y)


def logit(x, click=None):
    beta = numpyro.sample("beta", dist.Normal(jnp.array([1.0, -1.0]), 2.0).to_event(1))
    bias = numpyro.sample("intercept", dist.Normal(0.5, 3.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("click", dist.Bernoulli(logits=x @ beta + bias), obs=click)


def correlated(pair, missing):
    """A dynamic support, a correlation matrix, an event axis, and a mask."""
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    inside = numpyro.sample("inside", dist.Uniform(-top, top))
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("records", pair.shape[0]), numpyro.handlers.mask(mask=missing == 0):
        noise = dist.MultivariateNormal(jnp.full(2, inside), scale_tril=chol)
        numpyro.sample("pair", noise, obs=pair)


def nested(pair, weight):
    """Records on the left axis with weights, columns in their own plate, a factor per record."""
    centre = numpyro.sample("centre", dist.Beta(2.0, 2.0))
    columns = numpyro.plate("columns", 2, dim=-1)
    with numpyro.plate("records", pair.shape[0], dim=-2):
        with columns, numpyro.handlers.scale(scale=weight[:, None]):
            numpyro.sample("pair", dist.Laplace(centre, 1.0), obs=pair)
        numpyro.factor("tilt", -centre * pair[:, :1] ** 2)


CASES = {
    "hierarchical": (hierarchical, {"x": X, "group": GROUP, "y": Y}),
    "simplex": (simplex, {"group": GROUP, "y": Y}),
    "logit": (logit, {"x": X, "click": CLICK}),
    "correlated": (correlated, {"pair": PAIR, "missing": np.array([0, 1, 0, 0, 1])}),
    "nested": (nested, {"pair": PAIR, "weight": np.linspace(0.3, 2.0, len(PAIR))}),
}


@pytest.fixture(scope="module")
def models() -> dict[str, NumPyroModel]:
    return {name: from_numpyro(function, records) for name, (function, records) in CASES.items()}


def unconstrained(model: NumPyroModel, theta):
    return {
        latent.name: theta[latent.start : latent.stop].reshape(latent.shape)
        for latent in model.layout.latents
    }


@pytest.mark.parametrize("name", CASES)
def test_log_joint_is_numpyros(models, name):
    model, (function, records) = models[name], CASES[name]

    @jax.jit
    @jax.vmap
    def both(theta):
        joint = model.log_prior(theta) + model.log_likelihood(theta, records).sum()
        return joint, potential_energy(function, (), records, unconstrained(model, theta))

    joint, potential = both(RNG.normal(size=(3, model.dimension)))
    np.testing.assert_allclose(joint, -potential, rtol=1e-10)


def test_constrained_values_have_numpyros_density(models):
    model, (function, records) = models["hierarchical"], CASES["hierarchical"]
    theta = RNG.normal(size=model.dimension)
    values = model.constrain(theta)
    assert list(values) == ["tau", "effect", "beta", "sigma", "ratio"]
    np.testing.assert_allclose(values["ratio"], np.exp(theta[0] - theta[-1]))
    latents = {name: value for name, value in values.items() if name != "ratio"}
    jacobian = theta[0] + theta[-1]
    joint = model.log_prior(theta) + model.log_likelihood(theta, records).sum() - jacobian
    np.testing.assert_allclose(joint, log_density(function, (), records, latents)[0], rtol=1e-10)
    stacked = model.constrain(np.stack([theta, theta + 1.0]))
    assert stacked["effect"].shape == (2, 3)
    np.testing.assert_allclose(stacked["effect"][0], values["effect"])


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_its_records(models, name):
    model, (_, records) = models[name], CASES[name]
    theta = RNG.normal(size=model.dimension)
    whole = model.log_likelihood(theta, records)
    assert whole.shape == (N,)
    singles = {key: value[:, None] for key, value in records.items()}
    each = jax.vmap(lambda record: model.log_likelihood(theta, record)[0])(singles)
    np.testing.assert_allclose(whole, each, rtol=1e-10)
    padded = {key: np.concatenate([value, value[:1], value[:1]]) for key, value in records.items()}
    longer = jax.jit(model.log_likelihood)(theta, padded)
    np.testing.assert_allclose(longer[:N], whole, rtol=1e-10)
    many = jax.vmap(model.log_likelihood, (0, None))(np.stack([theta, theta + 0.1]), records)
    np.testing.assert_allclose(many[0], whole, rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_float32_batches(models, name):
    model, (_, records) = models[name], CASES[name]
    theta = np.full(model.dimension, 0.3)
    narrow = {
        key: value.astype(np.float32) if value.dtype.kind == "f" else value
        for key, value in records.items()
    }
    value = model.log_likelihood(theta.astype(np.float32), narrow)
    assert value.dtype == np.float32
    assert model.log_prior(theta.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(value, model.log_likelihood(theta, records), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_start_and_prior_are_proper_with_finite_gradients(models, name):
    model, (_, records) = models[name], CASES[name]
    for family in (MeanFieldGaussian(model.dimension), FullGaussian(model.dimension)):
        assert family.is_proper(model.prior(family))
        location, sd = family.location_scale(model.start(family))
        np.testing.assert_allclose(sd, 0.1)
        gradient = jax.grad(
            lambda theta: model.log_prior(theta) + model.log_likelihood(theta, records).sum()
        )(jnp.asarray(location))
        assert np.all(np.isfinite(gradient))


def test_all_normal_prior_is_exact(models):
    model = models["logit"]
    assert not model.has_site_prior
    assert model.names == ("beta[0]", "beta[1]", "intercept")
    usual = MeanFieldGaussian(3).usual(model.prior(MeanFieldGaussian(3)))
    np.testing.assert_allclose(usual["mean"], [1.0, -1.0, 0.5], rtol=1e-13)
    np.testing.assert_allclose(usual["sd"], [2.0, 2.0, 3.0], rtol=1e-13)


def test_reparametrised_and_lognormal_sites_count_as_normal():
    def model(y):
        scale = numpyro.sample("scale", dist.LogNormal(0.5, 0.2))
        with numpyro.handlers.reparam(config={"centre": LocScaleReparam(0)}):
            centre = numpyro.sample("centre", dist.Normal(0.0, scale))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(centre, 1.0), obs=y)

    adapted = from_numpyro(model, {"y": Y})
    assert adapted.names == ("scale", "centre_decentered")
    assert not adapted.has_site_prior
    np.testing.assert_allclose(adapted.prior_mean, [0.5, 0.0], atol=1e-13)
    np.testing.assert_allclose(adapted.prior_sd, [0.2, 1.0], rtol=1e-13)
    assert "centre" in adapted.constrain(np.zeros(2))


def test_normal_prior_that_depends_on_a_latent_is_not_exact():
    def model(y):
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
        near = numpyro.sample("near", dist.Normal(centre, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(near, 1.0), obs=y)

    assert from_numpyro(model, {"y": Y}).has_site_prior


def test_stand_in_is_near_the_prior(models):
    model = models["hierarchical"]
    assert model.has_site_prior
    assert model.names[:2] == ("tau", "effect[0]")
    # log of a HalfCauchy(1): median 0, and P(|log τ| < 1.379) = 0.683.
    assert abs(model.prior_mean[0]) < 0.25
    assert abs(model.prior_sd[0] - 1.379) < 0.25


def test_start_depends_on_the_seed_alone(models):
    again = from_numpyro(*CASES["logit"])
    np.testing.assert_array_equal(again.median, models["logit"].median)
    other = from_numpyro(*CASES["logit"], seed=1)
    assert not np.array_equal(other.median, again.median)


def test_output_and_response(models):
    assert {name: model.output for name, model in models.items()} == {
        "hierarchical": "gaussian",
        "simplex": "other",
        "logit": "bernoulli",
        "correlated": "other",
        "nested": "other",
    }
    theta = np.array([0.3, -0.2, 0.1])
    expected = 1.0 / (1.0 + np.exp(-(X @ theta[:2] + theta[2])))
    for records in ({"x": X, "click": CLICK}, {"x": X, "click": 1 - CLICK}, {"x": X}):
        np.testing.assert_allclose(models["logit"].response(theta, records), expected)
    with pytest.raises(ConfigError, match="a single observed site"):
        models["simplex"].response(np.zeros(3), CASES["simplex"][1])


def test_predictive_draws_new_observations(models):
    model, theta = models["logit"], np.array([0.0, 0.0, 1.0])
    draws = np.tile(theta, (4000, 1))
    simulated = model.predictive(draws, {"x": X, "click": np.zeros(N, int)})["click"]
    assert simulated.shape == (4000, N)
    # 20 000 coins of chance 0.731: five standard errors are 0.016.
    assert abs(float(simulated.mean()) - 1.0 / (1.0 + np.exp(-1.0))) < 0.016
    np.testing.assert_array_equal(simulated, model.predictive(draws, {"x": X})["click"])
    assert list(models["nested"].predictive(np.zeros(1), CASES["nested"][1])) == ["pair"]


def test_a_response_that_numpyro_does_not_know_is_refused():
    def classes(group):
        tilt = numpyro.sample("tilt", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        with numpyro.plate("records", len(group)):
            numpyro.sample("group", dist.Categorical(logits=tilt), obs=group)

    def transformed(y):
        low = numpyro.sample("low", dist.Normal())
        noise = dist.TransformedDistribution(
            dist.Normal(low, 1.0), dist.transforms.SigmoidTransform()
        )
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", noise, obs=y)

    with pytest.raises(ConfigError, match="not a class"):
        from_numpyro(classes, {"group": GROUP}).response(np.zeros(3), {"group": GROUP})
    chances = {"y": np.full(N, 0.25)}
    with pytest.raises(ConfigError, match="has no mean"):
        from_numpyro(transformed, chances).response(np.zeros(1), chances)


def test_wrapped_models_are_models():
    wrapped = numpyro.handlers.reparam(hierarchical, config={"effect": LocScaleReparam(0)})
    model = from_numpyro(wrapped, {"x": X[:1], "group": GROUP[:1], "y": Y[:1]})
    assert model.names[1] == "effect_decentered[0]"
    assert model.constrain(np.zeros(model.dimension))["effect"].shape == (3,)


def test_keys_the_model_does_not_take_are_left_out_and_static_is_passed():
    records = {"x": X, "group": GROUP + 2, "y": Y, "name": np.array(list("abcde"))}
    model = from_numpyro(hierarchical, records, arguments={"groups": 5})
    assert model.dimension == 9
    assert model.log_likelihood(np.zeros(9), records).shape == (N,)


def test_threads_and_pickle(models):
    model, (_, records) = models["hierarchical"], CASES["hierarchical"]
    theta = np.full(model.dimension, 0.2)
    expected = model.log_likelihood(theta, records)
    copies = [pickle.loads(pickle.dumps(model)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda copy: copy.log_likelihood(theta, records), copies))
    for answer in answers:
        np.testing.assert_array_equal(answer, expected)


def test_theta_of_another_length_is_refused(models):
    with pytest.raises(ConfigError, match="agree on the dimension"):
        models["logit"].log_likelihood(np.zeros(4), CASES["logit"][1])


def test_records_that_do_not_fit_are_named(models):
    model, theta = models["hierarchical"], np.zeros(7)
    records = CASES["hierarchical"][1]
    for wrong, message in [
        ({"x": X, "group": GROUP}, "no value for observed site 'y'"),
        ({"x": X, "y": Y}, "no 'group'"),
        ({**records, "x": X[:, :1]}, r"records\['x'\] has shape"),
        ({**records, "y": Y[:2]}, "same leading axis"),
        ({key: value[:0] for key, value in records.items()}, "empty"),
        ({**records, "y": np.array(list("abcde"))}, "pass an array of numbers"),
    ]:
        with pytest.raises(DataError, match=message):
            model.log_likelihood(theta, wrong)


# Models that are no sum over records given one θ, each with what its error must say.


def no_observed(y):
    numpyro.sample("a", dist.Normal())


def no_latent(y):
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(), obs=y)


def no_plate(y):
    a = numpyro.sample("a", dist.Normal())
    numpyro.sample("y", dist.Normal(a, 1.0).expand([len(y)]), obs=y)


def fixed_plate(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", N):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def fixed_plate_that_breaks(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", 100):
        numpyro.sample("y", dist.Normal(a + 0.0 * y, 1.0), obs=y)


def discrete(y):
    a = numpyro.sample("a", dist.Bernoulli(0.5))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def per_record(y):
    with numpyro.plate("records", len(y)):
        a = numpyro.sample("a", dist.Normal())
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def per_record_without_plate(y):
    a = numpyro.sample("a", dist.Normal().expand([len(y)]))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def subsample(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", len(y), subsample_size=2) as index:
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y[index])


def parameter(y):
    a = numpyro.sample("a", dist.Normal())
    b = numpyro.param("b", 1.0)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, b), obs=y)


def outside_factor(y):
    a = numpyro.sample("a", dist.Normal())
    numpyro.factor("penalty", -(a**2))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def two_plates(y):
    a = numpyro.sample("a", dist.Normal())
    for name in ("first", "second"):
        with numpyro.plate(name, len(y)):
            numpyro.sample(f"y_{name}", dist.Normal(a, 1.0), obs=y)


def square(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("rows", len(y), dim=-1), numpyro.plate("columns", len(y), dim=-2):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def improper(y):
    a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def masked_latent(y):
    with numpyro.handlers.mask(mask=False):
        a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def sphere(y):
    a = numpyro.sample("a", dist.ProjectedNormal(jnp.ones(2)))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a[0], 1.0), obs=y)


def delta(y):
    a = numpyro.sample("a", dist.Delta(1.0))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def python_value(y):
    a = numpyro.sample("a", dist.Normal().expand([int(y[0] + 1)]))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a[0], 1.0), obs=y)


def wrong_axis(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y[:, None])


def sites_change(y):
    a = numpyro.sample("a" if len(y) == N else "b", dist.Normal())
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def scanned(y):
    from numpyro.contrib.control_flow import scan

    def step(carry, _):
        return numpyro.sample("a", dist.Normal(carry, 1.0)), None

    a, _ = scan(step, 0.0, jnp.arange(3))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def prior_reads_records(y):
    a = numpyro.sample("a", dist.Normal(y.mean(), 1.0))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def records_read_each_other(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y - y.mean())


def at_the_edge(y):
    a = numpyro.sample("a", dist.StudentT(0.1, 0.0, 1e308))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def loops_until_it_is_done(y):
    a = numpyro.sample("a", dist.Normal())
    root = jax.lax.while_loop(lambda t: jnp.abs(t * t * t - a) > 1e-6, lambda t: t - a, a)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(root, 1.0), obs=y)


def wants_z(z):
    numpyro.sample("a", dist.Normal(z, 1.0))


def reads_nothing(z=1):
    numpyro.sample("a", dist.Normal(z, 1.0))


def vague_scale(y):
    """Most draws of the variance are infinite, and draws of the effects with it."""
    variance = numpyro.sample("variance", dist.InverseGamma(0.001, 0.001))
    effect = numpyro.sample("effect", dist.Normal(0.0, jnp.sqrt(variance)))
    precision = numpyro.sample("precision", dist.Gamma(1e-4, 1e-4))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(effect, 1.0 / jnp.sqrt(precision)), obs=y)


def test_a_vague_prior_of_a_scale_has_a_starting_point():
    model = from_numpyro(vague_scale, {"y": Y})
    assert np.all(np.abs(model.median) < 3.0)
    assert np.all(np.isfinite(model.log_likelihood(model.median, {"y": Y})))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (no_observed, "no observed site"),
        (no_latent, "no latent site"),
        (no_plate, "in no plate"),
        (fixed_plate, "batch's length"),
        (fixed_plate_that_breaks, "batch's length"),
        (discrete, "marginalise it .* continuous relaxation"),
        (per_record, "'a' has a value for each record"),
        (per_record_without_plate, "'a' has a value for each record"),
        (subsample, "remove this argument, because tacit draws the minibatches"),
        (parameter, "numpyro.param site 'b'"),
        (outside_factor, "numpyro.factor 'penalty' is in no plate"),
        (two_plates, "different record plates"),
        (square, "2 plates of the batch's length"),
        (masked_latent, "handlers.mask"),
        (sphere, "handlers.reparam"),
        (delta, "Delta"),
        (python_value, "arguments="),
        (wrong_axis, "the shape of the distribution"),
        (sites_change, "different sites for 6"),
        (scanned, "jax.lax.scan"),
        (prior_reads_records, "prior changes with the records"),
        (records_read_each_other, "other records of its batch"),
        (at_the_edge, "less extreme prior"),
        (loops_until_it_is_done, "no gradient .* use jax.lax.scan"),
        (3.0, "model is a float"),
        (wants_z, "needs \\['z'\\]"),
        (reads_nothing, "none of the columns"),
    ],
)
def test_refusals_say_what_to_change(model, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_numpyro(model, {"y": Y})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"y": 1}, "also a key of the records"), ({"z": 1}, "not an argument of the model")],
)
def test_arguments_that_do_not_fit_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        from_numpyro(no_plate, {"y": Y}, arguments=arguments)


def indexed(read):
    def model(group, y=None):
        with numpyro.plate("groups", 4):
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", group.shape[0]):
            numpyro.sample("y", dist.Normal(read(level, group), 1.0), obs=y)

    return model


def classes(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x[:, None] * slopes), obs=y)


@pytest.mark.parametrize(
    ("read", "dtype", "expected"),
    [
        (lambda level, group: level[group], int, (0, 3)),
        (lambda level, group: level[group - 1], np.uint8, (1, 4)),
        (lambda level, group: jnp.take(level, group.astype(int)), float, (0, 3)),
        (lambda level, group: level[jnp.clip(group, 0, 3)], int, None),
        (lambda level, group: jax.nn.one_hot(group, 4) @ level, int, None),
    ],
    ids=["index", "codes from 1", "cast", "clipped", "one-hot"],
)
def test_the_range_of_an_index_is_found_without_records(read, dtype, expected):
    model = from_numpyro(indexed(read), {"group": np.ones(2, dtype), "y": np.zeros(2)})
    assert model.index_ranges == ({} if expected is None else {"group": expected})


def test_an_outcome_that_is_an_index_has_a_range():
    model = from_numpyro(classes, {"x": np.zeros(2), "y": np.zeros(2, int)})
    assert model.index_ranges == {"y": (0, 2)}


@pytest.mark.parametrize("privacy", [None, tacit.Privacy(epsilon=1.0)])
@pytest.mark.parametrize(
    ("codes", "beyond"), [([1, 2, 3, 4], "above 3"), ([-1, 0, 1, 3], "below 0")]
)
def test_codes_that_jax_would_clamp_are_refused_with_or_without_privacy(codes, beyond, privacy):
    group = np.repeat(codes, 25)
    records = {"group": group, "y": np.zeros(len(group))}
    model = from_numpyro(indexed(lambda level, group: level[group]), records, columns={"group": 4})
    words = rf"column 'group': a value is {beyond}, .*from 0 to 3"  # not: clip them to the bounds
    with pytest.raises(DataError, match=words):
        tacit.fit(model, {"a": records, "b": records}, privacy=privacy)


def test_codes_beyond_the_declared_levels_are_refused():
    model = from_numpyro(
        indexed(lambda level, group: jax.nn.one_hot(group, 4) @ level),
        {"group": np.zeros(2, int), "y": np.zeros(2)},
        columns={"group": 4},
    )
    model.check_records("a", {"group": np.array([0, 3]), "y": np.zeros(2)})
    with pytest.raises(DataError, match=r"party 'a', column 'group': a value is above 3"):
        model.check_records("a", {"group": np.array([0, 4]), "y": np.zeros(2)})


def largest_age(age, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 5.0))
    with numpyro.plate("records", age.shape[0]):
        numpyro.sample("y", dist.Normal(b * age / age.max(), 0.3), obs=y)


def lagged_in_a_group(g, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    before = jnp.where(jnp.diff(g, prepend=g[:1] - 1) == 0, jnp.roll(y, 1), 0.0)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(b * before, 1.0), obs=y)


def prior_by_number(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 0.2 / jnp.sqrt(x.shape[0])))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 0.5), obs=y)


@pytest.mark.parametrize(
    ("function", "column"),
    [(largest_age, np.arange(20, 60)), (lagged_in_a_group, np.arange(40) // 4)],
    ids=["largest", "lag"],
)
def test_records_that_depend_on_others_are_refused_although_the_example_shows_nothing(
    function, column
):
    name = next(iter(inspect.signature(function).parameters))
    y = np.random.default_rng(0).normal(size=40)
    example = {name: column[::10], "y": y[::10]} if name == "g" else {name: column[:1], "y": y[:1]}
    model = tacit.from_numpyro(function, example)
    assert model.dimension == 1
    with pytest.raises(ConfigError, match="party 'a': a record's log-likelihood changes with"):
        tacit.fit(model, {"a": {name: column, "y": y}}, privacy=None)


def test_a_prior_that_depends_on_the_number_of_records_is_refused():
    with pytest.raises(ConfigError, match="with the records or with their number"):
        tacit.from_numpyro(prior_by_number, {"x": np.ones(1), "y": np.ones(1)})


def durations(x, t=None):
    rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("t", dist.Weibull(jnp.exp(rate * x), 1.5), obs=t)


def test_an_argument_that_is_no_column_is_named():
    records = {"x": np.ones(6), "y": np.ones(6)}
    message = r"its argument t is not among the columns that it was given \(x, y\); give argument"
    with pytest.raises(ConfigError, match=message):
        tacit.fit(durations, {"a": records}, privacy=None)
    with pytest.raises(ConfigError, match=message):
        from_numpyro(durations, records)


def test_a_fit_that_an_impossible_outcome_ended_names_its_party_and_record():
    t = np.linspace(0.1, 2.0, 20)
    parties = {"a": {"x": np.ones(20), "t": t}, "b": {"x": np.ones(20), "t": t.copy()}}
    assert tacit.fit(durations, parties, privacy=None).converged
    parties["b"]["t"][3] = -1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit(durations, parties, privacy=None)
    assert not fit.converged
    assert "an outcome is outside the support of its distribution" in fit.why
    assert "party 'b': the log-likelihood of 1 of 20 records" in fit.why
    assert "the first is record 4" in fit.why
    assert "party 'a'" not in fit.why
    (little,) = [one for one in fit.cautions if "Little was learned" in one]
    assert "epsilon" not in little
