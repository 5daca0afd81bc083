"""The posteriordb study: models against the Stan files, names, arithmetic, and a short run."""

import inspect

import numpy as np
import pytest
import stan_densities
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density

from tacit.data.readers import posteriordb as reader
from tacit.datasets import load_posterior_data
from tacit_studies.posteriordb_data import POSTERIORS, split, stan_columns, stan_names

needs_data = pytest.mark.skipif(
    reader.locate() is None, reason="needs `tacit data fetch posteriordb`"
)


def random_point(posterior, records, arguments, number: int) -> dict[str, np.ndarray]:
    """Values of every latent site on its own scale."""
    blank = {key: value[:2] for key, value in records.items()}
    rng = np.random.default_rng([7, number])
    sites = trace(seed(_init(posterior.function, rng), 0)).get_trace(**blank, **arguments)
    return {
        name: np.asarray(site["value"])
        for name, site in sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def _init(function, rng):
    """The model with every latent site at a random unconstrained value, as NUTS starts."""

    def value(site):
        if site["type"] != "sample" or site["is_observed"]:
            return None
        shape = site["fn"].shape()
        transform = biject_to(site["fn"].support)
        free = rng.uniform(-2, 2, transform.inverse_shape(shape))
        return transform(free)

    return substitute(function, substitute_fn=value)


@needs_data
@pytest.mark.parametrize("name", list(POSTERIORS))
def test_each_model_is_its_stan_file(name):
    posterior = POSTERIORS[name]
    records, arguments = posterior.load()
    stan = getattr(stan_densities, name.split("-", 1)[1])
    data = load_posterior_data(posterior.data)
    taken = inspect.signature(stan).parameters
    ours, theirs = [], []
    for number in range(3):
        point = random_point(posterior, records, arguments, number)
        ours.append(log_density(posterior.function, (), {**records, **arguments}, point)[0])
        named = {"d_" if key == "d" and "d_" in taken else key: v for key, v in point.items()}
        theirs.append(stan(data, **named))
    assert np.all(np.isfinite(ours))
    gaps = np.asarray(ours, np.float64) - np.asarray(theirs)
    assert np.ptp(theirs) > 1, "points that cannot tell models apart"
    np.testing.assert_allclose(gaps, gaps[0], rtol=0, atol=1e-8 * np.max(np.abs(theirs)))


@needs_data
@pytest.mark.parametrize("name", [one for one in POSTERIORS if POSTERIORS[one].published])
def test_every_reference_name_is_a_site(name):
    posterior = POSTERIORS[name]
    records, arguments = posterior.load()
    few = {key: value[:2] for key, value in records.items()}
    rng = np.random.default_rng(0)
    sites = trace(seed(_init(posterior.function, rng), 0)).get_trace(**few, **arguments)
    draws = {key: np.asarray(site["value"])[None] for key, site in sites.items() if "value" in site}
    reference = posterior.reference()
    found = stan_columns(draws, reference.names)
    assert found.shape == (1, len(reference.names))
    vectors = {one.split("[")[0] for one in reference.names}
    assert stan_names(draws, dict.fromkeys(one.split("[")[0] for one in reference.names)) == (
        reference.names
    ), "each element of each site once"
    assert vectors <= set(draws)


def test_names_are_those_of_stan():
    sites = {"beta": np.arange(6.0).reshape(3, 2), "sigma": np.ones(3)}
    assert stan_names(sites, ("sigma", "beta")) == ("sigma", "beta[1]", "beta[2]")
    np.testing.assert_array_equal(stan_columns(sites, ["beta[2]"])[:, 0], [1, 3, 5])
    with pytest.raises(ValueError, match="shape"):
        stan_columns(sites, ["beta"])
    with pytest.raises(ValueError, match="shape"):
        stan_columns(sites, ["sigma[1]"])


@pytest.mark.parametrize("parties", [1, 5, 20])
def test_records_are_dealt_whole_and_alike(parties):
    records = {"x": np.arange(46.0), "y": 2 * np.arange(46.0)}
    dealt = split(records, parties, seed=3)
    assert len(dealt) == parties
    sizes = {len(one["x"]) for one in dealt.values()}
    assert max(sizes) - min(sizes) <= 1
    x = np.concatenate([one["x"] for one in dealt.values()])
    assert sorted(x) == sorted(records["x"])
    assert all(np.array_equal(one["y"], 2 * one["x"]) for one in dealt.values())
    again = split(records, parties, seed=3)
    assert all(np.array_equal(again[key]["x"], one["x"]) for key, one in dealt.items())
    few = split({"x": np.arange(8.0)}, 20, seed=3)
    assert [len(one["x"]) for one in few.values()] == [1] * 8
