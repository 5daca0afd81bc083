"""A small private federation that logs computations, charges and stored replies of all processes.

The model is the mean of a normal distribution, computed in NumPy, so that an engine calls the
method's Python code for every reply. The method appends one line to a journal file whenever it
computes a reply. The `WatchedCharging` object appends a line whenever it charges or stores a reply.
Each line is written by one system call. The order of lines is therefore the order of events, even
if parties compute in other processes.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from tacit.arrays import namespace
from tacit.errors import DataError
from tacit.expfam import Family, Natural
from tacit.methods import GradientVI
from tacit.methods.base import Answer, Task
from tacit.methods.private import PrivateMethod
from tacit.models import Model, NormalMean
from tacit.party.charge import Charging, Rehearse
from tacit.party.compute import party_word
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.bounded import clip_units
from tacit.privacy.events import GaussianEvent
from tacit.privacy.lattice import draw_each
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.mechanisms import Gaussian, Release
from tacit.privacy.settings import Privacy
from tacit.pvi import cavity, multiply
from tacit.server.messages import Reply, Request
from tacit.server.schedule import Schedule, Synchronous

ROUNDS = 3
SIZES = {"north": 9, "south": 4, "west": 14}
RUN = "check-engine"
FAILING = "south"
FAULT = "the records of this party cannot be read"
_WORDS = {party_word(name): name for name in SIZES}


class Line(NamedTuple):
    """One event of a party's visit: "charged", "computed" or "stored". `noise` is a digest of the
    noise that was drawn.
    """

    what: str
    party: str
    visit: int
    noise: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The pair (party, visit) of the event."""
        return self.party, self.visit


@dataclass(frozen=True)
class Journal:
    """A file to which any process can append lines."""

    path: str

    def write(self, line: Line) -> None:
        """Append a line."""
        body = msgspec.json.encode(line) + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, body)
        finally:
            os.close(descriptor)

    def read(self) -> list[Line]:
        """Return all lines, in the order in which they were written."""
        path = Path(self.path)
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [Line(*msgspec.json.decode(line)) for line in lines]


class ProbeModel(NormalMean):
    """Model of the mean of a normal distribution, computed in NumPy."""

    kind: ClassVar[str] = "engine-probe"
    traceable: ClassVar[bool] = False


class WideTailedMean(NormalMean):
    """Model of the mean of a normal distribution with a logistic prior, which is not in the
    posterior family.
    """

    kind: ClassVar[str] = "engine-probe-prior"
    has_site_prior = True

    def log_prior(self, theta: Any) -> Any:
        """Return log p(θ) of the standard logistic distribution."""
        xp = namespace(theta)
        return xp.sum(-theta - 2.0 * xp.log1p(xp.exp(-theta)))


@dataclass(frozen=True, kw_only=True)
class ProbeMethod(PrivateMethod):
    """A method that releases a clipped sum of y.

    If `remembers` is true, the method memory is the number of replies so far, which the engine must
    pass to the method at each visit. While the file `<journal>.fault` exists, the second reply of
    one party fails.
    """

    kind: ClassVar[str] = "engine-probe"
    eager: ClassVar[bool] = True
    uses_key: ClassVar[bool] = False
    clip: float = 1.0
    dtype: str = "float64"
    journal: str = ""
    remembers: bool = True

    def check(self, model: Model, family: Family) -> None:
        pass

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        del units
        return (GaussianEvent(clip=clip, noise_sd=noise_sd),)

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        del model, family, stage
        return 1

    def memory(self, model: Model, family: Family) -> Natural | None:
        del model, family
        return {"answers": np.zeros(1)} if self.remembers else None

    def answer(self, model: Model, family: Family, key: Any, task: Task) -> Answer:
        import jax

        party, visit = _WORDS[int(task.words[1])], int(task.words[2])
        noise = _digest(task.noise)
        Journal(self.journal).write(Line("computed", party, visit, noise))
        if party == FAILING and visit == 1 and Path(f"{self.journal}.fault").exists():
            raise DataError(f"party {party!r}: {FAULT}; restore them from a copy")
        present = np.asarray(task.weights) > 0
        values = np.asarray(task.records["y"], np.float64)[:, None]
        terms = task.terms.clips[0], task.terms.noise_sds[0], task.terms.lattice
        release = _compiled_release()(task.noise[0], values, present, *terms)
        # The count of answers is part of the result: a lost memory shows in the posterior.
        memory = {"answers": task.memory["answers"] + 1.0} if self.remembers else None
        count = 0.0 if memory is None else memory["answers"]
        site = {
            "linear": np.asarray(release.value) + 1e-3 * count,
            "quadratic": -0.5 * np.sum(present) * np.ones(1),
        }
        costs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], release.cost)
        natural = multiply(cavity(task.q, task.factor), site)
        return Answer(natural, None, costs, memory)


@functools.cache
def _compiled_release() -> Callable[..., Release]:
    import jax

    def release(
        noise: Any, values: Any, present: Any, clip: Any, noise_sd: Any, lattice: Any
    ) -> Release:
        mechanism = Gaussian(noise_sd=noise_sd, lattice=lattice)
        return mechanism.release(noise, clip_units(values, clip, present))

    return jax.jit(release)


@dataclass(frozen=True)
class WatchedCharging(Charging):
    """Charges releases to the ledger like `Charging`, and logs each charge and each stored reply.

    The log is written to the file `journal`, so that a test can check the order of these events.
    """

    journal: str = ""

    def open(
        self, requests: Sequence[Request], rehearse: Rehearse | None = None
    ) -> tuple[dict[str, Reply], list[Request], dict[str, bytes]]:
        stored, wanted, keys = super().open(requests, rehearse)
        for request in wanted:
            (event,) = self.settled[request.party].events_at(request.visit)
            assert event.lattice is not None
            noise = _digest(draw_each([keys[request.id]], 1, event.lattice.bits))
            Journal(self.journal).write(Line("charged", request.party, request.visit, noise))
        return stored, wanted, keys

    def store(self, requests: Sequence[Request], replies: dict[str, Reply]) -> dict[str, Reply]:
        kept = super().store(requests, replies)
        for request in requests:
            Journal(self.journal).write(Line("stored", request.party, request.visit))
        return kept


def probe_plan(journal: Path, schedule: Schedule, *, insecure_noise_seed: int | None) -> Plan:
    """Make a plan with three parties. With a noise seed, the run is a simulation without a
    guarantee.
    """
    rng = np.random.default_rng(5)
    return make_plan(
        ProbeModel(),
        {name: {"y": rng.normal(size=size)} for name, size in SIZES.items()},
        # Method memory needs all parties in every round.
        method=ProbeMethod(journal=str(journal), remembers=schedule.kind == "synchronous"),
        schedule=schedule,
        seed=3,
        batch_parties=False,  # each party alone, so that results have equal bits
        privacy=Privacy(noise_multiplier=2.0, delta=1e-3, insecure_noise_seed=insecure_noise_seed),
    )


def prior_plan() -> Plan:
    """Make a plan without privacy whose prior is a factor that answers like a party."""
    rng = np.random.default_rng(6)
    return make_plan(
        WideTailedMean(),
        {name: {"y": 1.0 + rng.normal(size=size)} for name, size in SIZES.items()},
        method=GradientVI(steps=3),
        schedule=Synchronous(rounds=2),
        seed=3,
        batch_parties=False,
    )


def watched_charging(plan: Plan, ledger: Ledger, journal: Path) -> WatchedCharging:
    """Set budgets in `ledger` that are large enough for every run of the suite, and return a
    `WatchedCharging` for it.
    """
    datasets = {name: ledger.identify({}, records) for name, records in plan.parties.items()}
    assert plan.privacy is not None
    unit, adjacency, delta = plan.privacy.unit, plan.privacy.adjacency, plan.privacy.delta
    budgets = {}
    for name, dataset in datasets.items():
        (event,) = plan.settled[name].events_at(0)
        # One release at the cost of 4·ROUNDS releases.
        noise_sd = event.noise_sd / math.sqrt(4 * ROUNDS)
        together = [msgspec.structs.replace(event, noise_sd=noise_sd)]
        most = ledger.price(dataset, together, unit=unit, adjacency=adjacency, delta=delta)
        budgets[dataset] = Budget(
            epsilon=most * (1 + 1e-5), delta=delta, adjacency=adjacency, unit=unit
        )
    ledger.set_budgets(budgets, reason="check_engine")
    return WatchedCharging(ledger, RUN, datasets, plan.settled, unit, adjacency, str(journal))


def _digest(noise: Any) -> str:
    body = np.ascontiguousarray(noise, "<i8").tobytes()
    return hashlib.blake2b(body, digest_size=8, person=b"tacit.probe").hexdigest()
