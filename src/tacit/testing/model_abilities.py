"""Checks of a model's abilities (`tacit.models.capabilities`) against its log-likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models.capabilities import (
    BoundedDerivatives,
    DerivativeBounds,
    DiagonalExpectations,
    GaussianExpectations,
    GaussianSites,
    GradientNorms,
    ImpliedVariance,
    InNumPy,
    TopicTables,
    WhitenedExpectations,
)
from tacit.models.glm.base import GeneralisedLinear
from tacit.models.predictive import draw_parameters
from tacit.testing.comparisons import (
    CLOSE,
    EXACT,
    expect_at_most,
    expect_average,
    expect_close,
)
from tacit.testing.model_effects import check_effects
from tacit.testing.model_outcomes import check_outcomes
from tacit.testing.model_scores import check_scores
from tacit.testing.models import (
    Subject,
    check_conjugate,
    check_simulation,
    expect_unchanged,
    gaussian_posteriors,
    with_label,
    with_unused_nan,
)

DRAWS = 300
VARIANCE_DRAWS = 2_000
FAR = 4.0
"""Factor by which values of θ are multiplied when bounds are checked."""


def check_expectations(subject: Subject) -> None:
    """Compare `expected_fit` and `expected_information` with averages over draws of θ."""
    import jax
    import jax.numpy as jnp

    model, records = subject.model, subject.records
    assert isinstance(model, GaussianExpectations)

    def bend(theta: Any, row: Any) -> Any:
        one = jax.tree.map(lambda value: value[None], row)
        second = jax.hessian(lambda at: model.log_likelihood(at, one)[0])(theta)
        return -jnp.mean(jnp.diagonal(second))

    fits = jax.jit(jax.vmap(lambda at: model.log_likelihood(at, records)))
    bends = jax.jit(jax.vmap(jax.vmap(bend, in_axes=(None, 0)), in_axes=(0, None)))
    for family, q in gaussian_posteriors(subject):
        free, draws = family.free(q), draw_parameters(family, q, DRAWS, 3)
        fit = np.asarray(model.expected_fit(family, free, records))
        expect_average("expected_fit", fit, np.asarray(fits(draws)))
        information = np.asarray(model.expected_information(family, free, records))
        expect_average("expected_information", information, np.asarray(bends(draws, records)))


def check_sites(subject: Subject) -> None:
    """Check that a site contains the derivatives of E_q[log p] with respect to the mean of q.

    The gradient gives the linear term and the Hessian the precision. This identity holds for
    quadrature as well as for exact integrals.
    """
    import jax
    import jax.numpy as jnp

    model, records = subject.model, subject.records
    assert isinstance(model, GaussianSites)
    assert isinstance(model, GaussianExpectations), (
        "expected_site: the model has no expected_fit to compare it with"
    )
    weights = subject.rng.random(subject.count)
    for family, q in gaussian_posteriors(subject):
        usual = {name: jnp.asarray(value) for name, value in family.usual(q).items()}
        compiled = jax.jit(model.expected_site, static_argnums=0)
        site, loss = compiled(family, usual, records, weights)
        site = {name: np.asarray(value) for name, value in site.items()}
        _check_site_shapes(family, site, "expected_site")
        _check_data_site(subject, model, family, weights)
        free = {name: jnp.asarray(value) for name, value in family.free(q).items()}

        def total(mean: Any, f: Any = family, free: Any = free) -> Any:
            fit = model.expected_fit(f, free | {"location": mean}, records)
            return jnp.sum(weights * fit)

        mean = free["location"]
        slope, second = (np.asarray(one) for one in _derivatives(total, mean))
        precision = -2.0 * site["quadratic"]
        full = isinstance(family, FullGaussian)
        product = precision @ np.asarray(mean) if full else precision * np.asarray(mean)
        tolerance = 10 * CLOSE
        expect_close("expected_site: loss", loss, -float(total(mean)), tolerance)
        form = -second if full else -np.diagonal(second)
        expect_close("expected_site: precision", precision, form, tolerance)
        expect_close("expected_site: gradient", site["linear"] - product, slope, tolerance)


def check_whitened(subject: Subject) -> None:
    """Check `whitened_derivatives`: value, gradient and Hessian of the log-likelihood of θ = mean +
    root·z as a function of z.

    They are compared with automatic derivatives at z = 0. Value and gradient are also compared with
    averages over z ~ N(0, I).
    """
    import jax
    import jax.numpy as jnp

    model, records, rng = subject.model, subject.records, subject.rng
    assert isinstance(model, WhitenedExpectations)
    size, weights = model.dimension, rng.random(subject.count)
    mean = 0.3 * rng.standard_normal(size)
    root = 0.3 * np.eye(size) + 0.05 * rng.standard_normal((size, size))

    def total(z: Any) -> Any:
        return jnp.sum(weights * model.log_likelihood(mean + root @ z, records))

    columns = _as_jax(records)
    compiled = jax.jit(model.whitened_derivatives)
    at_mean = compiled(mean, root, np.zeros(()), columns, weights)
    slope, second = _derivatives(total, jnp.zeros(size))
    tolerance = 10 * CLOSE
    expect_close("whitened_derivatives: value", at_mean.value, total(jnp.zeros(size)), tolerance)
    expect_close("whitened_derivatives: gradient", at_mean.gradient, slope, tolerance)
    expect_close("whitened_derivatives: hessian", at_mean.hessian, second, tolerance)
    spread = compiled(mean, root, np.ones(()), columns, weights)
    draws = rng.standard_normal((DRAWS, size))
    draws = np.concatenate([draws, -draws])
    values = np.asarray(jax.jit(jax.vmap(total))(draws))
    slopes = np.asarray(jax.jit(jax.vmap(jax.grad(total)))(draws))
    expect_average("whitened_derivatives: expected value", spread.value, values)
    expect_average("whitened_derivatives: expected gradient", spread.gradient, slopes)


def check_diagonal(subject: Subject) -> None:
    """Check that `diagonal_derivatives` agrees with `whitened_derivatives`, with and without a
    `root`.
    """
    import jax

    model, rng = subject.model, subject.rng
    assert isinstance(model, DiagonalExpectations)
    assert isinstance(model, WhitenedExpectations)
    weights, columns = rng.random(subject.count), _as_jax(subject.records)
    mean = 0.3 * rng.standard_normal(model.dimension)
    scale = 0.1 + 0.3 * rng.random(model.dimension)
    rows, spread = rng.standard_normal((3, model.dimension)), np.ones(())
    full = np.eye(model.dimension) + 0.3 * rng.standard_normal([model.dimension] * 2)
    compiled, whitened = jax.jit(model.diagonal_derivatives), jax.jit(model.whitened_derivatives)
    for name, root in (("diagonal_derivatives", 0.0 * full), ("with a root", full)):
        found = compiled(mean, scale, root, rows, spread, columns, weights)
        z = full if np.any(root) else np.eye(model.dimension)  # θ = mean + scale·zᵀu
        whole = whitened(mean, (z * scale).T, spread, columns, weights)
        back = np.linalg.inv(z)
        gradient, hessian = back @ np.asarray(whole.gradient), back @ whole.hessian @ back.T
        expect_close(f"{name}: value", found.value, whole.value, CLOSE)
        expect_close(f"{name}: gradient", found.gradient, gradient, CLOSE)
        expect_close(f"{name}: diagonal", found.diagonal, np.diagonal(hessian), CLOSE)
        expect_close(f"{name}: products", found.products, rows @ hessian, CLOSE)


def check_in_numpy(subject: Subject) -> None:
    """Check that `whitened_derivatives` and `log_likelihoods` return NumPy arrays if they are
    called with NumPy arrays, and that the values equal those of the compiled functions.
    """
    import jax

    model, rng = subject.model, subject.rng
    assert isinstance(model, InNumPy)
    size, weights = model.dimension, rng.random(subject.count)
    mean, root = rng.standard_normal(size), 0.3 * np.eye(size)
    root += 0.05 * rng.standard_normal((size, size))
    columns = {name: np.asarray(column) for name, column in subject.records.items()}
    for spread in (0.0, 1.0):
        right = jax.jit(model.whitened_derivatives)(
            mean, root, np.asarray(spread), _as_jax(columns), weights
        )
        found = model.whitened_derivatives(mean, root, spread, columns, weights)
        for name, one, compiled in zip(found._fields, found, right, strict=True):
            _expect_numpy(f"whitened_derivatives of NumPy arrays: {name}", one)
            expect_close(f"whitened_derivatives in NumPy: {name}", one, compiled, EXACT)
    thetas = mean + rng.standard_normal((5, size)) @ root
    each = model.log_likelihoods(thetas, columns, weights)
    _expect_numpy("log_likelihoods of NumPy arrays", each)
    fits = jax.jit(jax.vmap(lambda theta: weights @ model.log_likelihood(theta, columns)))
    expect_close("log_likelihoods", each, fits(thetas), EXACT)


def _expect_numpy(what: str, value: Any) -> None:
    if not isinstance(value, np.ndarray | np.generic):
        raise AssertionError(
            f"{what} has type {type(value).__name__}, expected a NumPy array; compute it with "
            "`tacit.arrays.namespace` of the arguments, or remove the method log_likelihoods"
        )


def _derivatives(function: Callable[[Any], Any], at: Any) -> tuple[Any, Any]:
    import jax

    return jax.jit(lambda x: (jax.grad(function)(x), jax.hessian(function)(x)))(at)


def _check_site_shapes(family: Any, site: Any, what: str) -> None:
    shapes = {name: np.shape(value) for name, value in site.items()}
    assert shapes == family.shapes, f"{what}: shapes {shapes}, expected {family.shapes}"


def _check_data_site(subject: Subject, model: GaussianSites, family: Any, weights: Any) -> None:
    site = model.data_site(family, _as_jax(subject.records), weights)
    _check_site_shapes(family, site, "data_site")
    precision = -2.0 * np.asarray(site["quadratic"])
    values = np.linalg.eigvalsh(precision) if precision.ndim == 2 else precision
    size = max(1.0, float(np.max(np.abs(precision))))
    assert np.min(values) >= -EXACT * size, (
        f"data_site: the smallest eigenvalue of its precision is {np.min(values):.3g}"
    )


def _as_jax(records: Any) -> Any:
    import jax.numpy as jnp

    return {name: jnp.asarray(value) for name, value in records.items()}


def check_gradient_norms(subject: Subject) -> None:
    """Check that `gradient_norms` returns the norm of each gradient that is summed or, if it is
    label-agnostic, the largest norm over all labels.

    A norm that is too small is the dangerous error, because the clipped sum could then move by more
    than is charged.
    """
    import jax
    import jax.numpy as jnp

    model, records = subject.model, subject.records
    assert isinstance(model, GradientNorms)
    assert isinstance(model, GaussianExpectations)
    family = MeanFieldGaussian(subject.model.dimension)
    q = next(q for one, q in gaussian_posteriors(subject) if isinstance(one, MeanFieldGaussian))
    free = {name: jnp.asarray(value) for name, value in family.free(q).items()}
    scales = jnp.asarray(subject.rng.uniform(0.5, 2.0, family.dimension))
    maps = {"location": scales, "scale": 0.5 * scales, "information": jnp.asarray(0.7)}
    parts_of = _norms_and_sums(model, family, free, maps)
    norms, sums = (np.asarray(one) for one in parts_of(_as_jax(records), agnostic=False))
    expect_close("gradient_norms: norm of a record", norms, np.linalg.norm(sums, axis=1), 1e-7)
    gradient = jax.jit(
        jax.jacrev(lambda at: model.expected_fit(family, free | {"location": at}, records))
    )(free["location"])
    first = sums[:, : family.dimension]
    expect_close("gradient_norms: gradient", first, np.asarray(scales * gradient), 10 * CLOSE)
    _check_unused(model, family, free, maps, records)
    if subject.model.output not in ("bernoulli", "categorical"):
        return
    largest, _ = parts_of(_as_jax(records), agnostic=True)
    for label in range(subject.model.labels):
        other = _as_jax(with_label(records, label))
        expect_at_most("gradient_norms: label-agnostic norm", parts_of(other)[0], largest, 1e-6)
        same, _ = parts_of(other, agnostic=True)
        expect_close("gradient_norms: the label changes a label-agnostic norm", same, largest, 1e-6)


def _norms_and_sums(model: GradientNorms, family: Any, free: Any, maps: Any) -> Callable[..., Any]:
    import functools

    import jax
    import jax.numpy as jnp

    @functools.partial(jax.jit, static_argnames="agnostic")
    def parts(records: Any, agnostic: bool = False) -> Any:
        found = model.gradient_norms(family, free, records, maps, label_agnostic=agnostic)

        def flat(weights: Any) -> Any:
            summed = found.weighted_sum(weights)
            return jnp.concatenate([jnp.ravel(summed[name]) for name in sorted(summed, key=_order)])

        return found.norms, jax.vmap(flat)(jnp.eye(len(records["y"])))

    return parts


def _check_unused(model: GradientNorms, family: Any, free: Any, maps: Any, records: Any) -> None:
    import jax

    broken, used = with_unused_nan(records)

    @jax.jit
    def total(rows: Any) -> Any:
        found = model.gradient_norms(family, free, rows, maps, label_agnostic=False)
        return found.weighted_sum(used)

    expect_unchanged("gradient_norms", total(_as_jax(broken)), total(_as_jax(records)))


def _order(name: str) -> int:
    return ("location", "scale", "information").index(name)


def check_derivative_bounds(subject: Subject) -> None:
    """Check that slopes, curvatures and losses are within the declared bounds."""
    import jax

    model = subject.model
    assert isinstance(model, BoundedDerivatives)
    bounds = model.derivative_bounds()
    if bounds is None:
        return
    records = _records_with_all_outcomes(subject)
    x = records["x"] if model.x_columns is not None else np.ones((len(records["y"]), 1))
    width = x.shape[1]

    def terms(theta: Any) -> Any:
        def one(row: Any) -> Any:
            rows = jax.tree.map(lambda value: value[None], row)
            function = lambda at: model.log_likelihood(at, rows)[0]  # noqa: E731
            return function(theta), jax.grad(function)(theta), jax.hessian(function)(theta)

        return jax.vmap(one)(_as_jax(records))

    compiled = jax.jit(terms)
    at_zero = np.asarray(compiled(np.zeros(model.dimension))[0])
    for theta in (subject.thetas[0], FAR * subject.thetas[1], -FAR * subject.thetas[2]):
        value, slope, second = (np.asarray(one) for one in compiled(theta))
        eta = np.abs(x @ theta.reshape(-1, width).T)  # (n, predictors)
        each = slope.reshape(len(x), -1, width)
        most = bounds.slope + (
            bounds.slope_per_reach * eta if bounds.slope_per_reach else 0.0 * eta
        )
        limit = np.where(x[:, None] == 0, 0.0, np.abs(x[:, None]) * most[:, :, None])
        expect_at_most("derivative_bounds: slope", np.abs(each), limit)
        curvature = np.diagonal(second, axis1=1, axis2=2).reshape(len(x), -1, width)
        expect_at_most(
            "derivative_bounds: curvature", -curvature, bounds.curvature * np.square(x[:, None])
        )
        size = 1.0 + np.max(np.abs(second))
        expect_at_most(
            "derivative_bounds: log-likelihood is not concave",
            np.max(np.linalg.eigvalsh(second)) / size, 0.0,
        )  # fmt: skip
        _check_losses(bounds, value, at_zero, np.max(eta, axis=1))
    _check_data_start(subject, bounds, records, x)


def _check_losses(
    bounds: DerivativeBounds, value: np.ndarray, at_zero: np.ndarray, eta: np.ndarray
) -> None:
    if not bounds.slope_per_reach:
        expect_at_most("derivative_bounds: range_at_zero", value - at_zero, bounds.range_at_zero)
    if bounds.nonnegative_loss:
        expect_at_most("derivative_bounds: nonnegative_loss", value, 0.0)
    if bounds.loss_at_zero is not None:
        limit = bounds.loss_at_zero + bounds.slope * eta
        expect_at_most("derivative_bounds: loss_at_zero", -value, limit)


def _check_data_start(
    subject: Subject, bounds: DerivativeBounds, records: Any, x: np.ndarray
) -> None:
    """Check that `data_site` returns, for each single record, a site within the bounds of
    `DataStart`.
    """
    import jax
    import jax.numpy as jnp

    model, start = subject.model, bounds.data_start
    if not isinstance(model, GaussianSites):
        return
    family, rows = FullGaussian(subject.model.dimension), _as_jax(records)
    alone = jax.jit(jax.vmap(lambda weights: model.data_site(family, rows, weights)))
    site = {name: np.asarray(value) for name, value in alone(jnp.eye(len(x))).items()}
    form, blocks = -2.0 * site["quadratic"], subject.model.dimension // x.shape[1]
    wide = np.tile(x, blocks)
    expect_at_most(
        "derivative_bounds: data_start",
        np.abs(site["linear"]), np.abs(wide) * (start.slope + start.pull),
    )  # fmt: skip
    diagonal = np.diagonal(form, axis1=1, axis2=2)
    expect_at_most("derivative_bounds: data_start", diagonal, np.square(wide) * bounds.curvature)
    if start.least_curvature is not None:
        rest = form - start.least_curvature * (x[:, :, None] * x[:, None, :])
        least = -np.min(np.linalg.eigvalsh(rest)) / max(1.0, float(np.max(np.abs(form))))
        expect_at_most("derivative_bounds: data_start.least_curvature", least, 0.0)


def _records_with_all_outcomes(subject: Subject) -> Any:
    """Return the records, followed by copies of a few of them with extreme outcomes
    (`extreme_outcomes`).
    """
    from tacit.testing.model_scores import extreme_outcomes

    records, few = subject.records, slice(0, 8)
    parts = [records]
    for y in extreme_outcomes(subject.model):
        parts.append(with_label({name: value[few] for name, value in records.items()}, y))
    return {name: np.concatenate([part[name] for part in parts]) for name in records}


def check_topics(subject: Subject) -> None:
    """Check that the topic table has the requested number of words per topic, and that all of them
    are in the vocabulary.
    """
    model, (_, q) = subject.model, subject.posteriors[0]
    assert isinstance(model, TopicTables)
    words = next(iter(q.values())).shape[-1]
    vocabulary = [f"word {number}" for number in range(words)]
    table = model.topic_table(q, vocabulary, 2)
    assert all(len(row) == 2 for row in table.words), "topic_table: not two words per topic"
    assert all(set(row) <= set(vocabulary) for row in table.words), "topic_table: unknown words"


def check_implied_variance(subject: Subject) -> None:
    """Compare `dispersion_sums` with outcomes that are drawn from the model.

    Over the draws, `excess` must have mean 0 and the declared variance. It must not decrease if the
    predictor becomes uncertain.
    """
    model = subject.model
    assert isinstance(model, ImpliedVariance)
    assert isinstance(model, GeneralisedLinear)
    none, one = np.zeros(1), np.ones(1)
    for number, eta in enumerate((-1.0, 0.0, 1.5)):
        at = np.full(1, eta)
        means = np.full((1, VARIANCE_DRAWS), np.asarray(model.inverse_link(at))[0])
        y = model.draw_outcomes(subject.thetas[:1], means, {}, number)[0]
        sums = [model.dispersion_sums(at, none, y[i : i + 1], one) for i in range(len(y))]
        terms = np.array([float(each.excess) for each in sums])
        variance = float(sums[0].variance)
        spread = np.sqrt(variance / len(terms))
        expect_at_most("dispersion_sums: |mean| in sds", abs(np.mean(terms)) / spread, 5.0)
        ratio = float(np.mean(terms**2)) / variance
        expect_at_most("dispersion_sums: ratio of variances", max(ratio, 1.0 / ratio), 1.6)
        wider = model.dispersion_sums(at, one, y[:1], one)
        expect_at_most("dispersion_sums: excess at variance 0", sums[0].excess, wider.excess)


ABILITY_CHECKS: dict[str, Callable[[Subject], None]] = {
    "ConjugateGaussian": check_conjugate,
    "GaussianExpectations": check_expectations,
    "GaussianSites": check_sites,
    "WhitenedExpectations": check_whitened,
    "DiagonalExpectations": check_diagonal,
    "InNumPy": check_in_numpy,
    "GradientNorms": check_gradient_norms,
    "BoundedDerivatives": check_derivative_bounds,
    "Scores": check_scores,
    "Simulates": check_simulation,
    "SimulatesOutcomes": check_outcomes,
    "ImpliedVariance": check_implied_variance,
    "HasEffects": check_effects,
    "TopicTables": check_topics,
}
