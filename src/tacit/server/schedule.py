"""Schedules: which parties update the posterior, in what order, with what damping.

See thesis ch. 3 and TMLR §3.1 (docs/glossary.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, cast

from tacit.errors import ConfigError
from tacit.support.validation import check_fields

USUAL_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class Damping:
    """Damping ρ that changes linearly from `start` to `end` over `rounds` rounds.

    Parameters
    ----------
    start, end
        Damping in the first round and after `rounds` rounds.
    rounds
        Number of rounds from `start` to `end`.

    Examples
    --------
    >>> Damping(start=1.0, end=0.2, rounds=5).at(3)
    0.6
    """

    start: float
    end: float
    rounds: int

    def __post_init__(self) -> None:
        check_fields(self, "schedule.damping")
        _check_damping(self.start, "schedule.damping.start")
        _check_damping(self.end, "schedule.damping.end")
        if not self.rounds >= 1:
            raise ConfigError(f"schedule.damping.rounds = {self.rounds}; it must be at least 1")

    def at(self, round_number: int) -> float:
        """Return the damping ρ in round `round_number`; the first round is number 1."""
        share = min(1.0, (round_number - 1) / max(1, self.rounds - 1))
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class PowerDamping:
    """Damping ρ = (offset + t)^−decay in round t + 1, a Robbins-Monro step size.

    Parameters
    ----------
    offset
        Added to t, the number of earlier rounds; at least 1.
    decay
        Exponent.

    Examples
    --------
    >>> [round(PowerDamping(offset=1.0, decay=0.5).at(number), 3) for number in (1, 4)]
    [1.0, 0.5]
    """

    offset: float
    decay: float

    def __post_init__(self) -> None:
        check_fields(self, "schedule.damping")
        if not 1 <= self.offset < math.inf:
            raise ConfigError(f"schedule.damping.offset = {self.offset}; it must be at least 1")
        if not 0.5 <= self.decay <= 1:
            raise ConfigError(
                f"schedule.damping.decay = {self.decay}; it must be in [0.5, 1]: below 0.5 noise "
                "does not average out, and above 1 learning stops"
            )

    def at(self, round_number: int) -> float:
        """Return the damping ρ in round `round_number`; the first round is number 1."""
        return (self.offset + round_number - 1) ** -self.decay


@dataclass(frozen=True, kw_only=True)
class StalenessDamping:
    """Damping ρ = max(least, 1/(1 + s)) of an asynchronous update, computed when the update
    arrives.

    s estimates how often other parties have made the same step since the request was sent
    (`tacit.server.staleness`): s = k if k parties sent the same step. If q has not moved since
    then, s = 0 and the full update is applied. Because of the damping, corrections of the same
    error by several parties do not add up.

    Parameters
    ----------
    least
        Smallest share of an update that is applied.

    Examples
    --------
    >>> StalenessDamping().at(1)
    1.0
    """

    least: float = 0.3

    def __post_init__(self) -> None:
        check_fields(self, "schedule.damping")
        _check_damping(self.least, "schedule.damping.least")

    def at(self, round_number: int) -> float:
        """Return 1, because parties send undamped updates, and the server applies the damping."""
        del round_number
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Base class of the three schedules.

    One round is one visit to every chosen party. In an asynchronous schedule, it is as many
    exchanges as there are parties. The run ends after `rounds` rounds. It ends earlier if several
    consecutive rounds each moved q by less than `tolerance` in KL divergence, and every party has
    contributed an update to these rounds. If they are not set, `damping` is chosen by
    `resolved_damping`, `tolerance` by the plan, and `rounds` by the method
    (`LocalMethod.usual_rounds`; it is `USUAL_ROUNDS` until the plan is made).
    """

    kind: ClassVar[str]
    rounds: int = cast(int, None)
    damping: float | Damping | PowerDamping | StalenessDamping | None = None
    parties_per_round: int | None = None
    tolerance: float | None = None
    rounds_unset: bool = field(default=False, init=False, repr=False, compare=False)
    """True if `rounds` was left unset."""

    def __post_init__(self) -> None:
        if self.rounds is None:
            object.__setattr__(self, "rounds", USUAL_ROUNDS)
            object.__setattr__(self, "rounds_unset", True)
        check_fields(self, "schedule")
        if not self.rounds >= 1:
            raise ConfigError(f"schedule.rounds = {self.rounds}; at least 1 round is needed")
        if isinstance(self.damping, int | float):
            _check_damping(self.damping, "schedule.damping")
        if isinstance(self.damping, StalenessDamping) and self.kind != "asynchronous":
            raise ConfigError(
                "schedule.damping.least cannot be combined with schedule.kind = "
                f"{self.kind!r}, because updates are never stale in this schedule: set "
                "schedule.kind = 'asynchronous', or set schedule.damping to a number"
            )
        if self.parties_per_round is not None and not self.parties_per_round >= 1:
            raise ConfigError(
                f"schedule.parties_per_round = {self.parties_per_round}; it must be at least 1"
            )
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise ConfigError(f"schedule.tolerance = {self.tolerance}; it must be 0 or more")

    def damping_at(self, round_number: int) -> float:
        """Return the damping ρ in round `round_number`.

        `damping` must not be None: the plan replaces None by the result of `resolved_damping`.
        """
        if isinstance(self.damping, Damping | PowerDamping | StalenessDamping):
            return self.damping.at(round_number)
        assert self.damping is not None
        return float(self.damping)

    def chosen(self, parties: tuple[str, ...], seed: int, round_number: int) -> tuple[str, ...]:
        """Return the parties of a round, in the order of `parties`: all of them, or a random
        subset.
        """
        count = self.parties_per_round
        if count is None or count >= len(parties):
            return parties
        import numpy as np  # a configuration can be checked without it

        rng = np.random.default_rng([seed, round_number, 0x5E1EC7])
        picked = rng.choice(len(parties), size=count, replace=False)
        return tuple(parties[i] for i in sorted(picked))


@dataclass(frozen=True, kw_only=True)
class Sequential(Schedule):
    """Visit parties one after another; each starts from the latest posterior.

    Parameters
    ----------
    rounds
        Largest number of rounds; by default what the method usually needs.
    damping
        Share of each update that is applied: a number, a `Damping` or a `PowerDamping`; chosen by
        the plan if left out.
    parties_per_round
        Number of parties that are drawn for each round; all of them if left out.
    tolerance
        The run stops early once rounds move the posterior by less than this (KL divergence); chosen
        by the plan if left out.
    """

    kind: ClassVar[str] = "sequential"


@dataclass(frozen=True, kw_only=True)
class Synchronous(Schedule):
    """Update the posterior after all selected parties have replied.

    Parameters
    ----------
    rounds
        Largest number of rounds; by default what the method usually needs.
    damping
        Share of each update that is applied: a number, a `Damping` or a `PowerDamping`; chosen by
        the plan if left out.
    parties_per_round
        Number of parties that are drawn for each round; all of them if left out.
    tolerance
        The run stops early once rounds move the posterior by less than this (KL divergence); chosen
        by the plan if left out.
    """

    kind: ClassVar[str] = "synchronous"


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Schedule):
    """Update the posterior at every reply, and send that party its next request at once.

    Parameters
    ----------
    rounds
        Largest number of rounds; by default what the method usually needs.
    damping
        Share of each update that is applied: a number, a `Damping`, a `PowerDamping` or a
        `StalenessDamping`; chosen by the plan if left out.
    parties_per_round
        Number of parties that are drawn for each round; all of them if left out.
    tolerance
        The run stops early once rounds move the posterior by less than this (KL divergence); chosen
        by the plan if left out.
    """

    kind: ClassVar[str] = "asynchronous"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parties_per_round is not None:
            raise ConfigError(
                "schedule.parties_per_round has no meaning when schedule.kind = 'asynchronous': "
                "all parties are always active; leave it out"
            )


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.kind: schedule for schedule in (Sequential, Synchronous, Asynchronous)
}


def resolved_damping(
    schedule: Schedule, *, parties: int, dimension: int, full: bool, second_order: bool
) -> float | Damping | PowerDamping | StalenessDamping:
    """Return `schedule.damping`, or the default damping ρ if it is None.

    The default is ρ = 1 for sequential updates, which start from the latest posterior. It is also 1
    for simultaneous updates with exact curvature and full covariance, which together form a Newton
    step. In other simultaneous updates, several parties correct the same error. For these the
    default is max(1/M, 0.3) with M parties: ρ ∝ 1/M is always safe (thesis ch. 3) but slow, and 0.3
    was stable for every tested split of the records.
    """
    if schedule.damping is not None:
        return schedule.damping
    if schedule.kind == "sequential" or (second_order and (full or dimension == 1)):
        return 1.0
    return max(1.0 / parties, 0.3)


def _check_damping(value: float, key: str) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{key} = {value}; it must be in (0, 1]")
