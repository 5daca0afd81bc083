"""Coverage of private scoring's intervals: python benchmarks/scoring_coverage.py [REPEATS].

Weights from the prior, records from the model, ten parties, 24,000 records, nobody trusted; δ is
1e-5, the unit a record, the relation substitution. Prints the share of true weights that lie in
their 95 % intervals and the root mean square of their standardised errors, which should be 1.
"""

from __future__ import annotations

import sys

import numpy as np

from tacit.data.layout import BIAS, Feature
from tacit.federate import carry_out, make_plan
from tacit.local import PrivateScoring
from tacit.models import LogisticRegression
from tacit.privacy.settings import Privacy

RECORDS, PARTIES = 24_000, 10
LEVELS = (2, 4, 8)


def numbers(rng):
    x = np.clip(rng.standard_normal((RECORDS, 10)), -3, 3)
    layout = (BIAS, *(Feature("numeric", f"v{i}", -3.0, 3.0) for i in range(10)))
    return np.column_stack([np.ones(RECORDS), x]), layout


def mixed(rng):
    """Five correlated numbers, two of them skewed, and three categories that go with them."""
    hidden = rng.standard_normal((RECORDS, 3))
    columns, layout = [np.ones(RECORDS)], [BIAS]
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


def coverage(design, prior_sd, epsilon, repeats):
    rng = np.random.default_rng(17)
    inside, squares = [], []
    model = None
    for repeat in range(repeats):
        x, layout = design(rng)
        truth = prior_sd * rng.standard_normal(x.shape[1])
        y = (rng.random(RECORDS) < 1 / (1 + np.exp(-x @ truth))) * 1.0
        names = tuple(str(i) for i in range(len(layout)))
        model = model or LogisticRegression(names, prior_sd=prior_sd, layout=layout)
        parties = {str(i): {"x": x[i::PARTIES], "y": y[i::PARTIES]} for i in range(PARTIES)}
        privacy = Privacy(epsilon=epsilon, delta=1e-5, noise_seed=repeat)
        found = carry_out(
            make_plan(model, parties, method=PrivateScoring(), privacy=privacy)
        ).posterior
        error = (found.mean - truth) / found.sd
        inside.append(np.mean(np.abs(error) < 1.96))
        squares.append(np.mean(error**2))
    return np.mean(inside), np.sqrt(np.mean(squares))


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for name, design in (("numbers", numbers), ("mixed", mixed)):
        for prior_sd in (0.3, 1.0):
            for epsilon in (0.5, 1.0, 4.0):
                share, scale = coverage(design, prior_sd, epsilon, repeats)
                print(
                    f"{name:8} prior sd {prior_sd}  ε = {epsilon:3}  {share:.3f}  {scale:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
