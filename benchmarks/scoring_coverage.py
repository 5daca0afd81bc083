"""Coverage of private regressions: python -m benchmarks.scoring_coverage [REPEATS] [--model KIND].

Weights from the prior, records from the model, ten parties, 24,000 records; δ is 1e-5, the unit a
record, the adjacency substitution, and every party adds its own noise unless `--aggregation` says
otherwise. `--correlation 0.3` draws numbers that are all correlated with each other by that much;
with `--default-prior` the prior that weights come from is not declared. `--bounds 10` declares
bounds of numbers that are 10 times as wide as their range, which lies anywhere between them.
`--method auto` measures the method that "auto" selects.

Prints the share of true weights that lie in their 95 % intervals with the standard error over
repeats, the root mean square of standardised errors, which should be 1, the median of private over
non-private standard deviations, the coverage of the non-private fit, and the fits that are not
reported as converged.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import expit, softmax

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.methods import PrivateScores, PrivateScoring
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from tacit.models.glm.normal import NormalRegression
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy

METHODS = {"dp-scoring": PrivateScoring, "dp-scores": PrivateScores, "auto": lambda: None}
LEVELS = (2, 4, 8)
CLASSES, LARGEST = ("a", "b", "c"), 20.0


def numbers(rng, given):
    count = given.records
    x = np.sqrt(1.0 - given.correlation) * rng.standard_normal((count, given.columns))
    x = np.clip(x + np.sqrt(given.correlation) * rng.standard_normal((count, 1)), -3, 3)
    layout = (INTERCEPT, *(Feature("numeric", f"v{i}", -3.0, 3.0) for i in range(given.columns)))
    return np.column_stack([np.ones(count), x]), layout


def mixed(rng, given):
    """Five correlated numbers, two of them skewed, and three categories that go with them."""
    count = given.records
    hidden = rng.standard_normal((count, 3))
    columns, layout = [np.ones(count)], [INTERCEPT]
    for i in range(5):
        value = 0.6 * hidden[:, i % 3] + 0.8 * rng.standard_normal(count)
        value = np.minimum(np.exp(value), 8.0) / 4.0 - 1.0 if i >= 3 else value / 3.0
        columns.append(np.clip(value, -1, 1))
        layout.append(Feature("numeric", f"v{i}", -1.0, 1.0))
    for i, levels in enumerate(LEVELS):
        value = hidden[:, i] + rng.standard_normal(count)
        cuts = np.quantile(value, np.cumsum(rng.dirichlet(2.0 * np.ones(levels)))[:-1])
        code = np.searchsorted(cuts, value)
        columns.extend((code == level) * 1.0 for level in range(levels))
        layout.extend([Feature("level", f"c{i}")] * levels)
    return np.column_stack(columns), tuple(layout)


def logistic(rng, eta):
    return (rng.random(len(eta)) < expit(eta[:, 0])) * 1.0


def categorical(rng, eta):
    below = np.cumsum(softmax(eta, axis=1), axis=1)
    return np.sum(rng.random((len(eta), 1)) > below[:, :-1], axis=1) * 1.0


def poisson(rng, eta):
    return np.minimum(rng.poisson(np.exp(np.minimum(eta[:, 0], np.log(LARGEST)))), LARGEST) * 1.0


def linear(rng, eta):
    return eta[:, 0] + rng.standard_normal(len(eta))


DESIGNS = {"numbers": numbers, "mixed": mixed}
KINDS = {
    "logistic": (LogisticRegression, {}, logistic),
    "softmax": (SoftmaxRegression, {"levels": CLASSES}, categorical),
    "poisson": (PoissonRegression, {"max_count": LARGEST}, poisson),
    "linear": (LinearRegression, {}, linear),
    "unknown-noise": (NormalRegression, {"scale": 3.0}, linear),
}
FURTHER = {"unknown-noise": np.zeros(1)}
"""Parameters that follow the coefficients: log σ."""


def widened(x, truth, layout, rng, factor):
    """x and truth with bounds of −1 and 1, `factor` times as wide as the range of each number.

    One constant is added to the columns of numbers and absorbed by the intercept.
    """
    if factor == 1.0:
        return x, truth, layout
    x, rows = x.copy(), truth.reshape(-1, x.shape[1]).copy()
    changed = list(layout)
    for place, feature in enumerate(layout):
        if feature.kind != "numeric":
            continue
        unit = factor * feature.high
        middle = rng.uniform(1.0 / factor - 1.0, 1.0 - 1.0 / factor)
        x[:, place] = middle + x[:, place] / unit
        rows[:, place] *= unit
        rows[:, 0] -= middle * rows[:, place]
        changed[place] = Feature("numeric", feature.source, -1.0, 1.0)
    return x, rows.ravel(), tuple(changed)


def replicated(kind, design, prior_sd, epsilon, given):
    """Standardised errors, without privacy too, ratios of sds, and a reason if not converged."""
    rng = np.random.default_rng(given.seed)
    make, arguments, outcomes = KINDS[kind]
    model = None
    for repeat in range(given.repeats):
        x, layout = design(rng, given)
        names = tuple(str(i) for i in range(len(layout)))
        declared = None if given.default_prior else prior_sd
        size = x.shape[1] * max(1, len(arguments.get("levels", ())))
        truth = prior_sd * rng.standard_normal(size)
        y = outcomes(rng, x @ truth.reshape(-1, x.shape[1]).T)
        x, truth, layout = widened(x, truth, layout, rng, given.bounds)
        truth = np.append(truth, FURTHER.get(kind, ()))
        if model is None or model.layout != layout:  # an equal model is not compiled again
            model = make(names, prior_sd=declared, layout=layout, **arguments)
        count = given.parties
        parties = {str(i): {"x": x[i::count], "y": y[i::count]} for i in range(count)}
        privacy = Privacy(
            epsilon=epsilon,
            delta=1e-5,
            insecure_noise_seed=given.seed * 1000 + repeat,
            aggregation=given.aggregation,
        )
        plan = make_plan(model, parties, method=METHODS[given.method](), privacy=privacy)
        outcome = carry_out(plan)
        found = outcome.posterior
        without = carry_out(make_plan(model, parties)).posterior
        verdict = outcome.verdict
        yield (
            (found.mean - truth) / found.sd,
            (without.mean - truth) / without.sd,
            found.sd / without.sd,
            plan.method.kind,
            None if verdict.converged else verdict.why,
        )


def row(fits):
    """One row of figures."""
    errors, own, ratios, kinds, reasons = zip(*fits, strict=True)
    inside = [np.mean(np.abs(error) < 1.959964) for error in errors]
    without = np.mean(np.abs(np.array(own)) < 1.959964)
    failed = [reason for reason in reasons if reason]
    return (
        f"{'/'.join(sorted(set(kinds)))}  {np.mean(inside):.3f} ± "
        f"{np.std(inside) / np.sqrt(len(fits)):.3f}  rms {np.sqrt(np.mean(np.square(errors))):.2f}"
        f"  width {np.median(ratios):.2f}  non-private {without:.3f}  {len(fits)} fits"
        + (f", {len(failed)} not converged: {failed[0]}" if failed else "")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=40)
    parser.add_argument("--model", choices=KINDS, default="logistic")
    parser.add_argument("--design", choices=DESIGNS, action="append")
    parser.add_argument("--default-prior", action="store_true")
    parser.add_argument("--correlation", type=float, default=0.0)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--aggregation", choices=("plain", "trusted"), default="plain")
    parser.add_argument("--method", choices=METHODS, default="dp-scoring")
    parser.add_argument("--records", type=int, default=24_000)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--columns", type=int, default=10, help="of the design of numbers")
    parser.add_argument("--bounds", type=float, default=1.0)
    parser.add_argument("--size", type=float, action="append", help="sd of the weights")
    parser.add_argument("--seed", type=int, default=17)
    given = parser.parse_args()
    # Counts from weights of sd 1 would mostly be beyond their bound.
    sizes = (0.1, 0.3) if given.model == "poisson" else (0.3, 1.0)
    for name in given.design or DESIGNS:
        for prior_sd in given.size or sizes:
            for epsilon in given.epsilon or (0.5, 1.0, 4.0):
                fits = list(replicated(given.model, DESIGNS[name], prior_sd, epsilon, given))
                label = f"{given.model} {name:8} sd {prior_sd}  ε = {epsilon:3}"
                print(label, given.aggregation, row(fits), sep="  ", flush=True)


if __name__ == "__main__":
    main()
