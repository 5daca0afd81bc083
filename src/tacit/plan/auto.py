"""What method.kind = "auto" means: one function, one table of reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tacit.errors import ConfigError
from tacit.methods.base import LocalMethod
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.exact import Exact
from tacit.methods.gradient import GradientVI
from tacit.methods.natural import NaturalVI
from tacit.methods.private import PrivateMethod
from tacit.methods.scores.method import LEAST_ROUNDS as LEAST_SCORES
from tacit.methods.scores.method import MOST_PARAMETERS, PrivateScores
from tacit.methods.scoring.method import LEAST_ROUNDS, PrivateScoring
from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
from tacit.models import ConjugateGaussian, Model
from tacit.models.capabilities import GaussianSites, Scores, SimulatesOutcomes
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Schedule, Synchronous

MOST_COLUMNS = 256
"""Of x, times the levels of y: beyond it a second moment or a score has too many numbers."""


class Case(NamedTuple):
    """All that the choice depends on; nothing of it is a record."""

    model: Model
    privacy: Privacy
    schedule: Schedule
    parties: int
    steady: bool
    """Whether a round waits for everybody: no quorum."""


def _counts(model: Model) -> bool:
    """Whether there is a column to count."""
    return isinstance(model, Scores) and any(
        feature.kind != "intercept" for feature in model.layout
    )


REASONS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: not isinstance(case.model, Scores),
     "model {model} is not a generalised linear one, whose scores could be added up"),
    (lambda case: not _counts(case.model),
     "model {model} has no column but its constant, and nothing to count"),
    (lambda case: case.model.dimension > MOST_COLUMNS,
     "{columns} columns of x, times the levels of y if it has several; second moment and scores "
     "of more than {most} are too many numbers for their noise"),
    (lambda case: case.privacy.unit not in PrivateScoring.units,
     "privacy.unit = {unit}; scores are clipped record by record"),
    (lambda case: case.privacy.aggregation not in PrivateScoring.aggregations,
     "privacy.aggregation = {aggregation}; scores are noised by the parties"),
    (lambda case: case.schedule.kind != "synchronous",
     "schedule.kind = {schedule}; scores of one round are added up"),
    (lambda case: (case.schedule.parties_per_round or case.parties) != case.parties,
     "schedule.parties_per_round is set; scores are everybody's"),
    (lambda case: not case.steady,
     "a quorum is set; scores of those who are late would be guessed from those of others"),
    (lambda case: case.schedule.rounds < LEAST_ROUNDS,
     "schedule.rounds = {rounds}; counts and second moment take two before the first score"),
    (lambda case: case.schedule.damping not in (None, 1.0),
     "schedule.damping is set; scoring finds the length of its steps itself"),
)  # fmt: skip
"""Why private scoring will not do, in the order in which one is told; each is (test, words)."""


def _no_outcomes(model: Model) -> str:
    """Why a model cannot simulate outcomes; empty: it can."""
    if not isinstance(model, SimulatesOutcomes):
        return f"model {model.kind!r} cannot simulate outcomes"
    try:
        model.outcome_law()
    except ConfigError as refused:
        return str(refused)
    return ""


SCORES_REASONS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: bool(_no_outcomes(case.model)), "{outcomes}"),
    (lambda case: case.model.dimension > MOST_PARAMETERS,
     "{columns} parameters; curvatures of more than {most_parameters} are mostly noise"),
    (lambda case: case.privacy.unit not in PrivateScores.units,
     "privacy.unit = {unit}; scores are clipped record by record"),
    (lambda case: case.privacy.aggregation not in PrivateScores.aggregations,
     "privacy.aggregation = {aggregation}; scores are noised by the parties"),
    (lambda case: case.schedule.kind != "synchronous",
     "schedule.kind = {schedule}; scores of one round are added up"),
    (lambda case: (case.schedule.parties_per_round or case.parties) != case.parties,
     "schedule.parties_per_round is set; all parties are asked for scores"),
    (lambda case: not case.steady, "a quorum is set; a sum of scores needs every party"),
    (lambda case: case.schedule.rounds < LEAST_SCORES,
     "schedule.rounds = {rounds}; its stages need at least {least_scores}"),
    (lambda case: case.schedule.damping not in (None, 1.0),
     "schedule.damping is set; scores find the length of their steps themselves"),
)  # fmt: skip
"""Why private scores will not do, for models that private scoring does not serve."""
LACKS = "intervals of dp-sgd contain neither the noise nor what clipping does"


def choose_method(
    model: Model,
    *,
    privacy: Privacy | None = None,
    schedule: Schedule | None = None,
    parties: int = 1,
    steady: bool = True,
) -> tuple[LocalMethod, str]:
    """The method that "auto" is here, and why, in one line."""
    if model.ties_at_prior:
        answers = ExpectedStatistics() if privacy is None else PrivateStatistics()
        return answers, f"model {model.kind!r} has hidden variables: expected statistics"
    if privacy is not None:
        return _private(Case(model, privacy, schedule or Synchronous(), parties, steady))
    if isinstance(model, ConjugateGaussian):
        return Exact(), f"model {model.kind!r} has its posterior in closed form"
    if isinstance(model, GaussianSites):
        return (
            NaturalVI(),
            f"model {model.kind!r} is generalised linear: quadrature",
        )
    return GradientVI(), f"model {model.kind!r} is known by its log-likelihood only"


def _private(case: Case) -> tuple[PrivateMethod, str]:
    kind = repr(case.model.kind)
    scoring = _refusal(case, REASONS)
    if scoring is None:
        return PrivateScoring(), (
            f"model {kind} is generalised linear and its rounds are everybody's: noisy "
            "scores know their curvature and their noise"
        )
    if isinstance(case.model, Scores):
        return DPSGD(), f"not dp-scoring: {scoring}; {LACKS}"
    scores = _refusal(case, SCORES_REASONS)
    if scores is None:
        return PrivateScores(), (
            f"model {kind} can simulate outcomes: centred scores are not biased by clipping and "
            "their noise is known"
        )
    return DPSGD(), f"not dp-scoring: {scoring}; not dp-scores: {scores}; {LACKS}"


def _refusal(case: Case, reasons: tuple[tuple[Callable[[Case], bool], str], ...]) -> str | None:
    """The first reason that applies, in words."""
    for applies, words in reasons:
        if applies(case):
            return words.format(
                model=repr(case.model.kind),
                columns=case.model.dimension,
                most=MOST_COLUMNS,
                most_parameters=MOST_PARAMETERS,
                least_scores=LEAST_SCORES,
                outcomes=_no_outcomes(case.model),
                unit=repr(case.privacy.unit),
                aggregation=repr(case.privacy.aggregation),
                schedule=repr(case.schedule.kind),
                rounds=case.schedule.rounds,
            )
    return None
