"""The [schedule] table of a configuration: one struct per kind of schedule.

Reading and validating it needs no array library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from tacit.errors import TacitError
from tacit.server.schedule import SCHEDULES, Damping, PowerDamping, Schedule, StalenessDamping
from tacit.support.tables import Kinds, Table, given
from tacit.support.validation import Count, UpToOne

FORMS = (("start", "end", "rounds"), ("offset", "decay"), ("least",))


class DampingSettings(Table, frozen=True, kw_only=True):
    """Damping that changes linearly from `start` to `end`, is (offset + t)^−decay after t rounds,
    or depends on the staleness of each update (`least`).
    """

    place: ClassVar[str] = "schedule.damping"
    start: UpToOne | None = None
    """Damping in the first round."""
    end: UpToOne | None = None
    """Damping after `rounds` rounds."""
    rounds: Count | None = None
    """Number of rounds in which damping goes from start to end."""
    offset: Annotated[float, Meta(ge=1)] | None = None
    """Offset of the power law."""
    decay: Annotated[float, Meta(ge=0.5, le=1)] | None = None
    """Exponent of the power law. Below 0.5 noise does not average out, and above 1 learning stops.
    """
    least: UpToOne | None = None
    """Smallest share of an asynchronous update that is applied. The share decreases with the number
    of times that other parties have made the same step since the request was sent.
    """

    def faults(self) -> Iterator[str | TacitError]:
        keys = set(given(self))
        if any(keys == set(form) for form in FORMS):
            return
        for form in FORMS:
            if keys and keys < set(form):
                for key in form:
                    if key not in keys:
                        yield f"schedule.damping.{key} is missing; add it"
                return
        yield (
            f"schedule.damping has {', '.join(given(self)) or 'no keys'}; give start, end and "
            "rounds, or offset and decay, or least, or a number"
        )

    def make(self) -> Damping | PowerDamping | StalenessDamping:
        """Make the damping with these settings."""
        keys = given(self)
        if "least" in keys:
            return StalenessDamping(**keys)
        return PowerDamping(**keys) if "offset" in keys else Damping(**keys)


class ScheduleSettings(Table, frozen=True, kw_only=True, tag_field="kind"):
    """Order of requests to parties, number of rounds, and damping of updates."""

    place: ClassVar[str] = "schedule"
    rounds: Count | None = None
    """Number of rounds; by default what the method usually needs."""
    damping: UpToOne | DampingSettings | None = None
    """Share of each update that is applied: a number in (0, 1], or a table; by default chosen by
    the plan.
    """
    tolerance: Annotated[float, Meta(ge=0)] | None = None
    """Stop once a round changes the posterior by less than this KL divergence, in nats."""

    @property
    def kind(self) -> str:
        """Name of the schedule: the value of `schedule.kind` in a configuration."""
        return str(self.__struct_config__.tag)

    def make(self) -> Schedule:
        """Make the schedule with these settings."""
        keys: dict[str, Any] = given(self)
        if isinstance(self.damping, DampingSettings):
            keys["damping"] = self.damping.make()
        return SCHEDULES[self.kind](**keys)


class SynchronousSettings(ScheduleSettings, frozen=True, kw_only=True, tag="synchronous"):
    """Update the posterior after all selected parties have replied."""

    parties_per_round: Count | None = None
    """Number of parties in a round, drawn at random; by default all."""


class SequentialSettings(ScheduleSettings, frozen=True, kw_only=True, tag="sequential"):
    """Visit parties one after another; each starts from the latest posterior."""

    parties_per_round: Count | None = None
    """Number of parties in a round, drawn at random; by default all."""


class AsynchronousSettings(ScheduleSettings, frozen=True, kw_only=True, tag="asynchronous"):
    """Update the posterior at every reply, and send that party its next request at once."""


SCHEDULE_SETTINGS: Kinds[ScheduleSettings] = Kinds(
    ScheduleSettings,
    {
        "synchronous": "tacit.server.settings:SynchronousSettings",
        "sequential": "tacit.server.settings:SequentialSettings",
        "asynchronous": "tacit.server.settings:AsynchronousSettings",
    },
    default="synchronous",
)


def parties_per_round(schedule: ScheduleSettings) -> int | None:
    """Return the number of parties per round, or None if the schedule has no such setting."""
    return getattr(schedule, "parties_per_round", None)
