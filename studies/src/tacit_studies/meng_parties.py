"""Figures 4.8 to 4.16 of the report: the dataset level, whose unit is a party."""

from __future__ import annotations

import numpy as np

from tacit_studies.meng_claims import clipping_chance
from tacit_studies.meng_figures import (
    Made,
    plot_curves,
    plot_lines,
    plot_posteriors,
    plot_robustness,
    plot_sweep,
)
from tacit_studies.meng_forms import DATASET_FORMS
from tacit_studies.meng_kernel import (
    Array,
    Records,
    Setting,
    Trace,
    exact_posterior,
    make_records,
    natural_prior,
    noise_keys,
    padded,
    simulate,
    summarised,
    whole_statistics,
)
from tacit_studies.meng_points import (
    POSTERIOR,
    SIGMA,
    SWEEP,
    Context,
    budget_rounds,
    outcomes,
    posterior_cases,
)
from tacit_studies.page import Picture

GRID = [(c, a) for c in (1.0, 5.0, 20.0, 50.0) for a in (0.05, 0.1, 0.5)]
OWN_CLIP = 0.1
"""Clip of the log-precision form, as a share of the precision or of the posterior sd."""
CURVE = ("case", "round", "eta_1", "eta_2", "exact_1", "exact_2")


def party_runs(
    name: str, records: Records, keys: Array, settings: list[Setting], rounds: int
) -> Trace:
    """Simulate a form of `DATASET_FORMS` for all settings and seeds."""
    trace = simulate(
        DATASET_FORMS[name].step,
        whole_statistics,
        summarised(records),
        keys,
        padded(settings),
        natural_prior(),
        rounds=rounds,
    )
    return Trace(*(part[: len(settings)] for part in trace))


def _made(number: int, caption: str, figure, columns, rows, summary=()) -> Made:
    picture = Picture(f"figure-4.{number}.png", f"Figure 4.{number}. {caption}")
    return Made(picture, figure, columns, rows, list(summary))


def figure_8(context: Context) -> Made:
    """KL and precision over clips and learning rates, for the published and the valid forms."""
    records = make_records(context.seed, context.seeds)
    keys = noise_keys(context.seed, context.seeds)
    rows, summary, drawn = [], [], []
    for name, noise in (
        ("published_invalid", SIGMA),
        ("published_invalid", 2 * SIGMA),
        ("roll_back", SIGMA),
        ("server_factor", SIGMA),
    ):
        settings = [Setting(clip=c, rate=a, noise=noise) for c, a in GRID]
        trace = party_runs(name, records, keys, settings, budget_rounds())
        found = outcomes(trace.q, records, [f"C = {c:g}, α = {a:g}" for c, a in GRID])
        what = f"4.8 {DATASET_FORMS[name].label}, σ = {noise:g}"
        summary += [one.summary(what) for one in found]
        rows += [row for one in found for row in one.rows(f"{name}, sigma {noise:g}")]
        drawn = drawn or found
    caption = (
        f"Dataset level as published, σ = 5, {budget_rounds()} rounds, 20 parties of 10 records, "
        "σ_e uniform on 0.5–2. No ε: the form is not valid. The CSV has σ = 10 and the valid forms."
    )
    return _made(
        8, caption, plot_sweep(drawn, "clip and α", (1, 4, 7, 11)), SWEEP, rows, summary
    )  # fmt: skip


def figure_9(context: Context) -> Made:
    """Typical posteriors at C = 5, α = 0.1, and those of the log-precision form below them."""
    records = make_records(context.seed, context.seeds)
    keys = noise_keys(context.seed, context.seeds)
    cases, rows = [], []
    for name, clip, label in (
        ("published_invalid", 5.0, "published"),
        ("log_precision", OWN_CLIP, "(b)"),
    ):
        q = party_runs(name, records, keys, [Setting(clip=clip)], budget_rounds()).q[0]
        made = posterior_cases(q, records, label, [0, 1, 2, 3])
        cases += made[0]
        rows += made[1]
    caption = (
        "Posteriors of the first four seeds. Top: the published form with C = 5; bottom: the valid "
        f"log-precision form with C = {OWN_CLIP:g} at ε = 10; α = 0.1, σ = 5."
    )
    return _made(9, caption, plot_posteriors(cases), POSTERIOR, rows)


def figure_10(context: Context) -> Made:
    """A thousand rounds without noise: there is no bias, and small clips only converge later."""
    rounds = 300 if context.quick else 1000
    records = make_records(context.seed, context.seeds)
    keys = noise_keys(context.seed, context.seeds)
    settings = [Setting(clip=c, rate=a, noise=0.0) for c, a in GRID]
    trace = party_runs("roll_back", records, keys, settings, rounds)
    found = outcomes(trace.q, records, [f"C = {c:g}, α = {a:g}" for c, a in GRID])
    rows = [row for one in found for row in one.rows("roll_back, no noise")]
    caption = f"As 4.8 without noise, {rounds:,} rounds. KL below 1e−9 is drawn as 1e−9."
    summary = [one.summary(f"4.10 no noise, {rounds:,} rounds") for one in found]
    drawn = plot_sweep(found, "clip and α", (1, 4, 7, 11))
    return _made(10, caption, drawn, SWEEP, rows, summary)


def _curves(context: Context, number: int, chosen: list[tuple[float, float]], worst: bool) -> Made:
    records = make_records(context.seed, context.seeds)
    keys = noise_keys(context.seed, context.seeds)
    settings = [Setting(clip=c, rate=a) for c, a in chosen]
    q = party_runs("published_invalid", records, keys, settings, budget_rounds()).q
    labels = [f"C = {c:g}, α = {a:g}" for c, a in chosen]
    exact = exact_posterior(records, natural_prior())
    cases, rows = [], []
    for index, found in enumerate(outcomes(q, records, labels)):
        order = np.argsort(found.kl)
        seed = int(order[round(0.9 * (len(order) - 1))] if worst else order[len(order) // 10])
        path = np.asarray(q)[index, seed]
        label = f"{found.label}, θ = {found.theta[seed]:.1f}"
        cases.append((label, path, exact[seed]))
        rows += [
            (label, i + 1, *map(float, p), *map(float, exact[seed])) for i, p in enumerate(path)
        ]
    which = "90th" if worst else "10th"
    caption = f"Training curves, published form: the seed at the {which} percentile of KL."
    return _made(number, caption, plot_curves(cases), CURVE, rows)


def figure_11(context: Context) -> Made:
    """Training curves that end well."""
    return _curves(context, 11, [(5.0, 0.1), (5.0, 0.5), (20.0, 0.1)], worst=False)


def figure_12(context: Context) -> Made:
    """Training curves that end badly: the clip is too small or too large."""
    return _curves(context, 12, [(1.0, 0.05), (5.0, 0.05), (50.0, 0.5)], worst=True)


def figure_13(context: Context) -> Made:
    """KL against the number of parties, and against the number of records per party."""
    parties = (5, 20) if context.quick else (5, 10, 20, 40)
    numbers = (10, 90) if context.quick else (10, 30, 50, 70, 90)
    rows, summary, panels = [], [], []
    keys = noise_keys(context.seed, context.seeds)
    for name in ("published_invalid", "log_precision"):
        for axis, values in (("M", parties), ("ρ", numbers)):
            found = []
            for value in values:
                m, n = (value, 10) if axis == "M" else (20, value)
                records = make_records(context.seed, context.seeds, parties=m, records=n)
                clip = 0.5 * n if name == "published_invalid" else OWN_CLIP
                trace = party_runs(name, records, keys, [Setting(clip=clip)], budget_rounds())
                found += outcomes(trace.q, records, [f"{axis} = {value}"])
            summary += [one.summary(f"4.13 {DATASET_FORMS[name].label}") for one in found]
            rows += [row for one in found for row in one.rows(name)]
            if name == "published_invalid":
                panels.append((axis, values, found))
    caption = (
        "Robustness of the published form to the number of parties M and of records per party ρ; "
        f"C = ρ/2, α = 0.1, σ = 5. The CSV has form (b) with C = {OWN_CLIP:g} whatever M and ρ."
    )
    return _made(13, caption, plot_robustness(panels), SWEEP, rows, summary)


def figure_14(context: Context) -> Made:
    """Typical posteriors for 10 and 90 records per party."""
    keys = noise_keys(context.seed, context.seeds)
    cases, rows = [], []
    for number in (10, 90):
        records = make_records(context.seed, context.seeds, records=number)
        setting = Setting(clip=0.5 * number)
        q = party_runs("published_invalid", records, keys, [setting], budget_rounds()).q[0]
        made = posterior_cases(q, records, f"ρ = {number}", [0, 1, 2, 3])
        cases += made[0]
        rows += made[1]
    caption = "Posteriors of the first four seeds for ρ = 10 and 90, published form, C = ρ/2."
    return _made(14, caption, plot_posteriors(cases), POSTERIOR, rows)


def clipping_rates(
    seed: int, seeds: int, *, parties: int, records: int, clip: float = 5.0, rounds: int = 100
) -> tuple[float, float]:
    """How often the published form truncates a party's precision: in round 1, and at the end.

    σ_e = 2, σ = 5, α = 0.1 as in the report's figure; θ = 0, so that Δη₂ is negligible. The
    second number is over the last half of the rounds.
    """
    made = make_records(seed, seeds, parties=parties, records=records, theta=0.0, noise_sd=2.0)
    trace = party_runs(
        "published_invalid", made, noise_keys(seed, seeds), [Setting(clip=clip)], rounds
    )
    count = np.asarray(trace.count)[0]
    first = count[:, 0].mean() / parties
    half = rounds // 2
    last = (count[:, -1] - count[:, half - 1]).mean() / (parties * (rounds - half))
    return float(first), float(last)


def figure_15(context: Context) -> Made:
    """Probability that a precision is clipped, by formula and as counted in simulations."""
    seeds = context.seeds
    many = (5, 20) if context.quick else (5, 10, 20, 40)
    few = (1, 2, 3, 5, 10)
    first = [clipping_rates(context.seed, seeds, parties=m, records=10, clip=0.05)[0] for m in many]
    last = [clipping_rates(context.seed, seeds, parties=20, records=n)[1] for n in few]
    by_31 = [clipping_chance(m, SIGMA)[0] for m in many]
    by_32 = [clipping_chance(20, SIGMA, records=n)[1] for n in few]
    rows = [("first round", m, 10, *pair) for m, *pair in zip(many, first, by_31, strict=True)]
    rows += [("converged", 20, n, *pair) for n, *pair in zip(few, last, by_32, strict=True)]
    figure = plot_lines([
        ("First round", "M", "probability", {
            "eq. 4.31": (np.array(many), np.array(by_31)),
            "counted*": (np.array(many), np.array(first)),
        }),
        ("At convergence", "ρ", "probability", {
            "eq. 4.32": (np.array(few), np.maximum(by_32, 1e-7)),
            "counted*": (np.array(few), np.maximum(last, 1e-7)),
        }),
    ])  # fmt: skip
    caption = (
        "Probability that a party's precision is clipped, σ = 5, α = 0.1, σ_e = 2. First round: C "
        "is so small that all updates are clipped, as 4.31 assumes. At convergence: C = 5, "
        "M = 20; zero is drawn as 1e−7."
    )
    columns = ("when", "parties", "records", "counted", "formula")
    return _made(15, caption, figure, columns, rows)


def figure_16(context: Context) -> Made:
    """Training curves of three forms without precision clipping, for more rounds than ε allows."""
    rounds = 300
    records = make_records(context.seed, context.seeds, theta=2.0, noise_sd=2.0)
    keys = noise_keys(context.seed, context.seeds)
    exact = exact_posterior(records, natural_prior())
    cases, rows, summary = [], [], []
    for name, clip in (("roll_back", 5.0), ("server_factor", 5.0), ("log_precision", OWN_CLIP)):
        trace = party_runs(name, records, keys, [Setting(clip=clip)], rounds)
        q, label = np.asarray(trace.q)[0], DATASET_FORMS[name].label
        cases.append((label, q[0], exact[0]))
        rows += [(label, i + 1, *map(float, p), *map(float, exact[0])) for i, p in enumerate(q[0])]
        within = trace.q[:, :, : budget_rounds()]
        summary += [one.summary(f"4.16 {label}") for one in outcomes(within, records, ["θ = 2"])]
    caption = (
        "Without precision clipping: θ = 2, σ_e = 2, C = 5 (0.1 in (b)), α = 0.1, σ = 5, one seed. "
        "Dotted: the last round with ε ≤ 10, by the accounting that is valid for (b) and (c)."
    )
    drawn = plot_curves(cases, mark=budget_rounds())
    return _made(16, caption, drawn, CURVE, rows, summary)


PARTY_FIGURES = {
    8: figure_8,
    9: figure_9,
    10: figure_10,
    11: figure_11,
    12: figure_12,
    13: figure_13,
    14: figure_14,
    15: figure_15,
    16: figure_16,
}
