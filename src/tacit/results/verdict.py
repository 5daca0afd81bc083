"""Decide whether a fit has converged.

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

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.expfam.rooted import RootedGaussian
from tacit.results.dispersion import Dispersion
from tacit.server.state import ServerState

SETTLED_KL = 1e-3
"""Largest step of a converged run in nats (KL): 0.045 posterior sd in one direction."""
SAMPLED_KL = 0.05
"""Like `SETTLED_KL`, for a step that is estimated from draws: 0.3 posterior sd."""
NOISY_KL = 0.5
LARGE_STEP = 1.0
ROUNDED_EIGENVALUE = 4 * float(np.finfo(np.float64).eps)


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
        return Verdict(False, without_contribution(stale, state, since))
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
    silent = [name for name in expected_parties(state) if name not in state.moved_since]
    if silent:
        return Verdict(
            False, without_contribution(silent, state, "contributed; use more schedule.rounds")
        )
    return None


def expected_parties(state: ServerState) -> list[str]:
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
        for name in expected_parties(state)
        if not state.moved_since[name] ** 2 <= limit * (1.0 + 1e-9)
    ]


def without_contribution(parties: Sequence[str], state: ServerState, done: str) -> str:
    """Return a text that names some of the parties that have not done something."""
    named = ", ".join(parties[:5]) + (f" and {len(parties) - 5} more" if len(parties) > 5 else "")
    return f"{len(parties)} of {len(expected_parties(state))} parties ({named}) have not {done}"


def _judge_private(family: Family, moved: float, number: str) -> Verdict:
    size = _dimension(family)
    spread = f"{np.sqrt(2.0 * moved / size):.2g} posterior sd per coordinate, its noise included"
    if moved > NOISY_KL * size:
        return Verdict(
            False,
            f"the last of the planned {number} moved q by {spread}: more than the intervals "
            "account for; use a larger epsilon or another number of rounds",
        )
    return Verdict(
        True,
        f"ran the planned {number}; the last one moved q by {spread}; up to 1 is expected from "
        "the noise",
    )


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
    """Return 1 − (posterior sd / prior sd)² of each coordinate, at least 0.

    The result is public in a private run, because it is computed from q.
    """
    after, before = family.location_scale(q)[1], family.location_scale(prior)[1]
    return np.maximum(0.0, 1.0 - np.square(np.asarray(after) / np.asarray(before)))
