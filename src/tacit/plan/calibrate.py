"""Noise, events and guarantee of every party, computed before the run.

No record is read and no ledger is charged here. The events that are computed here are later charged
to the party. A reply with a different privacy cost is not sent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from tacit.errors import ConfigError
from tacit.methods.batches import ANY_UNITS
from tacit.privacy.accounting import calibrate, epsilon
from tacit.privacy.events import (
    HIDDEN_UNITS,
    LEAST_UNITS,
    Adjacency,
    GaussianEvent,
    LaplaceEvent,
)
from tacit.privacy.guarantee import TRUST, Aggregation, Guarantee, Unit
from tacit.privacy.lattice import LEAST_BITS, RING_BITS
from tacit.privacy.settings import Privacy, check_clip

KNOWN_SEED_CAVEAT = (
    "Not private: the noise was drawn from a known seed and can be subtracted; "
    "delete privacy.insecure_noise_seed for a guarantee"
)


class LargeDeltaWarning(UserWarning):
    """Warning that δ is too large for a meaningful guarantee.

    If a party has n units and δ is at least 1/n, publishing one unit at random would be (0,
    δ)-private.
    """


class Releasing(Protocol):
    """The properties of a private method that determine its noise."""

    kind: ClassVar[str]
    aggregations: ClassVar[tuple[Aggregation, ...]]

    @property
    def clip(self) -> float:
        """Largest norm of one unit's contribution."""
        ...

    @property
    def unit(self) -> Unit:
        """What is protected: a record, a person or a party."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """How two neighbouring data sets differ."""
        ...

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the privacy events of one reply, for a party with `units` units.

        `visit` is the number of the visit, counted from 0, and `visits` the number of all visits.
        """
        ...

    def summands(self, units: int) -> int:
        """Return the number of contributions in one release of a party with `units` units."""
        ...

    def party_clip(self, party: str, records: int | None) -> float:
        """Return the clip of a party for which the privacy settings declare none.

        `records` is the declared number of records of the party; None if it is not declared.
        """
        ...


class PartyShape(NamedTuple):
    """The number of times a party is visited, and its number of units."""

    visits: int
    units: int


class LatticeShape(NamedTuple):
    """Public numbers that, together with clip and noise, determine the lattice of releases."""

    numbers: Callable[[int], int]
    """Function from a visit to the count of numbers per release."""
    units: int = HIDDEN_UNITS
    """Upper bound on the number of contributions to one party's sum."""
    parties: int = 1
    """Number of parties whose noise is summed before it becomes visible."""
    most_units: int = HIDDEN_UNITS
    """Largest number of contributions that a party may have: `units`, or less if rounding errors
    grow faster because each contribution is a sum of several parts (`Model.summed_parts`).
    """


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Clip, noise, events and guarantee of one party for a whole run, fixed before the run."""

    clip: float
    noise_sd: float
    """Standard deviation of the noise in a release; with `shares` > 1, in the sum over the
    parties.
    """
    shares: int
    visits: int
    units: int
    """Number of records, persons or parties; public under replace-one only."""
    answers: tuple[tuple[GaussianEvent, ...], ...]
    """Events of the reply to each visit; a single entry if all visits have equal events."""
    guarantee: Guarantee

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise divided by the clip."""
        return self.noise_sd / self.clip

    def events_at(self, visit: int) -> tuple[GaussianEvent, ...]:
        """Return the privacy events of the reply to visit number `visit`, counted from 0."""
        return self.answers[0 if len(self.answers) == 1 else visit]

    @property
    def releases(self) -> int:
        """Number of noisy sums that the party releases in the whole run."""
        each = self.visits if len(self.answers) == 1 else 1
        return each * sum(event.count for answer in self.answers for event in answer)

    @property
    def noise_range(self) -> tuple[float, float]:
        """Smallest and largest standard deviation of the noise over all releases of the run.

        Both equal `noise_sd` unless the method divides the budget among different releases.
        """
        sds = [event.noise_sd for event in self.all_events] or [self.noise_sd]
        return min(sds), max(sds)

    @property
    def multiplier_range(self) -> tuple[float, float]:
        """Smallest and largest ratio of the noise's standard deviation to the clip of a release."""
        ratios = [event.noise_sd / event.clip for event in self.all_events]
        return min(ratios, default=self.noise_multiplier), max(
            ratios, default=self.noise_multiplier
        )

    @property
    def all_events(self) -> tuple[GaussianEvent, ...]:
        """All privacy events of the run; equal events are one event with a count."""
        return _together(self.answers, self.visits)


def settle(
    privacy: Privacy,
    method: Releasing,
    shapes: dict[str, PartyShape],
    *,
    shares: int = 1,
    trust: str | None = None,
    numbers: Callable[[int], int] = lambda _: 1,
    total_units: int = 0,
    summed_parts: float = 1.0,
    elsewhere: Collection[str] | None = None,
) -> dict[str, Settled]:
    """Compute clip, noise, events and guarantee of every party, or raise a `ConfigError`.

    Parameters
    ----------
    privacy
        The privacy settings.
    method
        The private method.
    shapes
        Number of visits and of units of each party.
    shares
        Number of messages that are summed before the server or the public sees the sum.
    trust
        Text of the trust assumption; by default that of `privacy.aggregation`.
    numbers
        Count of numbers in the release of a visit, as a function of the visit's number.
    total_units
        Number of units of all parties; 0 if it is not public.
    summed_parts
        Number of parts of which each contribution is a sum. Rounding errors are bounded as for
        √summed_parts times as many contributions.
    elsewhere
        Parties with unknown numbers of units, so that ε must hold for any number; else None.
    """
    shares = 1 if privacy.aggregation == "plain" else shares
    lattice = _lattice_shape(privacy, numbers, total_units, summed_parts, shares)
    _check(privacy, method, shapes, shares)
    _check_rates(privacy, method, shapes, live=elsewhere is not None)
    clips = {name: clip_of(privacy, method, name) for name in shapes}
    noise = _noise_sds(privacy, method, shapes, lattice, clips)
    priced = shapes | {name: shapes[name]._replace(units=ANY_UNITS) for name in elsewhere or ()}
    every = {
        name: _answers(method, shape, lattice, clip=clips[name], noise_sd=noise[name])
        for name, shape in priced.items()
    }
    every = every if privacy.aggregation == "plain" else _with_one_step(every)
    costs: dict[tuple, float] = {}
    settled = {}
    for name, shape in shapes.items():
        _check_ring(name, every[name], method.summands(shape.units), lattice, terms=len(shapes))
        cost = _cost(privacy, name, every[name], shape.visits, costs)
        _check_finite(privacy, name, cost, clip=clips[name], noise_sd=noise[name])
        settled[name] = Settled(
            clip=clips[name], noise_sd=noise[name], shares=shares,
            visits=shape.visits, units=shape.units, answers=every[name],
            guarantee=_guarantee(privacy, name, cost, trust),
        )  # fmt: skip
    return settled


def _lattice_shape(
    privacy: Privacy,
    numbers: Callable[[int], int],
    total_units: int,
    summed_parts: float,
    shares: int,
) -> LatticeShape:
    units = max(total_units, LEAST_UNITS) if total_units else HIDDEN_UNITS
    together = shares if privacy.aggregation in ("secure", "trusted") else 1
    counted = math.ceil(units * math.sqrt(summed_parts))
    return LatticeShape(numbers, counted, together, most_units=units)


def _noise_sds(
    privacy: Privacy,
    method: Releasing,
    shapes: dict[str, PartyShape],
    lattice: LatticeShape,
    clips: dict[str, float],
) -> dict[str, float]:
    """Return the standard deviation of each party's noise."""
    known: dict[tuple, float] = {}
    noise = {
        name: clips[name] * _multiplier(privacy, method, name, shape, lattice, known)
        for name, shape in shapes.items()
    }
    if privacy.aggregation != "plain":
        # The sum has one noise level: the largest that any party needs.
        noise = dict.fromkeys(noise, max(noise.values()))
    return noise


def _check_finite(
    privacy: Privacy, name: str, cost: float, *, clip: float, noise_sd: float
) -> None:
    if not math.isfinite(cost):
        raise ConfigError(
            f"party {name!r}: the accountant {privacy.accountant!r} has no finite ε for noise "
            f"of sd {noise_sd:g} at clip {clip:g}; raise the noise multiplier"
        )


def _cost(
    privacy: Privacy,
    party: str,
    answers: tuple[tuple[GaussianEvent, ...], ...],
    visits: int,
    costs: dict[tuple, float],
) -> float:
    """Return ε of one party's events. `costs` is a cache for parties with equal events."""
    delta = privacy.of(party)[2]
    key = (answers, visits, delta)
    if key not in costs:
        costs[key] = epsilon(
            _together(answers, visits), delta, privacy.adjacency, accountant=privacy.accountant
        )
    return costs[key]


def _guarantee(privacy: Privacy, party: str, cost: float, trust: str | None) -> Guarantee:
    return Guarantee(
        epsilon=cost,
        delta=privacy.of(party)[2],
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        trust=trust or TRUST[privacy.aggregation],
        caveat=None if privacy.insecure_noise_seed is None else KNOWN_SEED_CAVEAT,
    )


def _answers(
    method: Releasing, shape: PartyShape, lattice: LatticeShape, *, clip: float, noise_sd: float
) -> tuple[tuple[GaussianEvent, ...], ...]:
    """Return the events of each visit, with their lattices.

    The result has a single entry if the events of all visits are equal.
    """
    answers = []
    for visit in range(shape.visits):
        events = method.events(
            visit=visit, visits=shape.visits, clip=clip, noise_sd=noise_sd, units=shape.units
        )
        size = lattice.numbers(visit)
        answers.append(
            tuple(
                event.on_lattice(size, parties=lattice.parties, units=lattice.units)
                for event in events
            )
        )
    return tuple(answers[:1] if len(set(answers)) == 1 else answers)


def _with_one_step(
    every: dict[str, tuple[tuple[GaussianEvent, ...], ...]],
) -> dict[str, tuple[tuple[GaussianEvent, ...], ...]]:
    """Return the events of all parties with the same lattice, the finest of their lattices.

    Integers can be summed over parties only if they have the same step.
    """
    events = [event for answers in every.values() for answer in answers for event in answer]
    finest = max((event.lattice.bits for event in events if event.lattice), default=LEAST_BITS)

    def finer(event: GaussianEvent) -> GaussianEvent:
        assert event.lattice is not None
        lattice = msgspec.structs.replace(event.lattice, bits=finest)
        return msgspec.structs.replace(event, lattice=lattice)

    return {
        name: tuple(tuple(finer(event) for event in answer) for answer in answers)
        for name, answers in every.items()
    }


def _check_ring(
    party: str,
    answers: Sequence[tuple[GaussianEvent, ...]],
    units: int,
    lattice: LatticeShape,
    *,
    terms: int,
) -> None:
    """Raise a ConfigError if a sum has too many contributions or might not fit into 64-bit
    integers.

    If the parties share the noise, up to `terms` messages are summed.
    """
    terms = terms if lattice.parties > 1 else 1
    if units > lattice.most_units:
        raise ConfigError(
            f"party {party!r} adds up {units} contributions, but the bound on rounding errors "
            f"holds for at most {lattice.most_units}; use privacy.adjacency = 'replace-one', "
            "which makes the total number of units public, or divide the party into several"
        )
    for event in (event for answer in answers for event in answer):
        assert event.lattice is not None
        reach = 64.0 if isinstance(event, LaplaceEvent) else 10.0  # in units of the parameter
        noise = reach * 2.0**event.lattice.bits * math.sqrt(terms)
        largest = units * terms * event.clip / event.step + noise
        if not largest < 2.0**RING_BITS:
            raise ConfigError(
                f"party {party!r}: the sum of {terms * units} contributions of norm up to "
                f"{event.clip:g}, with noise of standard deviation {event.noise_sd:g}, may reach "
                f"{largest:.2g} steps of the lattice, more than the limit of 2^{RING_BITS}; lower "
                "privacy.epsilon"
            )


def _together(
    answers: Sequence[tuple[GaussianEvent, ...]], visits: int
) -> tuple[GaussianEvent, ...]:
    """Return all events of a run; equal events are one event with a count."""
    each = visits if len(answers) == 1 else 1
    counts: dict[GaussianEvent, int] = {}
    for event in (event for answer in answers for event in answer):
        once = msgspec.structs.replace(event, count=1)
        counts[once] = counts.get(once, 0) + event.count * each
    return tuple(msgspec.structs.replace(once, count=count) for once, count in counts.items())


def clip_of(privacy: Privacy, method: Releasing, party: str) -> float:
    """Return the clip of a party: as declared in `privacy.parties`, or else as the method chooses
    it.
    """
    own = privacy.parties.get(party)
    if own is not None and own.clip is not None:
        return check_clip(own.clip, "clip")
    return method.party_clip(party, None if own is None else own.records)


def _multiplier(
    privacy: Privacy,
    method: Releasing,
    party: str,
    shape: PartyShape,
    lattice: LatticeShape,
    known: dict[tuple, float],
) -> float:
    """Return the noise multiplier of one party: noise sd divided by clip.

    It is calibrated such that ε holds for any number of units. The multiplier is therefore public.
    `known` is a cache for parties with equal settings.
    """
    target, given, delta = privacy.of(party)
    if given is not None:
        return given

    def events(noise: float) -> tuple[GaussianEvent, ...]:
        sized = shape._replace(units=ANY_UNITS)
        return _together(_answers(method, sized, lattice, clip=1.0, noise_sd=noise), shape.visits)

    assert target is not None
    key = (target, delta, events(1.0))
    if key not in known:
        known[key] = calibrate(
            target, delta, privacy.adjacency, events, accountant=privacy.accountant
        )
    return known[key]


def _check_rates(
    privacy: Privacy, method: Releasing, shapes: dict[str, PartyShape], *, live: bool
) -> None:
    """Raise a ConfigError if a party has so few units that a batch of one unit is a larger share of
    them than the sampling rate.

    A batch has at least one unit, so noise that is calibrated for the sampling rate would be too
    small for such a party. If all records are in this process, a party with a declared noise
    multiplier is exempt, because its ε is computed at its actual rate. In a live federation no
    party is exempt, because the server states ε at the sampling rate.
    """
    for party, shape in shapes.items():
        if not live and privacy.of(party)[0] is None:
            continue
        for visit in range(shape.visits):
            own, most = (
                method.events(visit=visit, visits=shape.visits, clip=1.0, noise_sd=1.0, units=units)
                for units in (shape.units, ANY_UNITS)
            )
            for mine, bound in zip(own, most, strict=True):
                if mine.sampling and bound.sampling and mine.sampling.rate > bound.sampling.rate:
                    raise ConfigError(
                        f"party {party!r} has only {shape.units} units: a batch of one unit "
                        f"exceeds the sampling rate {bound.sampling.rate:.4g} for which ε is "
                        "computed; raise method.sampling_rate, or set method.sampling = 'poisson'"
                    )


def _check(privacy: Privacy, method: Releasing, shapes: dict[str, PartyShape], shares: int) -> None:
    unknown = [name for name in privacy.parties if name not in shapes]
    if unknown:
        raise ConfigError(
            f"privacy.parties contains {unknown[0]!r}, which is not a party of this run; use one "
            f"of {', '.join(list(shapes)[:20])}"
        )
    if privacy.aggregation not in method.aggregations:
        raise ConfigError(
            f"privacy.aggregation = {privacy.aggregation!r} is not supported by method.kind = "
            f"{method.kind!r}; choose one of {', '.join(method.aggregations)}"
        )
    if privacy.aggregation == "trusted" and shares < 2:
        raise ConfigError(
            f"privacy.aggregation = 'trusted' divides the noise among the parties of a round, but "
            f"a round has {shares} party; set privacy.aggregation = 'plain'"
        )
    for name, shape in shapes.items():
        if shape.visits < 1:
            raise ConfigError(
                f"party {name!r} is never visited in this schedule; raise schedule.rounds or "
                "schedule.parties_per_round"
            )
    if (method.unit, method.adjacency) != (privacy.unit, privacy.adjacency):
        raise ConfigError(
            f"the method has unit {method.unit!r} and adjacency {method.adjacency!r}, but the "
            f"privacy settings have {privacy.unit!r} and {privacy.adjacency!r}; leave unit and "
            "adjacency out of the method, because make_plan sets them"
        )
    text = large_delta(privacy, {name: shape.units for name, shape in shapes.items()})
    if text is not None:
        warnings.warn(text, LargeDeltaWarning, stacklevel=3)


def large_delta(privacy: Privacy, sizes: Mapping[str, int]) -> str | None:
    """Return a warning if δ of a party is not below 1 / its number of units, which the text
    contains.
    """
    name = max(sizes, key=lambda party: sizes[party] * privacy.of(party)[2])
    units, delta = sizes[name], privacy.of(name)[2]
    if privacy.unit == "party" or delta * units < 1:
        return None
    return (
        f"δ = {delta:g} is not below 1/n = {1 / units:.3g} of party {name!r}: publishing one "
        f"{privacy.unit} at random would satisfy this δ; choose a smaller privacy.delta"
    )
