"""From what was asked for to numbers: noise, events and guarantee of every party, before the run.

Nothing here reads a record and nothing is spent. What comes out is all that a party will be
charged: an answer whose cost differs from these events is not sent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from tacit.errors import ConfigError
from tacit.privacy.accounting import calibrate, epsilon
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.guarantee import TRUST, Aggregation, Guarantee, Unit
from tacit.privacy.settings import Privacy, check_clip

SEED_KNOWN = (
    "Not private: the noise was drawn from a known seed, so whoever knows it can subtract it; "
    "leave privacy.insecure_noise_seed out for a guarantee"
)


class LargeDeltaWarning(UserWarning):
    """δ is so large that publishing one record at random would satisfy it."""


class Releasing(Protocol):
    """What a private local method says about itself before a run."""

    kind: ClassVar[str]
    aggregations: ClassVar[tuple[Aggregation, ...]]

    @property
    def clip(self) -> float:
        """The norm bound of one contribution."""
        ...

    @property
    def unit(self) -> Unit:
        """Whose contribution that is."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """What the unit's data set is compared with."""
        ...

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """What the answer to that visit releases, for a party of so many units."""
        ...


class PartyShape(NamedTuple):
    """What the plan knows of a party: how often it is asked and how many units it has."""

    visits: int
    units: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """One party's numbers for a whole run."""

    clip: float
    noise_sd: float
    """Of the noise in what is released: with `shares` > 1, of the sum over the parties."""
    shares: int
    visits: int
    units: int
    """How many records, persons or parties it has; public under substitution only."""
    answers: tuple[tuple[GaussianEvent, ...], ...]
    """The events of every answer, by visit; of one only where all are alike."""
    guarantee: Guarantee

    @property
    def noise_multiplier(self) -> float:
        """z = s / C."""
        return self.noise_sd / self.clip

    def events_at(self, visit: int) -> tuple[GaussianEvent, ...]:
        """Of the answer to that visit: 0, 1, …"""
        return self.answers[0 if len(self.answers) == 1 else visit]

    @property
    def releases(self) -> int:
        """How many noisy sums leave in the whole run."""
        each = self.visits if len(self.answers) == 1 else 1
        return each * sum(event.count for answer in self.answers for event in answer)

    @property
    def all_events(self) -> tuple[GaussianEvent, ...]:
        """Of the whole run."""
        return _together(self.answers, self.visits)


def settle(
    privacy: Privacy,
    method: Releasing,
    shapes: dict[str, PartyShape],
    *,
    shares: int = 1,
    trust: str | None = None,
) -> dict[str, Settled]:
    """Calibrate every party's noise; refuse what cannot be kept.

    `shares` is how many parties' messages are added up before anybody sees them.
    """
    shares = 1 if privacy.aggregation == "plain" else shares
    _check(privacy, method, shapes, shares)
    clips = {name: _clip(privacy, method, name) for name in shapes}
    known: dict[tuple, float] = {}
    noise = {
        name: clips[name] * _multiplier(privacy, method, name, shape, known)
        for name, shape in shapes.items()
    }
    if privacy.aggregation != "plain":
        # The sum carries one noise for all: as much as the neediest party asks for.
        noise = dict.fromkeys(noise, max(noise.values()))
    costs: dict[tuple, float] = {}
    settled = {}
    for name, shape in shapes.items():
        answers = _answers(method, shape, clip=clips[name], noise_sd=noise[name])
        delta = privacy.of(name)[2]
        key = (answers, shape.visits, delta)
        if key not in costs:
            costs[key] = epsilon(
                _together(answers, shape.visits), delta, privacy.adjacency,
                accountant=privacy.accountant,
            )  # fmt: skip
        if not math.isfinite(costs[key]):
            raise ConfigError(
                f"party {name!r}: the accountant {privacy.accountant!r} has no finite ε for noise "
                f"sd {noise[name]:g} at clip {clips[name]:g}; add noise"
            )
        guarantee = Guarantee(
            epsilon=costs[key],
            delta=delta,
            unit=privacy.unit,
            adjacency=privacy.adjacency,
            trust=trust or TRUST[privacy.aggregation],
            caveat=None if privacy.insecure_noise_seed is None else SEED_KNOWN,
        )
        settled[name] = Settled(
            clip=clips[name],
            noise_sd=noise[name],
            shares=shares,
            visits=shape.visits,
            units=shape.units,
            answers=answers,
            guarantee=guarantee,
        )
    return settled


def _answers(
    method: Releasing, shape: PartyShape, *, clip: float, noise_sd: float
) -> tuple[tuple[GaussianEvent, ...], ...]:
    """The events of every visit; one entry where all are alike."""
    answers = tuple(
        method.events(
            visit=visit, visits=shape.visits, clip=clip, noise_sd=noise_sd, units=shape.units
        )
        for visit in range(shape.visits)
    )
    return answers[:1] if len(set(answers)) == 1 else answers


def _together(
    answers: Sequence[tuple[GaussianEvent, ...]], visits: int
) -> tuple[GaussianEvent, ...]:
    """All events of a run, those that are alike counted together."""
    each = visits if len(answers) == 1 else 1
    counts: dict[GaussianEvent, int] = {}
    for event in (event for answer in answers for event in answer):
        once = msgspec.structs.replace(event, count=1)
        counts[once] = counts.get(once, 0) + event.count * each
    return tuple(msgspec.structs.replace(once, count=count) for once, count in counts.items())


def _clip(privacy: Privacy, method: Releasing, party: str) -> float:
    own = privacy.parties.get(party)
    return method.clip if own is None or own.clip is None else check_clip(own.clip, "clip")


def _multiplier(
    privacy: Privacy,
    method: Releasing,
    party: str,
    shape: PartyShape,
    known: dict[tuple, float],
) -> float:
    """z for one party; parties that ask for the same share one calibration."""
    target, given, delta = privacy.of(party)
    if given is not None:
        return given

    def events(noise: float) -> tuple[GaussianEvent, ...]:
        return _together(_answers(method, shape, clip=1.0, noise_sd=noise), shape.visits)

    assert target is not None
    key = (target, delta, events(1.0))
    if key not in known:
        known[key] = calibrate(
            target, delta, privacy.adjacency, events, accountant=privacy.accountant
        )
    return known[key]


def _check(privacy: Privacy, method: Releasing, shapes: dict[str, PartyShape], shares: int) -> None:
    unknown = [name for name in privacy.parties if name not in shapes]
    if unknown:
        raise ConfigError(
            f"privacy.parties has {unknown[0]!r}, which is not a party of this run; the parties "
            f"are {', '.join(list(shapes)[:20])}"
        )
    if privacy.aggregation not in method.aggregations:
        raise ConfigError(
            f"privacy.aggregation = {privacy.aggregation!r} with method.kind = {method.kind!r}; "
            f"it can do {', '.join(method.aggregations)}: its noise is inside the local work"
        )
    if privacy.aggregation == "trusted" and shares < 2:
        raise ConfigError(
            f"privacy.aggregation = 'trusted' with {shares} party a round; there is nobody to "
            "share the noise with: use 'plain'"
        )
    for name, shape in shapes.items():
        if shape.visits < 1:
            raise ConfigError(
                f"party {name!r} is never asked in this schedule; raise schedule.rounds or "
                "schedule.parties_per_round"
            )
    if (method.unit, method.adjacency) != (privacy.unit, privacy.adjacency):
        raise ConfigError(
            f"the method protects a {method.unit} ({method.adjacency}), privacy asks for a "
            f"{privacy.unit} ({privacy.adjacency}); the plan sets them alike"
        )
    name, units = max(
        ((name, shape.units) for name, shape in shapes.items()),
        key=lambda party: party[1] * privacy.of(party[0])[2],
    )
    delta = privacy.of(name)[2]
    if privacy.unit != "party" and delta * units >= 1:
        warnings.warn(
            f"δ = {delta:g} is not below 1/n = {1 / units:.3g} of party {name!r}: publishing one "
            f"{privacy.unit} at random would satisfy it; choose a smaller privacy.delta",
            LargeDeltaWarning,
            stacklevel=3,
        )
