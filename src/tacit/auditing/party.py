"""One party's releases for neighbouring data sets, computed by the party's own code."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.arrays import Arrays
from tacit.models import Records
from tacit.party.compute import Update
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan, first_factors
from tacit.privacy.audit.bounds import CONFIDENCE, projected_distance, threshold_epsilon
from tacit.privacy.audit.low_bits import low_bits_epsilon
from tacit.privacy.events import GaussianEvent
from tacit.server.combine import Shared
from tacit.server.messages import Reply
from tacit.server.state import initial_state
from tacit.server.step import noisy_sum
from tacit.testing.data_sets import DataSets, first_question, furthest_pair
from tacit.testing.neighbours import neighbours_of, with_persons
from tacit.testing.releases import Noted

BATCH = 128
"""Number of data sets or draws per call; it is constant, so that one program is compiled."""
FILLS = (1.0, 0.1, 1e3)
"""Magnitudes of the random public arrays that are tried, as a server may send any."""
TRIES = 4
"""Number of random public arrays that are tried for each magnitude."""
MINIMUM = 1024
"""Number of draws that are made even if the time is up."""


class WorstPair(NamedTuple):
    """The two neighbouring data sets whose exact sums differ most, for one release of one visit."""

    visit: int
    place: int
    stage: str
    event: GaussianEvent
    first: Records
    second: Records
    sums: tuple[np.ndarray, np.ndarray]
    """Exact sums of the two data sets."""
    question: Shared
    """The posterior q and the public arrays of the request."""
    moves: np.ndarray
    """Differences of the exact sum between `first` and each neighbour that was tried."""

    @property
    def difference(self) -> np.ndarray:
        """The exact sum of the second data set minus that of the first."""
        return self.sums[1] - self.sums[0]

    @property
    def moved(self) -> float:
        """Norm of `difference`."""
        return float(np.linalg.norm(self.difference))


class Draws(NamedTuple):
    """Exact sums and released values of independent draws, two arrays of shape (draws, d)."""

    exact: np.ndarray
    noised: np.ndarray

    @property
    def noise(self) -> np.ndarray:
        """The noise that the mechanism added: released value minus exact sum."""
        return self.noised - self.exact


@dataclass
class AuditedParty:
    """A party of a plan, with data sets that are neighbours of its records.

    Parameters
    ----------
    plan
        The plan of a run with secret noise.
    party
        Name of the party.
    seed
        Seed of the random choice of neighbours; the noise does not depend on it.
    """

    plan: Plan
    party: str
    seed: int = 0
    noise_factor: float = 1.0
    """A factor below 1 makes the noise deliberately too small, to test whether the audit detects
    it.
    """
    _rows: int = field(default=0, init=False)
    _groups: list[list[Records]] = field(init=False)

    def __post_init__(self) -> None:
        assert self.plan.privacy is not None
        records = self.plan.parties[self.party]
        if self.plan.privacy.unit == "person" and "person" not in records:
            records = with_persons(records)
        self.records = records
        self._groups = neighbours_of(
            records, self.plan.privacy.unit, self.plan.privacy.adjacency,
            np.random.default_rng(self.seed),
        )  # fmt: skip
        method, name = self.plan.method, self.party
        for group in self._groups:
            for one in group:
                arranged = method.arrange(name, one, self.plan.seed)
                self._rows = max(self._rows, arranged.weights.shape[method.variable_axis])

    @property
    def settled(self) -> Settled:
        """The party's `Settled` entry in the plan, with its noise multiplied by `noise_factor`."""
        return self._scaled(self.plan.settled[self.party])

    def _scaled(self, settled: Settled) -> Settled:
        if self.noise_factor == 1.0:
            return settled
        answers = tuple(
            tuple(
                msgspec.structs.replace(event, noise_sd=event.noise_sd * self.noise_factor)
                for event in events
            )
            for events in settled.answers
        )
        noise_sd = settled.noise_sd * self.noise_factor
        return msgspec.structs.replace(settled, noise_sd=noise_sd, answers=answers)

    def visits(self) -> list[int]:
        """Return the numbers of the visits to audit.

        These are the first visit of each stage, and the last one if it is charged differently.
        """
        settled = self.plan.settled[self.party]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for visit in range(settled.visits):
            if settled.events_at(visit):
                stage = self.plan.method.stage_at(visit).name
                first.setdefault(stage, visit)
                last[stage] = visit
        other = {
            visit
            for stage, visit in last.items()
            if settled.events_at(visit) != settled.events_at(first[stage])
        }
        return sorted({*first.values(), *other})

    def answer(
        self,
        sets: Sequence[Records],
        visit: int,
        question: Shared,
        insecure_noise_seed: int | None = None,
    ) -> list[Update]:
        """Compute the replies to one request, one reply per data set."""
        plan = self.plan
        # Pad to full batches, so that a compiled program has one shape.
        missing = -len(sets) % BATCH if plan.model.traceable else 0
        wanted = [*sets, *([sets[0]] * missing)]
        # Memory before the first visit, which depends on no record.
        memory = plan.method.memory(plan.model, plan.family) if visit else None
        found: list[Update] = []
        for start in range(0, len(wanted), BATCH):
            data_sets = DataSets(plan, self.party, wanted[start : start + BATCH], self._rows)
            found += data_sets.answer(
                question, visit, [memory] * data_sets.count, insecure_noise_seed, self.settled
            )
        return found[: len(sets)]

    def _questions(self, visit: int) -> Iterator[Shared]:
        """Yield requests with the first q of a run: one with public arrays of zeros, then some with
        random public arrays.
        """
        rng = np.random.default_rng([self.seed, visit])
        first = first_question(self.plan, visit)
        yield first
        if first.public:
            for fill in FILLS * TRIES:
                public = {n: fill * rng.normal(size=v.shape) for n, v in first.public.items()}
                yield Shared(first.q, public)

    def worst_pairs(self, visit: int) -> list[WorstPair]:
        """Find, for each release of a visit, the neighbouring data sets whose exact sums differ
        most.

        Call this method and `draws` inside the context `tacit.testing.releases.noted`.
        """
        assert self.plan.privacy is not None
        adjacency, unit = self.plan.privacy.adjacency, self.plan.privacy.unit
        best: dict[int, WorstPair] = {}
        stage = self.plan.method.stage_at(visit).name
        sampled = any(event.sampling for event in self.plan.settled[self.party].events_at(visit))
        tries = range(1, 9 if sampled else 2)  # the unit is not in every batch
        questions = list(self._questions(visit))
        for question, group, number in itertools.product(questions, self._groups, tries):
            updates = self.answer(group, visit, question, number)
            if not all(update.finite for update in updates):
                continue
            for place, event in enumerate(_events(updates[0])):
                sums = np.stack([update.cost.exact[place] for update in updates])
                if unit == "party" and adjacency == "add-or-remove-one":
                    sums[0] = 0.0  # an absent party
                if not np.all(np.isfinite(sums)):
                    continue
                a, b = furthest_pair(sums, adjacency)
                pair = WorstPair(
                    visit, place, stage, event, group[a], group[b], (sums[a], sums[b]), question,
                    sums - sums[a],
                )  # fmt: skip
                if place not in best or pair.moved > best[place].moved:
                    best[place] = pair
        return [best[place] for place in sorted(best)]

    def draws(
        self, pairs: Sequence[WorstPair], records: Records, count: int, until: float
    ) -> list[Draws]:
        """Draw each release of a visit independently and with secret noise.

        Up to `count` draws are made. After the time `until`, drawing stops once there are at least
        `MINIMUM` draws.
        """
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in pairs]
        while len(found[0]) < count and (len(found[0]) < MINIMUM or time.monotonic() < until):
            for update in self.answer([records] * BATCH, pairs[0].visit, pairs[0].question):
                for kept, pair in zip(found, pairs, strict=True):
                    cost = update.cost
                    kept.append((cost.exact[pair.place], cost.noised[pair.place]))
        return [Draws(*(np.stack(part) for part in zip(*one, strict=True))) for one in found]

    def server_draws(self, pair: WorstPair, count: int) -> Draws:
        """Draw the noise that the server adds to the sum of a visit, `count` times."""
        plan = self.plan
        plan = replace(plan, settled={name: self._scaled(of) for name, of in plan.settled.items()})
        shapes = plan.method.integer_shapes(plan.model, plan.family, pair.stage)
        assert shapes is not None
        nothing = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
        replies = [Reply("audit", name, 0, nothing, None) for name in plan.parties]
        state = replace(initial_state(plan.rules, first_factors(plan)), round=pair.visit)
        found = []
        for _ in range(count):
            rules = replace(plan, noise_key=(secrets.randbits(256),)).rules
            assert rules.lattice is not None
            step, _ = rules.lattice.scale(self.party, pair.visit)
            scaled = replace(rules.lattice, read=lambda _, whole, step=step: _times(step, whole))
            total = noisy_sum(replace(rules, lattice=scaled), state, replies)
            found.append(np.concatenate([np.ravel(total[name]) for name in sorted(total)]))
        return Draws(np.zeros((count, len(found[0]))), np.stack(found))

    def replies(self, pair: WorstPair, records: Records, draws: int, until: float) -> np.ndarray:
        """Compute independent replies with secret noise; one row of numbers per reply."""
        found: list[np.ndarray] = []
        while len(found) < draws and (len(found) < MINIMUM or time.monotonic() < until):
            answers = self.answer([records] * BATCH, pair.visit, pair.question)
            found += map(_flat_reply, answers)
        return np.stack(found)


def distance_below(pair: WorstPair, draws: Draws, shares: int) -> float | None:
    """Return a lower bound on the distance between the releases of a pair, in standard deviations
    of the noise.

    If `shares` parties each add a share of the noise of a sum, the share of one party is multiplied
    by √shares to obtain the noise of the sum. Two differences between neighbours are tested: the
    largest one, and the one that is largest relative to the noise. The second is chosen with one
    half of the draws and tested with the other half. Each test has half of the error probability.
    """
    noise = draws.noise * np.sqrt(shares)
    spread = np.sqrt(np.mean(noise[::2] ** 2, axis=0))
    scaled = np.divide(pair.moves, spread, out=np.zeros_like(pair.moves), where=spread > 0)
    scaled[(pair.moves != 0) & (spread == 0)] = np.inf
    longest = pair.moves[np.argmax(np.linalg.norm(scaled, axis=1))]
    confidence = 1.0 - (1.0 - CONFIDENCE) / 2.0
    found = [
        projected_distance(pair.difference, noise, confidence=confidence),
        projected_distance(longest, noise[1::2], confidence=confidence),
    ]
    return max((one for one in found if one is not None), default=None)


def reply_epsilon(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Return a lower bound on ε from replies for two neighbouring data sets.

    `first` and `second` have one reply per row. Nothing is assumed about the distribution of
    replies.
    """
    train = [one[::2] for one in (first, second)]
    moved = train[1].mean(axis=0) - train[0].mean(axis=0)
    spread = np.sqrt((train[0].var(axis=0) + train[1].var(axis=0)) / 2)
    fixed = (spread == 0) & (moved != 0)
    weights = np.where(fixed, 1e12, 0.0) * np.sign(moved)
    noisy = spread > 0
    weights[noisy] = moved[noisy] / spread[noisy] ** 2
    scores = [(one - train[0].mean(axis=0)) @ weights for one in (first[1::2], second[1::2])]
    return threshold_epsilon(scores[0], scores[1], delta)


def bits_epsilon(pair: WorstPair, draws: tuple[Draws, Draws], delta: float) -> float:
    """Return a lower bound on ε from the low bits of released values."""
    released = [one.noised for one in draws]
    lattice = getattr(pair.event, "lattice", None)
    if lattice is not None:
        step = lattice.step(pair.event.noise_sd)
        released = [np.rint(one / step).astype(np.int64) for one in released]
    sums = (draws[0].exact[0], draws[1].exact[0])
    return low_bits_epsilon((released[0], released[1]), sums, pair.event.noise_sd, delta)


def _events(update: Update) -> list[GaussianEvent]:
    import jax

    if update.cost is None:
        return []
    assert isinstance(update.cost, Noted)
    cost = jax.tree.map(np.asarray, update.cost.cost)
    places = range(len(np.atleast_1d(cost.clip)))
    return [jax.tree.map(lambda leaf, i=i: np.atleast_1d(leaf)[i], cost).event() for i in places]


def _times(step: float, integers: Arrays) -> Arrays:
    return {name: step * value for name, value in integers.items()}


def _flat_reply(update: Update) -> np.ndarray:
    parts: list[Any] = [np.ravel(update.released[name]) for name in sorted(update.released)]
    if update.loss is not None:
        parts.append(np.ravel(update.loss))
    return np.concatenate(parts).astype(np.float64)
