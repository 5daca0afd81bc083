"""What ε costs in fit with secure sums: python -m benchmarks.secure_frontier FIGURE.

Held-out log-likelihood lost by private scoring on Adult (50/50, ten parties, δ = 1e-5, substitution
of a record, defaults only), against ε: each party's own noise, secure sums with default thresholds,
and a trusted server. Prints a table of means and standard errors over the splits, and draws it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import held_out  # noqa: E402
from benchmarks.scoring import adult, without_privacy  # noqa: E402
from tacit.engines.execute import carry_out  # noqa: E402
from tacit.methods import PrivateScoring  # noqa: E402
from tacit.models import LogisticRegression  # noqa: E402
from tacit.plan.plan import make_plan  # noqa: E402
from tacit.privacy.settings import Privacy  # noqa: E402

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
WAYS: dict[str, Any] = {
    "plain": "no trusted server, each party's own noise",
    "secure": "no trusted server, secure sums",
    "trusted": "trusted server",
}
Lost = dict[tuple[str, float], list[float]]


def measure(seeds: range) -> Lost:
    """Nats lost by aggregation and ε, one number per split."""
    lost: Lost = {}
    split = adult(0.5)
    model = None
    for seed in seeds:
        parties, test, layout = split(seed)
        x, y = (np.concatenate([r[key] for r in parties.values()]) for key in ("x", "y"))
        base = held_out(*without_privacy(np.asarray(x, float), np.asarray(y, float)), test)
        names = ("intercept", *(str(i) for i in range(1, x.shape[1])))
        model = model or LogisticRegression(names, layout=layout)
        for way in WAYS:
            for epsilon in EPSILONS:
                asked = Privacy(
                    epsilon=epsilon, delta=1e-5, insecure_noise_seed=seed, aggregation=way
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of small parties
                    plan = make_plan(model, parties, method=PrivateScoring(), privacy=asked)
                q = carry_out(plan).posterior
                found = base - held_out(q.mean, q.family.covariance(q.natural), test)
                lost.setdefault((way, epsilon), []).append(found)
    return lost


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def draw(lost: Lost, path: Path, splits: int) -> None:
    """One line per aggregation."""
    from tacit.results.figures import BLUE, GREY, VERMILION, canvas, plain, title_and_subtitle

    figure = canvas(6.4, 4.0)
    axes = figure.subplots()
    colours = dict(zip(WAYS, (VERMILION, BLUE, GREY), strict=True))
    for way, words in WAYS.items():
        means, errors = zip(*(summary(lost[way, one]) for one in EPSILONS), strict=True)
        axes.errorbar(EPSILONS, means, errors, marker="o", color=colours[way], label=words)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(EPSILONS, [f"{one:g}" for one in EPSILONS])
    axes.minorticks_off()
    axes.set_xlabel("ε (δ = 1e-5, substitution of a record)")
    axes.set_ylabel("nats lost per held-out record")
    axes.legend(frameon=False)
    plain(axes)
    title_and_subtitle(
        axes, "Secure sums cost little more than a trusted server",
        f"private scoring on Adult, ten parties, 50/50, mean of {splits} splits",
    )  # fmt: skip
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description="nats lost by aggregation and ε")
    parser.add_argument("figure", type=Path)
    parser.add_argument("--splits", default="901-903", help="first and last seed")
    given = parser.parse_args()
    first, last = map(int, given.splits.split("-"))
    lost = measure(range(first, last + 1))
    print("| ε | " + " | ".join(WAYS.values()) + " |\n| --- | --- | --- | --- |")
    for epsilon in EPSILONS:
        cells = (summary(lost[way, epsilon]) for way in WAYS)
        print(f"| {epsilon:g} | " + " | ".join(f"{m:.4f} ± {e:.4f}" for m, e in cells) + " |")
    draw(lost, given.figure, last - first + 1)


if __name__ == "__main__":
    main()
