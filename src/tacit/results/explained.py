"""The numbers of `Fit.diagnostics` in words: what each says, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SKEWED = 0.5
"""Skewness from which a symmetric interval is visibly off: a gamma distribution of shape 16."""
MOST_NAMED = 3


class Explained(NamedTuple):
    """One diagnostic."""

    name: str
    value: str
    meaning: str


def explained(diagnostics: Mapping[str, Any]) -> list[Explained]:
    """Rows for a report; empty where nothing was weighed against the exact posterior."""
    if "pareto_k" not in diagnostics:
        return []
    share, shape = diagnostics["effective_share"], diagnostics["pareto_k"]
    rows = [_bound(diagnostics["elbo"]), *_last_step(diagnostics.get("last_step"))]
    rows.append(
        Explained(
            "effective draws",
            f"{share:.1%}",
            "of draws from the fitted posterior, as draws of the exact one; at least 50 % to be "
            "believed, 99 % where the two are alike",
        )
    )
    rows.append(
        Explained(
            "Pareto k̂",
            f"{shape:.2f}",
            "shape of the largest importance weights; above 0.7 averages with them are not to be "
            "trusted: use another parametrisation, or compare with NUTS",
        )
    )
    rows.append(_skewness(diagnostics["skewness"]))
    if diagnostics.get("split_along") is not None:
        meaning = "the posterior is a mixture of normals along this parameter"
        rows.append(Explained("split along", str(diagnostics["split_along"]), meaning))
    elif diagnostics.get("corrected_by_weights"):
        meaning = "means, standard deviations and draws are those of the weighted draws"
        rows.append(Explained("correction", "importance weights", meaning))
    return rows


def _bound(elbo: list[float | None]) -> Explained:
    known = [value for value in elbo if value is not None]
    shown = " → ".join(f"{value:.6g}" for value in (known[:1] + known[-1:] if known else []))
    meaning = "evidence lower bound at the first and the last accepted step; it may only rise"
    return Explained("lower bound", shown or "–", meaning)


def _last_step(step: float | None) -> list[Explained]:
    if step is None:
        return []
    meaning = "by which one more step would move the normal posterior; small when it has settled"
    return [Explained("last step", f"{step:.1g} nats", meaning)]


def _skewness(skewness: Mapping[str, float]) -> Explained:
    order = sorted(skewness, key=lambda name: -abs(skewness[name]))[:MOST_NAMED]
    shown = ", ".join(f"{name} {skewness[name]:.2f}" for name in order)
    skewed = [name for name in order if abs(skewness[name]) > SKEWED]
    meaning = "of the most skewed parameters, in unconstrained space"
    if skewed:
        meaning += "; look at quantiles of draws, not at mean ± 2 sd"
    return Explained("skewness", shown or "–", meaning)
