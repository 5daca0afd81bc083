"""Figures 4.1 to 4.7 of the report: the datapoint level, whose unit is a record."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from tacit.privacy.accounting import epsilon_curve
from tacit.privacy.events import GaussianEvent, Poisson
from tacit_studies.meng_claims import DELTA, rounds_within
from tacit_studies.meng_figures import (
    Made,
    Outcome,
    plot_lines,
    plot_posteriors,
    plot_sweep,
)
from tacit_studies.meng_kernel import (
    PRIOR_SD,
    Array,
    Records,
    Setting,
    Trace,
    divergence,
    exact_posterior,
    make_records,
    natural_prior,
    noise_keys,
    padded,
    proper,
    record_statistics,
    settings_of,
    simulate,
    whole_statistics,
)
from tacit_studies.meng_records import RECORD_FORMS
from tacit_studies.page import Picture

LAST = 10
BUDGET, SIGMA = 10.0, 5.0
SGD_RATIOS = (12.0, 1.0)
"""Rate of the log-variance over that of the mean; 12 is the best of 1, 2, 3, 5, 8 to 12 and 20."""
RECORD_CLIPS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
SWEEP = ("form", "setting", "theta", "kl", "precision_ratio")
POSTERIOR = ("case", "theta", "q_precision", "q_mean", "exact_precision", "exact_mean")


class Context(NamedTuple):
    """Inputs of a figure: the first seed, the number of seeds, and `quick`."""

    seed: int
    seeds: int
    quick: bool


def budget_rounds() -> int:
    """Return the largest number of rounds with ε ≤ 10 by the report's accounting, with σ = 5."""
    return rounds_within(BUDGET, SIGMA)


def record_runs(
    name: str, records: Records, keys: Array, settings: list[Setting], rounds: int
) -> Trace:
    """Simulate a form of `RECORD_FORMS` for all settings and seeds."""
    form = RECORD_FORMS[name]
    sgd = name == "dp-sgd"
    trace = simulate(
        form.step,
        whole_statistics if sgd else record_statistics,
        records,
        keys,
        padded(settings),
        natural_prior(),
        rounds=rounds,
        local=int(settings[0].local) if sgd else 0,
        constant=name == "fixed_likelihood",
    )
    return Trace(*(part[: len(settings)] for part in trace))


def outcomes(q: Array | np.ndarray, records: Records, labels: list[str]) -> list[Outcome]:
    """KL and precision ratio of q (settings, seeds, rounds), averaged over the last ten rounds."""
    exact = exact_posterior(records, natural_prior())[:, None, :]
    last = np.asarray(q)[:, :, -LAST:]
    kl = divergence(proper(last), exact).mean(axis=-1)
    ratio = (last[..., 0] / exact[..., 0]).mean(axis=-1)
    theta = np.asarray(records.theta)
    return [
        Outcome(label, theta, *both) for label, *both in zip(labels, kl, ratio, strict=True)
    ]  # fmt: skip


def figure_1(context: Context) -> Made:
    """DP-SGD: natural parameters, KL and ε against rounds.

    All settings are those of the caption. It gives one learning rate, α = 1e−5; here the
    log-variance has the same rate (`ratio` 1) or, as a setting of our own, 12 times that rate.
    """
    rounds = 120 if context.quick else 1_000
    records = make_records(context.seed, context.seeds, parties=5, theta=2.0, noise_sd=0.5)
    settings = [
        Setting(clip=10.0, noise=1.0, share=0.1, step=1e-5, ratio=ratio) for ratio in SGD_RATIOS
    ]
    keys = noise_keys(context.seed, context.seeds)
    form, local = RECORD_FORMS["dp-sgd"], int(settings[0].local)
    q = np.asarray(
        simulate(
            form.step, whole_statistics, records, keys, settings_of(*settings), natural_prior(),
            rounds=rounds, local=local,
        ).q
    )  # fmt: skip
    exact = exact_posterior(records, natural_prior())
    kl = divergence(q, exact[:, None, :])
    shown = np.unique(np.linspace(1, rounds, 8).astype(int))
    assert form.events is not None
    (event,) = form.events(settings[0], 5, 1)
    spent = np.array(epsilon_curve([event], shown.tolist(), DELTA, "add-or-remove-one"))
    at = np.arange(1, rounds + 1)
    middle = np.median(kl, axis=1)
    lines = {}
    for index, ratio in enumerate(SGD_RATIOS):
        lines[f"median, rate × {ratio:g}"] = (at, middle[index])
        lines[f"90th percentile, × {ratio:g}"] = (at, np.percentile(kl[index], 90, axis=0))
    figure = plot_lines([
        (f"Natural parameters, one seed, × {SGD_RATIOS[0]:g}", "Round", "over the exact value", {
            "η₁": (at, q[0, 0, :, 0] / exact[0, 0]), "η₂": (at, q[0, 0, :, 1] / exact[0, 1]),
        }),
        ("KL(q ‖ exact)", "Round", "nats", lines),
        ("ε, δ = 1e−5, unit: record", "Round", "ε", {"PLD": (shown, spent)}),
    ])  # fmt: skip
    rows = [
        (ratio, int(r), float(middle[index, r - 1]), float(e))
        for index, ratio in enumerate(SGD_RATIOS)
        for r, e in zip(shown, spent, strict=True)
    ]
    caption = (
        "Figure 4.1. DP-SGD on mean and log-variance, 5 parties of 10 records, C = 10, σ = 1, "
        "α = 1e−5, batches of one record in expectation, 50 local steps per round; θ = 2, "
        "σ_e = 0.5. The rate of the log-variance is α times the stated factor; the report gives α."
    )
    labels = [f"rate × {ratio:g}, ε = {spent[-1]:.0f}, {rounds} rounds" for ratio in SGD_RATIOS]
    return Made(
        Picture("figure-4.1.png", caption), figure, ("ratio", "round", "median_kl", "epsilon"),
        rows, [one.summary("4.1 DP-SGD") for one in outcomes(q, records, labels)],
    )  # fmt: skip


def figure_2(context: Context) -> Made:
    """ε against epochs for sampling probabilities."""
    epochs = [1, 2, 5, 10, 20] if context.quick else [1, 2, 5, 10, 20, 50, 100]
    panels, rows = [], []
    for accountant in ("pld", "moments"):
        lines = {}
        for rate in (0.01, 0.05, 0.1, 0.5):
            event = GaussianEvent(clip=1.0, noise_sd=SIGMA, sampling=Poisson(rate=rate))
            steps = [round(number / rate) for number in epochs]
            spent = epsilon_curve([event], steps, DELTA, "add-or-remove-one", accountant=accountant)
            lines[f"q = {rate:g}"] = (np.array(epochs), np.array(spent))
            rows += [(accountant, rate, e, v) for e, v in zip(epochs, spent, strict=True)]
        panels.append((f"{accountant}, σ = 5, δ = 1e−5", "Epochs", "ε", lines))
    caption = (
        "Figure 4.2. ε against epochs (1/q releases each) for sampling probabilities q; unit a "
        "record, add-or-remove-one, Poisson sampling."
    )
    columns = ("accountant", "sampling_probability", "epochs", "epsilon")
    figure = plot_lines(panels, log_x=True)
    return Made(Picture("figure-4.2.png", caption), figure, columns, rows, [])


def figure_3(context: Context) -> Made:
    """Bias of the tilted posterior if its natural parameters are estimated without bias."""
    draws = 2_000 if context.quick else 10_000
    x = np.linspace(-1, 1, 10)
    z = np.asarray(jax.random.normal(jax.random.key(context.seed), (draws, 2)))
    rows, bias, spread = [], {}, {}
    clips = np.array([0.01, 0.03, 0.1, 0.2, 0.4, 0.6])
    for variance in (25.0, 5.0):
        for theta in (1.0, 5.0):
            scale, prior = 4.0, np.array([1 / variance, 0.0])
            total = np.array([np.sum(x**2), theta * np.sum(x**2)])
            exact = prior + scale * total
            ends = []
            for clip in clips:
                noisy = prior + scale * (total + clip * z)
                noisy = noisy[noisy[:, 0] > 0]
                mean, sd2 = noisy[:, 1] / noisy[:, 0], 1 / noisy[:, 0]
                ends.append((
                    np.median(mean) / (exact[1] / exact[0]), np.median(sd2) * exact[0],
                    np.mean(mean) / (exact[1] / exact[0]), np.mean(sd2) * exact[0],
                ))  # fmt: skip
                rows.append((variance, theta, float(clip), *map(float, ends[-1])))
            label = f"prior variance {variance:g}, θ = {theta:g}"
            bias[label], spread[label] = [
                (clips, np.array(ends)[:, 2]), (clips, np.array(ends)[:, 3])
            ]  # fmt: skip
    figure = plot_lines(
        [("Mean of the tilted posterior's mean", "noise sd of the sums", "over exact", bias),
         ("Mean of its variance", "noise sd of the sums", "over exact", spread)],
        log_y=False,
    )  # fmt: skip
    columns = (
        "prior_variance", "theta", "noise_sd", "median_mean_ratio", "median_variance_ratio",
        "mean_mean_ratio", "mean_variance_ratio",
    )  # fmt: skip
    caption = (
        "Figure 4.3. Unbiased natural parameters give a biased mean and variance: 10 points on "
        f"[−1, 1], σ_e = 0.5, {draws:,} draws, nothing clipped, improper draws left out."
    )
    return Made(Picture("figure-4.3.png", caption), figure, columns, rows, [])


def _sweep(context: Context, number: int, noise: float) -> Made:
    keys = noise_keys(context.seed, context.seeds)
    settings = [Setting(clip=clip, noise=noise) for clip in RECORD_CLIPS]
    labels = [f"C = {clip:g}" for clip in RECORD_CLIPS]
    rows, summary, drawn = [], [], []
    # The report writes N(0, 5): 5 may be the sd of θ, as we take it, or its variance.
    readings = (("", PRIOR_SD), (", θ of variance 5", math.sqrt(5.0)))[: 2 if noise else 1]
    for said, prior_sd in readings:
        records = make_records(context.seed, context.seeds, noise_sd=0.5, prior_sd=prior_sd)
        for name in ("truncated_statistics", "raw_statistics")[: 2 if noise else 1]:
            trace = record_runs(name, records, keys, settings, budget_rounds())
            found = outcomes(trace.q, records, labels)
            what = f"4.{number} {RECORD_FORMS[name].label}{said}{'' if noise else ', no noise'}"
            summary += [one.summary(what) for one in found]
            rows += [row for one in found for row in one.rows(f"{name}{said}")]
            drawn = drawn or found
    caption = (
        f"Figure 4.{number}. Clipped analytic statistics{'' if noise else ' without noise'}, the "
        f"published truncation, {budget_rounds()} rounds, σ = {noise:g}, α = 0.1, 20 parties of 10 "
        "records, σ_e = 0.5. The CSV also has the unbiased form."
    )
    figure = plot_sweep(drawn, "clip", (0, 3, 4, 6))
    return Made(Picture(f"figure-4.{number}.png", caption), figure, SWEEP, rows, summary)


def figure_4(context: Context) -> Made:
    """Analytic statistics with noise."""
    return _sweep(context, 4, SIGMA)


def figure_6(context: Context) -> Made:
    """Analytic statistics without noise."""
    return _sweep(context, 6, 0.0)


def posterior_cases(
    q: Array, records: Records, label: str, chosen: list[int]
) -> tuple[list[tuple[str, np.ndarray, np.ndarray]], list[tuple[object, ...]]]:
    """Return q and the exact posterior of the chosen seeds, as cases to plot and as rows of a CSV.

    The natural parameters of q are averaged over the last ten rounds.
    """
    exact = exact_posterior(records, natural_prior())
    mean = proper(np.asarray(q)[:, -LAST:].mean(axis=1))
    cases, rows = [], []
    for index in chosen:
        theta = float(records.theta[index])
        cases.append((f"{label}, θ = {theta:.2f}", mean[index], exact[index]))
        ends = [v for p in (mean[index], exact[index]) for v in (float(p[0]), float(p[1] / p[0]))]
        rows.append((label, theta, *ends))
    return cases, rows


def _typical(
    context: Context, number: int, noise: float, clips: tuple[float, ...], each: int
) -> Made:
    """Posteriors of the first `each` seeds for every clip."""
    records = make_records(context.seed, context.seeds, noise_sd=0.5)
    keys = noise_keys(context.seed, context.seeds)
    settings = [Setting(clip=clip, noise=noise) for clip in clips]
    q = record_runs("truncated_statistics", records, keys, settings, budget_rounds()).q
    cases, rows = [], []
    for index, clip in enumerate(clips):
        made = posterior_cases(q[index], records, f"C = {clip:g}", list(range(each)))
        cases += made[0]
        rows += made[1]
    caption = (
        f"Figure 4.{number}. Posteriors of the first seeds, truncated statistics, σ = {noise:g}, "
        "α = 0.1; natural parameters averaged over the last ten rounds."
    )
    picture = Picture(f"figure-4.{number}.png", caption)
    return Made(picture, plot_posteriors(cases), POSTERIOR, rows, [])


def figure_5(context: Context) -> Made:
    """Typical posteriors, analytic statistics."""
    return _typical(context, 5, SIGMA, (2.0,), 8)


def figure_7(context: Context) -> Made:
    """Typical posteriors without noise: the extremes of the clip (text) and C = 2 (caption)."""
    return _typical(context, 7, 0.0, (0.25, 2.0, 25.0), 4)


POINT_FIGURES = {
    1: figure_1,
    2: figure_2,
    3: figure_3,
    4: figure_4,
    5: figure_5,
    6: figure_6,
    7: figure_7,
}
