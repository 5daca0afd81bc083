"""Gaussian mixtures: exact against scikit-learn, sensitivities, and private fits."""

import math

import numpy as np
import pytest

import tacit
from tacit.errors import ConfigError, DataError
from tacit.methods import PrivateConjugateStages
from tacit.models import GaussianMixture
from tacit.models.conjugate import RowStatistics, StatisticsStage
from tacit.models.mixture.model import CELLS, COLUMNS, MOMENT, UPDATE
from tacit.models.mixture.moments import Moments, averaged, moved
from tacit.models.mixture.rows import ComponentStatistics, outer_rows
from tacit.testing import check_private_method

MEANS = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 6.0]])


def three_clusters(rng, each=300):
    x = np.concatenate([rng.normal(size=(each, 2)) + mean for mean in MEANS])
    return x[rng.permutation(len(x))]


def divided(x, parties):
    return {f"party {i}": {"x": x[i::parties]} for i in range(parties)}


def request(model, stage, rng):
    """Arrays that a request of that stage could publish."""
    d, k = model.width, model.components
    root = rng.normal(size=(d, d)) + 2.0 * np.eye(d)
    every = {
        "centre": rng.normal(size=d),
        "root": np.abs(root) if stage == COLUMNS else root,
        "cell_centres": rng.normal(size=(model.cells, d)),
        "cell_factor": rng.normal(size=(d, d)) + 2.0 * np.eye(d),
        "log_weight": rng.normal(size=k),
        "mean": 3.0 * rng.normal(size=(k, d)),
        "factor": rng.normal(size=(k, d, d)) * 2.0,
    }
    return {name: every[name] for name in model.public_shapes(stage)}


def clipped_rows(model, stage, public, x):
    """Every record's clipped contribution, one row each."""
    found = model.stage_statistics(stage, public, {"x": x})
    weights = np.minimum(1.0, 1.0 / np.maximum(found.norms(), 1e-300))
    return np.stack([found.total(row) for row in np.diag(weights)])


@pytest.mark.parametrize("stage", [COLUMNS, MOMENT, CELLS, UPDATE])
def test_replacing_a_record_moves_a_clipped_sum_by_root_two_at_most(stage):
    rng = np.random.default_rng(1)
    model = GaussianMixture(("a", "b", "c"), components=2, bounds=(-2, 2))
    farthest = 0.0
    for _ in range(5):
        public = request(model, stage, rng)
        x = np.concatenate([rng.normal(size=(20, 3)) * s for s in (0.1, 1.0, 10.0, 1e4, 1e9)])
        rows = clipped_rows(model, stage, public, x)
        norms = np.linalg.norm(rows, axis=1)
        assert np.max(norms) <= 1.0 + 1e-12
        assert np.min(rows @ rows.T) >= -1e-12  # acute
        gaps = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        assert np.max(gaps) <= math.sqrt(2.0) * (1.0 + 1e-12)
        farthest = max(farthest, float(np.max(gaps)))
    assert farthest > (1.41 if stage in (CELLS, UPDATE) else 1.0)  # the bound is nearly reached


@pytest.mark.parametrize("stage", [COLUMNS, MOMENT, CELLS, UPDATE])
def test_norms_are_those_of_what_is_summed(stage):
    rng = np.random.default_rng(2)
    model = GaussianMixture(("a", "b"), components=3, bounds=(-2, 2))
    x = rng.normal(size=(30, 2)) * rng.choice([0.1, 1.0, 30.0], size=(30, 1))
    found = model.stage_statistics(stage, request(model, stage, rng), {"x": x})
    each = np.stack([found.total(row) for row in np.eye(len(x))])
    assert np.allclose(np.linalg.norm(each, axis=1), found.norms(), rtol=1e-12)


@pytest.mark.parametrize("stage", [COLUMNS, MOMENT, CELLS, UPDATE])
def test_a_record_does_not_depend_on_the_others_to_the_last_bit(stage):
    rng = np.random.default_rng(3)
    model = GaussianMixture(("a", "b", "c"), components=3, bounds=(-2, 2))
    x, public = rng.normal(size=(1003, 3)), request(model, stage, rng)

    def values(x):
        found = model.stage_statistics(stage, public, {"x": x})
        if isinstance(found, RowStatistics):
            return [found.left, found.right, found.norms()]
        assert isinstance(found, ComponentStatistics)
        packed = [outer_rows(u, found.units)[0] for u in found.coordinates]
        return [found.weights, found.norms(), *packed]

    whole = values(x)
    for rows in (slice(0, 1), slice(5, 12), slice(500, 1003)):
        for part, same in zip(values(x[rows]), whole, strict=True):
            assert part.tobytes() == same[rows].tobytes()


def test_moments_move_with_their_records_and_average_with_their_noise():
    rng = np.random.default_rng(4)
    y, weights = rng.normal(size=(50, 2)), rng.dirichlet(np.ones(3), 50)
    factor, shift = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2))

    def moments(coordinates):
        parts = [
            (np.sum(w), w @ u, (u * w[:, None]).T @ u)
            for w, u in zip(weights.T, coordinates, strict=True)
        ]
        return Moments(*(np.stack(part) for part in zip(*parts, strict=True)))

    expected = moments([y @ a.T + b for a, b in zip(factor, shift, strict=True)])
    for found, right in zip(moved(moments([y] * 3), factor, shift), expected, strict=True):
        assert np.allclose(found, right)
    old, new = (expected._replace(count_sd=sd, quadratic_sd=2 * sd) for sd in (3.0, 1.0))
    mean = averaged(old, new, 0.25)
    assert np.allclose(mean.quadratic, expected.quadratic)
    assert mean.count_sd == pytest.approx(math.sqrt((0.75 * 3.0) ** 2 + 0.25**2))
    assert mean.quadratic_sd == pytest.approx(2.0 * mean.count_sd)


@pytest.mark.parametrize("size", [1e13, np.inf, np.nan])
def test_a_request_beyond_reason_is_answered_with_nothing(size):
    model = GaussianMixture(("a", "b"), components=2)
    public = request(model, UPDATE, np.random.default_rng(0))
    public["factor"][0, 0, 0] = size
    found = model.stage_statistics(UPDATE, public, {"x": np.ones((4, 2))})
    assert not np.any(found.total(np.ones(4)))
    assert found.total(np.ones(4)).shape == (model.stage_size(UPDATE),)


class OneStage(GaussianMixture):
    """Only the second moment: a short run for the conformance suite."""

    repeats = False
    private_rounds = 1

    @property
    def stages(self):
        return (StatisticsStage(MOMENT, 1.0, acute=True),)


TABLE = {"x": np.random.default_rng(0).normal(size=(6, 2))}


@pytest.mark.parametrize(
    "how", [{}, {"adjacency": "add-or-remove-one"}, {"aggregation": "trusted"}]
)
def test_no_record_moves_a_release_further_than_is_charged(how, monkeypatch):
    # Parties are computed one by one in NumPy; the suite still checks that its tests have power.
    monkeypatch.setattr("tacit.testing.private_methods.DRAWS", 600)
    model = OneStage(("a", "b"), components=1, bounds=(-2, 2))
    reached = check_private_method(
        PrivateConjugateStages(), model, records=TABLE, rounds=1, reach=0.7, **how
    )
    assert reached <= 1.0


def test_a_wrong_scale_is_caught():
    class Halved(OneStage):
        def stage_statistics(self, stage, public, records):
            found = super().stage_statistics(stage, public, records)
            return RowStatistics(left=found.left, right=found.right, sizes=0.5 * found.sizes)

    with pytest.raises(AssertionError, match="sensitivity"):
        check_private_method(
            PrivateConjugateStages(), Halved(("a", "b"), components=1), records=TABLE, rounds=1
        )


def test_a_stage_that_wrongly_claims_to_be_acute_is_caught():
    class Signed(OneStage):
        def stage_size(self, stage):
            return 2

        def stage_statistics(self, stage, public, records):
            x = np.clip(records["x"], -1e9, 1e9)
            norms = np.sqrt(x[:, 0] ** 2 + x[:, 1] ** 2)
            return RowStatistics(left=np.ones((len(x), 1)), right=x, sizes=norms)

        def advance(self, known, answer):
            return dict(known), None

    with pytest.raises(AssertionError, match="sensitivity"):
        check_private_method(
            PrivateConjugateStages(), Signed(("a", "b"), components=1), records=TABLE, rounds=1
        )


def test_the_budget_is_spent_once():
    method = PrivateConjugateStages().suited(GaussianMixture(("a",), components=2))
    for adjacency in ("replace-one", "add-or-remove-one"):
        bound = method.bind(adjacency=adjacency)
        spent = 0.0
        for visit in range(14):
            (event,) = bound.events(visit=visit, visits=14, clip=1.0, noise_sd=3.0, units=10)
            spent += (event.sensitivity(adjacency) / event.noise_sd) ** 2
        assert math.isclose(spent, 3.0**-2, rel_tol=1e-12)


def test_the_exact_fit_does_not_depend_on_the_parties_and_is_that_of_scikit_learn():
    mixture = pytest.importorskip("sklearn.mixture")
    rng = np.random.default_rng(4)
    x = three_clusters(rng)
    model = GaussianMixture(("a", "b"), components=3)
    fits = [tacit.fit(model, divided(x, n), privacy=None) for n in (1, 4)]
    one, four = (fit.posterior.natural for fit in fits)
    assert all(fit.converged for fit in fits)
    for name, value in one.items():
        assert np.allclose(value, four[name], rtol=1e-8), name
    other = mixture.BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type="dirichlet_distribution", tol=1e-10,
        max_iter=2000, random_state=0,
    ).fit(x)  # fmt: skip
    usual = model.own_family.usual(one)
    order = [int(np.argmin(np.sum((other.means_ - m) ** 2, axis=1))) for m in usual["mean"]]
    assert sorted(order) == [0, 1, 2]
    assert np.allclose(usual["mean"], other.means_[order], atol=1e-3)
    covariance = usual["scale"] / usual["degrees"][:, None, None]
    assert np.allclose(covariance, other.covariances_[order], atol=2e-3)


def test_a_private_fit_finds_the_clusters_and_is_labelled():
    rng = np.random.default_rng(5)
    x = three_clusters(rng, each=4000)
    model = GaussianMixture(("a", "b"), components=3, bounds=(-5, 11))
    privacy = tacit.Privacy(epsilon=2.0, delta=1e-5, aggregation="trusted", insecure_noise_seed=7)
    fit = tacit.fit(model, divided(x, 3), privacy=privacy, test={"x": three_clusters(rng)})
    found = model.own_family.usual(fit.posterior.natural)["mean"]
    nearest = [min(np.linalg.norm(found - mean, axis=1)) for mean in MEANS]
    assert max(nearest) < 0.5
    assert fit.predict({"x": MEANS}).shape == (3, 3)
    assert np.min(np.max(fit.predict({"x": MEANS}), axis=1)) > 0.9
    assert "not calibrated" in str(fit)
    assert fit.metrics["held_out"]["log_predictive_density"] > -4.2


def test_a_data_frame_without_an_outcome(tmp_path):
    import polars as pl

    rng = np.random.default_rng(6)
    x = three_clusters(rng) * [10.0, 5.0] + [50.0, 100.0]
    frame = pl.DataFrame(
        {"age": x[:, 0], "weight": x[:, 1], "site": [f"s{i % 2}" for i in range(len(x))]}
    )
    schema = tacit.Schema(bounds={"age": (0, 130), "weight": (70, 150)})
    fit = tacit.fit(
        "~ age + weight", frame, party="site", schema=schema, privacy=None, test=0.2,
        family={"kind": "mixture", "components": 3},
    )  # fmt: skip
    assert fit.posterior.model.columns == ("age", "weight")
    text = str(fit)
    assert "Gaussian mixture · 2 parties" in text
    (table,) = fit._result.tables
    ages = sorted(float(row[2].split(" ±")[0]) for row in table.rows)
    assert abs(ages[-1] - 100.0) < 3.0  # in the user's units
    probability = fit.predict(frame.drop("site").head(5))
    assert probability.shape == (5, 3)
    with pytest.raises(ConfigError, match=r"'mixture' has no intervals .*'mean' or 'draws'"):
        fit.predict(frame.drop("site").head(5), "interval")
    with pytest.raises(ConfigError, match="'mixture' has no log densities for ArviZ; leave"):
        fit.to_arviz(frame, draws=3)
    draws = fit.predict(frame.drop("site").head(5), "draws", draws=3)
    assert draws.shape == (3, 5, 3)
    # The density is per unit of the columns: that of scaled columns minus the logarithm of scales.
    held = fit.metrics["held_out"]["log_predictive_density"]
    assert -4.2 - math.log(50.0) < held < -3.3 - math.log(50.0)
    fit.save(tmp_path / "saved")
    again = tacit.load(tmp_path / "saved").predict(frame.drop("site").head(5))
    assert np.array_equal(again, probability)


@pytest.mark.parametrize(
    ("formula", "family", "words"),
    [
        ("age ~ weight", "mixture", "has no outcome"),
        ("~ age + weight", "linear", "needs an outcome"),
        ("~ age + C(sex)", "mixture", "needs numeric columns"),
    ],
)
def test_what_does_not_fit_is_refused(formula, family, words):
    import polars as pl

    frame = pl.DataFrame({"age": [1.0, 2.0], "weight": [1.0, 2.0], "sex": ["m", "f"]})
    with pytest.raises((ConfigError, DataError), match=words):
        tacit.fit(formula, frame, family=family, privacy=None)


def test_arguments_and_schedules_that_cannot_work():
    x = np.random.default_rng(0).normal(size=(50, 2))
    model = GaussianMixture(("a", "b"), components=2)
    for wrong in (
        lambda: GaussianMixture(("a",), components=0),
        lambda: GaussianMixture(("a",), bounds=(1.0, 0.0)),
        lambda: GaussianMixture(("a", "b"), bounds=((0.0,) * 3, (1.0,) * 3)),
        lambda: PrivateConjugateStages(clip=2.0),
        lambda: tacit.fit(model, divided(x, 2), privacy=None, posterior="full"),
        lambda: tacit.fit(
            model,
            divided(x, 2),
            privacy=tacit.Privacy(epsilon=1.0, insecure_noise_seed=1),
            schedule=tacit.schedules.Synchronous(rounds=3),
        ),
    ):
        with pytest.raises(ConfigError):
            wrong()
    with pytest.raises(DataError, match="shape"):
        tacit.fit(model, {"p": {"x": x[:, :1]}}, privacy=None)
