"""Decide whether a fit can be trusted: the verdict and the warnings that are shown with its
numbers.

`judge` uses only information that the server has, which is public in a private run. A run without
privacy has converged when a full, undamped step from the last q would move q by at most
`SETTLED_KL` nats. For methods whose answers are natural-gradient steps, the size of that step is
the size of the last round's step divided by the square of its damping, because KL is quadratic in a
short step. With other methods q can stop changing although it is not at an optimum, so
`tacit.results.gradient_step` measures the full step if the records are available. If they are not,
as in a live federation, `Verdict.why` says so.

A round contains only the steps of the parties that got a request in this round. Every party that
has not left must therefore have contributed, and all rounds since its last contribution together
must not have moved q by more than the same limit.

In a private run every q contains the noise of its round, and the number of rounds is fixed before
the run starts. The run counts as converged if all rounds were run and the last one moved q by at
most `NOISY_KL` nats per coordinate, which is one posterior standard deviation. A larger change
exceeds the noise that the intervals account for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.expfam.rooted import RootedGaussian
from tacit.methods.natural.chains import MAX_NESTED_R_HAT, MOST_DIVERGENT
from tacit.methods.natural.more import MIXTURE
from tacit.methods.natural.precision import CAUTIONED_SD_ERROR as MOST_SD_DRAWN
from tacit.methods.natural.precision import MOST_MEAN_ERROR as MOST_MEAN_DRAWN
from tacit.methods.natural.precision import Precision
from tacit.methods.natural.weights import (
    BELIEVED_SHARE,
    CLOSE_SHARE,
    DOUBTED,
    MAX_PARETO_K,
    is_believed,
)
from tacit.results.dispersion import Dispersion
from tacit.server.state import ServerState

if TYPE_CHECKING:
    from tacit.methods import Clipped

SETTLED_KL = 1e-3
"""Largest step of a converged run in nats (KL): 0.045 posterior sd in one direction."""
SAMPLED_KL = 0.05
"""Like `SETTLED_KL`, for a step that is estimated from draws: 0.3 posterior sd."""
NOISY_KL = 0.5
LARGE_STEP = 1.0
LEARNED_LITTLE = 0.05
"""Little was learned about a coordinate if 1 − posterior variance / prior variance is below this.
The posterior interval is then less than 2.6 % shorter than the prior interval.
"""
UNRESOLVED = 0.2
"""Relative residual of the linear-response equations above which standard deviations are too small
by an unknown amount.
"""
MOST_MEAN_ERROR = 0.3
"""Largest accepted error of a mean, in posterior sds, if expectations are computed with random
vectors.
"""
MOSTLY_CLIPPED = 0.5
"""A caution is issued if the share of clipped units is larger than this. The norm of the median
contribution is then larger than the clip.
"""
ROUNDED_EIGENVALUE = 4 * float(np.finfo(np.float64).eps)


class NotConvergedWarning(UserWarning):
    """A fit has not converged, so its posterior is not that of the model given the records."""


class LittleLearnedWarning(UserWarning):
    """The posterior of a fit is almost the prior."""


class ClippingWarning(UserWarning):
    """Many contributions were clipped, which biases the posterior."""


class OnePartyWarning(UserWarning):
    """The posterior would be very different without one of the parties."""


class TooNarrowWarning(UserWarning):
    """Intervals of a fit are too narrow, because of the method or the posterior family."""


class MisfitWarning(UserWarning):
    """The records do not look as if they came from the model."""


class NotCheckedWarning(UserWarning):
    """Intervals assume a variance that is not compared with the records."""


class WideIntervalsWarning(UserWarning):
    """Privacy makes intervals far wider than they would be without it."""


class ImpreciseWarning(UserWarning):
    """Means or standard deviations of a fit have a large Monte-Carlo error."""


class MissingIndicatorWarning(UserWarning):
    """Missing values were replaced by a constant and an indicator."""


class Verdict(NamedTuple):
    """Whether a fit converged, and the reason in one sentence."""

    converged: bool
    why: str
    effective_share: float | None = None
    """Share of effective draws in the comparison of a mean-field q with the exact posterior."""
    misfit: str | None = None
    """How the records differ from the model, if this is known."""
    dispersion: Dispersion | None = None
    """Comparison of the outcomes' variance with the variance implied by the model."""
    other_mode: str | None = None
    """Description of a point that is probably another mode (see `tacit.results.images`)."""


class Caution(NamedTuple):
    """One reason why the numbers of a fit may be unreliable."""

    kind: str
    text: str


CATEGORIES: dict[str, type[UserWarning]] = {
    "not-converged": NotConvergedWarning,
    "may-not-converge": NotConvergedWarning,
    "little-learned": LittleLearnedWarning,
    "one-value": LittleLearnedWarning,
    "clipping": ClippingWarning,
    "misfit": MisfitWarning,
    "dispersion-not-checked": NotCheckedWarning,
    "missing-indicator": MissingIndicatorWarning,
    "imprecise": ImpreciseWarning,
    "one-party": OnePartyWarning,
    "too-narrow": TooNarrowWarning,
    "wide": WideIntervalsWarning,
}


def judge(
    family: Family,
    state: ServerState,
    log: Sequence[dict[str, Any]],
    *,
    private: bool,
    step_share: float | None,
    gradient_step: float | None = None,
    exact_loss: bool = True,
) -> Verdict:
    """Return the verdict on a finished run.

    `step_share` is `LocalMethod.step_share`, which is None for a method whose answers are not
    natural gradients. For such a method `gradient_step` is the result of
    `tacit.results.stationarity`, if it was measured. `exact_loss` is true if all losses of a round
    are at the same q, as in a synchronous round of all parties. Otherwise the sum of the losses may
    increase slightly although the run converges.
    """
    rounds = [line for line in log if line["event"] == "round"]
    number = f"{state.round} round{'' if state.round == 1 else 's'}"
    incomplete = _incomplete(state, rounds, number, private=private)
    if incomplete is not None:
        return incomplete
    moved, damping = float(rounds[-1]["last_change"]), float(rounds[-1]["damping"])
    if private:
        return _judge_private(family, moved, number)
    if state.refused_in_a_row:
        return Verdict(False, "the last update was refused; use a lower schedule.damping")
    size = _dimension(family)
    scale = 1 if isinstance(family, Gaussian) else size
    if moved > LARGE_STEP * scale:
        return Verdict(
            False, f"the last of {number} moved q by {moved:.3g} nats; use more schedule.rounds"
        )
    if step_share is not None:
        risen = _risen(rounds) if exact_loss else None
        if risen is not None:
            return Verdict(False, f"the free energy rose by {risen:.3g} nats in the last round")
        step, most = moved / (damping * step_share) ** 2, SETTLED_KL * scale
        stale = _stale(state, moved, most * (damping * step_share) ** 2)
    elif gradient_step is None:
        return Verdict(
            False,
            f"the last of {number} moved q by {moved:.2g} nats, but with this method q can stop "
            "changing away from the optimum, and the gradient was not measured",
        )
    else:
        step, most = gradient_step, SAMPLED_KL * max(1.0, size / 10)
        stale = []  # the gradient is that of all parties at the last q
    if not step <= most:
        return Verdict(
            False,
            f"after {number} a whole step would still move q by {step:.2g} nats (at most {most:g} "
            "when converged); use more schedule.rounds, or bring the columns to a similar scale",
        )
    if stale:
        since = "contributed recently, and q has changed too much since; use more schedule.rounds"
        return Verdict(False, _silent(stale, state, since))
    return Verdict(True, f"after {number} a whole step would move q by {step:.2g} nats")


def _incomplete(
    state: ServerState, rounds: Sequence[dict[str, Any]], number: str, *, private: bool
) -> Verdict | None:
    """Return the verdict "not converged" if the run ended early, if the last round of a private run
    was refused, or if a party has not contributed; None for other runs.
    """
    if state.finished not in ("converged", "rounds") or not rounds:
        return Verdict(False, f"the run ended early: {state.finished or 'no round was completed'}")
    if state.refused_in_a_row and private:
        return Verdict(
            False,
            f"the last of the planned {number} was refused: with its updates q would not have been "
            "a proper distribution",
        )
    silent = [name for name in _expected(state) if name not in state.moved_since]
    if silent:
        return Verdict(False, _silent(silent, state, "contributed; use more schedule.rounds"))
    return None


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
    step, shape = float(memory["last_change"]), float(memory["pareto_k"])
    share = float(memory["effective_share"])
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
    if not bool(memory["settled"]):
        return Verdict(
            False,
            f"after {number} a whole step would still move q by {step:.2g} nats (at most "
            f"{SETTLED_KL:g} when converged; {weights}); use informative priors, or check the "
            "model for parameters that the records do not determine",
        )
    if full and not believed:
        corrected = (
            ""
            if not state.public["weighted"]
            else ("mean and standard deviations are corrected by the weights as far as possible; ")
        )
        return Verdict(
            False,
            "q is the best normal approximation, but the posterior is far from normal "
            f"({weights}; required: at least {BELIEVED_SHARE:.0%} and at most "
            f"{MAX_PARETO_K}); {corrected}sample it with method.sampling = true, which takes "
            "hundreds of exchanges or more, or use another parametrisation",
        )
    why = f"after {number} a whole step would move q by {step:.1g} nats; {weights}"
    if float(memory.get("more", 0.0)) == MIXTURE:
        why = f"draws from a fitted mixture of Student-t distributions after {number}; {weights}"
    elif axis is not None:
        why = f"a mixture of normals along {axis!r} after {number}; {weights}"
    return Verdict(True, why, None if full else share)


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
            f"{MOST_DIVERGENT:.1%} divergent); use a non-centred parametrisation of the effects "
            "whose scale is weakly determined, or more informative priors for scales",
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
    silent = [name for name in _expected(state) if name not in state.moved_since]
    if silent:
        return Verdict(False, _silent(silent, state, "contributed; use more schedule.rounds"))
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


def _expected(state: ServerState) -> list[str]:
    """Return the parties that have not left and were not excluded."""
    return [name for name in state.factors if name not in state.not_asked]


def _stale(state: ServerState, moved: float, most: float) -> list[str]:
    """Return the parties for which q has moved too far since their last contribution.

    The length of a step is √KL. The lengths of all steps since a party's last contribution are
    added up, and the square of the sum must not exceed `most` nats. If the last round alone moved q
    by more than that, the limit is `moved`, the size of the last round's step, because that round
    is judged separately.
    """
    limit = max(most, moved)
    return [
        name
        for name in _expected(state)
        if not state.moved_since[name] ** 2 <= limit * (1.0 + 1e-9)
    ]


def _silent(parties: Sequence[str], state: ServerState, done: str) -> str:
    named = ", ".join(parties[:5]) + (f" and {len(parties) - 5} more" if len(parties) > 5 else "")
    return f"{len(parties)} of {len(_expected(state))} parties ({named}) have not {done}"


def _judge_private(family: Family, moved: float, number: str) -> Verdict:
    size = _dimension(family)
    spread = f"{np.sqrt(2.0 * moved / size):.2g} posterior sd per coordinate, its noise included"
    if moved > NOISY_KL * size:
        return Verdict(
            False,
            f"the last of the planned {number} moved q by {spread}: more than the intervals "
            "account for; use a larger epsilon or another number of rounds",
        )
    return Verdict(True, f"ran the planned {number}; the last one moved q by {spread}")


def _dimension(family: Family) -> int:
    """Return the number of coordinates of θ."""
    return int(np.prod(next(iter(family.shapes.values()))))


def _risen(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Return the increase of the negative ELBO in the last round; None if the increase is not
    larger than rounding errors.
    """
    losses = [line["negative_elbo"] for line in rounds if line.get("negative_elbo") is not None]
    if len(losses) < 3:  # the first may be at another point than q
        return None
    risen = losses[-1] - losses[-2]
    return risen if risen > 1e-2 + 1e-9 * abs(losses[-1]) else None


def rounding_trouble(family: Family, q: Natural) -> str | None:
    """Return a message if the variances of q are dominated by rounding errors, otherwise None.

    The precision matrix is scaled to a unit diagonal. If its smallest eigenvalue is then not larger
    than rounding errors, the variance along the eigenvector is unknown.
    """
    if not isinstance(family, FullGaussian) or isinstance(family, RootedGaussian):
        return None
    precision = -2.0 * np.asarray(q["quadratic"])
    scale = np.sqrt(np.diagonal(precision))
    least = float(np.min(np.linalg.eigvalsh(precision / np.outer(scale, scale))))
    if least > ROUNDED_EIGENVALUE * len(scale):
        return None
    return (
        f"the precision of q is singular to rounding (smallest scaled eigenvalue {least:.1g}); "
        "bring the columns to a similar scale, use a narrower prior or leave a column out"
    )


def learned(family: Family, q: Natural, prior: Natural) -> np.ndarray:
    """Return 1 − (posterior sd / prior sd)² of each coordinate.

    The result is public in a private run, because it is computed from q.
    """
    after, before = family.location_scale(q)[1], family.location_scale(prior)[1]
    return 1.0 - np.square(np.asarray(after) / np.asarray(before))


def convergence_caution(verdict: Verdict) -> list[Caution]:
    """Return a caution unless the fit converged."""
    if verdict.converged:
        return []
    return [Caution("not-converged", f"This fit did not converge: {verdict.why}.")]


def narrow_caution(share: float | None) -> list[Caution]:
    """Return a caution if a mean-field q is far from the exact posterior."""
    if share is None or share >= BELIEVED_SHARE:
        return []
    return [
        Caution(
            "too-narrow",
            "Intervals are too narrow: the mean-field posterior leaves out correlations, and only "
            f"{share:.0%} of its draws are effective (importance weights relative to the exact "
            'posterior); use posterior="full".',
        )
    ]


def precision_caution(precision: Precision) -> list[Caution]:
    """Return a caution if a mean or a standard deviation has a large Monte-Carlo error."""
    if precision.mean_error <= MOST_MEAN_DRAWN and precision.sd_error <= MOST_SD_DRAWN:
        return []
    return [
        Caution(
            "imprecise",
            f"Means have a Monte-Carlo standard error of up to {precision.mean_error:.2g} "
            f"posterior sd, and standard deviations of up to {precision.sd_error:.0%} (at most "
            f"{MOST_MEAN_DRAWN:g} and {MOST_SD_DRAWN:.0%} expected): the posterior has long tails, "
            "of which the draws contain few; use method.sampling = true, informative priors for "
            "scales, or another parametrisation.",
        )
    ]


def unresolved_caution(residual: float) -> list[Caution]:
    """Return a caution if linear response did not determine the standard deviations of many
    parameters.
    """
    if residual <= UNRESOLVED:
        return []
    return [
        Caution(
            "too-narrow",
            "Intervals are too narrow: standard deviations account for correlations by solving "
            f"linear systems, and these were not solved (residual {residual:.2g}, "
            f"at most {UNRESOLVED:g}); use narrower priors, or leave out columns that are nearly "
            "multiples of others.",
        )
    ]


def misfit_caution(verdict: Verdict) -> list[Caution]:
    """Return a caution if the records show that the model does not fit."""
    if verdict.misfit is None:
        return []
    return [
        Caution(
            "misfit",
            f"The model does not fit the records: {verdict.misfit}; coefficients and intervals "
            "assume that it does.",
        )
    ]


def learning_caution(learned: np.ndarray | None, names: Sequence[str] = ()) -> list[Caution]:
    """Return a caution about coordinates that are almost as uncertain as under the prior."""
    if learned is None or not np.size(learned):
        return []
    if np.max(learned) >= LEARNED_LITTLE:
        return _unlearned(learned, names)
    return [
        Caution(
            "little-learned",
            "Little was learned: the variance of even the best-known coefficient is "
            f"{1.0 - float(np.max(learned)):.1%} of its prior variance, so this is almost the "
            "prior; use a larger epsilon, more records or fewer columns.",
        )
    ]


def clipping_caution(clipped: Clipped | None) -> list[Caution]:
    """Return a caution if more than half of the contributions are known to be clipped."""
    if clipped is None or not clipped.biases or clipped.share <= MOSTLY_CLIPPED:
        return []
    return [
        Caution(
            "clipping",
            f"The clip shortened the contributions of {clipped.share:.0%} of the units. This "
            "biases the posterior by an amount that no interval includes; raise "
            f"{clipped.setting} until fewer than half are shortened, and compare the posteriors "
            "of two clips.",
        )
    ]


def unknown_clipping_caution(clip: float) -> list[Caution]:
    """Return a caution for a run with secret noise, where the share of clipped contributions is
    unknown.
    """
    return [
        Caution(
            "clipping",
            f"Contributions were clipped to a norm of {clip:g}, the default, whatever the scale "
            "of this model's gradients: the bias is unknown and no interval includes it; choose "
            "method.clip on synthetic records, with privacy.insecure_noise_seed set, so that "
            "the share of shortened contributions is shown.",
        )
    ]


def _unlearned(learned: np.ndarray, names: Sequence[str]) -> list[Caution]:
    """Return a caution that names coordinates about which little was learned."""
    few = [name for name, share in zip(names, learned, strict=False) if share < LEARNED_LITTLE]
    if not few:
        return []
    named = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
    text = f"Little was learned about {named}: intervals are almost as wide as under the prior."
    return [Caution("little-learned-coefficients", text)]


def missing_caution(columns: Sequence[str]) -> list[Caution]:
    """Return a caution if missing values were replaced by a constant and an indicator
    (`missing = "indicator"`).

    The constant biases the coefficients even if values are missing at random given the other
    columns. More records do not reduce this bias.
    """
    if not columns:
        return []
    named = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
    return [
        Caution(
            "missing-indicator",
            f"Missing values of {named} were replaced by a constant and an indicator: coefficients "
            "and intervals are biased even if values are missing at random; use missing = "
            '"drop", or impute before the fit.',
        )
    ]


def warn(cautions: Sequence[Caution], stacklevel: int = 3) -> None:
    """Issue the cautions as Python warnings."""
    for one in cautions:
        if one.kind not in CATEGORIES:  # shown with the result, no warning of its own
            continue
        warnings.warn(one.text, CATEGORIES[one.kind], stacklevel=stacklevel)
