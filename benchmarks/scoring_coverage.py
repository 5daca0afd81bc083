"""Coverage of private scoring's intervals: benchmarks/scoring_coverage.py [REPEATS] [--model KIND].

Weights from the prior, records from the model, ten parties, 24,000 records; δ is 1e-5, the unit a
record, the adjacency substitution, and every party adds its own noise unless `--aggregation` says
otherwise. `--correlation 0.3` draws numbers that are all correlated with each other by that much;
with `--default-prior` the prior that weights come from is not declared.
Prints the share of true weights that lie in their 95 % intervals with the standard error over
repeats, and the root mean square of standardised errors, which should be 1.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import expit, softmax

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.methods import PrivateScoring
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy

RECORDS, PARTIES = 24_000, 10
LEVELS = (2, 4, 8)
CLASSES, LARGEST = ("a", "b", "c"), 20.0


def numbers(rng, correlation=0.0):
    x = np.sqrt(1.0 - correlation) * rng.standard_normal((RECORDS, 10))
    x = np.clip(x + np.sqrt(correlation) * rng.standard_normal((RECORDS, 1)), -3, 3)
    layout = (INTERCEPT, *(Feature("numeric", f"v{i}", -3.0, 3.0) for i in range(10)))
    return np.column_stack([np.ones(RECORDS), x]), layout


def mixed(rng, correlation=0.0):
    """Five correlated numbers, two of them skewed, and three categories that go with them."""
    del correlation
    hidden = rng.standard_normal((RECORDS, 3))
    columns, layout = [np.ones(RECORDS)], [INTERCEPT]
    for i in range(5):
        value = 0.6 * hidden[:, i % 3] + 0.8 * rng.standard_normal(RECORDS)
        value = np.minimum(np.exp(value), 8.0) / 4.0 - 1.0 if i >= 3 else value / 3.0
        columns.append(np.clip(value, -1, 1))
        layout.append(Feature("numeric", f"v{i}", -1.0, 1.0))
    for i, levels in enumerate(LEVELS):
        value = hidden[:, i] + rng.standard_normal(RECORDS)
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
}


def coverage(kind, design, prior_sd, epsilon, given):
    rng = np.random.default_rng(17)
    inside, squares, model = [], [], None
    make, arguments, outcomes = KINDS[kind]
    for repeat in range(given.repeats):
        x, layout = design(rng, given.correlation)
        names = tuple(str(i) for i in range(len(layout)))
        declared = None if given.default_prior else prior_sd
        model = model or make(names, prior_sd=declared, layout=layout, **arguments)
        truth = prior_sd * rng.standard_normal(model.dimension)
        y = outcomes(rng, x @ truth.reshape(-1, x.shape[1]).T)
        parties = {str(i): {"x": x[i::PARTIES], "y": y[i::PARTIES]} for i in range(PARTIES)}
        privacy = Privacy(
            epsilon=epsilon,
            delta=1e-5,
            insecure_noise_seed=repeat,
            aggregation=given.aggregation,
        )
        found = carry_out(
            make_plan(model, parties, method=PrivateScoring(), privacy=privacy)
        ).posterior
        error = (found.mean - truth) / found.sd
        inside.append(np.mean(np.abs(error) < 1.96))
        squares.append(np.mean(error**2))
    return np.mean(inside), np.std(inside) / np.sqrt(given.repeats), np.sqrt(np.mean(squares))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=40)
    parser.add_argument("--model", choices=KINDS, default="logistic")
    parser.add_argument("--design", choices=DESIGNS, action="append")
    parser.add_argument("--default-prior", action="store_true")
    parser.add_argument("--correlation", type=float, default=0.0)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--aggregation", choices=("plain", "trusted"), default="plain")
    given = parser.parse_args()
    # Counts from weights of sd 1 would mostly be beyond their bound.
    sizes = (0.1, 0.3) if given.model == "poisson" else (0.3, 1.0)
    for name in given.design or DESIGNS:
        for prior_sd in sizes:
            for epsilon in given.epsilon or (0.5, 1.0, 4.0):
                share, error, scale = coverage(given.model, DESIGNS[name], prior_sd, epsilon, given)
                print(
                    f"{given.model} {name:8} prior sd {prior_sd}  ε = {epsilon:3}  "
                    f"{share:.3f} +- {error:.3f}  {scale:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
