"""Conformance suite of local methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.errors import TacitError
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.methods.base import Answer, LocalMethod, Task
from tacit.models import ConjugateGaussian, LinearRegression, Model, Records
from tacit.models.capabilities import Simulates
from tacit.pvi import cavity, divide, multiply
from tacit.testing.families import STANDARD_ERRORS


def check_local_method(
    method: LocalMethod,
    model: Model,
    family: Family,
    *,
    records: Records | None = None,
    wander: float = 0.0,
    seed: int = 0,
) -> tuple[str, ...]:
    """Assert that a local method implements `tacit.methods.LocalMethod` correctly.

    The order of records must not change the answer, unless the method has a `batch_size`. The
    answer to a first request must not be its start, and must not have a smaller local objective.

    With a conjugate model, the suite also starts from a q that is already the optimum; the answer
    must then be within `wander` of it, and the loss must be −E[log p] or −log p at the mean. If the
    model is not conjugate, this is checked with a `LinearRegression` in place of it, provided that
    the family is Gaussian and `method.check` accepts this model. For private methods use
    `check_private_method`.

    Parameters
    ----------
    method
        The method to check.
    model, family
        A model and a posterior family that the method supports.
    records
        Records of one party. By default they are generated, which requires a model with columns x
        and y.
    wander
        Allowed distance of an answer from the optimum, in posterior standard deviations. By default
        only rounding errors are allowed.
    seed
        Seed of everything random.

    Returns
    -------
    tuple of str
        Names of the checks that were made: "answer", "determinism", "padding" and "progress", and
        if they apply "order", "symmetry", "fixed point" and "loss". Without "fixed point", an error
        in the gradient of the objective may remain undetected.
    """
    import jax

    if method.private:
        raise TypeError(
            f"{type(method).__name__} is a private method, whose answers are noise around a "
            "clipped sum: use tacit.testing.check_private_method"
        )
    method.check(model, family)
    plain = _as_dtype(synthetic_records(model, seed) if records is None else records, method.dtype)
    subject = _Subject(method, model, family, plain, jax.random.key(seed))
    done = _check_answers(subject)
    conjugate = subject if isinstance(model, ConjugateGaussian) else _stand_in(subject, seed)
    if conjugate is not None and isinstance(family, Gaussian):
        done += _check_conjugate(conjugate, family, wander)
    return tuple(done)


class _Subject:
    """A method with a model, a family and records, and its compiled answer."""

    def __init__(
        self, method: LocalMethod, model: Model, family: Family, records: Records, key: Any
    ) -> None:
        self.method, self.model, self.family = method, model, family
        self.records, self.key, self.prior = records, key, model.prior(family)
        self.tolerance = 1e-7 if method.dtype == "float64" else 2e-3
        self._answer = _compiled_answer(method, model, family)

    def answer(self, task: Task) -> Answer:
        """Return the answer to a task."""
        return self._answer(self.key, task)

    def first_task(self) -> Task:
        """Return the task of a first request."""
        start = self.model.start(self.family) or self.prior
        return self.task(self.prior, self.family.zero(), start, initial=True)

    def task(self, q: Natural, factor: Natural, start: Natural, *, initial: bool = False) -> Task:
        """Return the task of a request."""
        weights = np.ones(_count(self.records), self.method.dtype)
        begun = self.method.begin(self.family, start)
        return Task(self.records, weights, q, factor, start, np.array(initial), begun=begun)


def _check_answers(subject: _Subject) -> list[str]:
    """Check the answers to a first and to a second request. Return the names of the checks."""
    method, family, done = subject.method, subject.family, ["answer", "determinism", "padding"]
    task = subject.first_task()
    first = subject.answer(task)
    found = _check_answer(family, first, "first round")
    _check_repeated(found, subject.answer(task).natural or {})
    padded = subject.answer(_pad(task, extra=13))
    _check_same(family, first, padded, "padding with weight 0", subject.tolerance)
    if getattr(method, "batch_size", None) is None:
        turned = task._replace(records={k: v[::-1] for k, v in subject.records.items()})
        again = subject.answer(turned)
        _check_same(family, first, again, "records in reverse", subject.tolerance)
        done.append("order")
    _check_progress(subject.model, family, task, found, subject.key)
    later = subject.task(found, divide(found, subject.prior), found)
    _check_answer(family, subject.answer(later), "second round")
    return [*done, "progress", *(["symmetry"] if isinstance(family, FullGaussian) else [])]


def _stand_in(subject: _Subject, seed: int) -> _Subject | None:
    """Return the same method with a `LinearRegression`; None if it does not support this model."""
    family, method = subject.family, subject.method
    if not isinstance(family, Gaussian):
        return None
    names = tuple(f"x{column}" for column in range(family.dimension))
    model = LinearRegression(names, noise_sd=1.0, prior_sd=1.0)
    try:
        method.check(model, family)
    except TacitError:
        return None
    records = _as_dtype(synthetic_records(model, seed), method.dtype)
    return _Subject(method, model, family, records, subject.key)


def _check_conjugate(subject: _Subject, family: Gaussian, wander: float) -> list[str]:
    """Check that answers come nearer to the exact posterior, and that it is a fixed point. Return
    the names of the checks.
    """
    best = conjugate_optimum(subject.model, family, subject.records)
    task = subject.first_task()
    found = _check_answer(family, subject.answer(task), "conjugate model, first round")
    before, after = (float(family.kl(one, best)) for one in (_plain(task.start), found))
    assert after < before, (
        f"progress: {subject.model.kind} model: the KL divergence from the exact posterior is "
        f"{before:.6g} at the start and {after:.6g} at the answer"
    )
    settled = subject.task(best, divide(best, subject.prior), best)
    again = subject.answer(settled)
    allowed = max(wander, 10 * subject.tolerance)
    what = f"fixed point of the {subject.model.kind} model"
    _check_same(family, Answer(best, 0.0), again, what, allowed)
    sampled = (getattr(subject.method, name, None) for name in ("batch_size", "draws"))
    if again.loss is None or any(sampled):
        return ["fixed point"]
    _check_loss(subject, family, best, float(np.asarray(again.loss)))
    return ["fixed point", "loss"]


def _check_loss(subject: _Subject, family: Gaussian, best: Natural, found: float) -> None:
    """Check the loss at the exact posterior of a conjugate model.

    The loss is −E[log p]. A method that does not compute expectations may return −log p at the mean
    instead, which is smaller by ½ tr(PΣ), where P is the Hessian of −log p and Σ the covariance.
    """
    model = subject.model
    assert isinstance(model, ConjugateGaussian)
    mean, _ = family.location_scale(best)
    records = {name: np.asarray(value, np.float64) for name, value in subject.records.items()}
    form, _ = model.quadratic_form(records, np.ones(_count(records)))
    least = -float(np.sum(np.asarray(model.log_likelihood(np.asarray(mean), records))))
    most = least + 0.5 * float(np.sum(np.asarray(form) * np.asarray(family.covariance(best))))
    slack = 10 * subject.tolerance * (1.0 + abs(most))
    assert least - slack <= found <= most + slack, (
        f"loss: found {found:.6g} at the exact posterior, expected {most:.6g} (−E[log p]) or "
        f"{least:.6g} (−log p at the mean)"
    )


def _check_repeated(found: Natural, again: Natural) -> None:
    for name, value in found.items():
        assert np.array_equal(value, again[name]), (
            f"determinism: the same key and task gave two values of '{name}'"
        )


def _compiled_answer(
    method: LocalMethod, model: Model, family: Family
) -> Callable[[Any, Task], Answer]:
    import jax

    stage = method.stage_at(0).name  # a name, which no compiled program takes as an argument

    @jax.jit
    def compiled(key: Any, parts: dict[str, Any]) -> Answer:
        return method.answer(model, family, key, Task(**parts, stage=stage))

    def answer_of(key: Any, task: Task) -> Answer:
        parts = task._asdict()
        del parts["stage"]
        return compiled(key, parts)

    return answer_of


def synthetic_records(model: Model, seed: int = 0, count: int = 37) -> Records:
    """Make records with columns x and y that the regression models of `tacit.models` accept.

    Parameters
    ----------
    model
        A regression model of `tacit.models`.
    seed
        Seed of everything random.
    count
        Number of records.
    """
    rng = np.random.default_rng(seed)
    width = model.x_columns or model.dimension
    x = rng.normal(size=(count, width))
    if model.output == "categorical":
        eta = x @ np.linspace(1.0, -1.0, model.dimension).reshape(width, -1)
        return {"x": x, "y": np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(float)}
    if model.output == "other" and isinstance(model, Simulates):
        theta = np.linspace(1.0, -1.0, model.dimension)
        return {"x": x, "y": model.simulate(theta, {"x": x, "y": np.zeros(count)}, rng)}
    noise = rng.logistic(size=count) if model.output == "bernoulli" else rng.normal(size=count)
    y = x @ np.linspace(1.0, -1.0, width) + noise
    return {"x": x, "y": (y > 0).astype(np.float64) if model.output == "bernoulli" else y}


def conjugate_optimum(model: Model, family: Gaussian, records: Records) -> Natural:
    """Return the natural parameters of the member of `family` that is nearest to the exact
    posterior of a conjugate model.

    Parameters
    ----------
    model
        A conjugate model.
    family
        The Gaussian family.
    records
        All records.
    """
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


def _pad(task: Task, extra: int) -> Task:
    """Pad a task as an engine does, with `extra` copies of its first record that have weight 0."""
    records = {
        name: np.concatenate([value, np.repeat(value[:1], extra, axis=0)])
        for name, value in task.records.items()
    }
    weights = np.concatenate([task.weights, np.zeros(extra, task.weights.dtype)])
    return task._replace(records=records, weights=weights)


def _check_answer(family: Family, answer: Answer, when: str) -> Natural:
    """Check names, shapes, types and propriety of an answer. Return the natural parameters of its
    local posterior as NumPy arrays.
    """
    assert answer.natural is not None, f"{when}: there is no local posterior in the answer"
    assert set(answer.natural) == set(family.shapes), (
        f"{when}: answers {sorted(answer.natural)}, but {family.kind} has {sorted(family.shapes)}"
    )
    for name, shape in family.shapes.items():
        value = np.asarray(answer.natural[name])
        assert value.shape == shape, f"{when}: '{name}' has shape {value.shape}, not {shape}"
        assert value.dtype == np.float64, f"{when}: '{name}' is {value.dtype}, not float64"
    _check_symmetry(family, _plain(answer.natural), when)
    assert family.is_proper(_plain(answer.natural)), f"{when}: the answer is not proper"
    loss = np.asarray(answer.loss, np.float64) if answer.loss is not None else np.zeros(())
    assert loss.shape == (), f"{when}: the loss has shape {loss.shape}"
    assert np.isfinite(loss), f"{when}: the loss {loss} is not finite"
    return _plain(answer.natural)


def _check_symmetry(family: Family, natural: Natural, when: str) -> None:
    if isinstance(family, FullGaussian):
        form = natural["quadratic"]
        gap, size = np.max(np.abs(form - form.T)), np.max(np.abs(form))
        assert gap <= 1e-6 * size, (
            f"symmetry: {when}: 'quadratic' is not symmetric: it differs from its transpose by "
            f"{gap:.3g}, its largest entry is {size:.3g}"
        )


def _check_same(family: Family, one: Answer, two: Answer, what: str, tolerance: float) -> None:
    """Check that two answers agree up to `tolerance` posterior standard deviations."""
    (mean1, sd1), (mean2, sd2) = (
        family.location_scale(_plain(a.natural or {})) for a in (one, two)
    )
    gap = float(np.max(np.abs(mean1 - mean2) / sd1))
    ratio = float(np.max(np.abs(np.log(sd2 / sd1))))
    assert gap <= tolerance, f"{what}: the mean moves by {gap:.3g} sd, more than {tolerance:g}"
    assert ratio <= tolerance, f"{what}: log sd moves by {ratio:.3g}, more than {tolerance:g}"


def _check_progress(model: Model, family: Family, task: Task, answer: Natural, key: Any) -> None:
    """Check that the answer is not the start, and that the local objective is not smaller at the
    answer than at the start.
    """
    # The objective is E_q[log p(x|θ)] + ⟨λ, E_q[T(θ)]⟩ + H(q), with λ the natural parameters of the
    # cavity, T the sufficient statistics and H the entropy.
    import jax

    (mean1, sd1), (mean2, sd2) = (family.location_scale(_plain(q)) for q in (task.start, answer))
    moved = max(np.max(np.abs(mean2 - mean1) / sd1), np.max(np.abs(np.log(sd2 / sd1))))
    assert moved > 1e-9, (
        "progress: the answer to the first request is its start: if the start is optimal for these "
        "records, give others"
    )
    rest = cavity(task.q, task.factor)

    @jax.jit
    def terms(natural: Natural) -> Any:
        theta = family.sample(key, natural, (512,))
        fit = jax.vmap(lambda at: model.log_likelihood(at, task.records).sum())(theta)
        inner = sum((rest[name] * mean).sum() for name, mean in family.mean(natural).items())
        return fit + inner + family.entropy(natural)

    # The same draws for both, so that most of the noise cancels in their difference.
    gain = np.asarray(terms(_plain(answer))) - np.asarray(terms(_plain(task.start)))
    bound = -STANDARD_ERRORS * gain.std() / np.sqrt(len(gain)) - 1e-6
    assert gain.mean() >= bound, f"progress: the local objective fell by {-gain.mean():.3g}"


def _plain(natural: Natural) -> Natural:
    return {name: np.asarray(value) for name, value in natural.items()}


def _count(records: Records) -> int:
    return len(next(iter(records.values())))


def _as_dtype(records: Records, dtype: str) -> Records:
    """Convert records to the method's floating-point type, as an engine does."""
    return {
        name: np.asarray(value, dtype if np.asarray(value).dtype.kind == "f" else None)
        for name, value in records.items()
    }
