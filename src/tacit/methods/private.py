"""Base class of private local methods, their privacy terms, and the grouping of records into
units.
"""

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
from tacit.expfam import Family, MeanFieldGaussian, Natural
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
    """Privacy terms of one party, as arrays.

    Parties that are computed in one compiled call may have different terms.

    Parameters
    ----------
    clip, noise_sd
        Clip and noise sd of the run.
    clips, noise_sds
        Clips and noise sds of this visit's events, in the order of `PrivateMethod.events`.
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
    """Share of units whose contribution was clipped, and the name of the setting that clips it.

    Parameters
    ----------
    biases
        True if clipping moves q away from the posterior, False if it only loses information.
    share
        Share of units that were clipped.
    setting
        Name of the setting that is the clip.
    noise_sd
        Standard deviation of the noise if the share comes from a private (charged) count; None if
        the share is exact.
    """

    biases: bool
    share: float
    setting: str
    noise_sd: float | None = None


class RunSetting(NamedTuple):
    """Properties of a run that a private method needs. A plan sets them with
    `PrivateMethod.bind`.
    """

    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    parties: int = 1
    total_units: int = 0
    """Number of units of all parties if it is public, otherwise 0."""
    aggregation: Aggregation = "plain"
    pure: bool = False
    """True for pure differential privacy: δ = 0 and Laplace noise."""


UNBOUND = RunSetting()


@dataclass(frozen=True, kw_only=True)
class PrivateMethod(LocalMethod, abc.ABC):
    """Base class of local methods whose answer is a private release.

    A plan binds a method to a run (`bind`). `unit` and `adjacency` of the run determine how records
    are grouped and how far one unit can move the answer.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end
        Clip at the last visit, divided by the clip at the first visit.
    noise_end
        Noise multiplier at the last visit, divided by the noise multiplier at the first visit.
    """

    private: ClassVar[bool] = True
    units: ClassVar[tuple[Unit, ...]] = ("record",)
    """Units that the method can protect. "person" requires that `arrange` and `answer` treat all
    records of a person as one contribution.
    """
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain",)
    own_factors: ClassVar[bool] = False
    """True if a server that adds the noise keeps each party's exact factor. Otherwise every party's
    factor is an equal share of all releases.
    """
    pure_noise: ClassVar[bool] = False
    """True if the method can release with Laplace noise, for δ = 0."""
    wants_full: ClassVar[bool] = False
    """True if posterior = "auto" means a full covariance, although d² noisy values are released.
    `server` must then be overridden.
    """
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
        """Return a copy of the method for a run with these properties.

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
        """True if a party's factor contains only the releases of this party.

        This applies to privacy.aggregation = "plain". If False, every party's factor is an equal
        share of the releases of all parties, which averages out noise. An equal share is right for
        one step per visit, because the sum of the parties' steps then depends only on the product
        of their factors.
        """
        return False

    @property
    def pure(self) -> bool:
        """True if the run's guarantee has δ = 0."""
        return self._run.pure

    @property
    def hides_lengths(self) -> bool:
        """True if a party's number of records is secret. Array shapes must then not reveal it."""
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
        """Return the privacy events of one answer with this clip and noise sd, for a party with
        `units` units.
        """

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the privacy events of the answer to one visit, which are known before the run.

        `clip` and `noise_sd` are the values at the first visit. From the first visit to the last,
        the clip changes geometrically by the factor `clip_end`, and the noise multiplier
        noise_sd/clip by the factor `noise_end`.
        """
        progress = visit / max(1, visits - 1)
        clip_now = self.clip_end**progress
        noise_now = clip_now * self.noise_end**progress
        return self.release(clip=clip * clip_now, noise_sd=noise_sd * noise_now, units=units)

    @property
    def needs_one_clip(self) -> bool:
        """True if all parties need the same clip, because the server divides sums by the clip.

        With different clips, a party with a smaller clip would have less noise than it is charged
        for.
        """
        return False

    def party_clip(self, party: str, records: int | None) -> float:
        """Return the clip of a party whose settings contain no clip.

        `records` is the declared number of records of the party, or None.
        """
        if records is not None:
            raise ConfigError(
                f'privacy.parties."{party}".records = {records}; it is only used with '
                "method.clip_per_record: set method.clip_per_record, or leave records out"
            )
        return self.clip

    def summands(self, units: int) -> int:
        """Return the number of contributions to a sum over the records of a party with `units`
        units.
        """
        return units

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array] | None:
        """Return the sum of the clipped contributions of all units, and a mask that is False for
        padding.

        The sum has no noise and is extended by `tally`, the count of units within the clip. It is
        only used in simulations, to count clipped units. The result is None if the method does not
        support this.
        """
        del model, family, key, task, tally
        return None

    def clipped_visits(self, visits: int) -> dict[int, str]:
        """Return a dict with one visit for each kind of release, at which clipped units are
        counted.

        Keys are the numbers of the visits. Values are the names of the settings that clip the
        releases of these visits.
        """
        return {visits - 1: "method.clip"}

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """True if clipping at this stage moves q away from the posterior."""
        del model, stage
        return True

    def server(self, run: Run) -> Combine:
        """Return the server's `Combine` function, which takes a step with momentum
        `server_momentum`.

        The function keeps the precision of q at or above `floor` and the precision of the prior. It
        is only right for a mean-field q (`check_server`); a method for other families overrides
        `server`.
        """
        _check_diagonal(self, run.family)
        prior = -2.0 * np.asarray(run.model.prior(run.family)["quadratic"])

        def floor(q: Natural, number: int) -> Array:
            damping, noise_sd = run.damping_at(number), run.noise_sd(number)
            return np.maximum(prior, self.floor(run.model, q, number, noise_sd, damping))

        return floored_step(floor, self.server_momentum)

    def check_server(self, family: Family) -> None:
        """Raise a ConfigError, before anything is charged, if `server` does not support this
        family.

        The default `server` supports only mean-field Gaussians. A method that overrides `server`
        refuses families in `check`.
        """
        if type(self).server is PrivateMethod.server:
            _check_diagonal(self, family)

    def numbers(self, dimension: int) -> int:
        """Return the approximate number of values in one release; `release_size` is exact."""
        return 2 * dimension

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        """Return the exact number of values in a release of this stage. Noise is added to each of
        them.
        """
        shapes = self.integer_shapes(model, family, stage)
        if shapes is None:
            shapes = self.released_shapes(model, family, stage)
        return sum(math.prod(shape) for shape in shapes.values())

    def floor(
        self, model: Model, q: Natural, number: int, noise_sd: float, damping: float
    ) -> Array:
        """Return a lower bound on the precision of the server's q in round `number`.

        The server also keeps the precision at or above that of the prior. `noise_sd` is the
        standard deviation of the noise in the sum of all parties' releases.
        """
        del model, q, number, noise_sd, damping
        return 0.0

    @property
    def server_momentum(self) -> float:
        """Momentum of the server's steps between rounds."""
        return 0.0

    def knows_noise(self, family: Family) -> bool:
        """True if the uncertainty of q includes the noise of the releases."""
        del family
        return False

    def check_unit(self) -> None:
        """Raise a ConfigError if this method cannot protect the unit of the run."""
        if self.unit not in self.units:
            raise ConfigError(
                f"privacy.unit = {self.unit!r} with method.kind = {self.kind!r}, which protects "
                f"a {' or a '.join(self.units)}; choose one of these units, or another method.kind"
            )

    def check_schedule(self, schedule: Schedule, parties: int) -> None:
        """Raise a ConfigError if this method does not support this schedule."""
        del schedule, parties

    def check_settled(self, model: Model, settled: Mapping[str, Any]) -> None:
        """Raise a ConfigError if the noise of a planned run is too large for this method.

        The check is made before anything is charged. `settled` has the terms of each party (clip,
        noise and events), by name of the party.
        """
        del model, settled

    def known_limits(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return a text about known weaknesses of a planned run, or None if there are no such
        weaknesses.

        The text is computed from public numbers before anything is charged.
        """
        del model, settled

    def settling_risk(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return a reason why a planned run may fail to converge, or None if there is no such
        reason.

        The reason is computed from public numbers, and shown only before the budget is charged.
        """
        del model, settled

    def count_units(self, party: str, records: Records) -> int:
        """Return the number of units of a party: its records, its persons, or 1 if the unit is the
        party.
        """
        if self.unit == "party":
            return 1
        if self.unit == "person":
            return int(person_codes(party, records).max()) + 1
        return np.shape(next(iter(records.values())))[0]


def _check_diagonal(method: PrivateMethod, family: Family) -> None:
    if not isinstance(family, MeanFieldGaussian):
        raise ConfigError(
            f"the posterior family is {family.kind!r}, but `PrivateMethod.server`, which "
            f"method.kind = {method.kind!r} uses, supports only {MeanFieldGaussian.kind!r}; set "
            "posterior = 'mean-field', or override `server` in the method"
        )


def units_present(weights: Array) -> Array:
    """Return a mask that is True for units and False for padding.

    `weights` has the shape (units,) or (units, records per unit).
    """
    return weights > 0 if weights.ndim == 1 else (weights > 0).any(axis=1)


def person_codes(party: str, records: Records) -> np.ndarray:
    """Return, for each record, the index of its person (0 … k − 1, in the order of first
    appearance).

    In the order of sorted ids, replacing one person could change the indices of all others.
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
    """Return the records as arrays with the axes group and position, padded with records of weight
    0.

    `groups` has the group index 0 … `count` − 1 of each record. A group is padded with copies of
    its first record, and an empty group with zeros. A copy from another group could change the sum
    over this group, because 0 times a non-finite number is not 0.
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
    """Return the shard of each unit, assigned by the index of the unit.

    Under replace-one the number of units is public and a replaced unit keeps its index. Replacing a
    unit therefore changes only one shard. The shards have nearly equal size.
    """
    digest = hashlib.blake2b(party.encode(), digest_size=16).digest()
    rng = np.random.default_rng([seed, 0x5A4D, *np.frombuffer(digest, np.uint32)])
    return rng.permutation(np.arange(units) % shards)


def shard_of_content(party: str, contents: list[bytes], shards: int, seed: int) -> np.ndarray:
    """Return the shard of each unit, assigned by a keyed hash of the unit's records.

    Adding or removing a unit does not change the shards of other units.
    """
    key = hashlib.blake2b(f"{seed}/{party}".encode(), digest_size=32).digest()
    digests = (hashlib.blake2b(body, key=key, digest_size=8).digest() for body in contents)
    return np.array([int.from_bytes(digest, "big") % shards for digest in digests], dtype=np.int64)


def contents(records: Records, units: np.ndarray, count: int) -> list[bytes]:
    """Return the bytes of each unit's records.

    `units` has, for each record, the index 0 … `count` − 1 of its unit. The bytes do not depend on
    the order of the records or on other units.
    """
    names = sorted(records)
    rows: list[list[bytes]] = [[] for _ in range(count)]
    for index, unit in enumerate(units):
        body = b"".join(np.ascontiguousarray(records[name][index]).tobytes() for name in names)
        rows[unit].append(body)
    return [b"".join(sorted(bodies)) for bodies in rows]
