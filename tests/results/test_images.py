"""Modes that are images of the one that was found are reported."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

import tacit
from tacit.expfam import FullGaussian
from tacit.results.images import MOST_LINE_POINTS, MOST_TERMS, images_of, other_mode
from tacit.results.lines import STEPS, line_points, mode_on_lines


def squared(x, y=None):
    c = numpyro.sample("c", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b + c * c * x, 1.0), obs=y)


def components(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        each = dist.Normal(mean, 1.0).log_prob(y[:, None])
        numpyro.factor("y", logsumexp(each, axis=1) - jnp.log(2.0))


def sums(x, y=None):
    c = numpyro.sample("c", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ c, 1.0), obs=y)


def mode_of(function, mean, sd, records):
    family = FullGaussian(len(mean))
    q = family.natural(mean=np.array(mean), covariance=np.diag(np.square(sd)))
    model = tacit.from_numpyro(function, records)
    half = {f"p{k}": {name: one[k::2] for name, one in records.items()} for k in range(2)}
    return other_mode(model, family, q, half)


def test_a_sign_that_the_records_do_not_determine_is_found():
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 2.0, 60)
    found = mode_of(squared, [0.7, 1.0], [0.03, 0.3], {"x": x, "y": 1.0 + 0.49 * x})
    assert found == "the other sign of c"


def test_components_in_another_order_are_found():
    y = np.random.default_rng(0).normal([-3.0, 3.0], 1.0, (40, 2)).ravel()
    assert mode_of(components, [-3.0, 3.0], [0.2, 0.2], {"y": y}) is not None
    assert mode_of(components, [-3.0, 3.0], [3.0, 3.0], {"y": y}) is None, "q reaches the image"


def one_middle(y=None):
    middle = numpyro.sample("middle", dist.Normal(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.001 * middle, 1.0), obs=y)


def test_an_image_on_the_slope_of_the_same_mode_is_no_mode():
    """The density falls from the mean to the image without a valley. That q is far too narrow is
    seen by its importance weights.
    """
    assert mode_of(one_middle, [1.0], [0.1], {"y": np.zeros(4)}) is None


def shared_parts(y):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    m1 = numpyro.sample("m1", dist.Normal(0.0, 5.0))
    m2 = numpyro.sample("m2", dist.Normal(0.0, 5.0))
    with numpyro.plate("records", y.shape[0]):
        first = jnp.log(share) + dist.Normal(m1, 1.0).log_prob(y)
        second = jnp.log1p(-share) + dist.Normal(m2, 1.0).log_prob(y)
        numpyro.factor("y", jnp.logaddexp(first, second))


def test_numbered_sites_that_can_be_exchanged_are_found():
    """The share of the first component becomes that of the second one."""
    y = np.random.default_rng(0).normal([-3.0, 3.0, 3.0], 1.0, (30, 3)).ravel()
    theta = {"share": -0.7, "m1": -3.0, "m2": 3.0}
    names = tacit.from_numpyro(shared_parts, {"y": y}).names
    found = mode_of(shared_parts, [theta[name] for name in names], [0.2] * 3, {"y": y})
    assert found == "m1 and m2 exchanged and the other sign of share"


def test_clear_effects_of_a_regression_are_no_second_mode():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    records = {"x": x, "y": x @ [3.0, 3.0] + rng.normal(size=80)}
    assert mode_of(sums, [3.0, 3.0], [0.1, 0.1], records) is None
    names = [name for name, _ in images_of(tacit.from_numpyro(sums, records), np.ones(2))]
    assert names == [
        "the other sign of c",
        "the other sign of c[0]",
        "the other sign of c[1]",
        "the other sign of c[0] and c[1]",
        "elements 0 and 1 of c exchanged",
    ]


def lines_of_two_groups(x, y):
    """A mixture of two regressions; the columns of beta can be exchanged."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([3, 2]).to_event(2))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("records", y.shape[0]):
        each = dist.Normal(x @ beta, 0.5).log_prob(y[:, None])
        shares = jnp.stack([jnp.log(share), jnp.log1p(-share)])
        numpyro.factor("y", logsumexp(each + shares, axis=1))


def named_groups(x, y):
    groups = []
    for group in ("low", "high"):
        level = numpyro.sample(f"level_{group}", dist.Normal(0.0, 5.0))
        slope = numpyro.sample(f"slope_{group}", dist.Normal(0.0, 5.0))
        groups.append((level + slope * x, numpyro.sample(f"sd_{group}", dist.HalfNormal(1.0))))
    with numpyro.plate("records", y.shape[0]):
        low, high = (dist.Normal(mean, sd).log_prob(y) for mean, sd in groups)
        numpyro.factor("y", jnp.logaddexp(low, high))


def four_loadings(y):
    each = [numpyro.sample(f"load {name}", dist.Normal(0.0, 1.0)) for name in ("r", "w", "t", "m")]
    loads = jnp.stack(each)
    with numpyro.plate("records", y.shape[0]):
        covariance = loads[:, None] * loads + 0.36 * jnp.eye(4)
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(4), covariance), obs=y)


def two_decays(t, y=None):
    a1, k1, a2, k2 = numpyro.sample("theta", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
    with numpyro.plate("records", t.shape[0]):
        mean = jnp.exp(a1 - jnp.exp(k1) * t) + jnp.exp(a2 - jnp.exp(k2) * t)
        numpyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def test_symmetries_of_many_sites_columns_and_elements_are_found():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    beta = np.array([[0.0, 3.0], [1.0, -1.0], [0.5, 2.0]])
    y = np.sum(x * beta[:, (rng.random(200) < 0.6) * 1].T, axis=1) + 0.5 * rng.normal(size=200)
    found = mode_of(lines_of_two_groups, [*beta.ravel(), -0.4], [0.05] * 7, {"x": x, "y": y})
    assert found == "elements 0 and 1 of beta exchanged and the other sign of share"
    x = rng.normal(size=120)
    y = np.where(rng.random(120) < 0.5, -3.0 - x, 4.0 + 2.0 * x)
    y = y + np.where(y < 0.0, 0.6, 1.0) * rng.normal(size=120)
    ends = {"level": (-3.0, 4.0), "slope": (-1.0, 2.0), "sd": (-0.5, 0.0)}
    at = {
        f"{name}_{end}": two[k]
        for name, two in ends.items()
        for k, end in ((0, "low"), (1, "high"))
    }
    names = tacit.from_numpyro(named_groups, {"x": x, "y": y}).names
    found = mode_of(named_groups, [at[name] for name in names], [0.1] * 6, {"x": x, "y": y})
    pairs = ("level_low and level_high", "slope_low and slope_high", "sd_low and sd_high")
    assert found == f"{', '.join(pairs)} exchanged"
    y = np.outer(rng.normal(size=150), [0.8, 0.7, -0.6, 0.9]) + 0.6 * rng.normal(size=(150, 4))
    found = mode_of(four_loadings, [0.8, 0.7, -0.6, 0.9], [0.08] * 4, {"y": y})
    assert found == "the other sign of load r and load w and load t and load m"
    t = np.tile(np.linspace(0.1, 8.0, 10), 3)
    y = 5.0 * np.exp(-2.0 * t) + 3.0 * np.exp(-0.25 * t)
    theta = np.log([5.0, 2.0, 3.0, 0.25])
    assert mode_of(two_decays, theta, [0.05] * 4, {"t": t, "y": y}) is not None


def test_every_coordinate_has_a_line():
    """Also those after many others, and with many records."""
    mean, root = np.zeros(60), np.eye(60)
    assert line_points(mean, root, MOST_LINE_POINTS).shape == (60, len(STEPS), 60)
    assert len(STEPS) < MOST_TERMS // 200_000


def test_there_is_no_other_mode_where_the_mean_has_no_density():
    def positive(y=None):
        m = numpyro.sample("m", dist.Normal(0.0, 5.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.factor("y", jnp.where(m > 1.0, -0.5 * jnp.square(y - m), -jnp.inf))

    assert mode_of(positive, [0.5], [0.1], {"y": np.full(4, 3.0)}) is None


def spike_and_slab(y=None):
    scales = dist.Normal(jnp.zeros(2), jnp.array([0.001, 5.0]))
    b = numpyro.sample("b", dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), scales))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def test_a_mixture_as_a_prior_has_a_caution(recwarn):
    fit = tacit.fit(spike_and_slab, {"a": {"y": np.array([2.2, 2.6])}}, privacy=None)
    assert any("mode" in text for text in fit.cautions)


def test_a_fit_says_so(recwarn):
    x = np.random.default_rng(0).normal(5.0, 2.0, 60)
    records = {"x": x, "y": 1.0 + 0.49 * x}
    fit = tacit.fit(squared, {"a": records, "b": records}, privacy="none")
    assert any("another mode, with the other sign of c" in text for text in fit.cautions)


def test_the_density_is_that_of_prior_and_likelihood():
    rng = np.random.default_rng(0)
    records = {"x": rng.normal(size=8), "y": rng.normal(size=8)}
    model = tacit.from_numpyro(squared, records)
    thetas = rng.normal(size=(3, 2))
    expected = [model.log_prior(t) + np.sum(model.log_likelihood(t, records)) for t in thetas]
    np.testing.assert_allclose(model.log_joints(thetas, records), expected, rtol=1e-9)


def noisy_mean(y=None):
    spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def test_a_run_that_ends_within_a_split_says_so(recwarn):
    records = {"y": np.array([0.1, 3.0, -2.5])}
    rounds = tacit.schedules.Synchronous(rounds=18)
    fit = tacit.fit(noisy_mean, {"a": records}, privacy=None, schedule=rounds)
    assert not fit.converged
    assert "before a mixture of normals along 'spread' was complete" in fit.why


def cauchy(y):
    m = numpyro.sample("m", dist.Normal(0.0, 20.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Cauchy(m, 0.8), obs=y)


def test_a_mode_behind_a_valley_is_found_and_a_bump_without_mass_is_not():
    rng = np.random.default_rng(0)
    for far, found in ((5, True), (3, False)):
        y = np.r_[0.5 * rng.normal(size=11 - far), 14.0 + 0.4 * rng.normal(size=far)]
        words = mode_of(cauchy, [0.0], [0.35], {"y": y})
        assert (words is not None) == found, "5 of 11 values: .5 % of the mass; 3 of 11: 10⁻⁷"
        assert words is None or words.startswith("m about")


def test_a_long_tail_is_no_mode():
    steps = np.abs(STEPS)
    falling = -np.log1p(steps**2)
    assert mode_on_lines(falling[None], ["a"]) is None
    again = np.logaddexp(falling, -3.0 - 0.5 * np.square(STEPS - 20.0))
    assert mode_on_lines(np.stack([falling, again]), ["a", "b"]) == (
        "b about 20 standard deviations away"
    )
