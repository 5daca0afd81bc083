"""Tables of the thesis study: published, ours and exact side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tacit.methods import GradientVI
from tacit.models import LinearRegression
from tacit.results import exact_posterior, mean_field_optimum
from tacit_studies.fedvi_published import TABLE_4_1, TABLE_4_2
from tacit_studies.fedvi_runs import COEFFICIENTS, MODES, NOISE_SD, Experiment, Trace
from tacit_studies.tables import Cell, Table

NEAR = (1.0, 0.01)
"""Distances from the minimum loss, in nats; tables count exchanges until the loss is this close."""
NOISES = (0.01, 0.1, 0.3, 1.0)
THESIS, ERRORS = {"thesis": 4}, {"error, GradientVI": 2, "error, Exact": 2}


def labelled(found: Iterable[Trace], label: str) -> list[Trace]:
    """Return the traces of the setting with this label: one per mode, in the order of the modes."""
    return [trace for trace in found if trace.setting.label == label]


def table_4_1(experiment: Experiment, found: Sequence[Trace]) -> Table:
    """The Gaussian mean: thesis, ours by both local methods, exact."""
    gradient, exact = (labelled(found, label) for label in ("GradientVI", "Exact"))
    rows: list[list[Cell]] = []
    for name in ("mean", "variance"):
        for mode, ours, closed in zip(MODES, gradient, exact, strict=True):
            values = [_moment(t, name) for t in (ours, closed)]
            truth = float(ours.best_mean[0] if name == "mean" else ours.best_sd[0] ** 2)
            errors = [abs(value / truth - 1.0) for value in values]
            rows.append([name, mode, getattr(TABLE_4_1[mode], name), *values, truth, *errors])
    return Table(
        name="table-4-1",
        title="Table 4.1: the mean of 10,000 draws of N(5, 1)",
        columns=("", "mode", *THESIS, "GradientVI", "Exact", "exact posterior", *ERRORS),
        rows=rows,
        note=f"{len(experiment.parties)} parties, prior N(0, 1), unit noise. The exact posterior "
        "of one coordinate is also the best mean-field q. Errors are relative to it. The thesis "
        "drew other records: its mean may differ by about 0.01, but its variance may not.",
        digits=THESIS | ERRORS,
    )


def table_4_2(experiment: Experiment, found: Sequence[Trace]) -> Table:
    """The regression with a mean-field q, as in the thesis."""
    gradient, exact = (
        labelled(found, label) for label in ("GradientVI, mean-field", "Exact, mean-field")
    )
    mean, covariance = exact_posterior(experiment.model, [experiment.records])
    full = {"mean": mean, "scale": np.sqrt(np.diagonal(covariance))}
    rows: list[list[Cell]] = []
    for j, coefficient in enumerate(COEFFICIENTS):
        for name in ("mean", "scale"):
            for mode, ours, closed in zip(MODES, gradient, exact, strict=True):
                theirs = getattr(TABLE_4_2[mode], name)[j]
                values = [_moment(t, name, j) for t in (ours, closed)]
                truth = float((ours.best_mean if name == "mean" else ours.best_sd)[j])
                errors = [abs(value / truth - 1.0) for value in values]
                ends = (truth, float(full[name][j]), *errors)
                rows.append([f"{coefficient} {name}", mode, theirs, *values, *ends])
    return Table(
        name="table-4-2",
        title="Table 4.2: rugged terrain, mean-field",
        columns=(
            "",
            "mode",
            *THESIS,
            "GradientVI",
            "Exact",
            "best mean-field q",
            "exact posterior",
            *ERRORS,
        ),
        rows=rows,
        note=f"170 countries at 3 parties, prior N(0, 1), noise sd {NOISE_SD:g} (ours: the thesis "
        "gives none). α is the bias, β₁ Africa, β₂ ruggedness, β₃ their product. A scale is an "
        "sd. The best mean-field q has the exact mean and is narrower than the exact posterior. "
        "Errors are relative to the best mean-field q.",
        digits=THESIS | ERRORS,
    )


def full_table(experiment: Experiment, found: Sequence[Trace]) -> Table:
    """The regression with a full covariance, against the exact posterior and least squares."""
    exact = labelled(found, "Exact, full")
    records = experiment.records
    squares = np.linalg.lstsq(records["x"], records["y"], rcond=None)[0]
    rows: list[list[Cell]] = []
    for j, coefficient in enumerate(COEFFICIENTS):
        for name in ("mean", "scale"):
            truth = float((exact[0].best_mean if name == "mean" else exact[0].best_sd)[j])
            values = [_moment(trace, name, j) for trace in exact]
            worst = max(abs(value / truth - 1.0) for value in values)
            least = float(squares[j]) if name == "mean" else None
            rows.append([f"{coefficient} {name}", *values, truth, worst, least])
    return Table(
        name="full",
        title="Rugged terrain, full covariance",
        columns=("", *MODES, "exact posterior", "largest error", "least squares"),
        rows=rows,
        note=f"Local method Exact, noise sd {NOISE_SD:g}, prior N(0, 1). Errors are relative to "
        "the exact posterior. Least squares has no prior, which is why it differs.",
        digits={"largest error": 2},
    )


def exchange_table(studied: Iterable[Experiment], found: Sequence[Trace]) -> Table:
    """Number of exchanges and final errors of each run."""
    titles = {experiment.name: experiment.title for experiment in studied}
    rows: list[list[Cell]] = [
        [
            f"{titles[trace.experiment]}: {trace.setting.label}",
            trace.mode,
            trace.damping,
            *(trace.reached(nats) for nats in NEAR),
            int(trace.exchanges[-1]),
            float(trace.excess[-1]),
            trace.mean_error,
            trace.sd_error,
            trace.refused,
        ]
        for trace in found
    ]
    within = tuple(f"to {nats:g} nat" for nats in NEAR)
    errors = ("excess at the end", "mean error", "sd error")
    return Table(
        name="exchanges",
        title="Exchanges",
        columns=("", "mode", "damping", *within, "in all", *errors, "refused"),
        rows=rows,
        note="One exchange is a request and its answer (the thesis's SVI step). “To x "
        "nat” is the number of exchanges until the loss is first within x nats of its minimum. "
        "Errors are the largest relative errors at the end. A refused update would have made q "
        "improper.",
        digits={"damping": 2} | dict.fromkeys(errors, 2),
    )


def damping_table(found: Sequence[Trace]) -> Table:
    """The modes under equal damping, which shows how much of the difference is due to the mode."""
    labels = list(dict.fromkeys(trace.setting.label for trace in found))
    rows: list[list[Cell]] = [
        [f"to {nats:g} nat", mode, *(labelled(found, label)[k].reached(nats) for label in labels)]
        for nats in NEAR
        for k, mode in enumerate(MODES)
    ]
    return Table(
        name="damping",
        title="Exchanges under equal damping",
        columns=("", "mode", *labels),
        rows=rows,
        note="The mean-field regression with local method Exact again, now with the same damping "
        "ρ in all three modes. “To x nat” is the number of exchanges until the loss is first "
        "within x nats of its minimum.",
    )


def visit_table(found: Sequence[Trace]) -> Table:
    """Loss and errors after the last exchange, by number of steps and of draws per visit."""
    rows: list[list[Cell]] = [
        [
            trace.setting.method.steps,
            trace.setting.method.draws,
            *(trace.reached(nats) for nats in NEAR),
            float(trace.excess[-1]),
            trace.mean_error,
            trace.sd_error,
        ]
        for trace in found
        if isinstance(trace.setting.method, GradientVI)
    ]
    within = tuple(f"to {nats:g} nat" for nats in NEAR)
    errors = ("excess at the end", "mean error", "sd error")
    return Table(
        name="visits",
        title="Steps and draws per visit",
        columns=("steps", "draws", *within, *errors),
        rows=rows,
        note="The Gaussian mean, GradientVI, five sequential rounds of ten parties, undamped. "
        "Steps are Adam's steps per visit, draws the draws per gradient. Errors are relative to "
        "the exact posterior.",
        digits=dict.fromkeys(errors, 2),
    )


def published_means(experiment: Experiment) -> Table:
    """Compare the thesis's Table 4.1 with properties of the exact posterior for any draws."""
    sd = float(mean_field_optimum(experiment.model, [experiment.records])[1][0])
    rows: list[list[Cell]] = [
        [mode, row.mean, (row.mean - 5.0) / sd, row.variance, row.variance / sd**2]
        for mode, row in TABLE_4_1.items()
    ]
    rows.append(["exact", None, None, sd**2, 1.0])
    return Table(
        name="published-4-1",
        title="The thesis's Table 4.1 against the exact posterior",
        columns=("", "mean", "(mean − 5) / sd", "variance", "variance / exact"),
        rows=rows,
        note="The exact variance, 1/10,001, does not depend on the draws. The exact mean is "
        "within about three posterior sds of 5.",
        digits={"(mean − 5) / sd": 2, "variance / exact": 3},
    )


def published_scales(experiment: Experiment) -> Table:
    """The noise sd that each published scale would need, and how well each line fits.

    Mean-field: 1/s² = 1 + Σxⱼ²/σ², hence σ² = Σxⱼ² / (1/s² − 1).
    """
    records = experiment.records
    form = np.sum(records["x"] ** 2, axis=0)
    squares = np.linalg.lstsq(records["x"], records["y"], rcond=None)[0]
    best_mean, best_sd = mean_field_optimum(experiment.model, [records])

    def row(name: str, mean: Sequence[float], scale: Sequence[float] | None) -> list[Cell]:
        misfit = np.sqrt(np.mean((records["y"] - records["x"] @ np.asarray(mean)) ** 2))
        needed: list[Cell] = [None] * 4
        if scale is not None:
            needed = np.sqrt(form / (1.0 / np.asarray(scale) ** 2 - 1.0)).tolist()
        return [name, float(misfit), *needed]

    rows = [row(mode, *TABLE_4_2[mode]) for mode in MODES]
    rows.append(row(f"best mean-field q (noise sd {NOISE_SD:g})", list(best_mean), list(best_sd)))
    rows.append(row("least squares", list(squares), None))
    return Table(
        name="published-4-2",
        title="The thesis's Table 4.2 against the data",
        columns=("", "rms residual", *(f"noise sd for {name}" for name in COEFFICIENTS)),
        rows=rows,
        note="The rms residual of a line on the 170 countries approximates the noise sd. The other "
        "columns are the noise sds at which a mean-field posterior would have the published "
        "scales: in a correct table a row has four equal numbers.",
        digits=dict.fromkeys((f"noise sd for {name}" for name in COEFFICIENTS), 3),
    )


def noise_table(experiment: Experiment) -> Table:
    """The exact posterior for several noise sds, because the thesis does not state its noise sd."""
    rows: list[list[Cell]] = []
    for noise in NOISES:
        model = LinearRegression(experiment.model.names, noise_sd=noise, prior_sd=1.0)
        mean, covariance = exact_posterior(model, [experiment.records])
        _, narrow = mean_field_optimum(model, [experiment.records])
        scales = np.sqrt(np.diagonal(covariance))
        rows.append([f"{noise:g}", *mean.tolist(), float(scales[0]), float(narrow[0])])
    return Table(
        name="noise",
        title="Effect of the unknown noise sd",
        columns=(
            "noise sd",
            *(f"{name} mean" for name in COEFFICIENTS),
            "α scale",
            "α scale, mean-field",
        ),
        rows=rows,
        note="The exact posterior of the regression for other noise sds, prior N(0, 1): with a "
        "small noise sd the prior has no effect, and the mean is that of least squares.",
        digits={"α scale": 3, "α scale, mean-field": 3},
    )


def _moment(trace: Trace, name: str, j: int = 0) -> float:
    if name == "mean":
        return float(trace.posterior.mean[j])
    sd = float(trace.posterior.sd[j])
    return sd**2 if name == "variance" else sd
