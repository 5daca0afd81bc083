"""Explanations of the numbers in `Fit.diagnostics`: their meaning, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tacit.methods.natural.chains import MAX_NESTED_R_HAT, MOST_DIVERGENT
from tacit.methods.natural.weights import BELIEVED_SHARE, CLOSE_SHARE, MAX_PARETO_K

if TYPE_CHECKING:
    from tacit.results.summary import ClippedShare

SKEWED = 0.5
"""Skewness above which a symmetric interval is visibly wrong: the skewness of a gamma distribution
with shape 16.
"""
MOST_NAMED = 3


class Explained(NamedTuple):
    """A diagnostic: its name, its value and what it means."""

    name: str
    value: str
    meaning: str


def explained(
    diagnostics: Mapping[str, Any], clipped: ClippedShare | None = None
) -> list[Explained]:
    """Return the diagnostics as rows for a report, a notebook or a terminal.

    Parameters
    ----------
    diagnostics
        `Fit.diagnostics`. Most rows need importance weights or standard deviations by linear
        response, and are left out if these were not computed.
    clipped
        The share of clipped contributions, if it was measured.
    """
    rows = []
    if "pareto_k" in diagnostics:
        rows = [
            _bound(diagnostics["elbo"]),
            *_last_step(diagnostics.get("last_step")),
            *_weights(diagnostics["effective_share"], diagnostics["pareto_k"]),
            _skewness(diagnostics["skewness"]),
        ]
    if "nested_r_hat" in diagnostics:
        rows = [*_chains(diagnostics), _skewness(diagnostics["skewness"])]
    if "sd_noise" in diagnostics:
        rows = [
            _bound(diagnostics["elbo"]),
            *_last_step(diagnostics["last_step"]),
            *_response(diagnostics),
        ]
    if "dispersion" in diagnostics:
        ratio = diagnostics["dispersion"]["ratio"]
        meaning = (
            "variance of the outcomes relative to the variance that the model implies; ideally 1"
        )
        rows.append(Explained("dispersion", f"{ratio:.3g}", meaning))
    if diagnostics.get("split_along") is not None:
        meaning = "the posterior is a mixture of normals along this parameter"
        rows.append(Explained("split along", str(diagnostics["split_along"]), meaning))
    elif diagnostics.get("corrected_by_weights"):
        meaning = "means, standard deviations and draws are those of the weighted draws"
        rows.append(Explained("correction", "importance weights", meaning))
    if clipped is not None:
        rows.append(Explained("clipped", f"{clipped.share:.0%}", clipped.statement))
    return rows


def explained_lines(rows: Sequence[Explained]) -> list[str]:
    """Return one line of text for each row.

    >>> explained_lines([Explained("last step", "1e-05 nats", "small when settled")])
    ['last step: 1e-05 nats; small when settled']
    """
    return [f"{row.name}: {row.value}; {row.meaning}" for row in rows]


def _response(diagnostics: Mapping[str, Any]) -> list[Explained]:
    least, median = diagnostics["independent_sd"]
    error = diagnostics.get("mean_error")
    meaning = (
        "estimated error of the least accurate mean, due to the random vectors that represent "
        "correlations"
    )
    return [
        *([] if error is None else [Explained("error of means", f"{error:.2g} sd", meaning)]),
        Explained(
            "independent sds",
            f"{least:.2f}, median {median:.2f}",
            "smallest and median standard deviation with all other parameters fixed, relative to "
            "the reported ones, which account for correlations",
        ),
        Explained(
            "noise of sds",
            f"{diagnostics['sd_noise']:.1%}",
            "common error of the reported standard deviations, which are estimated with random "
            "vectors; individual ones have a further error of a few per cent",
        ),
        Explained(
            "residual",
            f"{diagnostics['residual']:.2g}",
            "of the linear systems for standard deviations; above 0.2 the sds are too small: use "
            "narrower priors, or leave out columns that are nearly multiples of others",
        ),
    ]


def _chains(diagnostics: Mapping[str, Any]) -> list[Explained]:
    return [
        Explained(
            "draws",
            "{} chains of {}".format(*diagnostics["chains"]),
            "Hamiltonian Monte Carlo: means, standard deviations and draws are those of the chains",
        ),
        Explained(
            "nested R̂",
            f"{diagnostics['nested_r_hat']:.3f}",
            f"agreement of chains that started apart; at most {MAX_NESTED_R_HAT} is required. It "
            "does not detect another mode that no chain has reached",
        ),
        Explained(
            "divergent",
            f"{diagnostics['divergent_share']:.2%}",
            f"share of trajectories that failed; above {MOST_DIVERGENT:.1%} a narrow region of the "
            "posterior may be missing: use more informative priors for scales",
        ),
        Explained(
            "Monte-Carlo errors",
            f"{diagnostics['mean_error']:.2g} sd, {diagnostics['sd_error']:.1%}",
            "largest standard errors of a mean and of a standard deviation",
        ),
    ]


def _weights(share: float, shape: float) -> list[Explained]:
    of_draws = "effective share of draws from the fitted posterior, weighted to the exact posterior"
    if share >= CLOSE_SHARE:
        of_draws += "; both posteriors are close, unless there is another mode that no draw reaches"
    elif share >= BELIEVED_SHARE:
        of_draws += (
            f"; at least {BELIEVED_SHARE:.0%} is required. It does not detect another mode: "
            "compare mixture models with NUTS"
        )
    else:
        of_draws += (
            f"; below {BELIEVED_SHARE:.0%} the posterior is far from the fitted one: use another "
            "parametrisation, more informative priors, or method.sampling = true"
        )
    return [
        Explained("effective draws", f"{share:.1%}", of_draws),
        Explained("Pareto k̂", f"{shape:.2f}", shape_words(share, shape)),
    ]


def shape_words(share: float, shape: float) -> str:
    """Return what the Pareto shape k̂ = `shape` of the largest importance weights means, given the
    share of effective draws.
    """
    if shape <= MAX_PARETO_K:
        return f"tail shape of the importance weights; up to {MAX_PARETO_K} the weights are usable"
    unusable = f"above {MAX_PARETO_K} averages with the importance weights are not reliable"
    if share >= CLOSE_SHARE:
        return (
            f"{unusable}, and the weights are not used: with {share:.0%} effective draws the "
            "fitted posterior itself is close to the exact one; look at draws if you need its far "
            "tails"
        )
    return f"{unusable}: use another parametrisation, or method.sampling = true"


def _bound(elbo: list[float | None]) -> Explained:
    known = [value for value in elbo if value is not None]
    shown = " → ".join(f"{value:.6g}" for value in (known[:1] + known[-1:] if known else []))
    meaning = "evidence lower bound at the first and the last accepted step; it may only rise"
    return Explained("lower bound", shown or "–", meaning)


def _last_step(step: float | None) -> list[Explained]:
    if step is None:
        return []
    meaning = "change of the normal posterior in one further step; small after convergence"
    return [Explained("last step", f"{step:.1g} nats", meaning)]


def _skewness(skewness: Mapping[str, float]) -> Explained:
    order = sorted(skewness, key=lambda name: -abs(skewness[name]))[:MOST_NAMED]
    shown = ", ".join(f"{name} {skewness[name]:.2f}" for name in order)
    skewed = [name for name in order if abs(skewness[name]) > SKEWED]
    meaning = "of the most skewed parameters, in unconstrained space"
    if skewed:
        meaning += "; look at quantiles of draws, not at mean ± 2 sd"
    return Explained("skewness", shown or "–", meaning)
