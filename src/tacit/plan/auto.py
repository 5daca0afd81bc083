"""Choice of the local method for method.kind = "auto"."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tacit.methods.base import LocalMethod
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.exact import Exact
from tacit.methods.gradient import GradientVI
from tacit.methods.natural.method import SOLVED_UP_TO, NaturalVI
from tacit.methods.private import PrivateMethod
from tacit.methods.scoring.method import LEAST_ROUNDS, PrivateScoring
from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
from tacit.models import ConjugateGaussian, Model
from tacit.models.capabilities import GaussianSites, Scores
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Schedule, Synchronous

MAX_COLUMNS = 256
"""Limit on columns of x times levels of y, above which releases have too many numbers."""


class Case(NamedTuple):
    """Inputs of the choice; none of them depends on records."""

    model: Model
    privacy: Privacy
    schedule: Schedule
    parties: int
    steady: bool
    """True if every round waits for all parties (no quorum)."""


def _counts(model: Model) -> bool:
    """True if the model has a column besides the constant."""
    return isinstance(model, Scores) and any(
        feature.kind != "intercept" for feature in model.layout
    )


REASONS: tuple[tuple[Callable[[Case], bool], str], ...] = (
    (lambda case: not isinstance(case.model, Scores),
     "model {model} is not a generalised linear model"),
    (lambda case: not _counts(case.model),
     "model {model} has no column besides its constant"),
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


def choose_method(
    model: Model,
    *,
    privacy: Privacy | None = None,
    schedule: Schedule | None = None,
    parties: int = 1,
    steady: bool = True,
) -> tuple[LocalMethod, str]:
    """The method chosen by "auto", and the reason in one line."""
    if model.ties_at_prior:
        answers = ExpectedStatistics() if privacy is None else PrivateStatistics()
        return answers, f"model {model.kind!r} has latent variables: expected statistics"
    if privacy is not None:
        return _private(Case(model, privacy, schedule or Synchronous(), parties, steady))
    if isinstance(model, ConjugateGaussian):
        return Exact(), f"model {model.kind!r} has a closed-form posterior"
    if isinstance(model, GaussianSites):
        return NaturalVI(), f"model {model.kind!r} is generalised linear: quadrature"
    if model.traceable and not model.multimodal and model.dimension <= SOLVED_UP_TO:
        return NaturalVI(), (
            f"model {model.kind!r} has {model.dimension} parameters, at most {SOLVED_UP_TO}: "
            "natural gradients with a full covariance"
        )
    return GradientVI(), (
        f"model {model.kind!r} has several modes or more than {SOLVED_UP_TO} parameters: "
        "stochastic gradients"
    )


def _private(case: Case) -> tuple[PrivateMethod, str]:
    for refused, words in REASONS:
        if refused(case):
            told = words.format(
                model=repr(case.model.kind),
                columns=case.model.dimension,
                most=MAX_COLUMNS,
                unit=repr(case.privacy.unit),
                aggregation=repr(case.privacy.aggregation),
                schedule=repr(case.schedule.kind),
                rounds=case.schedule.rounds,
            )
            return DPSGD(), f"not dp-scoring: {told}"
    return PrivateScoring(), (
        f"model {case.model.kind!r} is a GLM with all parties in every round; intervals include "
        "the noise"
    )
