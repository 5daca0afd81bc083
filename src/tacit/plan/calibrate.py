"""Noise, events and guarantee of every party, computed before the run.

Nothing here reads a record or charges a ledger. A party is charged exactly the resulting events: a
reply whose cost differs from them is not sent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Sequence
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
    """δ is so large that publishing one record at random would satisfy it."""


class Releasing(Protocol):
    """The declarations of a private local method that calibration needs."""

    kind: ClassVar[str]
    aggregations: ClassVar[tuple[Aggregation, ...]]

    @property
    def clip(self) -> float:
        """Norm bound of one contribution."""
        ...

    @property
    def unit(self) -> Unit:
        """The unit that is protected, which makes one contribution."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """Definition of neighbouring data sets."""
        ...

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the events that the reply to a visit releases, for a party with `units` units."""
        ...

    def summands(self, units: int) -> int:
        """Return the number of contributions to a sum over a party with `units` units."""
        ...

    def party_clip(self, party: str, records: int | None) -> float:
        """Return the clip of a party that declares none, from its declared number of records."""
        ...


class PartyShape(NamedTuple):
    """Number of visits and units of a party."""

    visits: int
    units: int


class LatticeShape(NamedTuple):
    """Public numbers that, besides clip and noise, determine the lattice of a run's releases."""

    numbers: Callable[[int], int]
    """Function from a visit to the count of numbers per release."""
    units: int = HIDDEN_UNITS
    """Bound on the contributions to one party's sum."""
    parties: int = 1
    """Number of parties whose noise is summed before it becomes visible."""
    most_units: int = HIDDEN_UNITS
    """Largest allowed number of contributions of a party: `units`, or fewer if each is a sum of
    several parts.
    """


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Clip, noise, events and guarantee of one party for a whole run."""

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
    """Events of every reply, by visit; a single entry if all are equal."""
    guarantee: Guarantee

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier z: standard deviation of the noise over the clip."""
        return self.noise_sd / self.clip

    def events_at(self, visit: int) -> tuple[GaussianEvent, ...]:
        """Return the events of the reply to this visit (0, 1, …)."""
        return self.answers[0 if len(self.answers) == 1 else visit]

    @property
    def releases(self) -> int:
        """Number of noisy sums released in the whole run."""
        each = self.visits if len(self.answers) == 1 else 1
        return each * sum(event.count for answer in self.answers for event in answer)

    @property
    def all_events(self) -> tuple[GaussianEvent, ...]:
        """Events of the whole run."""
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
    """Calibrate every party's noise; refuse a guarantee that cannot be met.

    `shares` is the number of messages that are summed before they become visible, `numbers` gives
    the count of numbers per release by visit, and `total_units` is the number of all units, or 0 if
    it is not public. `summed_parts` is a property of the model: rounding is bounded for
    √summed_parts times as many contributions. `elsewhere` names the parties of a live federation
    whose number of units is not known here; their ε holds for any number. None if not live.
    """
    shares = 1 if privacy.aggregation == "plain" else shares
    units = max(total_units, LEAST_UNITS) if total_units else HIDDEN_UNITS
    together = shares if privacy.aggregation in ("secure", "trusted") else 1
    counted = math.ceil(units * math.sqrt(summed_parts))
    lattice = LatticeShape(numbers, counted, together, most_units=units)
    _check(privacy, method, shapes, shares)
    _check_rates(privacy, method, shapes, live=elsewhere is not None)
    clips = {name: clip_of(privacy, method, name) for name in shapes}
    known: dict[tuple, float] = {}
    noise = {
        name: clips[name] * _multiplier(privacy, method, name, shape, lattice, known)
        for name, shape in shapes.items()
    }
    if privacy.aggregation != "plain":
        # The sum has one noise level: the largest that any party needs.
        noise = dict.fromkeys(noise, max(noise.values()))
    priced = shapes | {name: shapes[name]._replace(units=ANY_UNITS) for name in elsewhere or ()}
    every = {
        name: _answers(method, shape, lattice, clip=clips[name], noise_sd=noise[name])
        for name, shape in priced.items()
    }
    if privacy.aggregation != "plain":
        every = _with_one_step(every)
    costs: dict[tuple, float] = {}
    settled = {}
    for name, shape in shapes.items():
        summands = method.summands(shape.units)
        _check_ring(name, every[name], summands, lattice, terms=len(shapes))
        cost = _cost(privacy, name, every[name], shape.visits, costs)
        if not math.isfinite(cost):
            raise ConfigError(
                f"party {name!r}: the accountant {privacy.accountant!r} has no finite ε for noise "
                f"sd {noise[name]:g} at clip {clips[name]:g}; add noise"
            )
        settled[name] = Settled(
            clip=clips[name], noise_sd=noise[name], shares=shares,
            visits=shape.visits, units=shape.units, answers=every[name],
            guarantee=_guarantee(privacy, name, cost, trust),
        )  # fmt: skip
    return settled


def _cost(
    privacy: Privacy,
    party: str,
    answers: tuple[tuple[GaussianEvent, ...], ...],
    visits: int,
    costs: dict[tuple, float],
) -> float:
    """Return ε of one party's events; computed once for parties with equal events."""
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
    """Return the events of every visit on their lattices; a single entry if all are equal."""
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
    """Return the events on the finest lattice of all parties, because only equal steps can be
    added.
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
    """Refuse sums that might not fit into 64-bit integers and would be truncated.

    A sum of shared noise has up to `terms` terms.
    """
    terms = terms if lattice.parties > 1 else 1
    if units > lattice.most_units:
        raise ConfigError(
            f"party {party!r} adds up {units} contributions; rounding is bounded for at most "
            f"{lattice.most_units}: declare the total number under privacy.adjacency = "
            "'replace-one', or divide the party"
        )
    for event in (event for answer in answers for event in answer):
        assert event.lattice is not None
        reach = 64.0 if isinstance(event, LaplaceEvent) else 10.0  # in units of the parameter
        noise = reach * 2.0**event.lattice.bits * math.sqrt(terms)
        largest = units * terms * event.clip / event.step + noise
        if not largest < 2.0**RING_BITS:
            raise ConfigError(
                f"party {party!r}: {terms} sums of {units} contributions of norm "
                f"{event.clip:g} with noise sd {event.noise_sd:g} need {largest:.2g} steps of the "
                f"lattice, more than 2^{RING_BITS}; use a smaller epsilon"
            )


def _together(
    answers: Sequence[tuple[GaussianEvent, ...]], visits: int
) -> tuple[GaussianEvent, ...]:
    """Return all events of a run, with equal events counted together."""
    each = visits if len(answers) == 1 else 1
    counts: dict[GaussianEvent, int] = {}
    for event in (event for answer in answers for event in answer):
        once = msgspec.structs.replace(event, count=1)
        counts[once] = counts.get(once, 0) + event.count * each
    return tuple(msgspec.structs.replace(once, count=count) for once, count in counts.items())


def clip_of(privacy: Privacy, method: Releasing, party: str) -> float:
    """Return the clip of a party: its declared clip, otherwise the clip of the method."""
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
    """Return the noise multiplier z of one party; calibrated once for parties with equal settings.

    It does not depend on the party's number of units, so the agreed plan determines the step of its
    releases.
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
    """Refuse a party so small that a batch of one unit exceeds the sampling rate.

    Noise calibrated for the rate would not be sufficient, and the server of a live federation
    states ε at the rate. In one process, given noise is accounted for at the party's own rate.
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
                        f"party {party!r} has {shape.units} units; a batch of one is more than the "
                        f"share of {bound.sampling.rate:.4g} that ε is computed for: raise "
                        "method.sampling_rate, or use sampling = 'poisson'"
                    )


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
            f"the method supports {', '.join(method.aggregations)}"
        )
    if privacy.aggregation == "trusted" and shares < 2:
        raise ConfigError(
            f"privacy.aggregation = 'trusted' with {shares} party per round; the noise cannot be "
            "shared: use 'plain'"
        )
    for name, shape in shapes.items():
        if shape.visits < 1:
            raise ConfigError(
                f"party {name!r} is never visited in this schedule; raise schedule.rounds or "
                "schedule.parties_per_round"
            )
    if (method.unit, method.adjacency) != (privacy.unit, privacy.adjacency):
        raise ConfigError(
            f"the method protects a {method.unit} ({method.adjacency}), but privacy is set for a "
            f"{privacy.unit} ({privacy.adjacency}); leave them out of the method: make_plan sets "
            "them"
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
