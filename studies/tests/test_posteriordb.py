"""The posteriordb study: models against the Stan files, names, arithmetic, and a short run."""

import contextlib
import csv
import dataclasses
import inspect
import io

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import stan_densities
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density

from tacit.data.readers import posteriordb as reader
from tacit.datasets import load_posterior_data
from tacit.errors import ConfigError
from tacit_studies import STUDIES, posteriordb
from tacit_studies.posteriordb_data import POSTERIORS, split, stan_columns, stan_names
from tacit_studies.posteriordb_runs import (
    compare,
    draw_count,
    is_right,
    nuts_reference,
    published_reference,
    run_tacit,
)
from tacit_studies.posteriordb_tables import (
    GUIDES,
    TACIT,
    Run,
    as_csv,
    comparison_table,
    posterior_table,
    reference_table,
    summary_table,
)

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


def test_errors_are_in_reference_sds():
    draws = np.random.default_rng(0).normal([1.0, 10.0], [2.0, 0.5], size=(200_000, 2))
    found = compare(draws, ("a", "b"), np.array([1.0, 9.0]), np.array([2.0, 1.0]))
    assert found["worst"] == "b"
    assert found["mean_error"] == pytest.approx(1.0, abs=0.01)
    assert found["sd_low"] == pytest.approx(0.5, abs=0.01)
    assert found["sd_high"] == pytest.approx(1.0, abs=0.01)
    assert not is_right(found)
    assert is_right(compare(draws, ("a", "b"), np.array([1.1, 10.0]), np.array([2.0, 0.5])))
    assert not is_right(compare(draws, ("a", "b"), np.array([1.3, 10.0]), np.array([2.0, 0.5])))
    draws[3, 1] = np.nan
    assert not is_right(compare(draws, ("a", "b"), np.array([1.0, 10.0]), np.array([2.0, 0.5])))
    assert [draw_count(d) for d in (3, 80, 10_000)] == [100_000, 50_000, 10_000]


def made_run(name="a", method=TACIT, parties=5, published=True, **result) -> Run:
    usual = {"mean_error": 0.02, "sd_low": 0.97, "sd_high": 1.02, "worst": "beta[1]", "parties": 5,
             "records": 100, "cpu_s": 1.0, "cpu_with_compilation_s": 3.0}  # fmt: skip
    if method == TACIT:
        usual |= {"exchanges": 5.0, "converged": True, "why": "it has settled", "cautions": []}
    else:
        usual |= {"cpu_to_right_s": 2.0, "steps_to_right": 1000}
    if "refused" in result:
        usual = {"parties": 5, "records": 100}
    return Run(
        posterior=name, published=published, method=method, parties=parties, result=usual | result
    )


def test_outcomes_are_counted():
    runs = [
        made_run("right"),
        made_run("loose", mean_error=0.09, exchanges=7.0),
        made_run("flagged", mean_error=3.0, converged=False, why="a | b\nc", exchanges=24.0),
        made_run("cautioned", sd_low=0.5, cautions=["Little was learned"]),
        made_run("silent", sd_high=1.2),
        made_run("careful", cautions=["Pareto k"]),
        made_run("refused", refused="no prior"),
        made_run("own", published=False),
        *(made_run(name, guide, None) for name in ("right", "own") for guide in GUIDES),
    ]
    assert [run.outcome for run in runs[:7]] == [
        "right", "right", "flagged", "flagged", "silent", "right", "refused",
    ]  # fmt: skip
    table = summary_table(runs)
    first = dict(zip(table.columns, table.rows[0], strict=True))
    expected = {
        "posteriors": 7, "right": 3, "tight": 2, "flagged": 2, "refused": 1,
        "wrong without warning": 1, "right but flagged": 1, "median exchanges": 5.0,
        "most exchanges": 24.0,
    }  # fmt: skip
    assert first.items() >= expected.items()
    assert table.rows[1][:4] == ["own NUTS", 5, 1, 1]
    shown = posterior_table(runs)
    verdicts = {row[0]: row[-1] for row in shown.rows}
    assert verdicts["flagged"] == "not converged: a / b c"
    assert verdicts["refused"] == "refused: no prior"
    assert {row[0]: row[3] for row in shown.rows}["silent"] == "WRONG"
    assert "WRONG" in shown.markdown()


def test_speed_is_compared_where_both_are_right():
    runs = []
    for name, mean_error, reached in (("a", 0.02, 4.0), ("b", 0.02, None), ("c", 9.0, 4.0)):
        runs.append(made_run(name, mean_error=mean_error))
        runs += [made_run(name, guide, None, cpu_to_right_s=reached) for guide in GUIDES]
    rows = comparison_table(runs).rows
    assert [row[-1] for row in rows] == [0.25, None, None]
    lines = list(csv.DictReader(io.StringIO(as_csv(runs))))
    assert [line["method"] for line in lines[:3]] == [TACIT, *GUIDES]
    assert [line["outcome"] for line in lines] == ["right"] * 6 + ["silent"] + ["right"] * 2
    assert lines[1]["parties"] == "5"


@needs_data
def test_a_reference_of_our_own_says_whether_to_trust_it():
    posterior = POSTERIORS["GLMM_Poisson_data-GLMM_Poisson_model"]
    found = nuts_reference(posterior, 0, warmup=50, draws=25, most=60)
    assert found["draws"] == 4 * 50, "doubled once, and not beyond the most"
    assert not found["trusted"], "200 draws cannot be 400 effective ones of every coordinate"
    assert found["names"][:5] == ["alpha", "beta1", "beta2", "beta3", "sigma"]
    assert found["names"][-1] == "eps[40]"
    assert np.all(np.isfinite(found["mean"]))
    assert np.all(np.asarray(found["sd"]) > 0)
    row = reference_table({"glmm": found}).rows[0]
    assert row[:3] == ["glmm", 45, 200]
    assert row[-1] == "NO"


def unobserved(x, y=None):
    numpyro.sample("beta", dist.Normal(0.0, 1.0))


@needs_data
def test_a_refused_model_is_a_row_not_the_end():
    posterior = POSTERIORS["sblri-blr"]
    broken = dataclasses.replace(posterior, function=unobserved)
    found = run_tacit(broken, published_reference(posterior), 3, 0)
    assert found["parties"] == 3
    assert "observed site" in found["refused"]


@needs_data
def test_a_short_run_writes_everything_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(posteriordb, "STEPS", 1000)
    # No time is compared here, and compiling is most of it.
    monkeypatch.setattr(posteriordb, "without_compilation_cache", contextlib.nullcontext)
    names = ("sblri-blr", "low_dim_gauss_mix-low_dim_gauss_mix")
    seen = []

    def do():
        seen.clear()
        return posteriordb.reproduce(
            tmp_path, quick=True, chosen=names, progress=lambda *step: seen.append(step)
        )

    result = do()
    assert seen[-1] == (6, 6, "done")
    tables = {one["name"]: one for one in result["tables"]}
    assert [row[0] for row in tables["posteriors"]["rows"]] == list(names)
    errors = [row[4] for row in tables["posteriors"]["rows"]]
    assert all(error is not None and error >= 0 for error in errors)
    assert all(row[8] >= 1 for row in tables["posteriors"]["rows"]), "exchanges per party"
    for file in ("errors.png", "index.html", "tables.md", "tables.json", "runs.csv"):
        assert (tmp_path / file).stat().st_size > 0
    lines = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert len(lines) == 2 * 3
    files = sorted((tmp_path / "kept").glob("*.json"))
    assert len(files) == 6
    times = [path.stat().st_mtime_ns for path in files]
    assert do()["tables"] == result["tables"]
    assert [path.stat().st_mtime_ns for path in files] == times, "nothing is run again"


def test_parts_are_chosen_by_name(tmp_path):
    with pytest.raises(ConfigError, match="published, own"):
        STUDIES["posteriordb"](tmp_path / "no", figure="3")
    with pytest.raises(ConfigError, match="leave one of them out"):
        STUDIES["posteriordb"](tmp_path / "no", quick=True, figure="own")
    assert not (tmp_path / "no").exists()
