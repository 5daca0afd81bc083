"""Verdicts on runs in which the server controlled the steps of `NaturalVI`
(`tacit.methods.natural.solver`, `tacit.methods.natural.wide`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.methods.natural.chains import MAX_NESTED_R_HAT, MOST_DIVERGENT
from tacit.methods.natural.more import MIXTURE
from tacit.methods.natural.weights import (
    BELIEVED_SHARE,
    CLOSE_SHARE,
    DOUBTED,
    MAX_PARETO_K,
    is_believed,
)
from tacit.results.verdict import SETTLED_KL, Verdict, expected_parties, without_contribution
from tacit.server.state import ServerState

MOST_MEAN_ERROR = 0.3
"""Largest accepted error of a mean, in posterior sds, if expectations are computed with random
vectors.
"""


def judge_solved(
    state: ServerState,
    log: Sequence[dict[str, Any]],
    *,
    full: bool = True,
    names: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on a run whose steps the server controlled
    (`tacit.methods.natural.solver`).

    A full-covariance q is trusted if it is at the optimum and enough of its draws are effective
    according to importance weights relative to the exact posterior. A mean-field q (`full` = False)
    has converged if it is at the optimum; `narrow_caution` states that it ignores correlations.
    """
    memory = state.memory or {}
    number = f"{state.round} round{'' if state.round == 1 else 's'}"
    unfinished = _unfinished(state, log, number, "pareto_k")
    if unfinished is not None:
        return unfinished
    if "sampled.r_hat" in memory:
        return _judge_sampled(memory, number)
    if "chains.number" in memory:
        return Verdict(
            False,
            f"the run ended after {number}, before its Markov chains did; allow more "
            "schedule.rounds, or use informative priors or another parametrisation",
        )
    shape, share = float(memory["pareto_k"]), float(memory["effective_share"])
    weights = f"importance weights: {share:.0%} effective draws, Pareto k̂ = {shape:.2f}"
    believed = is_believed(shape, share) and DOUBTED not in memory
    if shape > MAX_PARETO_K and believed:
        weights += (
            f" (above {MAX_PARETO_K} weighted averages are not reliable and not used; q is trusted "
            f"because at least {CLOSE_SHARE:.0%} of its draws are effective)"
        )
    axis = _split_axis(memory, names)
    incomplete = _incomplete_split(memory, axis, number, weights)
    if incomplete is not None:
        return incomplete
    step = float(memory["last_change"])
    if not bool(memory["settled"]):
        return Verdict(
            False,
            f"after {number} a whole step would still move q by {step:.2g} nats (at most "
            f"{SETTLED_KL:g} when converged; {weights}); use informative priors, or check the "
            "model for parameters that the records do not determine",
        )
    if full and not believed:
        return _far_from_normal(weights, corrected=bool(state.public["weighted"]))
    why = f"after {number} a whole step would move q by {step:.1g} nats; {weights}"
    if float(memory.get("more", 0.0)) == MIXTURE:
        why = f"draws from a fitted mixture of Student-t distributions after {number}; {weights}"
    elif axis is not None:
        why = f"a mixture of normals along {axis!r} after {number}; {weights}"
    return Verdict(True, why, None if full else share)


def _far_from_normal(weights: str, *, corrected: bool) -> Verdict:
    what = "mean and standard deviations are corrected by the weights as far as possible; "
    return Verdict(
        False,
        f"q is the best normal approximation, but the posterior is far from normal ({weights}; "
        f"required: at least {BELIEVED_SHARE:.0%} and at most {MAX_PARETO_K}); "
        f"{what if corrected else ''}sample it with method.sampling = true, which takes hundreds "
        "of exchanges or more, or use another parametrisation",
    )


def _judge_sampled(memory: Mapping[str, Any], number: str) -> Verdict:
    """Return the verdict on a result that consists of draws of Markov chains."""
    r_hat, divergent = float(memory["sampled.r_hat"]), float(memory["sampled.divergent"])
    chains, draws = (int(one) for one in memory["sampled.draws"])
    drawn = f"{chains} chains of {draws} draws after {number}"
    facts = f"nested R̂ {r_hat:.3f}, {divergent:.2%} divergent"
    if not r_hat <= MAX_NESTED_R_HAT:
        return Verdict(
            False,
            f"{drawn} do not agree ({facts}; required: R̂ at most {MAX_NESTED_R_HAT}): the "
            "posterior has several modes or a shape that is hard to sample; use informative "
            "priors or another parametrisation",
        )
    if not divergent <= MOST_DIVERGENT:
        return Verdict(
            False,
            f"{drawn} do not reach a narrow region of the posterior ({facts}; required: at most "
            f"{MOST_DIVERGENT:.1%} divergent); use more informative priors for scales, or another "
            "parametrisation",
        )
    return Verdict(True, f"Hamiltonian Monte Carlo, {drawn}; {facts}")


def _incomplete_split(
    memory: Mapping[str, Any], axis: str | None, number: str, weights: str
) -> Verdict | None:
    """Return the verdict "not converged" if a split along `axis` is not complete, or None if it is
    complete or there is none.
    """
    if axis is not None and "split.cut_off" not in memory:
        return Verdict(
            False,
            f"the run ended after {number}, before a mixture of normals along {axis!r} was "
            f"complete ({weights}); allow more schedule.rounds, or use a narrower prior or another "
            f"parametrisation of {axis!r}",
        )
    if axis is not None and float(memory["split.cut_off"]) > 0:
        return Verdict(
            False,
            f"a mixture of normals along {axis!r} does not reach the ends of the posterior after "
            f"{number} ({weights}); use a narrower prior or another parametrisation of {axis!r}",
        )
    return None


def _unfinished(
    state: ServerState, log: Sequence[dict[str, Any]], number: str, last: str
) -> Verdict | None:
    """Return the verdict "not converged" if the run ended early, if its last stage was not reached,
    or if a party has not contributed; None for other runs. `last` is the name in the server's
    memory of the last stage's result.
    """
    if state.finished not in ("converged", "rounds"):
        notes = [line["note"] for line in log if line.get("note")]
        return Verdict(False, f"the run ended early: {(notes or [state.finished])[-1]}")
    if last not in (state.memory or {}):
        return Verdict(
            False, f"the limit of {number} was reached before convergence; use more schedule.rounds"
        )
    silent = [name for name in expected_parties(state) if name not in state.moved_since]
    if silent:
        return Verdict(
            False, without_contribution(silent, state, "contributed; use more schedule.rounds")
        )
    return None


def _split_axis(memory: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the name (or index) of the parameter along which the posterior was split; None if the
    posterior was not split.
    """
    if "split.axis" not in memory:
        return None
    place = int(memory["split.axis"])
    return names[place] if names else str(place)


def judge_wide(state: ServerState, log: Sequence[dict[str, Any]]) -> Verdict:
    """Return the verdict on a run of `tacit.methods.natural.wide`.

    Runs of this method have too many parameters for informative importance weights. If the run
    computed expectations that account for correlations (`tacit.methods.natural.wide_root`), the
    error of the means is known. Otherwise q is accepted as the best q with independent parameters.
    If its standard deviations ignore correlations, `unresolved_caution` says so.
    """
    memory = state.memory or {}
    number = f"{state.round} round{'' if state.round == 1 else 's'}"
    unfinished = _unfinished(state, log, number, "residual")
    if unfinished is not None:
        return unfinished
    step = float(memory["last_change"])
    if not bool(memory["settled"]):
        return Verdict(
            False,
            f"after {number} a whole step would still move q by {step:.2g} nats; use informative "
            "priors, or check the model for parameters that the records do not determine",
        )
    error = float(memory.get("mean_error", 0.0))
    if not error <= MOST_MEAN_ERROR:
        return Verdict(
            False,
            f"after {number} the random vectors that represent correlations move a mean by "
            f"{error:.2g} sd (at most {MOST_MEAN_ERROR:g}); use narrower priors or fewer columns",
        )
    known = (
        f", and other random vectors would move its means by up to {error:.2g} sd" if error else ""
    )
    return Verdict(
        True,
        f"after {number} a whole step would move q by {step:.1g} nats{known}; standard deviations "
        f"by linear response (residual {float(memory['residual']):.2g})",
    )
