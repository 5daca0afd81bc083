"""Conformance suites: run them on a family or a local method of your own.

    from tacit.testing import check_family, check_local_method

    check_family(MyFamily(3), [first_natural, second_natural])
    check_local_method(MyMethod(), LogisticRegression(("a", "b")), FullGaussian(2))

They need no test framework: what is wrong is an AssertionError that names the check, what was
found and what was expected. Random numbers have a fixed seed. A Monte Carlo check allows five
standard errors, a false alarm in about two million, and is one number of many: a family that
passes for one seed passes for nearly all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.local.base import Answer, LocalMethod, Task
from tacit.models import ConjugateGaussian, Model, Records
from tacit.pvi import cavity, divide, multiply

STANDARD_ERRORS = 5.0
LogDensity = Callable[..., Any]


def check_family(
    family: Family,
    sample_naturals: Iterable[Natural],
    *,
    log_density: LogDensity | None = None,
    draws: int = 20_000,
    seed: int = 0,
) -> None:
    """Assert that a family is what `tacit.expfam.Family` promises.

    `sample_naturals` are two or more proper members, of moderate scale: numbers for which float64
    has digits to spare. `log_density(theta, **usual)`, if given, is an independent normalised
    log-density of θ (from SciPy, say) in the usual parameters; it also settles the log-partition,
    base measure and entropy, which are otherwise only compared with each other.
    """
    naturals = [dict(natural) for natural in sample_naturals]
    assert len(naturals) >= 2, "check_family needs at least two natural parameters to compare"
    _check_structure(family, naturals[0])
    for natural in naturals:
        _check_propriety(family, natural)
        _check_round_trips(family, natural)
        _check_gradient(family, natural)
        _check_backends(family, natural, naturals[0])
    again = _draw(family, naturals[0], draws, seed)
    thetas = [_draw(family, natural, draws, seed) for natural in naturals]
    assert np.array_equal(thetas[0], again), "sample: one key gave two samples"
    for i, natural in enumerate(naturals):
        other = naturals[i - 1]
        _check_algebra(family, natural, other, thetas[i][:100])
        _check_moments(family, natural, thetas[i])
        _check_kl(family, natural, other, thetas[i])
        if log_density is not None:
            _check_density(family, natural, thetas[i], log_density)


def check_local_method(
    method: LocalMethod,
    model: Model,
    family: Family,
    *,
    records: Records | None = None,
    wander: float = 0.0,
    seed: int = 0,
) -> None:
    """Assert that a local method answers as `tacit.local.LocalMethod` promises.

    `records` are made up for a model that takes x and y; give some for any other. A method with a
    `batch_size` draws records by their position, so the order of its records may matter. `wander`
    is how far, in posterior standard deviations, an answer may lie from a q that is already the
    optimum (of a conjugate model): rounding only by default, more for a stochastic optimiser.
    """
    import jax

    method.check(model, family)
    plain = _as_dtype(made_up_records(model, seed) if records is None else records, method.dtype)
    key = jax.random.key(seed)
    answer_of = jax.jit(lambda key, task: method.answer(model, family, key, task))
    prior = model.prior(family)
    start = model.start(family) or prior
    task = _task(method, plain, prior, family.zero(), start, initial=True)
    first = answer_of(key, task)
    _check_answer(family, first, "first round")
    again = answer_of(key, task)
    for name, value in first.natural.items():
        assert np.array_equal(value, again.natural[name]), (
            f"determinism: the same key and task gave two values of '{name}'"
        )
    tolerance = 1e-7 if method.dtype == "float64" else 2e-3
    rows = np.arange(_count(plain))
    padded = _pad(task, extra=13)
    _check_same(family, first, answer_of(key, padded), "padding with weight 0", tolerance)
    if getattr(method, "batch_size", None) is None:
        turned = task._replace(records={k: v[rows[::-1]] for k, v in plain.items()})
        _check_same(family, first, answer_of(key, turned), "records in reverse", tolerance)
    _check_progress(model, family, task, first.natural, key)
    factor = divide(_plain(first.natural), prior)
    later = _task(method, plain, _plain(first.natural), factor, _plain(first.natural))
    _check_answer(family, answer_of(key, later), "second round")
    if isinstance(model, ConjugateGaussian) and isinstance(family, Gaussian):
        best = conjugate_optimum(model, family, plain)
        settled = _task(method, plain, best, divide(best, prior), best)
        again = answer_of(key, settled)
        _check_same(family, Answer(best, 0.0), again, "fixed point", max(wander, 10 * tolerance))


def made_up_records(model: Model, seed: int = 0, count: int = 37) -> Records:
    """Records with columns x and y that the regression models of `tacit.models` accept."""
    rng = np.random.default_rng(seed)
    width = getattr(model, "inputs", model.dimension)
    x = rng.normal(size=(count, width))
    noise = rng.logistic(size=count) if model.output == "bernoulli" else rng.normal(size=count)
    y = x @ np.linspace(1.0, -1.0, width) + noise
    return {"x": x, "y": (y > 0).astype(np.float64) if model.output == "bernoulli" else y}


def conjugate_optimum(model: Model, family: Gaussian, records: Records) -> Natural:
    """λ of the member of the family nearest to the exact posterior, for a conjugate model."""
    assert isinstance(model, ConjugateGaussian), f"{model.kind!r} has no closed form"
    full = FullGaussian(model.dimension)
    plain = {name: np.asarray(value, np.float64) for name, value in records.items()}
    form, linear = model.quadratic_form(plain, np.ones(_count(plain)))
    exact = multiply(model.prior(full), {"linear": linear, "quadratic": -0.5 * form})
    if isinstance(family, FullGaussian):
        return exact
    precision = -2.0 * exact["quadratic"]
    mean = np.linalg.solve(precision, exact["linear"])
    diagonal = np.diagonal(precision)
    return {"linear": diagonal * mean, "quadratic": -0.5 * diagonal}


# A family, check by check.


def _check_structure(family: Family, natural: Natural) -> None:
    zero = family.zero()
    assert set(zero) == set(family.shapes), f"zero: names {sorted(zero)} are not those of shapes"
    for name, shape in family.shapes.items():
        value = zero[name]
        assert np.shape(value) == shape, f"zero: '{name}' has shape {np.shape(value)}, not {shape}"
        assert np.asarray(value).dtype == np.float64, f"zero: '{name}' is not float64"
        assert not np.any(value), f"zero: '{name}' is not 0, so it is not the factor 1"
    _same("zero is the factor 1", multiply(natural, zero), natural, 0.0)
    family.check(natural, what="check_family")
    wrong = {
        "a missing name": dict(list(natural.items())[1:]),
        "a further name": {**natural, "further": np.zeros(1)},
        "a wrong shape": {k: np.zeros((*np.shape(v), 2)) for k, v in natural.items()},
        "NaN": {k: np.full(np.shape(v), np.nan) for k, v in natural.items()},
    }
    for what, bad in wrong.items():
        try:
            family.check(bad, what="check_family")
        except ConfigError:
            continue
        raise AssertionError(f"check: accepts natural parameters with {what}")


def _check_propriety(family: Family, natural: Natural) -> None:
    assert family.is_proper(natural) is True, f"is_proper: refuses the proper member {natural}"
    for name, value in natural.items():
        for bad in (np.nan, np.inf, -np.inf):
            for index in np.ndindex(np.shape(value)):
                spoilt = np.array(value, dtype=np.float64)
                spoilt[index] = bad
                assert family.is_proper({**natural, name: spoilt}) is False, (
                    f"is_proper: accepts {bad} at {index} of '{name}'"
                )
    location, scale = family.location_scale(natural)
    assert np.all(np.isfinite(location)), f"location_scale: location {location} is not finite"
    assert np.all(np.isfinite(scale)), f"location_scale: scale {scale} is not finite"
    assert np.all(np.asarray(scale) > 0), f"location_scale: scale {scale} is not > 0"


def _check_round_trips(family: Family, natural: Natural) -> None:
    usual = family.natural(**family.usual(natural))
    _same("natural -> usual -> natural", usual, natural, 1e-9)
    mean = family.from_mean(family.mean(natural))
    _same("natural -> mean -> natural", mean, natural, 1e-6)
    for name, value in {**usual, **family.mean(natural)}.items():
        assert np.asarray(value).dtype == np.float64, f"round trips: '{name}' is not float64"


def _check_gradient(family: Family, natural: Natural) -> None:
    import jax

    gradient = jax.grad(lambda at: family.log_partition(at))(_on_device(natural))
    _same("gradient of log_partition = mean", gradient, family.mean(natural), 1e-8)


def _check_backends(family: Family, natural: Natural, other: Natural) -> None:
    import jax

    device, other_device = _on_device(natural), _on_device(other)
    pairs = {
        "usual": (family.usual(natural), family.usual(device)),
        "mean": (family.mean(natural), family.mean(device)),
        "log_partition": (family.log_partition(natural), family.log_partition(device)),
        "entropy": (family.entropy(natural), family.entropy(device)),
        "kl": (family.kl(natural, other), family.kl(device, other_device)),
        "location_scale": (family.location_scale(natural), family.location_scale(device)),
    }
    for what, (first, second) in pairs.items():
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            assert not isinstance(a, jax.Array), f"{what}: NumPy arguments gave a JAX array"
            size = max(1.0, float(np.max(np.abs(a))), abs(float(family.log_partition(natural))))
            gap = float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
            assert gap <= 1e-10 * size, f"{what}: NumPy and JAX differ by {gap:.3g}"


def _check_algebra(family: Family, first: Natural, second: Natural, theta: Any) -> None:
    """Sums and differences of λ are products and quotients of densities, at actual values of θ."""
    one, two = _log_kernel(family, first, theta), _log_kernel(family, second, theta)
    scale = 1.0 + np.max(np.abs(one)) + np.max(np.abs(two))
    for what, natural, expected in (
        ("product", multiply(first, second), one + two),
        ("quotient", divide(first, second), one - two),
        ("quotient by itself", divide(first, first), np.zeros_like(one)),
    ):
        gap = float(np.max(np.abs(_log_kernel(family, natural, theta) - expected)))
        assert gap <= 1e-9 * scale, f"{what}: log-densities differ by {gap:.3g}"


def _check_moments(family: Family, natural: Natural, theta: np.ndarray) -> None:
    for name, expected in family.mean(natural).items():
        statistic = np.asarray(family.statistics(theta)[name])
        _close(f"sampling: E[T] of '{name}'", statistic, np.asarray(expected))
    location, scale = (np.asarray(value) for value in family.location_scale(natural))
    _close("sampling: location", theta, location)
    _close("sampling: scale", (theta - location) ** 2, scale**2)


def _check_kl(family: Family, first: Natural, second: Natural, theta: np.ndarray) -> None:
    for natural in (first, second):
        itself = float(family.kl(natural, natural))
        assert itself == 0, f"kl: KL of a member to itself is {itself}, not 0"
    value = float(family.kl(first, second))
    rounding = 1e-12 * (1.0 + abs(float(family.log_partition(first))))
    assert value >= -rounding, f"kl: {value} is negative"
    log_ratio = _log_density(family, first, theta) - _log_density(family, second, theta)
    _close("kl against Monte Carlo", log_ratio, np.array(value))


def _check_density(
    family: Family, natural: Natural, theta: np.ndarray, log_density: LogDensity
) -> None:
    expected = np.asarray(log_density(theta, **family.usual(natural)))
    found = _log_density(family, natural, theta) + float(family.expected_log_base(natural))
    gap = float(np.max(np.abs(found - expected) / (1.0 + np.abs(expected))))
    assert gap <= 1e-8, f"log-density: differs from the given one by {gap:.3g}"
    _close("entropy against Monte Carlo", -expected, np.asarray(family.entropy(natural)))


def _draw(family: Family, natural: Natural, draws: int, seed: int) -> np.ndarray:
    import jax

    key = jax.random.key(seed)
    theta = np.asarray(family.sample(key, natural, (draws // 4, 4)))
    expected = (draws // 4, 4, family.dimension)
    assert theta.shape == expected, f"sample: shape {theta.shape}, expected {expected}"
    assert theta.dtype == np.float64, f"sample: {theta.dtype}, expected float64"
    return theta.reshape(-1, family.dimension)


def _log_kernel(family: Family, natural: Natural, theta: np.ndarray) -> np.ndarray:
    """⟨λ, T(θ)⟩ for each row of θ."""
    parts = [
        (np.asarray(natural[name]) * value).reshape(len(theta), -1)
        for name, value in family.statistics(theta).items()
    ]
    return np.concatenate(parts, axis=1).sum(axis=1)


def _log_density(family: Family, natural: Natural, theta: np.ndarray) -> np.ndarray:
    """log q(θ) − log h(θ)."""
    return _log_kernel(family, natural, theta) - float(family.log_partition(natural))


def _close(what: str, sample: np.ndarray, expected: np.ndarray) -> None:
    """A sample mean within a few standard errors of what it estimates."""
    error = sample.std(axis=0) / np.sqrt(len(sample))
    gap = np.abs(sample.mean(axis=0) - expected)
    worst = float(np.max(gap / (error + 1e-12 * (1.0 + np.abs(expected)))))
    assert worst <= STANDARD_ERRORS, (
        f"{what}: off by {worst:.1f} standard errors "
        f"(mean of {len(sample)} draws {sample.mean(axis=0)}, expected {expected})"
    )


def _same(what: str, found: Natural, expected: Natural, relative: float) -> None:
    assert set(found) == set(expected), f"{what}: names {sorted(found)}, not {sorted(expected)}"
    for name, value in expected.items():
        scale = 1.0 + float(np.max(np.abs(value)))
        gap = float(np.max(np.abs(np.asarray(found[name]) - np.asarray(value))))
        assert gap <= relative * scale, f"{what}: '{name}' differs by {gap:.3g}"


def _on_device(natural: Natural) -> Natural:
    import jax.numpy as jnp

    return {name: jnp.asarray(value) for name, value in natural.items()}


# A local method, check by check.


def _task(
    method: LocalMethod,
    records: Records,
    q: Natural,
    factor: Natural,
    start: Natural,
    *,
    initial: bool = False,
) -> Task:
    weights = np.ones(_count(records), method.dtype)
    return Task(records, weights, q, factor, start, np.array(initial))


def _pad(task: Task, extra: int) -> Task:
    """The task with its first record repeated at weight 0, as an engine pads it."""
    records = {
        name: np.concatenate([value, np.repeat(value[:1], extra, axis=0)])
        for name, value in task.records.items()
    }
    weights = np.concatenate([task.weights, np.zeros(extra, task.weights.dtype)])
    return task._replace(records=records, weights=weights)


def _check_answer(family: Family, answer: Answer, when: str) -> None:
    assert set(answer.natural) == set(family.shapes), (
        f"{when}: answers {sorted(answer.natural)}, but {family.kind} has {sorted(family.shapes)}"
    )
    for name, shape in family.shapes.items():
        value = np.asarray(answer.natural[name])
        assert value.shape == shape, f"{when}: '{name}' has shape {value.shape}, not {shape}"
        assert value.dtype == np.float64, f"{when}: '{name}' is {value.dtype}, not float64"
    assert family.is_proper(_plain(answer.natural)), f"{when}: the answer is not proper"
    assert np.shape(answer.loss) == (), f"{when}: the loss has shape {np.shape(answer.loss)}"
    assert np.isfinite(answer.loss), f"{when}: the loss {answer.loss} is not finite"


def _check_same(family: Family, one: Answer, two: Answer, what: str, tolerance: float) -> None:
    """Two answers agree, in units of the posterior's own standard deviation."""
    (mean1, sd1), (mean2, sd2) = (family.location_scale(_plain(a.natural)) for a in (one, two))
    gap = float(np.max(np.abs(mean1 - mean2) / sd1))
    ratio = float(np.max(np.abs(np.log(sd2 / sd1))))
    assert gap <= tolerance, f"{what}: the mean moves by {gap:.3g} sd, more than {tolerance:g}"
    assert ratio <= tolerance, f"{what}: log sd moves by {ratio:.3g}, more than {tolerance:g}"


def _check_progress(model: Model, family: Family, task: Task, answer: Natural, key: Any) -> None:
    """E_q[log p(x|θ)] + ⟨λ_cavity, E_q[T]⟩ + H(q) is larger at the answer than at the start."""
    import jax

    rest = cavity(task.q, task.factor)

    @jax.jit
    def terms(natural: Natural) -> Any:
        theta = family.sample(key, natural, (512,))
        fit = jax.vmap(lambda at: model.log_likelihood(at, task.records).sum())(theta)
        inner = sum((rest[name] * mean).sum() for name, mean in family.mean(natural).items())
        return fit + inner + family.entropy(natural)

    # The same draws for both: what is left of the noise is in their difference.
    gain = np.asarray(terms(_plain(answer))) - np.asarray(terms(_plain(task.start)))
    bound = -STANDARD_ERRORS * gain.std() / np.sqrt(len(gain)) - 1e-6
    assert gain.mean() >= bound, f"progress: the local objective fell by {-gain.mean():.3g}"


def _plain(natural: Natural) -> Natural:
    return {name: np.asarray(value) for name, value in natural.items()}


def _count(records: Records) -> int:
    return len(next(iter(records.values())))


def _as_dtype(records: Records, dtype: str) -> Records:
    """Real numbers in the method's type, as an engine hands them over."""
    return {
        name: np.asarray(value, dtype if np.asarray(value).dtype.kind == "f" else None)
        for name, value in records.items()
    }
