"""Base class of private local methods, their terms, and the grouping of records into units."""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from tacit.arrays import by_appearance
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, Natural
from tacit.methods.base import Arranged, Array, LocalMethod, Task
from tacit.models import Model, Records
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import LatticeTerms
from tacit.privacy.settings import check_clip
from tacit.server.combine import Combine, Run, floored_step
from tacit.server.schedule import Schedule
from tacit.support.validation import check_fields

if TYPE_CHECKING:
    from tacit.privacy.bounded import Bounded, Tally

PERSON = "person"
"""Name of the column of person codes."""


class Terms(NamedTuple):
    """One party's privacy terms as arrays, which may differ between parties of one compiled call.

    `clips` and `noise_sds` belong to this visit's events, in the order of `PrivateMethod.events`;
    `clip` and `noise_sd` belong to the run. `releases` is the number of releases of the whole run,
    and `progress` goes from 0 at the first visit to 1 at the last.

    Parameters
    ----------
    clip, noise_sd
        Clip and noise of the run.
    clips, noise_sds
        Clips and noise of this visit's events.
    shares
        Number of parties that share the noise.
    units
        Number of units of the party.
    releases
        Number of releases of the whole run.
    progress
        0 at the first visit, 1 at the last.
    lattice
        Lattice of this visit's releases.
    """

    clip: Array
    noise_sd: Array
    shares: Array
    units: Array
    releases: Array
    clips: Array
    noise_sds: Array
    progress: Array
    lattice: LatticeTerms = LatticeTerms()


class Clipped(NamedTuple):
    """Share of units whose contribution was clipped, and the name of the setting that is the clip.

    `biases` is true if clipping moves q away from the posterior instead of only losing information.

    Parameters
    ----------
    biases
        Whether clipping biases the posterior.
    share
        Share of units that were clipped.
    setting
        Name of the setting that bounds contributions.
    noise_sd
        Standard deviation of the noise if the share comes from a private (charged) count; None if
        it is exact.
    """

    biases: bool
    share: float
    setting: str
    noise_sd: float | None = None


class RunSetting(NamedTuple):
    """Properties of a run, which a plan sets in a private method (`PrivateMethod.bind`)."""

    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    parties: int = 1
    total_units: int = 0
    """Number of units of all parties if it is public, otherwise 0."""
    aggregation: Aggregation = "plain"
    pure: bool = False
    """True for pure ε: δ = 0 and Laplace noise."""


UNBOUND = RunSetting()


@dataclass(frozen=True, kw_only=True)
class PrivateMethod(LocalMethod, abc.ABC):
    """Base class of local methods whose answer is a private release.

    A plan binds it to a run (`bind`): `unit` and `adjacency` determine how records are grouped and
    how far one unit can move the answer.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end
        Factor of the clip at the last visit relative to the first.
    noise_end
        Factor of the noise multiplier at the last visit relative to the first.
    """

    private: ClassVar[bool] = True
    units: ClassVar[tuple[Unit, ...]] = ("record",)
    """Units that the method can protect; "person" only if `arrange` and `answer` treat all records
    of a person as one contribution.
    """
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain",)
    own_factors: ClassVar[bool] = False
    """True if a server that adds the noise keeps each party's exact factor. Otherwise every party
    gets an equal share of the releases.
    """
    pure_noise: ClassVar[bool] = False
    """True if the method can release with Laplace noise, for δ = 0."""
    wants_full: ClassVar[bool] = False
    """True if posterior = "auto" means full covariance although d² noisy numbers are released."""
    clip: float
    clip_end: float = 1.0
    noise_end: float = 1.0
    _run: RunSetting = UNBOUND  # kept by dataclasses.replace; part of the compilation key

    def __post_init__(self) -> None:
        check_fields(self, "method")
        check_clip(self.clip, "method.clip")
        check_clip(self.clip_end, "method.clip_end")
        check_clip(self.noise_end, "method.noise_end")

    def bind(self, **changes: Any) -> Self:
        """Return the method bound to a run.

        Parameters
        ----------
        **changes
            Fields of `RunSetting`.
        """
        return replace(self, _run=self._run._replace(**changes))

    @property
    def unit(self) -> Unit:
        """Unit that the run's guarantee protects."""
        return self._run.unit

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours in the run's guarantee."""
        return self._run.adjacency

    @property
    def own_releases(self) -> bool:
        """True if a party's factor contains the party's own releases, which are public (plain).

        Otherwise every party gets an equal share of all releases, in which noise averages out. This
        is right for one step per visit, whose sum over the parties does not depend on the factors.
        """
        return False

    @property
    def pure(self) -> bool:
        """True if the run's guarantee has δ = 0."""
        return self._run.pure

    @property
    def hides_lengths(self) -> bool:
        """True if the numbers of records that determine array shapes are secret."""
        return (self.unit, self.adjacency) != ("record", "replace-one")

    @property
    def parties(self) -> int:
        """Number of parties of the run."""
        return self._run.parties

    @property
    def total_units(self) -> int:
        """Number of units of all parties if it is public, otherwise 0."""
        return self._run.total_units

    @property
    def aggregation(self) -> Aggregation:
        """Who adds the noise: a value of `privacy.aggregation`."""
        return self._run.aggregation

    @abc.abstractmethod
    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        """Return the events of one answer of a party with `units` units, at this clip and noise."""

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the events of one visit's answer, which are known before the run.

        The run's noise is calibrated with a clip of 1, so `clip` and `noise_sd` are scales here.
        Over the visits the clip goes from C to C·`clip_end` and the noise multiplier from z to
        z·`noise_end`, geometrically.
        """
        progress = visit / max(1, visits - 1)
        clip_now = self.clip_end**progress
        noise_now = clip_now * self.noise_end**progress
        return self.release(clip=clip * clip_now, noise_sd=noise_sd * noise_now, units=units)

    @property
    def needs_one_clip(self) -> bool:
        """True if the server divides sums by the clip.

        Parties with different clips would then have different shares of a common noise, and a party
        with a smaller clip would have less noise than it is charged for.
        """
        return False

    def party_clip(self, party: str, records: int | None) -> float:
        """Return the clip of a party that declares none; `records` is its declared number of
        records.
        """
        if records is not None:
            raise ConfigError(
                f'privacy.parties."{party}".records = {records}; it is read only by '
                "method.clip_per_record: set that, or leave it out"
            )
        return self.clip

    def summands(self, units: int) -> int:
        """Return the number of contributions to a sum over a party with `units` units."""
        return units

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array] | None:
        """Return the clipped sum with tally over all units of an answer, without noise, and the
        units' mask.

        Only for simulations, to count clipped units. None if the method does not support it.
        """
        del model, family, key, task, tally
        return None

    def clipped_visits(self, visits: int) -> dict[int, str]:
        """Return one visit for each kind of release, with the name of the setting that is its
        clip.
        """
        return {visits - 1: "method.clip"}

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """True if clipping at that stage moves q away from the posterior."""
        del model, stage
        return True

    def server(self, run: Run) -> Combine:
        """Return the server's half: `floored_step` with this method's `floor` and
        `server_momentum`.
        """
        prior = -2.0 * np.asarray(run.model.prior(run.family)["quadratic"])

        def floor(q: Natural, number: int) -> Array:
            damping, noise_sd = run.damping_at(number), run.noise_sd(number)
            return np.maximum(prior, self.floor(run.model, q, number, noise_sd, damping))

        return floored_step(floor, self.server_momentum)

    def numbers(self, dimension: int) -> int:
        """Return how many numbers a release has."""
        return 2 * dimension

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        """Return the exact number of values in a release of this stage; each of them gets noise."""
        shapes = self.integer_shapes(model, family, stage)
        if shapes is None:
            shapes = self.released_shapes(model, family, stage)
        return sum(math.prod(shape) for shape in shapes.values())

    def floor(
        self, model: Model, q: Natural, number: int, noise_sd: float, damping: float
    ) -> Array:
        """Return the minimum precision of the server's q in round `number`, in addition to the
        prior's.

        `noise_sd` is the noise of the sum of all parties' releases.
        """
        del model, q, number, noise_sd, damping
        return 0.0

    @property
    def server_momentum(self) -> float:
        """Momentum of the server's steps."""
        return 0.0

    def knows_noise(self, family: Family) -> bool:
        """True if q's uncertainty includes the noise of the releases."""
        del family
        return False

    def check_unit(self) -> None:
        """Raise a ConfigError if this method cannot protect the run's unit."""
        if self.unit not in self.units:
            raise ConfigError(
                f"privacy.unit = {self.unit!r} with method.kind = {self.kind!r}, which protects "
                f"a {' or a '.join(self.units)}; choose one of these or another method"
            )

    def check_schedule(self, schedule: Schedule, parties: int) -> None:
        """Raise a ConfigError if this method cannot be run on that schedule."""
        del schedule, parties

    def check_settled(self, model: Model, settled: Mapping[str, Any]) -> None:
        """Raise a ConfigError if the noise of that plan is too large for this method.

        Called before anything is charged; `settled` has every party's events.
        """
        del model, settled

    def known_limits(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return known weaknesses of a planned run, judged by public numbers before any charge."""
        del model, settled

    def settling_risk(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return why a run may fail to converge, judged by public numbers; shown only before the
        charge.
        """
        del model, settled

    def count_units(self, party: str, records: Records) -> int:
        """Return a party's number of units."""
        if self.unit == "party":
            return 1
        if self.unit == "person":
            return int(person_codes(party, records).max()) + 1
        return np.shape(next(iter(records.values())))[0]


def units_present(weights: Array) -> Array:
    """Return a mask of the rows that are units, not padding; weights are (units,) or (units,
    records).
    """
    return weights > 0 if weights.ndim == 1 else (weights > 0).any(axis=1)


def person_codes(party: str, records: Records) -> np.ndarray:
    """Return the person code 0 … k − 1 of each record, numbered by first appearance.

    Sorted ids would renumber all persons if one is replaced by a person with another id.
    """
    if PERSON not in records:
        raise DataError(
            f"party {party!r}: privacy.unit = 'person', but its records have no person column; "
            "name the column in data.person, or use privacy.unit = 'record'"
        )
    return by_appearance(np.asarray(records[PERSON]))


def without_person(records: Records) -> Records:
    """Return the records without the person column."""
    return {name: value for name, value in records.items() if name != PERSON}


def by_unit(party: str, records: Records, unit: Unit) -> Arranged:
    """Arrange the records with one row per unit: a record, or all records of a person."""
    plain = without_person(records)
    if unit == "record":
        return Arranged(plain, np.ones(np.shape(next(iter(plain.values())))[0]))
    codes = person_codes(party, records)
    return group_rows(plain, codes, int(codes.max()) + 1)


def group_rows(records: Records, groups: np.ndarray, count: int) -> Arranged:
    """Arrange records as arrays (group, position), padded with records of weight 0.

    A group is padded with copies of its first record, and an empty group with zeros. A copy from
    another group could leak into this group, because 0 times a non-finite number is not 0.
    """
    sizes = np.bincount(groups, minlength=count)
    width = max(1, int(sizes.max()))
    order = np.argsort(groups, kind="stable")
    place = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    weights = np.zeros((count, width))
    weights[groups[order], place] = 1.0
    arranged: dict[str, Any] = {}
    for name, value in records.items():
        value = np.asarray(value)
        column = np.zeros((count, width, *value.shape[1:]), dtype=value.dtype)
        first = np.flatnonzero(place == 0)
        column[groups[order][first]] = value[order][first][:, None]
        column[groups[order], place] = value[order]
        arranged[name] = column
    return Arranged(arranged, weights)


def shard_of_slots(party: str, units: int, shards: int, seed: int) -> np.ndarray:
    """Assign each unit to a shard by the unit's number.

    Under replace-one the number of units is public and a replaced unit keeps its number, so that
    only its own shard changes. The shards have nearly equal size.
    """
    digest = hashlib.blake2b(party.encode(), digest_size=16).digest()
    rng = np.random.default_rng([seed, 0x5A4D, *np.frombuffer(digest, np.uint32)])
    return rng.permutation(np.arange(units) % shards)


def shard_of_content(party: str, contents: list[bytes], shards: int, seed: int) -> np.ndarray:
    """Assign each unit to a shard by a keyed hash of the unit's records.

    Adding or removing a unit moves no other unit.
    """
    key = hashlib.blake2b(f"{seed}/{party}".encode(), digest_size=32).digest()
    digests = (hashlib.blake2b(body, key=key, digest_size=8).digest() for body in contents)
    return np.array([int.from_bytes(digest, "big") % shards for digest in digests], dtype=np.int64)


def contents(records: Records, units: np.ndarray, count: int) -> list[bytes]:
    """Return the bytes of every unit's records, in an order that does not depend on other units."""
    names = sorted(records)
    rows: list[list[bytes]] = [[] for _ in range(count)]
    for index, unit in enumerate(units):
        body = b"".join(np.ascontiguousarray(records[name][index]).tobytes() for name in names)
        rows[unit].append(body)
    return [b"".join(sorted(bodies)) for bodies in rows]
