"""Choice of the local method if method.kind is "auto"."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tacit.errors import ConfigError
from tacit.methods.base import LocalMethod
from tacit.methods.conjugate.method import ConjugateStages, PrivateConjugateStages
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.exact import Exact
from tacit.methods.gradient import GradientVI
from tacit.methods.natural.method import SOLVED_UP_TO, NaturalVI
from tacit.methods.private import PrivateMethod
from tacit.methods.scores.method import LEAST_ROUNDS as LEAST_SCORES
from tacit.methods.scores.method import MOST_PARAMETERS, PrivateScores, main_share
from tacit.methods.scores.party import score_bound
from tacit.methods.scoring.method import PrivateScoring, scores_share
from tacit.methods.scoring.stages import LEAST_ROUNDS
from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
from tacit.models import ConjugateGaussian, Model
from tacit.models.capabilities import Coefficients, GaussianSites, Scores, SimulatesOutcomes
from tacit.models.conjugate import ConjugateExponential
from tacit.models.scores import ScoreLikelihood
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Schedule, Synchronous

MAX_COLUMNS = 256
"""Largest number of parameters (columns of x times levels of y) for private scoring."""


class Case(NamedTuple):
    """The facts from which "auto" chooses a private method. They do not depend on records."""

    model: Model
    privacy: Privacy
    schedule: Schedule
    parties: int
    steady: bool
    """True if every round waits for all parties (no quorum)."""


def _counts(model: Model) -> bool:
    return isinstance(model, Scores) and any(
        feature.kind != "intercept" for feature in model.layout
    )


REASONS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: isinstance(case.model, Coefficients) and not isinstance(case.model, Scores)
     and case.model.dimension > len(case.model.layout),
     "the noise of model {model} is unknown; declare noise_sd if it is known"),
    (lambda case: isinstance(case.model, Coefficients) and not isinstance(case.model, Scores),
     "model {model} has no bounded score"),
    (lambda case: not isinstance(case.model, Scores),
     "model {model} is not a generalised linear model"),
    (lambda case: not _counts(case.model),
     "model {model} has no column besides the intercept"),
    (lambda case: case.model.dimension > MAX_COLUMNS,
     "{columns} columns (of x, times the levels of y); scoring supports at most {most}"),
    (lambda case: case.privacy.unit not in PrivateScoring.units,
     "privacy.unit = {unit}; scoring clips per record"),
    (lambda case: case.privacy.aggregation not in PrivateScoring.aggregations,
     "privacy.aggregation = {aggregation}; in scoring the parties add the noise"),
    (lambda case: case.schedule.kind != "synchronous",
     "schedule.kind = {schedule}; scoring needs synchronous rounds"),
    (lambda case: (case.schedule.parties_per_round or case.parties) != case.parties,
     "schedule.parties_per_round is set; scoring needs all parties in every round"),
    (lambda case: not case.steady,
     "a quorum is set; scoring needs all parties in every round"),
    (lambda case: case.schedule.rounds < LEAST_ROUNDS,
     "schedule.rounds = {rounds}; scoring needs two rounds before the first score"),
    (lambda case: case.schedule.damping not in (None, 1.0),
     "schedule.damping is set; scoring chooses its step lengths"),
)  # fmt: skip
"""Reasons against private scoring as (test, text); the first that applies is shown."""


def _no_outcomes(model: Model) -> str:
    """Return the reason why a model cannot simulate outcomes; "" if it can."""
    if not isinstance(model, SimulatesOutcomes):
        return f"model {model.kind!r} cannot simulate outcomes (it has no method outcome_law)"
    try:
        model.outcome_law()
    except ConfigError as refused:
        return str(refused)
    return ""


SCORES_REASONS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: bool(_no_outcomes(case.model)), "{outcomes}"),
    (lambda case: case.model.dimension > MOST_PARAMETERS,
     "{columns} parameters; for more than {most_parameters}, curvatures are mostly noise"),
    (lambda case: case.privacy.unit not in PrivateScores.units,
     "privacy.unit = {unit}; scores are clipped per record"),
    (lambda case: case.privacy.aggregation not in PrivateScores.aggregations,
     "privacy.aggregation = {aggregation}; in dp-scores the parties add the noise"),
    (lambda case: case.schedule.kind != "synchronous",
     "schedule.kind = {schedule}; dp-scores needs synchronous rounds"),
    (lambda case: (case.schedule.parties_per_round or case.parties) != case.parties,
     "schedule.parties_per_round is set; dp-scores needs all parties in every round"),
    (lambda case: not case.steady, "a quorum is set; dp-scores needs all parties in every round"),
    (lambda case: case.schedule.rounds < LEAST_SCORES,
     "schedule.rounds = {rounds}; dp-scores needs at least {least_scores}"),
    (lambda case: case.schedule.damping not in (None, 1.0),
     "schedule.damping is set; dp-scores chooses its step lengths"),
)  # fmt: skip
"""Reasons against private scores, for models that private scoring does not support."""
LACKS = "intervals of dp-sgd include neither the noise nor the effect of clipping"


def choose_method(
    model: Model,
    *,
    privacy: Privacy | None = None,
    schedule: Schedule | None = None,
    parties: int = 1,
    steady: bool = True,
    full: bool = False,
    refused: tuple[str, ...] = (),
) -> tuple[LocalMethod, str]:
    """Return the method that "auto" chooses, and a one-line reason for the choice.

    `steady` is True if every round waits for all parties, and `full` is True if a full covariance
    is requested. `refused` lists kinds of methods that must not be chosen, because their noise
    would be too large.
    """
    if isinstance(model, ConjugateExponential):
        answers = ConjugateStages() if privacy is None else PrivateConjugateStages()
        return answers, f"model {model.kind!r} has statistics in stages"
    if model.ties_at_prior:
        answers = ExpectedStatistics() if privacy is None else PrivateStatistics()
        return answers, f"model {model.kind!r} has latent variables: expected statistics"
    if privacy is not None and privacy.delta == 0 and not model.ties_at_prior:
        raise ConfigError(
            "privacy.delta = 0 with method.kind = 'auto'; for pure ε set method.kind = "
            "'dp-statistics' and method.clip to the L1 norm of a typical record's statistics, or "
            "set a small privacy.delta, e.g. 1e-9"
        )
    if privacy is not None:
        case = Case(model, privacy, schedule or Synchronous(), parties, steady)
        return _private(case, refused)
    if isinstance(model, ConjugateGaussian) and not model.undeclared:
        return Exact(), f"model {model.kind!r} has a closed-form posterior"
    if isinstance(model, GaussianSites):
        return (
            NaturalVI(),
            f"model {model.kind!r} is generalised linear: natural gradients by quadrature",
        )
    size = f"model {model.kind!r} has {model.dimension} parameters"
    if model.traceable and not model.multimodal:
        if model.dimension <= SOLVED_UP_TO:
            return NaturalVI(), (
                f"{size}, at most {SOLVED_UP_TO}: natural gradients with a full covariance"
            )
        everyone = steady and (schedule is None or schedule.parties_per_round is None)
        if everyone and not full:
            return NaturalVI(), (
                f"{size}, more than {SOLVED_UP_TO}: natural gradients with independent parameters "
                "and standard deviations by linear response"
            )
    return GradientVI(), (
        f"{size}: stochastic gradients, because natural gradients need a single mode and, above "
        f"{SOLVED_UP_TO} parameters, all parties in every round and independent parameters"
    )


def least_noise_ratio(likelihood: ScoreLikelihood, dimension: int, aggregation: str) -> float:
    """Return a lower bound on the quotient of two noise levels: dp-scoring divided by dp-scores.

    Both methods clip the score of each record and spend a share of the budget on scores. Noise is
    proportional to the clip divided by the square root of this share. To compare clips, both are
    expressed in standard deviations of one coordinate of a whitened score. The clip of dp-scoring
    is then at least `ScoreLikelihood.least_bound`, and that of dp-scores is
    `score_bound(dimension)`/√dimension. All inputs are public.
    """
    scoring = likelihood.least_bound / math.sqrt(scores_share(aggregation))
    scores = score_bound(dimension) / math.sqrt(dimension * main_share(aggregation))
    return scoring / scores


def _private(case: Case, refused: tuple[str, ...]) -> tuple[PrivateMethod, str]:
    kind, model = repr(case.model.kind), case.model
    scoring, scores = _refusal(case, REASONS), _refusal(case, SCORES_REASONS)
    if PrivateScores.kind in refused:
        scores = scores or "its noise would be too large"
    if scoring is None and isinstance(model, Scores):
        likelihood, dimension = model.score_likelihood(), case.model.dimension
        ratio = least_noise_ratio(likelihood, dimension, case.privacy.aggregation)
        if scores is None and ratio > 1.0:
            return PrivateScores(), (
                f"model {kind}: for the declared bounds of the outcome the noise of dp-scoring is "
                f"at least {ratio:.2g} times that of dp-scores"
            )
        return PrivateScoring(), (
            f"model {kind} is a generalised linear model and all parties answer in every round; "
            "intervals include the noise"
        )
    if isinstance(model, Scores):
        return DPSGD(), f"dp-scoring is not used: {scoring}; {LACKS}"
    if scores is None:
        return PrivateScores(), (
            f"model {kind} can simulate outcomes: centred scores are not biased by clipping and "
            "their noise is known"
        )
    return DPSGD(), f"dp-scoring is not used: {scoring}; dp-scores is not used: {scores}; {LACKS}"


def _refusal(case: Case, reasons: tuple[tuple[Callable[[Case], bool], str], ...]) -> str | None:
    for applies, words in reasons:
        if applies(case):
            return words.format(
                model=repr(case.model.kind),
                columns=case.model.dimension,
                most=MAX_COLUMNS,
                most_parameters=MOST_PARAMETERS,
                least_scores=LEAST_SCORES,
                outcomes=_no_outcomes(case.model),
                unit=repr(case.privacy.unit),
                aggregation=repr(case.privacy.aggregation),
                schedule=repr(case.schedule.kind),
                rounds=case.schedule.rounds,
            )
    return None
