"""`tacit audit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.options import print_json
from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.run.config import read_config

if TYPE_CHECKING:
    from tacit.auditing import Audit, Finding


def audit_command(
    path: Path,
    seed: int | None,
    overrides: list[str] | None,
    *,
    method: str | None,
    minutes: float,
    records: int | None,
    figure: Path | None,
    as_json: bool = False,
) -> None:
    """Run the audit and show its result; exit with an error if a claim is refuted."""
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes:g}; it must be greater than 0")
    if records is not None and not records >= 2:
        raise ConfigError(f"--records {records}; it must be at least 2")
    if figure is not None and figure.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--figure {figure}; the name must end in .svg, .png or .pdf")
    chosen = [f'method.kind="{method}"'] if method else []
    config = read_config(path, (*(overrides or ()), *chosen), seed)
    from tacit.auditing.configured import audit_configuration
    from tacit.cli.show.results import console, quiet

    with quiet(as_json):
        found = audit_configuration(
            config, records=records, minutes=minutes, seed=config.seed,
            progress=lambda line: console.print(f"… {line}", highlight=False),
        )  # fmt: skip
    if figure is not None:
        draw_audit(found).savefig(figure)
    if as_json:
        rows = [dataclasses.asdict(one) | {"holds": one.holds} for one in found.findings]
        print_json(dataclasses.asdict(found) | {"findings": rows, "holds": found.holds})
    else:
        _show(config.name, found)
        if figure is not None:
            console.print(f"figure: {figure}", highlight=False)
    if not found.holds:
        wrong = [f"{one.kind} ({one.what})" for one in found.findings if not one.holds]
        raise PrivacyBudgetError(
            f"a lower bound on ε exceeds the claim: {', '.join(wrong)}; do not run this "
            "configuration on real records, and report it as a bug"
        )


def _show(name: str, found: Audit) -> None:
    from tacit.cli.show.results import console, show_table

    show_table(
        f"{name}: {found.method}, ε = {found.epsilon:.4g} at δ = {found.delta:g}, per "
        f"{found.unit}, {found.adjacency}",
        ["attack", "on", "claimed ε", "ε at least", "with half the noise", "how"],
        [_row(one) for one in found.findings],
    )
    console.print(
        "Every lower bound is at most its claim." if found.holds
        else "A lower bound is above its claim: the guarantee does not hold.",
        highlight=False,
    )  # fmt: skip
    console.print(
        f"Synthetic records, {found.seconds:.0f} s; nothing was charged. Each bound holds "
        "with probability 99.99 %, a bound from canaries with 95 %. An audit can refute a claim "
        "but not prove it.",
        highlight=False,
    )


def _row(one: Finding) -> list[Any]:
    if one.kind == "files":
        return [one.kind, one.what, "equal", "equal" if one.holds else "DIFFERENT", "", one.note]
    bound = "–" if one.bound is None else f"{one.bound:.4g}{'' if one.holds else '  ABOVE'}"
    power = "" if one.wrong_noise is None else f"{one.wrong_noise:.4g}"
    return [one.kind, one.what, f"{one.claim:.4g}", bound, power, one.note]


def draw_audit(found: Audit) -> Any:
    """Draw the claimed ε, the lower bound, and the lower bound with half the noise, per attack."""
    import math

    from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain, title_and_subtitle

    rows = [one for one in found.findings if one.kind != "files" and one.bound is not None]
    figure = canvas(7.2, 1.6 + 0.3 * len(rows))
    axes = figure.subplots()
    top = 1.15 * max(
        [one.claim for one in rows]
        + [x for one in rows for x in (one.bound, one.wrong_noise) if x and math.isfinite(x)]
    )
    for place, one in enumerate(reversed(rows)):
        assert one.bound is not None
        axes.plot([one.claim] * 2, [place - 0.32, place + 0.32], color=INK, linewidth=2,
                  label="claimed ε" if place == 0 else None)  # fmt: skip
        axes.plot(min(one.bound, top), place, "o", color=BLUE if one.holds else VERMILION,
                  label="lower bound" if place == 0 else None)  # fmt: skip
        if one.wrong_noise is not None:
            axes.plot(min(one.wrong_noise, top), place, "o", markerfacecolor="none", color=GREY,
                      label="with half the noise" if place == len(rows) - 1 else None)  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{one.kind}: {one.what}" for one in reversed(rows)])
    axes.set_xlim(0.0, top)
    axes.set_xlabel(f"ε at δ = {found.delta:g}")
    axes.legend(frameon=False, loc="lower right")
    plain(axes)
    title_and_subtitle(
        axes, f"Audit of {found.method}",
        f"per {found.unit}, {found.adjacency}; a lower bound above its claim refutes the claim",
    )  # fmt: skip
    return figure
