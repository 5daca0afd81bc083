"""Regressions on raw columns: the posterior does not depend on the units."""

import functools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

import tacit

COUNT = 6000
SCHEDULES = [tacit.schedules.Synchronous, tacit.schedules.Sequential, tacit.schedules.Asynchronous]


def table(seed):
    """Age in years, a skewed laboratory value, an income, a small concentration, a pressure."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=(COUNT, 5)) @ (np.eye(5) + 0.3 * rng.normal(size=(5, 5)))
    white = (white - white.mean(axis=0)) / white.std(axis=0)
    raw = np.column_stack(
        [
            55 + 12 * white[:, 0],
            8 * np.exp(0.9 * white[:, 1]),
            42_000 + 9_000 * white[:, 2],
            0.002 + 0.0004 * white[:, 3],
            101_325 + 150 * white[:, 4],
        ]
    )
    return np.column_stack([np.ones(COUNT), raw]), white, rng


def drawn(kind, seed):
    x, white, rng = table(seed)
    eta = white @ rng.normal(0, 0.6, 5) + 0.3
    names = ("one", "age", "crp", "income", "dose", "pressure")
    if kind == "logistic":
        y = (rng.uniform(size=COUNT) < 1 / (1 + np.exp(-eta))).astype(float)
        return tacit.models.LogisticRegression(names, prior_sd=10.0), x, y
    if kind == "poisson":
        y = rng.poisson(np.exp(0.4 * eta + 1)).astype(float)
        return tacit.models.PoissonRegression(names, max_count=1000, prior_sd=10.0), x, y
    if kind == "linear":
        y = 300 + 40 * eta + 40 * rng.normal(size=COUNT)
        return tacit.models.LinearRegression(names, noise_sd=40.0, prior_sd=10.0), x, y
    eta = white @ rng.normal(0, 0.6, (5, 3))
    y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(float)
    # All levels together are known by the prior alone: a wide one leaves no digits for them.
    return tacit.models.SoftmaxRegression(names, levels=("a", "b", "c"), prior_sd=1.0), x, y


def log_joint(model, x, y):
    """log p(θ, y) of φ = θ·scale, in NumPy: nothing of tacit's."""
    scale = np.sqrt(np.mean(x**2, axis=0))
    z, sd = x / scale, model.prior_sd[0]

    def value(phi):
        theta = phi / (np.tile(scale, 3) if model.kind == "softmax" else scale)
        prior = -0.5 * np.sum(theta**2) / sd**2
        if model.kind == "softmax":
            eta = z @ phi.reshape(3, -1).T
            return prior + np.sum(eta[np.arange(len(y)), y.astype(int)] - logsumexp(eta, axis=1))
        eta = z @ phi
        if model.kind == "logistic":
            return prior + np.sum(y * eta - np.logaddexp(eta, 0))
        if model.kind == "poisson":
            return prior + np.sum(y * eta - np.exp(eta) - gammaln(y + 1))
        return prior - 0.5 * np.sum(((y - eta) / model.noise_sd) ** 2)

    def derivatives(phi):
        ridge = 1 / (sd * (np.tile(scale, 3) if model.kind == "softmax" else scale)) ** 2
        if model.kind == "softmax":
            eta = z @ phi.reshape(3, -1).T
            p = np.exp(eta - logsumexp(eta, axis=1, keepdims=True))
            slope = ((y[:, None] == np.arange(3)) - p).T @ z
            each = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None]
            bend = np.einsum("nkl,ni,nj->kilj", each, z, z, optimize=True).reshape(len(phi), -1)
            return slope.reshape(-1) - ridge * phi, bend + np.diag(ridge)
        eta = z @ phi
        mean = {"logistic": lambda: 1 / (1 + np.exp(-eta)), "poisson": lambda: np.exp(eta)}
        p = mean.get(model.kind, lambda: eta)()
        noise = model.noise_sd**2 if model.kind == "linear" else 1.0
        weight = {"logistic": p * (1 - p), "poisson": p}.get(model.kind, np.ones_like(p)) / noise
        return z.T @ ((y - p) / noise) - ridge * phi, (z.T * weight) @ z + np.diag(ridge)

    return scale, value, derivatives


@functools.cache
def laplace(kind, seed):
    """Mode and sd of θ by trust-region Newton steps, for the records of `drawn`."""
    model, x, y = drawn(kind, seed)
    scale, value, derivatives = log_joint(model, x, y)
    found = minimize(
        lambda phi: -value(phi), np.zeros(model.dimension), method="trust-exact",
        jac=lambda phi: -derivatives(phi)[0], hess=lambda phi: derivatives(phi)[1],
        options={"gtol": 1e-7, "maxiter": 500},
    )  # fmt: skip
    slope, bend = derivatives(found.x)
    best = found.x + np.linalg.solve(bend, slope)
    scale = np.tile(scale, 3) if model.kind == "softmax" else scale
    return best / scale, np.sqrt(np.diagonal(np.linalg.inv(bend))) / scale


def split(x, y, parties):
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), parties)
    return {f"p{i}": {"x": x[part], "y": y[part]} for i, part in enumerate(parts)}


@pytest.mark.parametrize("parties", [1, 3, 10])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["logistic", "poisson", "linear", "softmax"])
def test_raw_columns_agree_with_newton_steps_in_numpy(kind, schedule, parties):
    model, x, y = drawn(kind, parties)
    mean, sd = laplace(kind, parties)
    fitted = tacit.fit(model, split(x, y, parties), privacy="none", schedule=schedule())
    gap = np.max(np.abs(fitted.posterior.mean - mean) / sd)
    assert gap < 0.05, f"the mean is {gap:.3g} sd from the mode"
    np.testing.assert_allclose(np.log(fitted.posterior.sd / sd), 0.0, atol=0.05)


def test_a_change_of_units_changes_the_coefficients_by_it():
    model, x, y = drawn("logistic", seed=8)
    factor = np.array([1.0, 365.25, 1e-3, 1e-5, 1e4, 7.5e-3])
    changed = tacit.models.LogisticRegression(model.names, prior_sd=model.prior_sd / factor)
    one, two = (
        tacit.fit(which, split(columns, y, 3), privacy="none").posterior
        for which, columns in ((model, x), (changed, x * factor))
    )
    np.testing.assert_allclose(two.mean * factor, one.mean, atol=1e-3 * np.max(one.sd), rtol=1e-4)
    np.testing.assert_allclose(two.sd * factor, one.sd, rtol=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_rounding_has_spoilt_is_not_called_converged(schedule):
    """What all levels share has a precision of 1e-6 beside one of 1e13: no digit of it is left."""
    _, x, y = drawn("softmax", seed=2)
    model = tacit.models.SoftmaxRegression(tuple("abcdef"), levels=("u", "v", "w"), prior_sd=1000.0)
    try:
        parties = split(x[:400], y[:400], 2)
        fitted = tacit.fit(model, parties, privacy="none", schedule=schedule(rounds=6))
    except tacit.TacitError as error:
        assert "improper" in str(error) or "scale" in str(error)  # noqa: PT017 - either will do
    else:
        assert not fitted.converged


def test_the_path_may_be_another_one_but_the_end_is_the_same():
    """Skewed columns and counts in the hundreds, where whole steps raise the free energy."""
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(60), np.exp(2.5 * rng.normal(size=60)), rng.normal(size=60)])
    y = rng.poisson(np.exp(np.clip(3 * x[:, 2], -5, 6))).astype(float)
    model = tacit.models.PoissonRegression(("one", "x", "z"), max_count=1e4, prior_sd=10.0)
    parties = {"a": {"x": x[:30], "y": y[:30]}, "b": {"x": x[30:], "y": y[30:]}}
    together, in_turn = (
        tacit.fit(model, parties, privacy="none", schedule=schedule())
        for schedule in (tacit.schedules.Synchronous, tacit.schedules.Sequential)
    )
    assert together._outcome.state.finished == "converged"
    gap = np.abs(together.posterior.mean - in_turn.posterior.mean) / in_turn.posterior.sd
    assert np.max(gap) < 0.01
    elbos = [line["negative_elbo"] for line in together.history]
    taken = [value for value in elbos if value is not None]
    assert taken[-1] <= min(taken) + 1e-3


@pytest.mark.parametrize(("count", "constant", "slope"), [(300, 0.5, 1.0), (20, -1.5, 0.3)])
def test_a_poisson_posterior_does_not_depend_on_the_bound_of_its_counts(count, constant, slope):
    """`largest` = max(y) bounds the counts; rates above it keep their likelihood."""
    rng = np.random.default_rng(0 if count == 300 else 3)
    x = np.column_stack([np.ones(count), rng.normal(size=count)])
    y = rng.poisson(np.exp(x @ [constant, slope])).astype(float)
    parties = {"a": {"x": x[::2], "y": y[::2]}, "b": {"x": x[1::2], "y": y[1::2]}}
    near, far = (
        tacit.fit(
            tacit.models.PoissonRegression(("one", "x"), max_count=largest, prior_sd=10.0),
            parties,
            privacy="none",
        ).posterior
        for largest in (max(1.0, y.max()), 1e6)
    )
    assert np.max(np.abs(near.mean - far.mean) / far.sd) < 0.01
    np.testing.assert_allclose(near.sd, far.sd, rtol=0.01)
