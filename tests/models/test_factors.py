"""Factor models: exact against scikit-learn, sensitivities, and private fits."""

import math

import numpy as np
import pytest

import tacit
from tacit.errors import ConfigError
from tacit.methods import PrivateConjugateStages
from tacit.models import FactorModel
from tacit.models.conjugate import StageSum, StatisticsStage
from tacit.models.factors import MEAN, MOMENT, SIZE, SIZE_AGAIN, MomentStatistics
from tacit.testing import check_private_method

COLUMNS = ("a", "b", "c", "d", "e", "f")
STAGES = (SIZE, MEAN, SIZE_AGAIN, MOMENT)


def correlated(rng, rows):
    loadings = np.array([[2, 0], [1.5, 0.5], [0, 1.5], [-1, 1], [0.3, 0], [0, 0.1]])
    noise = np.array([0.5, 0.4, 0.6, 0.5, 0.3, 0.7])
    return rng.normal(size=(rows, 2)) @ loadings.T + noise * rng.normal(size=(rows, 6)) + 1.0


def divided(x, parties):
    return {f"party {i}": {"x": x[i::parties]} for i in range(parties)}


@pytest.mark.parametrize("stage", STAGES)
def test_norms_and_sensitivities(stage):
    rng = np.random.default_rng(1)
    model = FactorModel(COLUMNS, bounds=(-3, 5))
    (acute,) = {one.acute for one in model.stages if one.name == stage}
    public = {"centre": rng.normal(size=6), "square": np.asarray(3.0)}
    x = np.concatenate([rng.normal(size=(20, 6)) * s for s in (0.1, 1.0, 10.0, 1e6)])
    x = np.concatenate([x, 2.0 * public["centre"] - x])  # opposite ones
    found = model.stage_statistics(stage, public, {"x": x})
    each = np.stack([found.total(row) for row in np.eye(len(x))])
    assert np.allclose(np.linalg.norm(each, axis=1), found.norms(), rtol=1e-12)
    weights = np.minimum(1.0, 1.0 / found.norms())
    rows = np.stack([found.total(row) for row in np.diag(weights)])
    assert np.max(np.linalg.norm(rows, axis=1)) <= 1.0 + 1e-12
    farthest = np.max(np.linalg.norm(rows[:, None] - rows[None], axis=2))
    assert farthest <= (math.sqrt(2.0) if acute else 2.0) * (1.0 + 1e-12)
    if acute:
        assert np.min(rows @ rows.T) >= -1e-12
    else:
        assert farthest > 1.999  # √2 would not be enough


@pytest.mark.parametrize("stage", STAGES)
def test_a_record_does_not_depend_on_the_others_to_the_last_bit(stage):
    rng = np.random.default_rng(2)
    model = FactorModel(COLUMNS, bounds=(-3, 5))
    public, x = model.first_public(), rng.normal(size=(1003, 6))
    whole = model.stage_statistics(stage, public, {"x": x})
    part = model.stage_statistics(stage, public, {"x": x[500:507]})
    assert part.norms().tobytes() == whole.norms()[500:507].tobytes()


class OnlyMean(FactorModel):
    """Only the stage that is not acute."""

    private_rounds = 1

    @property
    def stages(self):
        return (StatisticsStage(MEAN, 1.0, self.acute),)

    acute = False

    def advance(self, known, answer):
        return dict(known), None


TABLE = {"x": np.random.default_rng(0).normal(size=(6, 2))}


def test_charging_the_mean_as_if_it_were_acute_is_caught():
    class Wrong(OnlyMean):
        acute = True

    with pytest.raises(AssertionError, match="sensitivity"):
        check_private_method(
            PrivateConjugateStages(), Wrong(("a", "b"), factors=1), records=TABLE, rounds=1
        )


@pytest.mark.parametrize("noise", ["common", "columns"])
def test_the_exact_fit_is_that_of_scikit_learn(noise):
    decomposition = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(3)
    train, test = correlated(rng, 2000), correlated(rng, 1000)
    other = (
        decomposition.PCA(2)
        if noise == "common"
        else decomposition.FactorAnalysis(2, tol=1e-8, max_iter=2000, svd_method="lapack")
    )
    expected = other.fit(train).score(test)
    model = FactorModel(COLUMNS, factors=2, noise=noise)
    fits = [tacit.fit(model, divided(train, n), privacy=None, test={"x": test}) for n in (1, 3)]
    for fit in fits:
        assert fit.converged
        assert abs(fit.metrics["held_out"]["log_predictive_density"] - expected) < 1e-3
    one, three = (fit.posterior.natural for fit in fits)
    assert np.allclose(one["linear"], three["linear"], rtol=1e-6, atol=1e-6)
    scores = fits[0].predict({"x": test})
    assert scores.shape == (1000, 2)
    rebuilt = model.reconstruct(one, {"x": test})
    left = np.sum((test - rebuilt) ** 2) / np.sum((test - test.mean(axis=0)) ** 2)
    captured = fits[0].metrics["held_out"]["captured_variance"]
    assert abs(1.0 - left - captured) < 0.01


def test_a_private_fit_finds_the_factors_and_is_labelled():
    rng = np.random.default_rng(4)
    x = correlated(rng, 20_000)
    model = FactorModel(COLUMNS, factors=2, bounds=(-8, 10))
    privacy = tacit.Privacy(epsilon=1.0, delta=1e-5, aggregation="trusted", insecure_noise_seed=3)
    test = {"x": correlated(rng, 2000)}
    exact = tacit.fit(model, divided(x, 2), privacy=None, test=test)
    private = tacit.fit(model, divided(x, 2), privacy=privacy, test=test)
    gap = (
        exact.metrics["held_out"]["captured_variance"]
        - private.metrics["held_out"]["captured_variance"]
    )
    assert gap < 0.01
    assert "not calibrated" in str(private)


def test_noise_does_not_become_a_factor():
    """Eigenvalues of pure noise are shrunk to nothing."""
    d, sd = 40, 0.3
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(d, d)) * sd
    noise = np.triu(noise, 1) / math.sqrt(2.0) + np.diag(np.diagonal(noise))
    noise = noise + np.triu(noise, 1).T
    model = FactorModel([str(i) for i in range(d)], factors=3)
    found = model._estimated(np.zeros(d), np.eye(d) + noise, sd)
    assert np.sum(found.loadings**2) < 0.5 * 3 * np.max(np.linalg.eigvalsh(noise))


def test_the_moment_is_that_of_its_rows():
    rows = np.random.default_rng(6).normal(size=(5, 3))
    found = MomentStatistics(rows=rows, sizes=np.sum(rows**2, axis=1)).total(np.ones(5))
    assert np.isclose(np.linalg.norm(found), np.linalg.norm(rows.T @ rows))


def test_a_sum_without_records_gives_a_proper_posterior():
    model = FactorModel(COLUMNS, factors=2)
    known = model.first_public()
    q = None
    for place, stage in enumerate(model.stages):
        following = model.stages[place + 1].name if place < 3 else None
        total = np.zeros(model.stage_size(stage.name))
        known, q = model.advance(known, StageSum(stage.name, following, total, 5.0, 0))
    assert model.own_family.is_proper(q)


def test_arguments():
    for wrong in (
        lambda: FactorModel(("a", "b"), factors=2),
        lambda: FactorModel(("a", "b"), factors=0),
        lambda: FactorModel(("a", "b"), factors=1, noise="none"),  # pyright: ignore
    ):
        with pytest.raises(ConfigError):
            wrong()
