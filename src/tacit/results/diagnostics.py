"""Diagnostics of a run: convergence verdict, learned share and cautions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.arrays import Arrays
from tacit.data.schema.layout import Layout
from tacit.expfam import FullGaussian, Gaussian, MeanFieldGaussian
from tacit.methods import DPSGD, Clipped, PrivateMethod, PrivateScores, PrivateScoring
from tacit.methods.adaptive import SHARE, SHARE_SD
from tacit.methods.natural.method import SOLVED_UP_TO
from tacit.methods.natural.precision import Precision
from tacit.methods.natural.solver import NaturalSolver
from tacit.methods.natural.stages import DISPERSION
from tacit.methods.natural.wide import WideSolver
from tacit.methods.scores.server import SIGNIFICANT, ScoresServer, fit_of
from tacit.methods.scores.server import trouble as scores_trouble
from tacit.methods.scoring.combine import ScoringServer
from tacit.methods.scoring.units import counted_outside
from tacit.models import Model
from tacit.models.capabilities import Coefficients, Scores, SimulatesOutcomes
from tacit.models.learnt_scale import LearntScalePrior
from tacit.plan.plan import Plan
from tacit.results.cautions import (
    Caution,
    clipping_caution,
    convergence_caution,
    independence_caution,
    learning_caution,
    misfit_caution,
    narrow_caution,
    precision_caution,
    unknown_clipping_caution,
    unresolved_caution,
)
from tacit.results.dispersion import Dispersion, comparable, dispersion_of
from tacit.results.posterior import Posterior, posterior_of
from tacit.results.solved import judge_solved, judge_wide
from tacit.results.verdict import Verdict, judge, learned, rounding_trouble
from tacit.server.state import ServerState


def run_verdict(
    plan: Plan,
    state: ServerState,
    log: Sequence[dict[str, Any]],
    step: float | None = None,
    dispersion: Dispersion | None = None,
) -> Verdict:
    """Return the verdict on a finished run: whether it converged, and whether the model fits.

    `step` is the result of `gradient_step`, if it was measured. `dispersion` is the result of
    `measured_dispersion`. If it is None, the value in the server's memory is used, if there is one.
    """
    if dispersion is None and DISPERSION in (state.memory or {}):
        dispersion = dispersion_of((state.memory or {})[DISPERSION])
    verdict = _convergence(plan, state, log, step)
    misfit = _misfit(plan, state) or _dispersion_misfit(plan.model, dispersion)
    return verdict._replace(misfit=misfit, dispersion=dispersion)


def _convergence(
    plan: Plan, state: ServerState, log: Sequence[dict[str, Any]], step: float | None
) -> Verdict:
    posterior = posterior_of(plan, state.result, state.public)
    trouble = rounding_trouble(posterior.family, posterior.natural)
    learnt = plan.method.learns_scale(plan.model)  # such a prior's variance is not the declared one
    if trouble is None and plan.privacy is None and not learnt:
        trouble = plan.model.posterior_fault(posterior.family, posterior.natural)
    if trouble is None and isinstance(plan.method, PrivateScoring):
        trouble = _scoring_trouble(plan, state)
    if trouble is None and isinstance(plan.method, PrivateScores):
        server = plan.rules.combine
        assert isinstance(server, ScoresServer)
        trouble = scores_trouble(server, state.memory or {})
    if trouble is not None:
        return Verdict(False, trouble)
    own = plan.method.judged(plan.model, state.q, state.finished, log)
    if own is not None:
        return Verdict(*own)
    if isinstance(plan.rules.solver, WideSolver):
        return judge_wide(state, log)
    if plan.rules.solver is not None:
        full = isinstance(plan.family, FullGaussian)
        return judge_solved(state, log, full=full, names=plan.model.names)
    return judge(
        plan.family,
        state,
        log,
        private=plan.privacy is not None,
        step_share=plan.method.step_share,
        gradient_step=step,
        exact_loss=plan.schedule.kind == "synchronous" and plan.schedule.parties_per_round is None,
    )


def _misfit(plan: Plan, state: ServerState) -> str | None:
    if "failed" in (state.memory or {}):  # the ranks are not at an estimate of θ
        return None
    fit = fit_of(state.memory or {}) if isinstance(plan.method, PrivateScores) else None
    if fit is None or fit.p_value >= SIGNIFICANT:
        return None
    return f"{fit.words} (ranks of outcomes, p = {fit.p_value:.1g})"


def _dispersion_misfit(model: Model, dispersion: Dispersion | None) -> str | None:
    compared = comparable(model) if dispersion is not None and dispersion.clear else None
    if dispersion is None or compared is None:
        return None
    p_value = dispersion.p_value
    given = f"p = {p_value:.1g}" if p_value > 1e-12 else "p < 1e-12"
    return f"{compared.dispersion_words(dispersion.ratio)} ({given})"


def diagnostics_block(
    plan: Plan,
    state: ServerState,
    rounds: Sequence[Mapping[str, Any]],
    dispersion: Dispersion | None = None,
) -> dict[str, Any]:
    """Return the numbers on which a verdict is based. Results of importance weights and linear
    response are included if the server computed them.
    """
    memory = state.memory or {}
    energies = [line["negative_elbo"] for line in rounds]
    if "sampled.r_hat" in memory:  # the exchanges of Markov chains have no bound
        energies = [one for one in energies if one is not None]
    found: dict[str, Any] = {"elbo": [None if one is None else -one for one in energies]}
    if dispersion is not None:
        found["dispersion"] = dispersion._asdict()
    if "sd_noise" in memory:
        narrow = memory["narrow"]
        return found | {
            "last_step": float(memory["last_change"]),
            "residual": float(memory["residual"]),
            "sd_noise": float(memory["sd_noise"]),
            "independent_sd": [float(np.min(narrow)), float(np.median(narrow))],
            "mean_error": float(memory["mean_error"]) if "mean_error" in memory else None,
        }
    if plan.rules.solver is None or "pareto_k" not in memory:
        return found
    if "sampled.r_hat" in memory:
        return found | {
            "last_step": float(memory["last_change"]),
            "nested_r_hat": float(memory["sampled.r_hat"]),
            "divergent_share": float(memory["sampled.divergent"]),
            "chains": [int(one) for one in memory["sampled.draws"]],
            "skewness": dict(zip(plan.model.names, memory["skewness"].tolist(), strict=True)),
            "mean_error": float(memory["mean_error"]),
            "sd_error": float(memory["sd_error"]),
        }
    return found | {
        "last_step": float(memory["last_change"]),
        "pareto_k": float(memory["pareto_k"]),
        "effective_share": float(memory["effective_share"]),
        "skewness": dict(zip(plan.model.names, memory["skewness"].tolist(), strict=True)),
        "corrected_by_weights": bool(state.public["weighted"]),
        "mean_error": float(memory["mean_error"]) if "mean_error" in memory else None,
        "sd_error": float(memory["sd_error"]) if "sd_error" in memory else None,
        "split_along": plan.model.names[int(memory["split.axis"])]
        if "split.axis" in memory
        else None,
    }


def _scoring_trouble(plan: Plan, state: ServerState) -> str | None:
    """Return why a fit by private scoring failed; None if it did not fail.

    A fit fails if a column is probably not in the units assumed for its counts, or if the last step
    was almost as long as allowed. The length of a step is the change of the predictor x·θ, and
    every step has a maximum length. Fits reach it in every round if coefficients grow without bound
    (the columns separate the outcomes), or if the noise moves the predictor that far. The last q is
    then not near an optimum.
    """
    combine, known = plan.rules.combine, state.public | (state.memory or {})
    if not isinstance(combine, ScoringServer) or "counts" not in known:
        return None  # a variant of the method, or no round yet
    outside = counted_outside(plan.model, known["counts"], combine.count_noise_sd)
    if outside is not None or "points" not in known:
        return outside
    if combine.last_move(known) < LONG_STEP:
        return None
    return (
        "the last round still moved the predictor by almost the longest allowed step: either the "
        "columns predict the outcome almost without error, or the noise is too large; use more "
        "schedule.rounds, a narrower prior_sd, a larger epsilon or more records"
    )


LONG_STEP = 0.9
"""If the last step is at least this share of the longest allowed step, the fit has failed."""


def learned_share(
    plan: Plan, posterior: Posterior, memory: Arrays | None = None
) -> np.ndarray | None:
    """Compute 1 − (posterior sd / prior sd)² of each coordinate; None if the prior has no sd.

    If scales are learned, the prior sd is that of a coefficient about which the records contain no
    information (`LearntScalePrior.variance_without_records`), and the result is at least 0.
    """
    model = plan.model
    if plan.method.learns_scale(model):
        prior = _learnt_prior(plan, memory or {})
        if prior is None or not isinstance(posterior.family, Gaussian):
            return None
        variance = covariance = np.square(posterior.sd)
        if not isinstance(posterior.family, MeanFieldGaussian):
            covariance = posterior.family.covariance(posterior.natural)
            variance = np.diagonal(covariance)
        exact = bool(posterior.natural.get("weighted", 0.0))
        before = prior.variance_without_records(posterior.mean, covariance, exact=exact)
        return np.maximum(0.0, 1.0 - variance / before)
    if model.has_site_prior or not model.listed or not isinstance(posterior.family, Gaussian):
        return None
    return learned(posterior.family, posterior.natural, model.prior(posterior.family))


def _learnt_prior(plan: Plan, memory: Arrays) -> LearntScalePrior | None:
    """Return the prior with its learned scales; None if its scales are not learned, or not known
    yet.
    """
    solver, combine = plan.rules.solver, plan.rules.combine
    if isinstance(solver, NaturalSolver | WideSolver):
        return solver.known_scale_prior(memory)
    if isinstance(combine, ScoresServer) and "counts" in memory:
        return combine.scale_prior(memory)
    if isinstance(combine, ScoringServer) and "counts" in memory:
        prior = combine.prior_of(memory)
        return prior if isinstance(prior, LearntScalePrior) else None
    return None


def cautions_of(
    plan: Plan,
    posterior: Posterior,
    verdict: Verdict | None,
    clipped: Clipped | None = None,
    memory: Arrays | None = None,
) -> list[Caution]:
    """List the known reasons why the numbers of a run may be unreliable."""
    share = learned_share(plan, posterior, memory)
    doubts = []
    if verdict is not None:
        doubts = [
            *convergence_caution(verdict),
            *narrow_caution(verdict.effective_share),
            *misfit_caution(verdict),
        ]
    if verdict is not None and verdict.converged and "sd_error" in (memory or {}):
        errors = [float((memory or {})[name]) for name in ("mean_error", "sd_error")]
        sampled = "sampled.r_hat" in (memory or {})
        doubts += precision_caution(Precision(*errors), sampled=sampled)
    if "residual" in (memory or {}) and isinstance(plan.rules.solver, WideSolver):
        doubts += unresolved_caution(float((memory or {})["residual"]))
    if verdict is not None and plan.privacy is None:
        doubts += unchecked_caution(plan, verdict)
    doubts += [*spread_caution(plan, memory or {}), *correlation_caution(plan, memory or {})]
    doubts += steep_caution(plan, posterior, memory or {})
    doubts += [*_unweighed_caution(plan), *_mean_field_caution(plan), *known_limits(plan)]
    doubts += modes_caution(plan.model, verdict)
    doubts += learning_caution(share, posterior.names, private=plan.privacy is not None)
    return [*doubts, *_clipping_cautions(plan, clipped)]


LOOSE = 1.0 / 3.0
"""Largest relative error of a column's variance for which a first-order correction suffices."""


def spread_caution(plan: Plan, memory: Arrays) -> list[Caution]:
    """Return a caution about numeric columns whose variance is estimated imprecisely in private
    scoring, because the released counts contain noise.

    The posterior includes the effect of this error only to first order.
    """
    combine = plan.rules.combine
    if not isinstance(combine, ScoringServer) or "counts" not in memory:
        return []
    found = combine.marginals_of(memory)
    error = np.sqrt(found.variance_error) / found.variance
    loose = [place for place in combine.counted.numbers if not error[place] <= LOOSE]
    if not loose:
        return []
    names = ", ".join(repr(combine.layout[place].source) for place in loose)
    worst = float(np.max(error[loose]))
    return [
        Caution(
            "too-narrow",
            f"The spread of {names} within the declared bounds is known with an error of "
            f"{worst:.0%}, due to the privacy noise, so intervals of the coefficients may be "
            "wrong; declare narrower public bounds, or use method 'dp-scores', more records or a "
            "larger epsilon",
        )
    ]


def correlation_caution(plan: Plan, memory: Arrays) -> list[Caution]:
    """Return a caution about columns whose correlation is so strong that the privacy noise hides
    how strong it is.

    The posterior includes the error of the released correlations only to first order. With strongly
    correlated columns, the information about the difference of their coefficients may be wrong by
    a large factor.
    """
    combine = plan.rules.combine
    if not isinstance(combine, ScoringServer) or "moment" not in memory:
        return []
    worst = combine.least_known(memory)
    if worst is None or worst.error <= LOOSE:
        return []
    layout, names = combine.layout, plan.model.names
    if len(names) != len(layout):  # one coefficient per column and level
        names = [feature.source for feature in layout]
    first, second = (names[place] for place in worst.columns)
    return [
        Caution(
            "too-narrow",
            f"How strongly {first!r} and {second!r} are correlated is hidden by the privacy noise "
            f"(relative error {min(worst.error, 9.99):.0%} of the variance that distinguishes "
            "them), so intervals of their coefficients may be wrong; leave one of them out, or use "
            "more records or a larger epsilon",
        )
    ]


STEEP = 3.0
"""The posterior is skewed if the log-odds of the records have a standard deviation above this."""


def steep_caution(plan: Plan, posterior: Posterior, memory: Arrays) -> list[Caution]:
    """Return a caution if log-odds in private scoring are so large that their posterior is
    skewed.
    """
    combine = plan.rules.combine
    if not isinstance(combine, ScoringServer) or plan.model.output != "bernoulli":
        return []
    if "moment" not in memory:
        return []
    size = combine.predictor_sd(memory, posterior.mean)
    if size <= STEEP:
        return []
    return [
        Caution(
            "too-narrow",
            f"The log-odds of the records have a standard deviation of {size:.2g} (more than "
            f"{STEEP:g}): most outcomes are predicted almost without error, larger coefficients "
            "predict them almost as well, and intervals may be too narrow towards larger "
            "coefficients; declare a prior_sd, or leave out columns that determine the outcome",
        )
    ]


def modes_caution(model: Model, verdict: Verdict | None = None) -> list[Caution]:
    """Return a caution if the posterior may have modes that a single normal, and its draws,
    miss.
    """
    if verdict is not None and verdict.other_mode is not None:
        return [
            Caution(
                "several-modes",
                f"The posterior has another mode, with {verdict.other_mode}: this fit describes "
                "one mode only, and means and intervals of these parameters hold within that mode; "
                "give the model a prior that excludes the other mode, such as a positive or an "
                "ordered prior, or use only quantities that are the same in both modes.",
            )
        ]
    if not (model.user_program and model.mixes):
        return []
    return [
        Caution(
            "several-modes",
            "The model is a mixture, whose posterior may have several modes or long ridges: this "
            "fit describes one of them, and its diagnostics cannot detect others; compare "
            "with NUTS, or with fits from other starting points (tacit.from_numpyro(…, seed=1)).",
        )
    ]


def known_limits(plan: Plan) -> list[Caution]:
    """List the known weaknesses of a planned run, before it is charged."""
    if plan.privacy is None or not isinstance(plan.method, PrivateMethod):
        return []
    text = plan.method.known_limits(plan.model, plan.settled)
    known = [] if text is None else [Caution("wide", text)]
    return [*known, *unchecked_caution(plan)]


def known_before(plan: Plan) -> list[Caution]:
    """List the cautions that are known before a run is charged: `known_limits`, and reasons why the
    run may not converge.
    """
    if plan.privacy is None or not isinstance(plan.method, PrivateMethod):
        return []
    text = plan.method.settling_risk(plan.model, plan.settled)
    risk = [] if text is None else [Caution("may-not-converge", text)]
    return [*risk, *known_limits(plan)]


def second_choice(plan: Plan) -> list[Caution]:
    """Return a caution with the reason why "auto" chose DP-SGD for a model that has better methods.

    `tacit.check` shows the same reason beside the method.
    """
    better = isinstance(plan.model, Scores | SimulatesOutcomes | Coefficients)
    if not (plan.why and isinstance(plan.method, DPSGD) and better):
        return []
    return [Caution("too-narrow", f'method = "auto" selected dp-sgd ({plan.why})')]


def constant_caution(plan: Plan, layout: Layout | None) -> list[Caution]:
    """Return a caution about columns that have one value in the training records of all parties.

    With privacy there is none, because it would reveal records.
    """
    tables = [records["x"] for records in plan.parties.values() if {"x", "y"} <= {*records}]
    tables = [x for x in tables if len(x)]
    if plan.privacy is not None or layout is None or sum(map(len, tables)) < 2:
        return []
    if any(x.ndim != 2 or x.shape[1] != len(layout) for x in tables):
        return []
    least = np.min([x.min(axis=0) for x in tables], axis=0)
    most = np.max([x.max(axis=0) for x in tables], axis=0)
    varies = {one.source for one, wide in zip(layout, most > least, strict=True) if wide}
    known = dict.fromkeys(one.source for one in layout if one.kind != "intercept")
    indicators = {f"{name} missing" for name in known}  # constant if no value is missing
    same = [name for name in known if name not in varies and name not in indicators]
    if not same:
        return []
    named = ", ".join(same[:5]) + (f" and {len(same) - 5} more" if len(same) > 5 else "")
    one = len(same) == 1
    text = (
        f"{named} {'has' if one else 'have'} one value in all training records, so "
        f"{'its effect' if one else 'their effects'} cannot be learned; leave "
        f"{'it' if one else 'them'} out."
    )
    return [Caution("one-value", text)]


def unchecked_caution(plan: Plan, verdict: Verdict | None = None) -> list[Caution]:
    """Return a caution if the variance that the model implies is not compared with the records."""
    checked = isinstance(plan.method, PrivateScores) or (
        verdict is not None and verdict.dispersion is not None
    )
    compared = None if checked else comparable(plan.model)
    if compared is None:
        return []
    text = compared.unchecked_dispersion(private=plan.privacy is not None)
    return [Caution(compared.unchecked_kind, text)]


def _unweighed_caution(plan: Plan) -> list[Caution]:
    """Return a caution if the posterior of a user-defined model was not compared with the exact
    posterior.
    """
    weighed = plan.rules.solver is not None and not isinstance(plan.rules.solver, WideSolver)
    if plan.privacy is not None or weighed or not plan.model.user_program:
        return []
    return [
        Caution(
            "not-weighed",
            "The normal posterior was not compared with the exact one, which needs all parties in "
            f"every round (no quorum, no parties_per_round) and at most {SOLVED_UP_TO} parameters: "
            "intervals of hierarchical models may be far too narrow.",
        )
    ]


def _mean_field_caution(plan: Plan) -> list[Caution]:
    """Return a caution if q is mean-field and its standard deviations ignore correlations by an
    amount that is not measured.

    The solvers of natural-gradient inference measure it or correct for it. Models that say that
    their intervals are not calibrated need no further caution.
    """
    family, method = plan.family, plan.method
    if not isinstance(family, MeanFieldGaussian) or family.dimension < 2:
        return []
    if plan.rules.solver is not None or plan.model.uncalibrated is not None:
        return []
    corrected = isinstance(method, PrivateMethod) and method.knows_noise(family)
    advice = 'use posterior="full"'
    if isinstance(method, PrivateMethod):  # dp-sgd and dp-updates need a mean-field q
        advice = 'use method="dp-scores" or "dp-scoring" if they support the model'
    return [] if corrected else [independence_caution(advice)]


def counted_clipping(plan: Plan, memory: Arrays | None) -> Clipped | None:
    """Return the share of clipped units according to the last released count; None if no count was
    released.

    The noisy share is clipped to [0, 1].
    """
    if memory is None or SHARE not in memory or not isinstance(plan.method, PrivateMethod):
        return None
    share = float(np.clip(1.0 - memory[SHARE], 0.0, 1.0))
    biases = plan.method.clipping_biases(plan.model, plan.method.stage_at(0).name)
    return Clipped(biases, share, "method.clip", float(memory[SHARE_SD]))


def _clipping_cautions(plan: Plan, clipped: Clipped | None) -> list[Caution]:
    """List cautions about clipping, from the measured share of clipped units or, if the share is
    unknown, from the plan.
    """
    method = plan.method
    if plan.privacy is None or not isinstance(method, PrivateMethod):
        return []
    if clipped is not None or plan.privacy.insecure_noise_seed is not None:
        return clipping_caution(clipped)
    fixed = isinstance(method, DPSGD) and method.adaptive is None and plan.model.user_program
    if not fixed or any(one.clip != DPSGD.clip for one in plan.settled.values()):
        return []
    return unknown_clipping_caution(DPSGD.clip)
