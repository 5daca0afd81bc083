"""Conjugate-exponential models in stages: exact sums, or clipped and noisy sums.

A `ConjugateExponential` model defines a fixed list of stages. In each stage the server publishes
arrays, and a party answers with one sum of statistics over its records. At the server, the model
converts the total over all parties to the next public arrays, and finally to q.

* `ConjugateStages` sends exact sums. The server requests the stages in order and repeats the last
  one until q converges. The result equals that of the pooled records, however they are divided.
* `PrivateConjugateStages` clips a record's statistics to norm 1, adds discrete Gaussian noise and
  charges every sum. Stages and their shares of the budget are fixed in advance.

**Sensitivity.** A record contributes one vector of norm ≤ 1 to a sum. Adding or removing a record
moves the sum by at most 1. Replacing a record moves the sum by at most 2, or by at most √2 in a
stage in which no two contributions have a negative inner product (`StatisticsStage.acute`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.methods.base import Answer, Array, LocalMethod, RunFacts, Task
from tacit.methods.private import units_present
from tacit.methods.summed import SummedMethod
from tacit.models import Model
from tacit.models.conjugate import ConjugateExponential, StageSum, StatisticsStage
from tacit.privacy.bounded import Bounded, Tally, add_disjoint, clip_sum
from tacit.privacy.events import GaussianEvent
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import Asked, Stage
from tacit.server.schedule import Schedule
from tacit.support.validation import check_fields

SETTLED_KL = 1e-6
"""An exact run has converged if a round changes q by less than this many nats per parameter."""
NOISY_CHANGE = 0.05
"""A private run has converged if its last round changes the log-density by less than this many nats
per record.
"""
BLOCK_RECORDS = 1024
"""Number of records whose statistics are computed at a time if their number is secret."""
KEPT = "kept."
"""Prefix of arrays that the server keeps but does not publish."""


class _Stages(NamedTuple):
    """The stages of a model, in order. If there are more visits than stages, the last stage is
    repeated.
    """

    each: tuple[StatisticsStage, ...] = ()
    repeats: bool = True

    def at(self, visit: int) -> StatisticsStage:
        """Return the stage of a visit."""
        return self.each[min(visit, len(self.each) - 1)]

    def earlier(self, visit: int) -> int:
        """Return the number of earlier visits that belong to the same stage as `visit`."""
        return sum(self.at(before).name == self.at(visit).name for before in range(visit))

    def share(self, visit: int, visits: int) -> float:
        """Return the share of the budget that a visit spends; the shares of all visits add up
        to 1.
        """
        last = len(self.each) - 1
        if visit < last:
            return self.each[visit].share
        return self.each[last].share / max(1, visits - last)


NO_STAGES = _Stages()


def _advanced(
    model: ConjugateExponential, shared: Shared, answer: StageSum
) -> tuple[Natural, Arrays, Arrays]:
    """Return the new q, the arrays that the server publishes next, and those that it stores without
    publishing them.
    """
    kept = {name.removeprefix(KEPT): value for name, value in (shared.memory or {}).items()}
    known, q = model.advance({**kept, **shared.public}, answer)
    shapes = model.public_shapes(answer.following or answer.stage)
    public = {name: np.asarray(known[name], np.float64) for name in shapes}
    memory = {KEPT + name: value for name, value in known.items() if name not in shapes}
    return shared.q if q is None else q, public, memory


@dataclass(frozen=True, kw_only=True)
class _Staged(LocalMethod):
    """Common base class of the exact and the private method. The model determines stages and
    shapes.
    """

    eager: ClassVar[bool] = True
    uses_key: ClassVar[bool] = False
    _stages: _Stages = NO_STAGES

    def suited(self, model: Model) -> Self:
        return replace(self, _stages=_stages_of(self.kind, model))

    def judged(
        self, model: Model, natural: Natural, finished: str | None, log: Sequence[Mapping[str, Any]]
    ) -> tuple[bool, str] | None:
        return _judged(model, natural, finished, log, noisy=self.private)

    def check(self, model: Model, family: Family) -> None:
        _require(self.kind, model, family)

    def stage_at(self, visit: int) -> Stage:
        return Stage(self._stages.at(visit).name, needs_q=False, needs_factor=False)

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, ConjugateExponential)
        return {stage: (model.stage_size(stage),)}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, ConjugateExponential)
        return model.public_shapes(stage)

    def first_public(self, model: Model, family: Family) -> Arrays:
        del family
        assert isinstance(model, ConjugateExponential)
        return model.first_public()


@dataclass(frozen=True)
class ConjugateStages(_Staged):
    """Exact sums of statistics in several stages, for mixtures and factor models. Not private."""

    kind: ClassVar[str] = "conjugate"
    second_order: ClassVar[bool] = True
    dtype: str = "float64"

    def __post_init__(self) -> None:
        check_fields(self, "method")

    def rounds_for(self, model: Model) -> int:
        assert isinstance(model, ConjugateExponential)
        return model.exact_rounds if model.repeats else len(model.stages)

    def check_run(self, facts: RunFacts) -> None:
        if not facts.all_parties or facts.quorum:
            raise ConfigError(
                "method.kind = 'conjugate' needs the sum of all parties in every round; leave the "
                "keys schedule.parties_per_round and quorum out"
            )

    def stage_table(self, rounds: int) -> dict[str, Stage]:
        del rounds
        names = (stage.name for stage in self._stages.each)
        return {name: Stage(name, needs_q=False, needs_factor=False) for name in names}

    def solver(self, model: Model, family: Family) -> ConjugateSolver:
        assert isinstance(model, ConjugateExponential)
        return ConjugateSolver(model, family, self._stages)

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del family, key
        assert isinstance(model, ConjugateExponential)
        found = model.stage_statistics(task.stage, task.public, task.records)
        return Answer(None, None, released={task.stage: found.total(task.weights)})


@dataclass(frozen=True, eq=False)
class ConjugateSolver:
    """Server's solver for exact sums of statistics: it requests the stages of the model in order.

    If the model allows it, the last stage is repeated until q converges.
    """

    model: ConjugateExponential
    family: Family
    stages: _Stages

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        visit = answers.number - 1
        last = not self.stages.repeats and visit == len(self.stages.each) - 1
        answer = StageSum(
            stage=self.stages.at(visit).name,
            following=None if last else self.stages.at(visit + 1).name,
            total=np.asarray(answers.total[self.stages.at(visit).name]),
            noise_sd=0.0,
            number=self.stages.earlier(visit),
        )
        q, public, memory = _advanced(self.model, shared, answer)
        moved = None
        if answer.stage == self.stages.each[-1].name and answer.number > 0:
            moved = float(self.family.kl(q, shared.q))
        settled = moved is not None and moved < SETTLED_KL * self.family.dimension
        return Shared(
            q,
            public,
            memory,
            stage=answer.following or answer.stage,
            finished="converged" if settled or last else None,
            moved=0.0 if last else moved,
        )

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Return None. A single party has no factor, because only the sum over parties is converted
        to q.
        """
        del stage, public, released

    def concluded(self, shared: Shared) -> Shared:
        """Return `shared` unchanged. A run that ends early keeps the q of its last round."""
        return shared


@dataclass(frozen=True, kw_only=True)
class PrivateConjugateStages(_Staged, SummedMethod):
    """Clipped, noisy sums of statistics in several stages, for mixtures and factor models.

    The model defines the stages. In each stage, a party releases one sum of statistics over its
    records. The shares of the budget are fixed in advance.

    Parameters
    ----------
    clip, clip_end, noise_end
        Leave these out, because contributions are always clipped to norm 1.
    dtype
        Floating-point type of the records; only "float64".
    """

    kind: ClassVar[str] = "dp-conjugate"

    @property
    def least_rounds(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self._stages.each)

    def rounds_for(self, model: Model) -> int:
        assert isinstance(model, ConjugateExponential)
        return model.private_rounds

    def check_schedule(self, schedule: Schedule, parties: int) -> None:
        super().check_schedule(schedule, parties)
        if not self._stages.repeats and schedule.rounds > self.least_rounds:
            raise ConfigError(
                f"schedule.rounds = {schedule.rounds}, but with method.kind = {self.kind!r} this "
                f"model needs exactly {self.least_rounds} rounds, because each of its statistics "
                "is released only once: leave schedule.rounds out"
            )

    def check_run(self, facts: RunFacts) -> None:
        if facts.quorum:
            raise ConfigError(
                f"method.kind = {self.kind!r} needs the sum of all parties in every round; leave "
                "the key quorum out"
            )

    def knows_noise(self, family: Family) -> bool:
        """Return False, because q does not include the uncertainty due to noise."""
        del family
        return False

    def clipping_biases(self, model: Model, stage: str) -> bool:
        del model, stage
        return True

    def budget_share(self, visit: int, visits: int, mu: float) -> float:
        del mu
        return self._stages.share(visit, visits)

    def is_nonnegative(self, stage: str) -> bool:
        (acute,) = {one.acute for one in self._stages.each if one.name == stage}
        return acute

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to sums of statistics, in units of the largest norm of a
        contribution.
        """
        del model, family
        return {asked.stage: integers[asked.stage] * (event.step / event.clip)}

    def bounded(self, model: Model, task: Task) -> Bounded:
        return self._clipped(model, task)

    def _clipped(self, model: Model, task: Task, tally: Tally | None = None) -> Bounded:
        if not self.hides_lengths:
            return self._clipped_block(model, task, tally)
        # Products are rounded differently in arrays of other lengths; see `summed_in_blocks`.
        count = len(task.weights)
        blocks = []
        for start in range(0, count, BLOCK_RECORDS):
            rows = np.arange(start, start + BLOCK_RECORDS)
            weights = np.where(rows < count, task.weights[np.minimum(rows, count - 1)], 0.0)
            records = {
                n: np.asarray(v)[np.minimum(rows, count - 1)] for n, v in task.records.items()
            }
            part = task._replace(records=records, weights=weights)
            blocks.append(self._clipped_block(model, part, tally))
        return functools.reduce(add_disjoint, blocks)

    def _clipped_block(self, model: Model, task: Task, tally: Tally | None) -> Bounded:
        assert isinstance(model, ConjugateExponential)
        found = model.stage_statistics(task.stage, task.public, task.records)
        clip = task.terms.clips[0]

        def total(weights: Array) -> np.ndarray:
            return clip * found.total(np.asarray(weights))

        norms = clip * np.asarray(found.norms(), np.float64)
        acute = self.is_nonnegative(task.stage)
        return clip_sum(norms, clip, task.weights, total, acute=acute, tally=tally)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        del family, key
        return self._clipped(model, task, tally), units_present(task.weights)

    def clipped_visits(self, visits: int) -> dict[int, str]:
        return {visits - 1: "the range of the columns that earlier rounds found"}

    def server(self, run: Run) -> Combine:
        model, stages = run.model, self._stages
        assert isinstance(model, ConjugateExponential)

        def combine(shared: Shared, answers: RoundSum) -> Shared:
            visit = answers.number - 1
            # A party that did not answer is missing from the sum: scale it to all parties.
            scale = run.parties / answers.contributors
            answer = StageSum(
                stage=stages.at(visit).name,
                following=stages.at(visit + 1).name if answers.number < run.rounds else None,
                total=scale * np.asarray(answers.total[stages.at(visit).name]),
                noise_sd=math.sqrt(scale) * run.noise_sd(answers.number),
                number=stages.earlier(visit),
            )
            q, public, memory = _advanced(model, shared, answer)
            return shared._replace(q=q, public=public, memory=memory)

        return combine


def _judged(
    model: Model,
    natural: Natural,
    finished: str | None,
    log: Sequence[Mapping[str, Any]],
    *,
    noisy: bool,
) -> tuple[bool, str]:
    """Return whether the run converged, and the reason, judged by the change of q in the last
    round.

    The change is measured in nats of the log-density per record. It is not measured in standard
    deviations of q, because these do not include the noise.
    """
    assert isinstance(model, ConjugateExponential)
    rounds = [line for line in log if line["event"] == "round"]
    number = f"{len(rounds)} round{'' if len(rounds) == 1 else 's'}"
    if finished not in ("converged", "rounds") or not rounds:
        return False, f"the run ended early: {finished or 'no round was completed'}"
    if not model.repeats:
        return True, f"all {number} were completed: the statistics do not depend on q"
    moved = rounds[-1]["last_change"]
    each = math.inf if moved is None else float(moved) / model.weight_of(natural)
    if noisy:
        text = f"the last of the planned {number} moved the density by {each:.2g} nats per record"
        if each > NOISY_CHANGE:
            return False, f"{text}, noise included; use a larger epsilon or fewer components"
        return True, f"{text}, noise included"
    if finished != "converged":
        text = f"the last of {number} moved the density by {each:.2g} nats per record"
        return False, f"{text}; use more schedule.rounds"
    return True, f"after {number} one more would move the density by {each:.2g} nats per record"


def _stages_of(kind: str, model: Model) -> _Stages:
    if isinstance(model, ConjugateExponential):
        return _Stages(model.stages, model.repeats)
    return _refuse(kind, model)


def _require(kind: str, model: Model, family: Family) -> None:
    if not isinstance(model, ConjugateExponential):
        _refuse(kind, model)
    own = model.own_family
    if own is not None and family != own:
        raise ConfigError(
            f"posterior = {family.kind!r} cannot be combined with model {model.kind!r}, because "
            f"the posterior of this model is {own.kind!r}: leave posterior out"
        )


def _refuse(kind: str, model: Any) -> Any:
    raise ConfigError(
        f"method.kind = {kind!r} needs a model with statistics in stages (mixture, factors), not "
        f"{model.kind!r}; use method.kind = 'auto'"
    )
