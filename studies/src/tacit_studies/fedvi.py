"""The experiments of the federated VI thesis (chapter 4), repeated.

Ten thousand draws of N(5, 1) at ten parties, and the rugged terrain data at three, each in the
sequential, synchronous and asynchronous mode. Both models are conjugate, so that the exact
posterior is known: it has a separate column, and our errors are relative to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tacit.errors import ConfigError
from tacit.run.config import MAX_SEED
from tacit_studies import Progress
from tacit_studies.fedvi_figures import plot_bands, plot_goal, plot_loss, plot_visits
from tacit_studies.fedvi_runs import (
    NOISE_SD,
    Experiment,
    Trace,
    damping_experiment,
    follow,
    gradient_method,
    mean_experiment,
    rugged_experiment,
    visit_experiment,
)
from tacit_studies.fedvi_tables import (
    damping_table,
    exchange_table,
    full_table,
    labelled,
    noise_table,
    published_means,
    published_scales,
    table_4_1,
    table_4_2,
    visit_table,
)
from tacit_studies.page import Picture
from tacit_studies.write import make_folder, write_study

TITLE = "The federated VI thesis, repeated"


def reproduce(
    out: Path, *, seed: int = 0, quick: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Run both experiments and write tables.md, tables.json, index.html and the figures.

    Returns a dictionary with `tables`: a list of name, title, note, columns, rows (numbers) and
    shown (the same as text). `quick` gives GradientVI a tenth of the steps and fewer rounds.
    """
    out = Path(out)
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED}")
    make_folder(out)
    mean = mean_experiment(seed=seed, quick=quick)
    rugged = rugged_experiment(seed=seed, quick=quick)
    studied = (mean, rugged, damping_experiment(rugged), visit_experiment(mean, quick=quick))
    found = _run_all(studied, seed, progress)
    by_mean, by_rugged, by_damping, by_visit = (
        [trace for trace in found if trace.experiment == experiment.name] for experiment in studied
    )
    gradient = labelled(by_rugged, "GradientVI, mean-field")
    tables = [
        table_4_1(mean, by_mean),
        table_4_2(rugged, by_rugged),
        full_table(rugged, by_rugged),
        exchange_table((mean, rugged), [*by_mean, *by_rugged]),
        damping_table(by_damping),
        visit_table(by_visit),
        published_means(mean),
        published_scales(rugged),
        noise_table(rugged),
    ]
    figures = [
        (Picture("goal.png", _GOAL, narrow=True), plot_goal(mean)),
        (Picture("loss-mean.png", _LOSS.format("10 parties, 10,000 records")), plot_loss(by_mean)),
        (Picture("loss-rugged.png", _LOSS.format("3 parties, 170 records")), plot_loss(by_rugged)),
        (Picture("bands.png", _BANDS), plot_bands(rugged, gradient)),
        (Picture("visits.png", _VISITS, narrow=True), plot_visits(by_visit)),
    ]
    command = f"tacit reproduce fedvi --seed {seed}{' --quick' if quick else ''}"
    method = gradient_method(quick=quick)
    facts = {
        "study": "fedvi",
        "command": command,
        "seed": seed,
        "quick": quick,
        "noise_sd": {"mean": 1.0, "rugged": NOISE_SD},
        "gradient_vi": {
            "steps": method.steps,
            "draws": method.draws,
            "learning_rate": method.learning_rate,
        },
    }
    result = write_study(
        out, title=TITLE, summary=_summary(quick), facts=facts, tables=tables, figures=figures
    )
    if progress is not None:
        progress(len(found), len(found), "done")
    return result


_GOAL = (
    "Data and goal of the proof of concept (the thesis's Fig. 4.1): histogram of the 10,000 draws, "
    "the density that they come from, its mean, and the exact posterior of the mean, scaled to the "
    "height of the panel."
)
_VISITS = (
    "Loss above its minimum after five sequential rounds, against the steps of a visit, for three "
    "numbers of draws per step. Gaussian mean, 10 parties."
)
_LOSS = (
    "Loss (negative ELBO) above its minimum against exchanges, {}. A line ends where it first "
    "reaches 1e−8 nats; a synchronous line has one point per round."
)
_BANDS = (
    "Central 90 % band of the regression line for African and other countries with GradientVI in "
    "each mode. Shaded: q; dashed: exact posterior; dotted: the line of the thesis's Table 4.2."
)


def _summary(quick: bool) -> str:
    method = gradient_method(quick=quick)
    return (
        "The two experiments of the federated VI thesis (chapter 4) in its three modes, with the "
        "published numbers beside ours and the exact posterior beside both. Local methods: Exact "
        f"(closed form) and GradientVI (Adam, {method.steps:,} steps per visit; {method.draws} "
        "draws per step for the Gaussian mean, expectations in closed form for the regression). "
        "Nothing here is private."
    )


def _run_all(studied: Sequence[Experiment], seed: int, progress: Progress | None) -> list[Trace]:
    total = sum(len(experiment.settings) * len(experiment.modes) for experiment in studied)
    found: list[Trace] = []
    for experiment in studied:
        for setting, mode in product(experiment.settings, experiment.modes):
            if progress is not None:
                progress(len(found), total, f"{experiment.title}: {setting.label}, {mode}")
            found.append(follow(experiment, setting, mode, seed=seed))
    return found
