"""`Hybrid`: one release of statistics, then DP-SGD (proposed in MEng §4.2.3).

The first visit releases a party's expected statistics (`PrivateStatistics`), which brings q close
to the posterior. Later visits take noisy gradient steps (`DPSGD`). These steps correct the bias
from clipping the statistics, and the bias of a mean-field q if coordinates are correlated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.methods.base import Answer, Arranged, Array, Task
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.private import PrivateMethod
from tacit.methods.statistics.method import PrivateStatistics
from tacit.models import Model, Records
from tacit.privacy.bounded import Bounded, Tally
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Unit
from tacit.privacy.settings import check_clip
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import UPDATE, Asked, Stage

STATISTICS, GRADIENT = "statistics", "gradient"
"""Stage of the first visit, and stage of all others."""


@dataclass(frozen=True, kw_only=True)
class Hybrid(PrivateMethod):
    """Releases statistics at the first visit, then makes DP-SGD steps.

    The budget is Σ μ² over all releases, with μ = sensitivity/(noise sd), because the μ² of
    Gaussian releases add up. The statistics get the share `statistics_share` of this budget. With n
    gradients sampled at rate r, the noise multiplier of the statistics is √((1 −
    share)/(share·n·r²)) times that of a gradient. `clip` applies to the statistics and
    `gradient_clip` (by default the same) to the gradients. The other settings are those of `DPSGD`.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end, noise_end
        Clip and noise multiplier at the last visit, each divided by its value at the first visit.
    statistics_share
        Share of the budget for the statistics, in (0, 1).
    precision_weight
        Weight that multiplies second moments before the statistics are clipped.
    gradient_clip
        Clip of the gradients; by default that of the statistics.
    steps
        Released gradients per round.
    sampling_rate
        Share of the units that each step samples.
    step_size
        Length of the steps.
    step_end
        Step length at the last visit, divided by the step length at the first.
    momentum
        Momentum of the steps, in [0, 1).
    average_last
        Share of the rounds, at the end of the run, over which the server averages the posterior.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "dp-hybrid"
    units: ClassVar[tuple[Unit, ...]] = ("record", "person")
    damping: ClassVar[float | None] = 1.0
    clip: float = 1.0
    statistics_share: float = 0.5
    precision_weight: float = 1.0
    gradient_clip: float | None = None
    steps: int = 1
    sampling_rate: float = 1.0
    step_size: float | None = None
    step_end: float = 1.0
    momentum: float = 0.5
    average_last: float = 0.5
    dtype: str = "float32"

    @property
    def needs_one_clip(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.statistics_share < 1:
            raise ConfigError(
                f"method.statistics_share = {self.statistics_share}; it must be in (0, 1)"
            )
        if self.gradient_clip is not None:
            check_clip(self.gradient_clip, "method.gradient_clip")
        _ = self.first, self.then  # validates the other settings

    @property
    def first(self) -> PrivateStatistics:
        """Method of the first visit."""
        return PrivateStatistics(
            precision_weight=self.precision_weight, noise_aware=False, **self._shared
        )

    @property
    def then(self) -> DPSGD:
        """Method of the later visits."""
        method = DPSGD(
            steps=self.steps,
            sampling_rate=self.sampling_rate,
            step_size=self.step_size,
            step_end=self.step_end,
            momentum=self.momentum,
            average_last=self.average_last,
            **self._shared,
        )
        return replace(method, clip=self.gradient_clip or self.clip)

    @property
    def _shared(self) -> dict[str, Any]:
        names = {field.name for field in fields(PrivateMethod)} - {"clip_end", "noise_end"}
        return {name: getattr(self, name) for name in (*names, "dtype")}

    def check(self, model: Model, family: Family) -> None:
        self.first.check(model, family)
        self.then.check(model, family)

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        return self.then.arrange(party, records, seed)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        """Return the privacy events of one visit other than the first."""
        ratio = (self.gradient_clip or self.clip) / self.clip
        return self.then.release(clip=clip * ratio, noise_sd=noise_sd * ratio, units=units)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        if visit > 0:
            return super().events(
                visit=visit, visits=visits, clip=clip, noise_sd=noise_sd, units=units
            )
        gradients = max(1, visits - 1) * self.steps * self.sampling_rate**2
        scale = (
            math.sqrt((1.0 - self.statistics_share) / (self.statistics_share * gradients))
            if visits > 1
            else 1.0
        )
        return self.first.release(clip=clip, noise_sd=noise_sd * scale, units=units)

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        method = self.first if stage == STATISTICS else self.then
        return method.release_size(model, family, UPDATE)

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        method = self.first if stage == STATISTICS else self.then
        return method.integer_shapes(model, family, UPDATE)

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        method = self.first if asked.stage == STATISTICS else self.then
        return method.from_integers(model, family, event, asked, integers)

    def stage_at(self, visit: int) -> Stage:
        return Stage(STATISTICS if visit == 0 else GRADIENT)

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        method = self.first if task.stage == STATISTICS else self.then
        return method.answer(model, family, key, task._replace(stage=UPDATE))

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        method = self.first if task.stage == STATISTICS else self.then
        task = task._replace(stage=UPDATE)
        return method.contributions(model, family, key, task, tally)

    def clipping_biases(self, model: Model, stage: str) -> bool:
        return stage == STATISTICS or self.then.clipping_biases(model, UPDATE)

    def clipped_visits(self, visits: int) -> dict[int, str]:
        """Return a dict with one entry. The key is the number of the last visit, and the value is
        the name of the setting that clips the release of that visit.

        Clipped units of the first visit, which releases the statistics, are counted only if it is
        also the last visit. If gradients follow, they correct the bias of clipped statistics.
        """
        own = visits > 1 and self.gradient_clip is not None
        return {visits - 1: "method.gradient_clip" if own else "method.clip"}

    def server(self, run: Run) -> Combine:
        """Return the server's `Combine` function: that of `first` in round 1, and that of `then` in
        later rounds.

        The server's memory is empty after round 1.
        """
        first, then = self.first.server(run), self.then.server(run)

        def combine(shared: Shared, answers: RoundSum) -> Shared:
            if answers.number == 1:
                return first(shared._replace(memory=None), answers)._replace(memory=None)
            return then(shared, answers)

        return combine
