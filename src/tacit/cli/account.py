"""`tacit account`: ε of releases, and noise for a target ε."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tacit.cli.options import print_json
from tacit.errors import ConfigError
from tacit.privacy.events import (
    Adjacency,
    GaussianEvent,
    LaplaceEvent,
    Poisson,
    Sampling,
    WithoutReplacement,
)

POINTS = 24


@dataclass(frozen=True, kw_only=True)
class Question:
    """The releases for which `tacit account` computes ε or the noise.

    They are `rounds` releases of a clipped sum, all with the same noise. The noise is Gaussian, or
    Laplace noise if `delta` is 0. `sampling` says how the units of each sum are sampled, and is
    None if all units are used.
    """

    rounds: int
    delta: float
    adjacency: Adjacency
    sampling: Sampling | None

    def events(self, noise_multiplier: float, rounds: int | None = None) -> list[GaussianEvent]:
        """Return the events of these releases, with the given noise multiplier."""
        count = self.rounds if rounds is None else rounds
        if self.delta == 0:
            return [LaplaceEvent(clip=1.0, noise_sd=noise_multiplier, count=count)]
        return [
            GaussianEvent(clip=1.0, noise_sd=noise_multiplier, count=count, sampling=self.sampling)
        ]


def make_question(
    *,
    rounds: int,
    delta: float,
    adjacency: str,
    rate: float | None,
    batch: int | None,
    total: int | None,
) -> Question:
    """Return the validated arguments of `tacit account`."""
    if adjacency not in get_args(Adjacency):
        raise ConfigError(
            f"--adjacency {adjacency}; choose one of {', '.join(get_args(Adjacency))}"
        )
    if (batch is None) != (total is None):
        raise ConfigError(
            "give --batch and --of together: the batch size and the number of records"
        )
    if rate is not None and batch is not None:
        raise ConfigError(
            "--rate is Poisson sampling, --batch is without replacement; give only one"
        )
    if not 0 <= delta < 1:
        raise ConfigError(f"--delta {delta}; it must be 0 or more and less than 1")
    if delta == 0 and (rate is not None or batch is not None):
        raise ConfigError(
            "--delta 0 with sampled batches; pure ε is computed only for sums over all records: "
            "leave --rate and --batch out, or give a small --delta"
        )
    sampling: Sampling | None = None
    if rate is not None:
        sampling = Poisson(rate=rate)
    elif batch is not None and total is not None:
        sampling = WithoutReplacement(batch=batch, total=total)
    return Question(
        rounds=rounds,
        delta=delta,
        adjacency=adjacency,  # pyright: ignore[reportArgumentType]
        sampling=sampling,
    )


def account_command(
    question: Question,
    *,
    noise: float | None,
    epsilon: float | None,
    plot: Path | None,
    as_json: bool = False,
) -> None:
    """Print a table of all accountants, and plot ε against rounds if requested."""
    from tacit.cli.show.results import console, show_table

    if (noise is None) == (epsilon is None):
        raise ConfigError(
            "give either --noise-multiplier (to compute ε) or --epsilon (to compute the noise)"
        )
    names = ("pld",) if question.delta == 0 else _accountants()
    rows = [_row(name, question, noise, epsilon) for name in names]
    if question.delta == 0:
        rows = [["sum of losses", *row[1:-1], "Laplace noise, clip in the L1 norm"] for row in rows]
    if as_json:
        print_json(_as_data(question, rows))
        return
    asked = f"ε at δ = {question.delta:g}" if epsilon is None else f"noise for ε = {epsilon:g}"
    title = f"{asked}, {question.adjacency}, per clipped unit, {_how(question)}"
    show_table(
        title,
        ["accountant", "noise / clip", "ε", "δ at that ε", "remark"],
        [_shown_row(row) for row in rows],
    )
    if question.delta == 0:
        console.print(
            "The clip C bounds one unit's contribution in the L1 norm; the noise has the scale "
            "(noise sd)/√2 in every coordinate."
        )
    else:
        console.print(
            "noise / clip is the noise sd divided by the clip, for both adjacencies. The clip "
            "bounds one unit's contribution."
        )
    if plot is not None:
        chosen = noise if noise is not None else _calibrated("pld", question, epsilon)
        _plot(question, chosen, plot)
        console.print(f"figure: {plot}", highlight=False)


def _accountants() -> tuple[Any, ...]:
    from tacit.privacy.accounting import ACCOUNTANTS

    return ACCOUNTANTS


def _row(
    accountant: Any, question: Question, noise: float | None, epsilon: float | None
) -> list[Any]:
    from tacit.privacy.accounting import delta as delta_of
    from tacit.privacy.accounting import epsilon as epsilon_of

    try:
        chosen = _calibrated(accountant, question, epsilon) if noise is None else noise
        events = question.events(chosen)
        found = epsilon_of(events, question.delta, question.adjacency, accountant=accountant)
        at = delta_of(events, found, question.adjacency, accountant=accountant)
    except ConfigError as refused:
        if accountant == "pld":
            raise
        return [accountant, None, None, None, str(refused)]
    if not math.isfinite(found):
        return [accountant, chosen, None, None, "no bound"]
    remark = "recommended" if accountant == "pld" else ""
    return [accountant, chosen, found, at, remark]


def _shown_row(row: list[Any]) -> list[str]:
    forms = ("{}", "{:.4f}", "{:.4f}", "{:.2e}", "{}")
    return [
        "" if cell is None else form.format(cell) for form, cell in zip(forms, row, strict=True)
    ]


def _as_data(question: Question, rows: list[list[Any]]) -> dict[str, Any]:
    keys = ("accountant", "noise_multiplier", "epsilon", "delta", "remark")
    return {
        "rounds": question.rounds,
        "delta": question.delta,
        "adjacency": question.adjacency,
        "sampling": msgspec.to_builtins(question.sampling),
        "accountants": [dict(zip(keys, row, strict=True)) for row in rows],
    }


def _calibrated(
    accountant: Literal["pld", "rdp", "moments", "strong"],
    question: Question,
    epsilon: float | None,
) -> float:
    from tacit.privacy.accounting import calibrate

    assert epsilon is not None
    return calibrate(
        epsilon, question.delta, question.adjacency, question.events, accountant=accountant
    )


def _how(question: Question) -> str:
    times = f"{question.rounds:,} release{'s' if question.rounds > 1 else ''}"
    if question.sampling is None:
        return f"{times} of all records"
    if isinstance(question.sampling, Poisson):
        return f"{times}, Poisson sampling at rate {question.sampling.rate:g}"
    return (
        f"{times}, {question.sampling.batch:,} of {question.sampling.total:,} without replacement"
    )


def _plot(question: Question, noise: float, path: Path) -> None:
    """Plot ε against rounds, one line per accountant that has a bound."""
    from tacit.privacy.accounting import epsilon_curve
    from tacit.results.figures import canvas, plain, title_and_subtitle

    steps = sorted({round(question.rounds ** (k / POINTS)) for k in range(POINTS + 1)})
    figure = canvas(7.2, 4.2)
    axes = figure.subplots()
    for accountant in ("pld",) if question.delta == 0 else _accountants():
        try:
            curve = epsilon_curve(
                question.events(noise, 1), steps, question.delta, question.adjacency,
                accountant=accountant,
            )  # fmt: skip
        except ConfigError:
            continue
        axes.plot(steps, curve, marker="o", markersize=3, label=accountant)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Rounds")
    axes.set_ylabel(f"ε at δ = {question.delta:g}")
    axes.legend(frameon=False)
    plain(axes)
    title_and_subtitle(
        axes, "Privacy spent", f"{question.adjacency}, noise / clip {noise:.3g}, {_how(question)}"
    )
    figure.savefig(path)
