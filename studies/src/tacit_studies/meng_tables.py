"""Tables of the linear-regression study, and the comparison of Figure 4.17 at one valid ε."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from tacit.privacy.accounting import calibrate, epsilon
from tacit.privacy.accounting.gaussian import epsilon as gaussian_epsilon
from tacit.privacy.events import GaussianEvent
from tacit_studies.meng_aware import coverage, noise_aware, plain_chance, plain_q
from tacit_studies.meng_claims import (
    DELTA,
    claimed_epsilon,
    epsilon_at_least,
    epsilon_of,
    rounds_within,
    told_apart,
    views,
)
from tacit_studies.meng_figures import Made, Outcome, plot_comparison
from tacit_studies.meng_forms import DATASET_FORMS, Form, feedback_sensitivity
from tacit_studies.meng_kernel import (
    DOZEN,
    Array,
    Records,
    Setting,
    clipped,
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
from tacit_studies.meng_parties import party_runs
from tacit_studies.meng_points import BUDGET, SIGMA, Context, budget_rounds, outcomes, record_runs
from tacit_studies.meng_records import RECORD_FORMS, dpsgd
from tacit_studies.page import Picture
from tacit_studies.tables import Table

FORMS: dict[str, Form] = {**DATASET_FORMS, **RECORD_FORMS}
COVER_CLIP, COVER_RECORDS = 75.0, 50
ATTACK = Setting(clip=1.0, rate=1.0, noise=8.0)
ATTACK_ROUNDS, ATTACK_DELTA = 12, 1e-2
"""The simulated attack has few rounds and no damping, so that each round's answers subtract all of
the noise that the factors keep.
"""


def accounting_table() -> Table:
    """ε of every form at the report's settings, by both accountants, and with σ = 10."""
    rounds, rows = budget_rounds(), []
    for form in FORMS.values():
        setting = Setting(clip=5.0, noise=SIGMA)
        if form.name == "random_subset":
            setting = setting._replace(share=0.5)
        if form.name == "dp-sgd":
            setting = setting._replace(share=0.1)
        cells = [
            epsilon_of(form, one, parties=20, rounds=rounds, accountant=accountant)
            for one in (setting, setting._replace(noise=2 * SIGMA))
            for accountant in ("pld", "moments")
        ]
        rows.append((form.label, form.unit, form.sensitivity, form.trust, *cells))
    note = (
        f"{rounds} rounds, σ = 5 and σ = 10, δ = 1e−5, add-or-remove-one; 20 parties, α = 0.1; (e) "
        "with half of the parties per round; DP-SGD with 50 steps per round, each with a tenth of "
        f"the records. σ = 5 accounted as in the report: {rounds_within(BUDGET, SIGMA)} rounds at "
        f"ε ≤ 10 by PLD, {rounds_within(BUDGET, SIGMA, 'moments')} by moments. σ = 10: "
        f"{rounds_within(BUDGET, 2 * SIGMA)} and "
        f"{rounds_within(BUDGET, 2 * SIGMA, 'moments')}."
    )
    columns = (
        "form", "unit", "sensitivity, noise", "trusted", "ε σ=5 PLD", "ε σ=5 moments",
        "ε σ=10 PLD", "ε σ=10 moments",
    )  # fmt: skip
    digits: dict[str, int] = dict.fromkeys(columns[4:], 4)
    return Table(
        name="accounting", title="ε of the forms", columns=columns, rows=rows, note=note,
        digits=digits,
    )  # fmt: skip


def claims_table(context: Context) -> Table:
    """Lower bounds on ε from simulated neighbours, with the report's claim and our ε."""
    runs, parties = (10_000 if context.quick else 40_000), 20
    claim = claimed_epsilon(ATTACK.noise, ATTACK_ROUNDS, delta=ATTACK_DELTA)
    rows = []
    for form in DATASET_FORMS.values():
        seen = views(
            form.step, ATTACK, parties=parties, rounds=ATTACK_ROUNDS, runs=runs, seed=context.seed
        )
        scores = [q[:, -1, 0] for q in seen]
        told = epsilon_of(form, ATTACK, parties=parties, rounds=ATTACK_ROUNDS, delta=ATTACK_DELTA)
        least = epsilon_at_least(*scores, delta=ATTACK_DELTA)
        rows.append((form.label, claim, least, told))
    rounds = budget_rounds()
    mu = told_apart(20, 0.1, SIGMA, rounds)
    note = (
        f"“ε at least”: lower bound at δ = {ATTACK_DELTA:g} (Clopper-Pearson, 99.9 %) from the "
        f"last q of {runs:,} runs each with and without an extreme party; 20 parties, C = 1, "
        f"α = 1, σ = 8, {ATTACK_ROUNDS} rounds. At the report's α = 0.1, σ = 5 and {rounds} "
        f"rounds, form (a) has ε ≥ {gaussian_epsilon(mu, DELTA):.1f} (μ = {mu:.2f}) at δ = 1e−5 in "
        f"closed form; the claim is {claimed_epsilon(SIGMA, rounds):.2f} "
        f"(μ = {math.sqrt(rounds) / SIGMA:.2f})."
    )
    columns = ("form", "ε claimed: σ per round", "ε at least", "ε of this library")
    return Table(
        name="claims", title="Test of the claims", columns=columns, rows=rows, note=note,
        digits=dict.fromkeys(columns[1:], 4),
    )  # fmt: skip


def released_sums(records: Records, keys: Array, clip: float, noise: float) -> np.ndarray:
    """Noisy sums (Σ clip(x²) + n₁, Σ clip(xy) + n₂) over all parties, one row per seed."""
    setting = Setting(clip=clip, rate=1.0, noise=noise)
    q = simulate(
        RECORD_FORMS["fixed_likelihood"].step, record_statistics, records, keys,
        settings_of(setting), natural_prior(), rounds=1, constant=True,
    ).q[0, :, 0]  # fmt: skip
    return np.asarray((q - natural_prior()) * records.noise_sd[:, None] ** 2)


def coverage_rows(seed: int, seeds: int, targets: Sequence[float], clip: float) -> list[tuple]:
    """Coverage of 90 % and 95 % intervals: plain q and the noise-aware posterior."""
    records = make_records(seed, seeds, records=COVER_RECORDS, noise_sd=0.5, uniform=True)
    keys, theta = noise_keys(seed, seeds), np.asarray(records.theta)
    pairs = jnp.stack([records.x**2, records.x * records.y], axis=-1)
    cut = float(jnp.mean(jnp.any(clipped(pairs, clip) != pairs, axis=-1)))
    sd, rows = np.asarray(records.noise_sd), []
    for target in targets:
        noise = calibrate(
            target, DELTA, "add-or-remove-one", lambda z: [GaussianEvent(clip=1.0, noise_sd=z)]
        )
        sums = released_sums(records, keys, clip, noise)
        tau = noise * clip * math.sqrt(records.x.shape[1])
        mean, spread = plain_q(sums, sd)
        mixture = noise_aware(sums, sd, tau)
        chances = (plain_chance(mean, spread, theta), mixture.below(theta))
        shares = [coverage(chance, level) for chance in chances for level in (0.9, 0.95)]
        widths = float(np.median(spread)), float(np.median(mixture.moments()[1]))
        rows.append((float(target), clip, cut, tau, *shares, *widths))
    return rows


def coverage_table(context: Context) -> Table:
    """Coverage of the intervals of plain q and of the noise-aware posterior, by ε and clip."""
    seeds = 400 if context.quick else 2_000
    rows = coverage_rows(context.seed, seeds, (1.0, 3.0, 10.0, 30.0), COVER_CLIP)
    rows += coverage_rows(context.seed, seeds, (10.0, 30.0), 10.0)
    rows += coverage_rows(context.seed, seeds, (30.0,), 1.0)
    error = math.sqrt(0.95 * 0.05 / seeds)
    note = (
        f"Statistics released once; {seeds:,} seeds, 20 parties of {COVER_RECORDS} records, x "
        "uniform with variance 1, θ ~ N(0, 5²), σ_e = 0.5; unit: record, add-or-remove-one, δ = "
        "1e−5. "
        f"The standard error of a coverage at 95 % is {error:.4f}."
    )
    columns = (
        "ε", "C", "records clipped", "noise sd τ", "plain 90 %", "plain 95 %", "aware 90 %",
        "aware 95 %", "sd of plain q", "sd of aware",
    )  # fmt: skip
    return Table(
        name="coverage", title="Coverage of intervals", columns=columns, rows=rows, note=note,
        digits=dict.fromkeys(columns, 4),
    )  # fmt: skip


def prior_table(context: Context) -> Table:
    """KL under the two priors that the report states: sd 5, and variance 5."""
    rows = []
    for name, sd in (("sd 5", 5.0), ("variance 5", math.sqrt(5.0))):
        records = make_records(context.seed, context.seeds, prior_sd=sd)
        keys = noise_keys(context.seed, context.seeds)
        q = party_runs("published_invalid", records, keys, [Setting()], budget_rounds()).q
        for reference, other in (("sd 5", 5.0), ("variance 5", math.sqrt(5.0))):
            exact = exact_posterior(records, natural_prior(other))
            kl = divergence(proper(q[0, :, -10:]), exact[:, None, :]).mean(axis=-1)
            gap = divergence(exact_posterior(records, natural_prior()), exact)
            low, middle, high = (float(v) for v in np.percentile(kl, (10, 50, 90)))
            rows.append((name, reference, low, middle, high, float(np.max(gap))))
    columns = ("θ drawn with", "reference prior", "KL 10 %", "KL median", "KL 90 %", "largest gap")
    note = (
        "Published form, C = 5, α = 0.1, σ = 5; the parties' prior has sd 5. The gap is the KL "
        "divergence between the exact posteriors under the two priors."
    )
    return Table(
        name="prior", title="The two priors", columns=columns, rows=rows, note=note,
        digits=dict.fromkeys(columns[2:], 3),
    )  # fmt: skip


def _candidates() -> list[tuple[str, str, int, list[Setting]]]:
    """Return (label, form, rounds, settings to try) of every form, at ε = 10 where it is valid."""
    rounds = budget_rounds()
    mu = math.sqrt(rounds) / SIGMA
    far = math.hypot(*feedback_sensitivity(1.0, 0.1, 20, rounds)) / mu
    wide = (1.0, 2.0, 5.0, 10.0, 20.0)
    narrow = (0.03, 0.06, 0.1, 0.15, 0.2)
    small = (0.5, 1.0, 2.0, 5.0, 10.0)

    def each(clips: Sequence[float], **more: float) -> list[Setting]:
        return [Setting(clip=clip, **more) for clip in clips]

    half = calibrate(
        BUDGET, DELTA, "add-or-remove-one",
        lambda z: DATASET_FORMS["random_subset"].events(  # type: ignore[misc]
            Setting(clip=1.0, noise=z, share=0.5), 20, rounds
        ),
    )  # fmt: skip
    sgd = {"noise": math.sqrt(300) / mu, "local": 5, "ratio": 3.0, "step": 1e-3}
    return [
        ("roll_back", "roll_back", rounds, each(wide, noise=SIGMA * math.sqrt(20))),
        ("log_precision", "log_precision", rounds, each(narrow, noise=SIGMA)),
        ("server_factor", "server_factor", rounds, each(wide, noise=SIGMA)),
        ("server_side", "server_side", rounds, each(wide, noise=far)),
        ("random_subset", "random_subset", rounds, each(wide, noise=half, share=0.5)),
        ("equal_parts", "equal_parts", rounds, each(wide, noise=SIGMA)),
        ("even", "even", rounds, each(wide, noise=SIGMA)),
        ("published_invalid", "published_invalid", rounds, each(wide, noise=SIGMA)),
        ("truncated_statistics", "truncated_statistics", rounds, each(small, noise=SIGMA)),
        ("raw_statistics", "raw_statistics", rounds, each(small, noise=SIGMA)),
        ("fixed_likelihood", "fixed_likelihood", rounds, each(small, noise=1 / mu)),
        ("dp-sgd", "dp-sgd", 60, each(small, **sgd)),
    ]


def _dozen(part: Array) -> Array:
    """Repeat the last setting to a multiple of `DOZEN` settings, as `padded` does."""
    return jnp.concatenate([part, jnp.repeat(part[-1:], -len(part) % DOZEN, axis=0)])


def hybrid_runs(records: Records, keys: Array, clips: Sequence[float]) -> tuple[Array, float]:
    """Release statistics once, then take 300 steps of DP-SGD; return q after each round, and ε.

    Each part has half of μ², and both use the same clip. DP-SGD starts from the q of the released
    statistics, made proper.
    """
    mu = math.sqrt(budget_rounds()) / SIGMA / math.sqrt(2.0)
    first = [Setting(clip=clip, noise=1 / mu) for clip in clips]
    trace = record_runs("fixed_likelihood", records, keys, first, 100)
    begin = _dozen(jnp.asarray(proper(trace.q[:, :, -1]))), _dozen(trace.t)
    later = Setting(noise=math.sqrt(300) / mu, local=5, ratio=3.0, step=3e-4)
    settings = [later._replace(clip=clip) for clip in clips]
    q = simulate(
        dpsgd, whole_statistics, records, keys, padded(settings), natural_prior(),
        rounds=60, local=5, begin=begin,
    ).q[: len(clips)]  # fmt: skip
    events = [GaussianEvent(clip=1.0, noise_sd=1 / mu)]
    events.append(GaussianEvent(clip=1.0, noise_sd=math.sqrt(300) / mu, count=300))
    return q, epsilon(events, DELTA, "add-or-remove-one")


def figure_17(context: Context) -> Made:
    """KL of every form at ε = 10, where it is valid, with the best clip on other records."""
    tried = [make_records(s, context.seeds) for s in (context.seed + 1, context.seed)]
    keys = [noise_keys(s, context.seeds) for s in (context.seed + 1, context.seed)]
    found: list[tuple[Form | None, float | None, Outcome]] = []
    for _, name, rounds, settings in _candidates():
        run = party_runs if name in DATASET_FORMS else record_runs
        labels = [f"C = {one.clip:g}" for one in settings]
        train, test = (
            outcomes(run(name, data, key, settings, rounds).q, data, labels)
            for data, key in zip(tried, keys, strict=True)
        )
        best = int(np.argmin([_middle(one) for one in train]))
        spent = epsilon_of(FORMS[name], settings[best], parties=20, rounds=rounds)
        found.append((FORMS[name], spent, test[best]))
    clips = (0.5, 1.0, 2.0, 5.0)
    pair = [hybrid_runs(data, key, clips) for data, key in zip(tried, keys, strict=True)]
    labels = [f"C = {clip:g}" for clip in clips]
    train, test = (
        outcomes(q, data, labels) for (q, _), data in zip(pair, tried, strict=True)
    )  # fmt: skip
    best = int(np.argmin([_middle(one) for one in train]))
    found.append((None, pair[0][1], test[best]))
    rows, summary, drawn = [], [], []
    for form, spent, one in found:
        label = form.label if form else "hybrid: statistics, DP-SGD"
        unit = form.unit if form else "record"
        told = f"ε = {spent:.2f}, {unit}" if spent is not None else "no ε"
        finite = one._replace(kl=np.where(np.isfinite(one.kl), one.kl, 1e300))
        summary.append(finite.summary(f"4.17 {label} ({told})"))
        rows += finite.rows(label, unit, spent)
        drawn.append((f"{label}, {one.label}, {told}", finite.kl))
    caption = (
        "Figure 4.17. All forms at δ = 1e−5 and a valid ε ≤ 10 (except (f), which has none), 20 "
        "parties of 10 records, σ_e uniform on 0.5–2; the clip was chosen on other records."
    )
    columns = ("form", "unit", "epsilon", "setting", "theta", "kl", "precision_ratio")
    return Made(
        Picture("figure-4.17.png", caption), plot_comparison(drawn), columns, rows, summary
    )  # fmt: skip


def _middle(one: Outcome) -> float:
    value = float(np.median(one.kl))
    return value if math.isfinite(value) else math.inf


def summary_table(made: Sequence[Made]) -> Table:
    """Medians and percentiles of every figure that has seeds."""
    columns = ("figure and form", "setting", "KL 10 %", "KL median", "KL 90 %", "KL mean",
               "precision ratio, median")  # fmt: skip
    return Table(
        name="summary",
        title="KL(q ‖ exact) over seeds",
        columns=columns,
        rows=[row for one in made for row in one.summary],
        note="Nats, mean of the last ten rounds; the ratio is q's precision over the exact one.",
        digits=dict.fromkeys(columns[2:], 3),
    )
