"""Draw the README's figure: coefficients of ten hospitals, exact, private and true.

python examples/readme_figure.py docs/images/readme.png
"""

import sys
import warnings

import numpy as np
from matplotlib.figure import Figure

import tacit

GREY, BLUE = "#7A7A7A", "#0072B2"


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "readme.png"
    warnings.simplefilter("ignore")
    hospitals = tacit.datasets.load("synthetic-cohort", parties=10, seed=1)
    exact = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy="none")
    privacy = tacit.Privacy(epsilon=2.0, delta=1e-5)
    private = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy=privacy, ledger="none")
    names = exact.posterior.names
    order = np.argsort(exact.posterior.mean)
    figure = Figure(figsize=(7.2, 0.28 * len(names) + 1.0), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(order))
    for fit, colour, shift, label in (
        (exact, GREY, 0.16, "exact"),
        (private, BLUE, -0.16, "ε = 2, no trusted server"),
    ):
        mean, sd = fit.posterior.mean[order], fit.posterior.sd[order]
        axes.errorbar(
            mean, rows + shift, xerr=1.96 * sd, fmt="o", color=colour, markersize=4, label=label
        )
    truth = hospitals.true_values or {}
    known = [(truth[names[k]], row) for row, k in enumerate(order) if names[k] in truth]
    if known:
        axes.plot(*np.transpose(known), "D", color="black", markersize=4, label="true value")
    axes.axvline(0.0, color="#CCCCCC", linewidth=1, zorder=0)
    axes.set_yticks(rows, [names[k] for k in order], parse_math=False)
    axes.set_xlabel("coefficient and 95 % interval")
    axes.legend(frameon=False, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
