"""Conformance suite of models: compare a model with its log-likelihood.

The log-likelihood of one record defines a model. Everything else that a model provides is a
shortcut. Each shortcut is compared with the log-likelihood: automatic derivatives with differences,
closed forms with automatic derivatives, expectations with averages over draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import TacitError
from tacit.expfam import Family, FullGaussian, Gaussian, MeanFieldGaussian, Natural
from tacit.models import ConjugateGaussian, Model, Records
from tacit.models.capabilities import Scores, Simulates, abilities
from tacit.models.conjugate import ConjugateExponential, StageSum
from tacit.models.predictive import draw_parameters
from tacit.testing.comparisons import (
    CLOSE,
    expect_at_most,
    expect_average,
    expect_close,
)
from tacit.testing.local_methods import synthetic_records
from tacit.testing.model_draws import check_drawn, check_responses
from tacit.testing.model_laws import check_density, check_far_predictors, check_simulated_law

DRAWS = 400
STEP = 1e-5
"""Step of difference quotients, on the scale of θ."""


class Subject(NamedTuple):
    """A model to check, with records, values of θ around its prior, and a posterior q in each
    family that it supports.
    """

    model: Model
    records: Records
    thetas: np.ndarray
    posteriors: tuple[tuple[Family, Natural], ...]
    rng: np.random.Generator

    @property
    def count(self) -> int:
        """Number of records."""
        return len(next(iter(self.records.values())))

    def log_likelihood(self, theta: np.ndarray, records: Records | None = None) -> np.ndarray:
        """Return log p(record | θ) of each record, as a NumPy array."""
        records = self.records if records is None else records
        return np.asarray(self.model.log_likelihood(theta, records), np.float64)


def check_model(model: Model, *, records: Records | None = None, seed: int = 0) -> tuple[str, ...]:
    """Assert that a model implements `tacit.models.Model` and its abilities correctly.

    The following properties are checked:

    * names, prior and start have the right sizes, and prior and start are proper;
    * the log-likelihood is one finite number per record, which does not depend on other records;
    * the automatic derivative of the log-likelihood agrees with difference quotients;
    * the log-likelihood of a linear predictor is finite if the predictor is ±50;
    * probabilities of all outcomes (labels, counts or numbers) add up to 1, and `response` is their
      mean. The support of a number is the interval in which the log-likelihood is finite, the part
      of it that `check_records` accepts, or y > 0 if no record has a negative y;
    * `responses` and `inverse_link` agree with `response`; drawn outcomes (`draw_outcomes`,
      `simulate`, `outcome_law`) follow the likelihood and depend on the seed alone;
    * the predictive distribution agrees with an average over draws of θ;
    * statistics agree with their declared norms and sums;
    * a record of weight 0 does not change a sum, even if it contains NaN;
    * every ability of `tacit.models.capabilities` that the model has, such as expectations, sites
      or simulated outcomes, agrees with the log-likelihood. Simulated outcomes depend on `rng`
      alone, and their mean and the variance of their scores are those of the likelihood.

    A Monte Carlo comparison allows five standard errors.

    Parameters
    ----------
    model
        An instance of the model.
    records
        About 40 records that the model accepts. By default they are generated, which requires a
        model with columns x and y.
    seed
        Seed of the tested values of θ and of the generated records.

    Returns
    -------
    tuple of str
        Names of the checks that were made: the abilities of the model, and "density" (of counts and
        numbers), "responses", "draw_outcomes", "statistics", "stages", "score_parts" and
        "predictive" if the model has these. A density whose tails are too heavy for a sum is not
        checked, which causes a UserWarning.

    Raises
    ------
    AssertionError
        With the name of the check, the value found and the value expected.
    """
    from tacit.testing.model_abilities import ABILITY_CHECKS

    subject = _subject(model, records, seed)
    _check_declared(subject)
    _check_log_likelihood(subject)
    check_far_predictors(subject)
    if model.traceable:
        _check_derivative(subject)
    _check_probabilities(subject)
    done = [name for name, check in _PARTS.items() if check(subject)]
    for name in abilities(model):
        ABILITY_CHECKS[name](subject)
        done.append(name)
    return tuple(done)


def _subject(model: Model, records: Records | None, seed: int) -> Subject:
    rng = np.random.default_rng([seed, 11])
    if records is None:
        if model.output == "other" and not isinstance(model, Simulates):
            raise TypeError(
                f"check_model cannot generate records for {model.kind!r}: pass records=…, or "
                "add a simulate method to the model"
            )
        records = synthetic_records(model, seed)
        if isinstance(model, Scores) and (largest := model.score_likelihood().largest) is not None:
            smallest = model.score_likelihood().smallest
            records["y"] = np.clip(records["y"], smallest, largest)
    columns = {name: np.asarray(value) for name, value in records.items()}
    columns = {
        name: value.astype(np.float64) if value.dtype.kind == "f" else value
        for name, value in columns.items()
    }
    if model.own_family is not None:
        family = model.own_family
        start = model.start(family) or model.prior(family)
        thetas = draw_parameters(family, start, 3, seed)
        return Subject(model, columns, thetas, ((family, start),), rng)
    mean_field = MeanFieldGaussian(model.dimension)
    location, scale = (np.asarray(one) for one in mean_field.location_scale(_start(model)))
    sd = np.minimum(scale, 0.4)
    thetas = location + sd * rng.standard_normal((3, model.dimension))
    posteriors: list[tuple[Family, Natural]] = [
        (mean_field, mean_field.natural(mean=thetas[0], sd=0.5 * sd))
    ]
    full = FullGaussian(model.dimension)
    try:
        model.prior(full)
    except TacitError:  # mean-field only
        return Subject(model, columns, thetas, tuple(posteriors), rng)
    root = np.diag(0.4 * sd) + 0.05 * np.tril(rng.standard_normal((len(sd),) * 2))
    posteriors.append((full, full.natural(mean=thetas[1], covariance=root @ root.T)))
    return Subject(model, columns, thetas, tuple(posteriors), rng)


def _start(model: Model) -> Natural:
    family = MeanFieldGaussian(model.dimension)
    return model.start(family) or model.prior(family)


def _check_declared(subject: Subject) -> None:
    model = subject.model
    assert len(model.names) == model.dimension, (
        f"names: there are {len(model.names)} names for {model.dimension} coordinates"
    )
    assert len(set(model.names)) == model.dimension, "names: two coordinates have one name"
    for family, _ in subject.posteriors:
        for what, natural in (("prior", model.prior(family)), ("start", model.start(family))):
            if natural is None:
                continue
            shapes = {name: np.shape(value) for name, value in natural.items()}
            assert shapes == family.shapes, (
                f"{what}: shapes {shapes}, but {family.kind} has {family.shapes}"
            )
            assert family.is_proper(natural), f"{what}: not a proper {family.kind} distribution"
    try:
        model.check_records("a", subject.records)
    except TacitError as error:
        raise AssertionError(
            f"records: the model refuses its records: {error} (generated outcomes are within "
            "`smallest` and `largest` of score_likelihood)"
        ) from error


def _check_log_likelihood(subject: Subject) -> None:
    """Check that the log-likelihood is one finite number per record and does not depend on other
    records.
    """
    count = subject.count
    some = subject.rng.permutation(count)[: max(1, count // 3)]
    for theta in subject.thetas:
        whole = subject.log_likelihood(theta)
        assert whole.shape == (count,), (
            f"log-likelihood: shape {whole.shape} for {count} records, expected ({count},)"
        )
        assert np.all(np.isfinite(whole)), (
            f"log-likelihood: {np.sum(~np.isfinite(whole))} records have no finite value"
        )
        alone = subject.log_likelihood(theta, rows_of(subject.records, some))
        expect_close("log-likelihood: a record's value changes with the others", alone, whole[some])


def _check_derivative(subject: Subject) -> None:
    """Compare automatic derivatives of the log-likelihood with difference quotients."""
    import jax

    model = subject.model

    def along(theta: Any, direction: Any) -> Any:
        return jax.jvp(
            lambda at: model.log_likelihood(at, subject.records), (theta,), (direction,)
        )[1]

    slope = jax.jit(along)
    for theta in subject.thetas:
        direction = subject.rng.standard_normal(model.dimension)
        direction /= np.linalg.norm(direction)
        ahead, behind = (subject.log_likelihood(theta + h * direction) for h in (STEP, -STEP))
        size = np.maximum(np.abs(ahead), 1.0)
        expect_close(
            "gradient: the automatic derivative of the log-likelihood is not its slope",
            np.asarray(slope(theta, direction)),
            (ahead - behind) / (2 * STEP),
            CLOSE * float(np.max(size)),
        )


def _check_probabilities(subject: Subject) -> None:
    """Check that the probabilities of all labels add up to 1 and agree with `response`."""
    model = subject.model
    if model.output not in ("bernoulli", "categorical") or "y" not in subject.records:
        return
    for theta in subject.thetas:
        response = np.asarray(model.response(theta, subject.records), np.float64)
        levels = response.shape[1] if response.ndim == 2 else 2
        each = np.stack([
            np.exp(subject.log_likelihood(theta, with_label(subject.records, label)))
            for label in range(levels)
        ], axis=1)  # fmt: skip
        total = each.sum(axis=1)
        expect_close("probabilities: those of all labels do not add up to 1", total, 1.0)
        expected = each if response.ndim == 2 else each[:, 1]
        expect_close("response: not the probability of the label", response, expected)


def _check_predictive(subject: Subject) -> bool:
    """Check that the predictive distribution is the average of p(y | x, θ) over q. Return False if
    the model has none.
    """
    model, (family, natural) = subject.model, subject.posteriors[-1]
    if not model.traceable or (model.output == "other" and model.ties_at_prior):
        return False
    import jax

    found = model.predict(family, natural, subject.records, draws=DRAWS, seed=1)
    count = subject.count
    assert found.log_density.shape == (count,), (
        f"predictive: log_density has shape {found.log_density.shape}, expected ({count},)"
    )
    draws = draw_parameters(family, natural, DRAWS, 2)
    each = np.exp(jax.jit(jax.vmap(lambda at: model.log_likelihood(at, subject.records)))(draws))
    density = np.exp(found.log_density)
    expect_average("predictive: density", density, np.asarray(each), noisy=True)
    if model.output == "bernoulli" and "y" in subject.records:
        yes = np.asarray(subject.records["y"]) == 1
        own = np.where(yes, found.mean, 1.0 - found.mean)
        expect_close("predictive: mean is not the probability of 1", own, density, CLOSE)
    elif model.output == "categorical" and found.mean.ndim == 2:
        expect_close("predictive: probabilities do not add up to 1", found.mean.sum(axis=1), 1.0)
        own = found.mean[np.arange(count), np.asarray(subject.records["y"], int)]
        expect_close("predictive: mean is not the probability of the label", own, density, CLOSE)
    else:
        respond = jax.jit(jax.vmap(lambda at: model.response(at, subject.records)))
        expect_average("predictive: mean", found.mean, np.asarray(respond(draws)), noisy=True)
    return True


def _check_statistics(subject: Subject) -> bool:
    """Check norms and sums of the model's `statistics`. Return False if the model has none."""
    model = subject.model
    if not model.has_statistics:
        return False
    count = subject.count
    few = list(range(min(count, 6)))
    for family, q in subject.posteriors:
        found = model.statistics(family, q, subject.records, np.ones(count))
        if found is None:
            continue
        norms = np.asarray(found.norms(), np.float64)
        totals = [_flat(found.total(np.eye(count)[row])) for row in few]
        for row, total in zip(few, totals, strict=True):
            expect_close("statistics: norm of a record", norms[row], np.linalg.norm(total), 1e-7)
        least = found.least()
        if least is not None:
            sure = [total for row, total in zip(few, totals, strict=True) if least[row] >= 0]
            assert all(np.min(total) >= 0 for total in sure), (
                "statistics: a coordinate is negative, but `least` says that none is"
            )
        weights = np.zeros(count)
        weights[few] = subject.rng.random(len(few))
        expected = sum(weights[row] * total for row, total in zip(few, totals, strict=True))
        expect_close("statistics: weighted sum", _flat(found.total(weights)), expected, 1e-7)
        broken, used = with_unused_nan(subject.records)
        total = model.statistics(family, q, broken, used)
        assert total is not None
        expect_unchanged("statistics", _flat(total.total(used)), _flat(found.total(used)))
        factor = model.factor(family, q, found.total(np.ones(count)))
        shapes = {name: np.shape(value) for name, value in factor.items()}
        assert shapes == family.shapes, f"statistics: a factor has the shapes {shapes}"
    return True


def _check_stages(subject: Subject) -> bool:
    """Check a model whose statistics are released in stages. Return False for other models."""
    model, count = subject.model, subject.count
    if not isinstance(model, ConjugateExponential):
        return False
    shares = sum(stage.share for stage in model.stages)
    expect_close("stages: shares of the budget do not add up to 1", np.asarray(shares), 1.0)
    known, q, visited = model.first_public(), None, []
    few = list(range(min(count, 6)))
    for place, stage in enumerate(model.stages):
        shapes = {name: np.shape(known[name]) for name in model.public_shapes(stage.name)}
        assert shapes == model.public_shapes(stage.name), (
            f"stages: requests of {stage.name} have the shapes {shapes}"
        )
        found = model.stage_statistics(stage.name, known, subject.records)
        norms = np.asarray(found.norms(), np.float64)
        rows = np.stack([found.total(np.eye(count)[row]) for row in few])
        assert rows.shape[1] == model.stage_size(stage.name), (
            f"stages: {stage.name} has {rows.shape[1]} numbers, not {model.stage_size(stage.name)}"
        )
        lengths = np.linalg.norm(rows, axis=1)
        expect_at_most(f"stages: norm of a record in {stage.name}", lengths, norms[few] + 1e-9)
        if stage.acute:
            least = float(np.min(rows @ rows.T))
            assert least >= -1e-9 * max(1.0, float(np.max(lengths)) ** 2), (
                f"stages: {stage.name} is declared acute (no negative inner products), but two "
                f"records have the inner product {least:.3g}"
            )
        broken, used = with_unused_nan(subject.records)
        with contextlib.suppress(IndexError, ValueError):  # a model may refuse NaN
            total = model.stage_statistics(stage.name, known, broken).total(used)
            expect_unchanged(f"stages: {stage.name}", total, found.total(used))
        following = model.stages[place + 1].name if place + 1 < len(model.stages) else None
        answer = StageSum(
            stage.name,
            following or (stage.name if model.repeats else None),
            found.total(np.ones(count)),
            0.0,
            visited.count(stage.name),
        )
        visited.append(stage.name)
        known, q = model.advance(known, answer)
    family = subject.posteriors[0][0]
    assert q is not None, "stages: `advance` returns no q after the last stage"
    assert family.is_proper(q), f"stages: q is not a proper {family.kind} distribution"
    return True


def _check_score_parts(subject: Subject) -> bool:
    """Check `score_parts`, the norms and sums of gradients in closed form. Return False if the
    model has no closed form.
    """
    import jax

    model, records = subject.model, subject.records
    theta = subject.thetas[0]
    squares = subject.rng.uniform(0.5, 2.0, model.dimension)
    if model.score_parts(theta, records, squares, label_agnostic=False) is None:
        return False
    parts: Any = model.score_parts(theta, records, squares, label_agnostic=False)
    norms, plain, score_sum = parts
    gradients = np.asarray(jax.jit(jax.jacrev(lambda at: model.log_likelihood(at, records)))(theta))
    lengths = np.sqrt(np.square(gradients) @ squares)
    expect_close("score_parts: weighted norm", np.asarray(norms), lengths, CLOSE)
    expect_close("score_parts: norm", np.asarray(plain), np.linalg.norm(gradients, axis=1), CLOSE)
    weights = subject.rng.random(subject.count)
    weights[: len(weights) // 2] = 0.0
    expect_close("score_parts: sum", score_sum(weights), weights @ gradients, CLOSE)
    broken, used = with_unused_nan(records)
    unused: Any = model.score_parts(theta, broken, squares, label_agnostic=False)
    expect_unchanged("score_parts", unused[2](used), score_sum(used))
    if model.output not in ("bernoulli", "categorical"):
        return True
    largest: Any = model.score_parts(theta, records, squares, label_agnostic=True)
    for label in range(model.labels):
        other: Any = model.score_parts(
            theta, with_label(records, label), squares, label_agnostic=False
        )
        expect_at_most("score_parts: label-agnostic norm", other[0], largest[0])
    return True


def check_conjugate(subject: Subject) -> None:
    """Check that `quadratic_form` describes the log-likelihood.

    `quadratic_form` returns a matrix P and a vector b. For any weights of the records, the weighted
    log-likelihood at θ minus that at 0 must be b·θ − ½θᵀPθ.
    """
    model = subject.model
    assert isinstance(model, ConjugateGaussian)
    weights = subject.rng.random(subject.count)
    form, linear = model.quadratic_form(subject.records, weights)
    at_zero = subject.log_likelihood(np.zeros(subject.model.dimension))
    for theta in subject.thetas:
        found = weights @ (subject.log_likelihood(theta) - at_zero)
        expected = linear @ theta - 0.5 * theta @ form @ theta
        expect_close("quadratic_form: not the log-likelihood", expected, found, 1e-7)


def check_simulation(subject: Subject) -> None:
    """Check that the model accepts its simulated outcomes, and that they have the distribution of
    its likelihood.
    """
    model = subject.model
    assert isinstance(model, Simulates)
    blank = subject.records | {"y": np.zeros(subject.count)}
    seed = int(subject.rng.integers(2**32))
    y, again = (
        np.asarray(model.simulate(subject.thetas[0], blank, np.random.default_rng(seed)))
        for _ in range(2)
    )
    assert np.array_equal(y, again), (
        "simulate: two generators with the same seed gave different outcomes: draw all random "
        "numbers from `rng`"
    )
    assert y.shape == (subject.count,), f"simulate: shape {y.shape} for {subject.count} records"
    if isinstance(model, Scores) and (largest := model.score_likelihood().largest) is not None:
        y = np.clip(y, model.score_likelihood().smallest, largest)  # as for generated records
    try:
        subject.model.check_records("simulated", subject.records | {"y": y})
    except TacitError as error:
        raise AssertionError(f"simulate: the model rejects simulated outcomes: {error}") from error
    value = subject.log_likelihood(subject.thetas[0], subject.records | {"y": y})
    assert np.all(np.isfinite(value)), "simulate: an outcome has no finite log-likelihood"
    check_simulated_law(subject)


_PARTS: dict[str, Callable[[Subject], bool]] = {
    "density": check_density,
    "responses": check_responses,
    "draw_outcomes": check_drawn,
    "statistics": _check_statistics,
    "stages": _check_stages,
    "score_parts": _check_score_parts,
    "predictive": _check_predictive,
}


def gaussian_posteriors(subject: Subject) -> list[tuple[Gaussian, Natural]]:
    """Return pairs (family, q) for all Gaussian families of the subject."""
    return [(family, q) for family, q in subject.posteriors if isinstance(family, Gaussian)]


def rows_of(records: Records, rows: np.ndarray) -> Records:
    """Return the records with these indices."""
    return {name: value[rows] for name, value in records.items()}


def with_unused_nan(records: Records) -> tuple[Records, np.ndarray]:
    """Return a copy of the records in which the first record is NaN, and weights that are 0 for
    this record and 1 for the others.
    """
    found = {name: np.array(value) for name, value in records.items()}
    for value in found.values():
        if value.dtype.kind == "f":
            value[0] = np.nan
    weights = np.ones(len(next(iter(records.values()))))
    weights[0] = 0.0
    return found, weights


def expect_unchanged(what: str, found: Any, expected: Any) -> None:
    """Assert that a sum does not contain a record of weight 0 that is NaN."""
    found, expected = (np.asarray(_flat(one), np.float64) for one in (found, expected))
    gap = np.abs(found - expected)
    assert np.all(gap <= 1e-7 * max(1.0, float(np.max(np.abs(expected))))), (
        f"{what}: a record of weight 0 that contains NaN changes a sum: mask it, because 0·NaN is "
        "NaN"
    )


def with_label(records: Records, label: float) -> Records:
    """Return copies of the records in which all outcomes are `label`."""
    return records | {"y": np.full_like(np.asarray(records["y"]), label)}


def _flat(total: Any) -> np.ndarray:
    import jax

    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(total)])
