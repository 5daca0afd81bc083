"""`SummedMethod`: base class of private methods whose server uses only sums over all parties.

Every answer is one clipped sum over all records of a party, for a stage that is fixed in advance.
All parties take part in every round. The server adds up their releases. The noise level of the
total is public.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.methods.base import Answer, Arranged, Array, Task
from tacit.methods.private import PrivateMethod, by_unit
from tacit.models import Model, Records
from tacit.privacy.bounded import Bounded
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Gaussian
from tacit.server.schedule import Schedule
from tacit.support.compiler import jax, jnp

SCALE_SETTINGS = ("clip", "clip_end", "noise_end", "dtype")
"""Settings that other private methods have, but that cannot be changed in a `SummedMethod`."""


@dataclass(frozen=True, kw_only=True)
class SummedMethod(PrivateMethod):
    """Base class of methods with one released sum per visit and shares of the budget that are fixed
    in advance.

    Parameters
    ----------
    clip, clip_end, noise_end
        Leave these out, because these methods compute the scale of their contributions themselves.
    dtype
        Floating-point type of the records; only "float64".
    """

    units: ClassVar[tuple[Unit, ...]] = ("record",)
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "secure", "trusted")
    damping: ClassVar[float | None] = 1.0
    wants_full: ClassVar[bool] = True
    least_rounds: ClassVar[int]
    """Smallest number of rounds that the stages need."""
    clip: float = 1.0
    dtype: str = "float64"

    @property
    def needs_one_clip(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("clip", "clip_end", "noise_end"):
            if getattr(self, key) != 1.0:
                raise ConfigError(
                    f"method.{key} = {getattr(self, key)} with method.kind = {self.kind!r}, "
                    "which computes its own scale from its releases: leave the key out"
                )
        if self.dtype != "float64":
            # A finite number beyond the range of float32 would be infinite, and 0 times it NaN.
            raise ConfigError(
                f"method.dtype = {self.dtype!r} with method.kind = {self.kind!r}, which computes "
                "only in float64: leave the key out"
            )

    @abc.abstractmethod
    def budget_share(self, visit: int, visits: int, mu: float = 1.0) -> float:
        """Return the share of the budget that this visit uses. The shares of all visits add up to
        1.

        The budget is `mu`²: the sum of (sensitivity/noise sd)² over all visits.
        """

    @abc.abstractmethod
    def bounded(self, model: Model, task: Task) -> Bounded:
        """Return the clipped sum that a party releases at the stage of `task`."""

    @abc.abstractmethod
    def is_nonnegative(self, stage: str) -> bool:
        """True if no two contributions to the sum of this stage have a negative inner product."""

    def check_schedule(self, schedule: Schedule, parties: int) -> None:
        if schedule.kind != "synchronous":
            raise ConfigError(
                f"schedule.kind = {schedule.kind!r} with method.kind = {self.kind!r}, which adds "
                "up the answers of all parties: use schedule.kind = 'synchronous', or method.kind "
                "= 'dp-sgd'"
            )
        if schedule.rounds < self.least_rounds:
            raise ConfigError(
                f"schedule.rounds = {schedule.rounds} with method.kind = {self.kind!r}, which "
                f"needs at least {self.least_rounds} rounds; leave schedule.rounds out to "
                "use the default"
            )
        if (schedule.parties_per_round or parties) != parties:
            raise ConfigError(
                f"schedule.parties_per_round = {schedule.parties_per_round} with method.kind = "
                f"{self.kind!r}, which needs all parties in every round: leave the key out"
            )
        if schedule.damping is not None and schedule.damping != 1.0:
            raise ConfigError(
                f"schedule.damping = {schedule.damping} with method.kind = {self.kind!r}, which "
                "computes its own step length: leave the key out"
            )

    def knows_noise(self, family: Family) -> bool:
        del family
        return True

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        del seed
        return by_unit(party, records, self.unit)

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        return self.released_shapes(model, family, stage)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        del units
        return (GaussianEvent(clip=clip, noise_sd=noise_sd),)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the privacy event of a visit.

        The noise of the event is chosen so that (sensitivity/noise sd)² is the visit's share of the
        budget (`clip`/`noise_sd`)².
        """
        del units
        nonnegative = self.is_nonnegative(self.stage_at(visit).name)
        event = GaussianEvent(clip=clip, noise_sd=noise_sd, nonnegative=nonnegative)
        ratio = event.sensitivity(self.adjacency) / clip
        # The share does not depend on the clip: parties that share one noise need equal shares.
        share = self.budget_share(visit, visits, 1.0 / noise_sd)
        return (
            GaussianEvent(
                clip=clip, noise_sd=noise_sd * ratio / math.sqrt(share), nonnegative=nonnegative
            ),
        )

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del family, key
        mechanism = Gaussian(
            noise_sd=task.terms.noise_sds[0],
            shares=task.terms.shares,
            lattice=task.terms.lattice,
        )
        release = mechanism.release(task.noise[0], self.bounded(model, task))
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], release.cost)
        return Answer(
            None, None, costs, released={task.stage: release.integers}, sound=release.sound
        )

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """Return False, because a clipped score still has expectation 0 at the true θ."""
        del model, stage
        return False
