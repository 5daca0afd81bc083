"""The thesis study: its exact column against closed forms, its runs against the exact column."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from tacit.data.readers.download import locate
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit_studies import STUDIES
from tacit_studies.fedvi_published import TABLE_4_1, TABLE_4_2
from tacit_studies.fedvi_runs import (
    MODES,
    excess_loss,
    follow,
    least_loss,
    mean_experiment,
    negative_elbo,
    rugged_experiment,
)

needs_rugged = pytest.mark.skipif(
    locate("rugged") is None,
    reason="the rugged data are absent: set TACIT_DATA or run `tacit data fetch rugged`",
)
LEAST_SQUARES = (9.223, -1.948, -0.203, 0.393)

# The two tables as they stand in the thesis, to catch a slip of the typist.
THESIS_4_1 = """
Sequential 5.019 2.443e-6
Synchronous 5.038 3.312e-4
Asynchronous 4.967 4.480e-4
"""
THESIS_4_2 = """
Sequential 9.693 8.358e-05 -3.431 1.644e-4 -0.425 3.961e-05 0.906 4.974e-05
Synchronous 9.236 2.658e-6 -1.944 3.806e-6 -0.211 5.411e-7 0.388 2.283e-6
Asynchronous 9.236 1.388e-6 -1.968 5.135e-6 -0.208 3.402e-7 0.407 1.527e-6
"""


@pytest.fixture(scope="module")
def mean():
    return mean_experiment(seed=0, quick=True)


@pytest.fixture(scope="module")
def calls():
    return []


@pytest.fixture(scope="module")
def study(tmp_path_factory, calls):
    out = tmp_path_factory.mktemp("study") / "deep" / "out"
    result = STUDIES["fedvi"](out, quick=True, progress=lambda *call: calls.append(call))
    return out, result


def table(study, name):
    return next(entry for entry in study[1]["tables"] if entry["name"] == name)


def column(entry, name):
    return [row[entry["columns"].index(name)] for row in entry["rows"]]


def rows_of(text):
    lines = [line.split() for line in text.strip().splitlines()]
    return {line[0].lower(): [float(number) for number in line[1:]] for line in lines}


def test_published_numbers_are_the_thesis_s():
    assert {mode: list(row) for mode, row in TABLE_4_1.items()} == rows_of(THESIS_4_1)
    pairs = {
        mode: np.stack([row.mean, row.scale], axis=1).ravel().tolist()
        for mode, row in TABLE_4_2.items()
    }
    assert pairs == rows_of(THESIS_4_2)
    assert tuple(TABLE_4_1) == tuple(TABLE_4_2) == MODES


@pytest.mark.parametrize("mode", MODES)
def test_mean_is_exact_in_every_mode(mean, mode):
    trace = follow(mean, mean.settings[1], mode, seed=0)
    y = np.concatenate([records["y"] for records in mean.parties.values()])
    assert len(y) == 10_000
    np.testing.assert_allclose(trace.best_mean, y.sum() / 10_001, rtol=1e-12)
    np.testing.assert_allclose(trace.best_sd**2, 1 / 10_001, rtol=1e-12)
    np.testing.assert_allclose(trace.posterior.mean, y.sum() / 10_001, rtol=1e-9)
    np.testing.assert_allclose(trace.posterior.sd**2, 1 / 10_001, rtol=1e-9)
    assert trace.reached(1e-9) is not None
    assert trace.excess[-1] < 1e-9 < trace.excess[0]


def test_loss_is_its_minimum_plus_the_excess(mean):
    """A q away from the optimum: the closed-form excess agrees with a difference of two ELBOs."""
    y = mean.records["y"]
    optimum, precision = np.array([y.sum() / 10_001]), np.array([[10_001.0]])
    for family, q in (
        (MeanFieldGaussian(1), MeanFieldGaussian(1).natural(mean=np.ones(1), sd=np.ones(1))),
        (FullGaussian(1), FullGaussian(1).natural(mean=4 * np.ones(1), covariance=0.1 * np.eye(1))),
    ):
        gap = negative_elbo(mean, family, q) - least_loss(mean, family.kind)
        np.testing.assert_allclose(excess_loss(family, q, optimum, precision), gap, rtol=1e-9)


@needs_rugged
def test_excess_of_a_mean_field_q_on_correlated_coordinates():
    experiment = rugged_experiment(seed=0, quick=True)
    records = experiment.records
    precision = np.eye(4) + records["x"].T @ records["x"]
    optimum = np.linalg.solve(precision, records["x"].T @ records["y"])
    family = MeanFieldGaussian(4)
    shift, sd = np.array([0.3, -0.2, 0.1, 0.05]), np.array([0.1, 0.2, 0.05, 0.3])
    q = family.natural(mean=optimum + shift, sd=sd)
    gap = negative_elbo(experiment, family, q) - least_loss(experiment, "mean-field")
    np.testing.assert_allclose(excess_loss(family, q, optimum, precision), gap, rtol=1e-9)


@needs_rugged
def test_tables_hold_the_exact_answers(study):
    experiment = rugged_experiment(seed=0, quick=True)
    x, y = experiment.records["x"], experiment.records["y"]
    assert len(y) == 170
    precision = np.eye(4) + x.T @ x
    mean, covariance = np.linalg.solve(precision, x.T @ y), np.linalg.inv(precision)
    pairs = np.stack([mean, np.sqrt(np.diagonal(covariance))], axis=1).ravel()
    narrow = np.stack([mean, 1 / np.sqrt(np.diagonal(precision))], axis=1).ravel()
    full, field = table(study, "full"), table(study, "table-4-2")
    np.testing.assert_allclose(column(full, "exact posterior"), pairs, rtol=1e-10)
    np.testing.assert_allclose(column(field, "exact posterior"), np.repeat(pairs, 3), rtol=1e-10)
    best = column(field, "best mean-field q")
    np.testing.assert_allclose(best, np.repeat(narrow, 3), rtol=1e-10)
    np.testing.assert_allclose(column(full, "least squares")[::2], LEAST_SQUARES, atol=6e-4)
    for mode in MODES:
        np.testing.assert_allclose(column(full, mode), pairs, rtol=1e-9)
    np.testing.assert_allclose(column(field, "Exact"), np.repeat(narrow, 3), rtol=1e-6)
    assert max(column(field, "error, Exact")) < 1e-6
    assert max(column(full, "largest error")) < 1e-9
    assert column(field, "thesis")[:6] == [9.693, 9.236, 9.236, 8.358e-5, 2.658e-6, 1.388e-6]


@needs_rugged
def test_gradient_vi_nears_the_exact_answer(study):
    """Looser, and with Monte Carlo noise in the Gaussian mean: far nearer than the thesis all the
    same, whose variances are off by a factor of three and more."""
    entry = table(study, "table-4-1")
    errors = column(entry, "error, GradientVI")
    assert max(errors[:3]) < 2e-3
    assert max(errors[3:]) < 0.5
    scales = column(table(study, "table-4-2"), "error, GradientVI")
    assert max(scales[k] for k in range(24) if k // 3 % 2) < 1e-2
    ratios = column(table(study, "published-4-1"), "variance / exact")
    assert min(abs(np.log(ratios[:3]))) > np.log(3)


@needs_rugged
def test_damping_table_agrees_with_the_runs_of_that_damping(study):
    """Tacit's own damping is 1 sequentially and 1/3 otherwise: the same runs, the same counts."""
    entry, runs = table(study, "damping"), table(study, "exchanges")
    chosen = [row for row in runs["rows"] if row[0].endswith("Exact, mean-field")]
    for row in chosen:
        rho = "ρ = 1" if row[1] == "sequential" else "ρ = 1/3"
        counts = [
            cell
            for cell, mode in zip(column(entry, rho), column(entry, "mode"), strict=True)
            if mode == row[1]
        ]
        assert counts == row[3:5]
    assert len(chosen) == 3


@needs_rugged
def test_few_steps_and_few_draws_cost_accuracy(study):
    """Ten steps of Adam at rate 0.05 move a mean by at most 0.5; noise falls as 1/√draws."""
    rows = {tuple(row[:2]): row for row in table(study, "visits")["rows"]}
    assert sorted(rows) == [(10, 1), (10, 100), (100, 1), (100, 100)]
    excess = {key: row[4] for key, row in rows.items()}
    assert excess[10, 1] > 10 * excess[100, 1]
    assert excess[100, 1] > 3 * excess[100, 100]


@needs_rugged
def test_noise_each_published_scale_would_need(study):
    """By its definition the row of the best q has noise sd 1 four times; no thesis row agrees."""
    rows = {row[0]: row[2:] for row in table(study, "published-4-2")["rows"]}
    np.testing.assert_allclose(rows["best mean-field q (noise sd 1)"], 1.0, rtol=1e-9)
    for mode in MODES:
        assert max(rows[mode]) / min(rows[mode]) > 1.5


@needs_rugged
def test_files_are_whole(study, calls):
    out, result = study
    assert sorted(result["files"]) == sorted(str(path) for path in out.iterdir())
    stored = json.loads((out / "tables.json").read_text(encoding="utf-8"))
    assert stored == {key: value for key, value in result.items() if key != "files"}
    assert (stored["seed"], stored["quick"], stored["noise_sd"]["rugged"]) == (0, True, 1.0)
    markdown = (out / "tables.md").read_text(encoding="utf-8")
    for entry in result["tables"]:
        width = len(entry["columns"])
        assert len(entry["rows"]) == len(entry["shown"]) > 0
        assert all(len(row) == width for row in (*entry["rows"], *entry["shown"]))
        assert f"## {entry['title']}\n" in markdown
        assert all(f"| {' | '.join(row)} |\n" in markdown for row in entry["shown"])
    assert [call[0] for call in calls] == list(range(29))
    assert {call[1] for call in calls} == {28}


@needs_rugged
def test_page_shows_every_figure_and_nothing_from_elsewhere(study):
    out, result = study
    parser = Page()
    parser.feed((out / "index.html").read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    assert sorted(parser.images) == sorted(path.name for path in out.glob("*.png"))
    assert len(parser.images) == 5
    for name in parser.images:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert parser.tables == len(result["tables"])


def test_bad_arguments_cost_nothing(tmp_path):
    file = tmp_path / "taken"
    file.write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        STUDIES["fedvi"](file)
    with pytest.raises(ConfigError, match="--seed -1"):
        STUDIES["fedvi"](tmp_path / "out", seed=-1)
    assert list(tmp_path.iterdir()) == [file]


def test_absent_data_name_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="tacit data fetch rugged"):
        rugged_experiment(seed=0, quick=True)


class Page(HTMLParser):
    """Checks that tags nest; collects images and counts tables."""

    void = frozenset({"meta", "img", "br", "link"})

    def __init__(self):
        super().__init__()
        self.open, self.images, self.tables = [], [], 0

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link")
        self.tables += tag == "table"
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
