"""State of the server: q, every party's factor with its version, and open requests.

A state is immutable. `tacit.server.step` returns a new state in which unchanged parts are the same
objects, so the checkpoint can write only the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tacit.arrays import Arrays, Natural
from tacit.expfam import Family
from tacit.pvi import power, product
from tacit.server.combine import Combine, Solver
from tacit.server.messages import Asked, Reply, Request, Stage
from tacit.server.schedule import Schedule

Log = tuple[dict[str, Any], ...]


class Factor(NamedTuple):
    """A party's factor tₘ, its number of updates (`version`) and the party's number of requests
    (`visits`).
    """

    natural: Natural
    version: int = 0
    visits: int = 0


class Open(NamedTuple):
    """A request that has not been answered yet; its q is `ServerState.issued[posterior].q`."""

    id: str
    party: str
    visit: int
    version: int
    posterior: int
    damping: float
    initial: bool
    issued_at: float
    stage: Stage = Stage()
    factor: Natural | None = None
    """The factor in the request, if the party's factor has changed since it was sent; otherwise
    None.
    """


class Published(NamedTuple):
    """The q and the public arrays that open requests contain."""

    q: Natural
    public: Arrays


def _only_stage(visit: int) -> Stage:
    del visit
    return Stage()


@dataclass(frozen=True)
class LatticeRules:
    """How the server sums the integers in replies and converts them to floats."""

    shapes: Callable[[str], dict[str, tuple[int, ...]] | None]
    """Function from a stage to names and shapes of the integer arrays in a reply; it returns None
    if replies contain floats.
    """
    read: Callable[[Asked, Arrays], Arrays]
    """Converts the integers of one party, or of a sum, to the arrays that the server uses."""
    scale: Callable[[str, int], tuple[float, float]]
    """Function from a party and a visit to the lattice step and the clip of its release. Only
    releases with equal step and clip can be summed as integers.
    """
    sums: bool = False
    """True if only the sum over the parties is converted, for example if they share their noise."""
    noise: Callable[[int, dict[str, tuple[int, ...]]], Arrays] | None = None
    """Function from the number of a round and the shapes of its released arrays to integer noise,
    if the server adds the noise; otherwise None.
    """


@dataclass(frozen=True)
class Rules:
    """Constants of a run."""

    family: Family
    schedule: Schedule
    parties: tuple[str, ...]
    seed: int
    prior: Natural
    site_prior: bool = False
    """True if the first party is a pseudo-party whose factor is the prior (`Model.has_site_prior`).
    """
    average_last: int = 0
    """Number of last rounds over which q is averaged; 0 if the last q is the result."""
    combine: Combine | None = None
    """Function that combines noisy updates; None for exact updates, which are multiplied into q."""
    own_factors: bool = False
    """True if updates are exact and are also multiplied into the factors of their parties, although
    `combine` computes q.
    """
    keeps_factors: bool = True
    """False if no stage uses factors; they are then neither updated nor stored."""
    most_visits: int | None = None
    """Largest number of visits per party; None for no limit."""
    quorum: int | None = None
    """Number of replies with which a round can be completed if other parties are late; None if a
    round needs the replies of all its parties.
    """
    solver: Solver | None = None
    """Solver that chooses the stage and the requests of every round from the sums of the previous
    round (`tacit.server.solve`); None if the server does not control the steps of the method.
    """
    first_public: Arrays = field(default_factory=dict)
    """Public arrays of the first requests, besides q."""
    reads_public: bool = False
    """True if the posterior depends on the public arrays."""
    stages: dict[str, Stage] = field(default_factory=dict)
    """All stages that a solver can choose, by name."""
    stage_at: Callable[[int], Stage] = _only_stage
    """Function from the number of a visit to its stage."""
    released: Callable[[str], dict[str, tuple[int, ...]]] | None = None
    """Function from a stage to names and shapes of the released arrays; None if replies contain
    natural parameters.
    """
    published: Callable[[str], dict[str, tuple[int, ...]]] | None = None
    """Function from a stage to names and shapes of the public arrays in its requests; None if these
    names and shapes are not known.
    """
    lattice: LatticeRules | None = None
    """How released integers are summed and converted; None if replies contain floats."""
    in_step: bool = False
    """True if the visit number of every party is the number of earlier rounds, even if the party
    missed some of them.
    """
    divide_out: bool = False
    """True if the factor of a party that leaves permanently is divided out of q; False if it stays.
    """
    leave_out: bool = False
    """True if a party is excluded when its updates alone make q implausible, or improper in many
    consecutive rounds.
    """
    report_steps: bool = True
    """True if the log reports how far a round moved q; if False, a run never ends early."""

    @property
    def order(self) -> str:
        """Order in which the requests of a round are sent, as the name of a schedule.

        A solver needs the replies of all parties before it can choose the next stage. A sequential
        schedule then sends the same stage to one party after another; an asynchronous schedule
        sends it to all at once, like a synchronous schedule.
        """
        together = self.solver is not None and self.schedule.kind == "asynchronous"
        return "synchronous" if together else self.schedule.kind


@dataclass(frozen=True)
class ServerState:
    """Everything that a restarted server needs to continue the run."""

    q: Natural
    q_version: int
    factors: dict[str, Factor]
    open: dict[str, Open] = field(default_factory=dict)
    issued: dict[int, Published] = field(default_factory=dict)
    """The q and public arrays that open requests contain, by the number in `Open.posterior`."""
    public: Arrays = field(default_factory=dict)
    """Public arrays of the next requests, besides q."""
    arrived: dict[str, Reply] = field(default_factory=dict)
    """Replies waiting for the rest of a synchronous round."""
    waiting: tuple[str, ...] = ()
    """Parties still to be visited in a sequential round."""
    losses: dict[str, float | None] = field(default_factory=dict)
    heard: frozenset[str] = frozenset()
    """Parties with an applied update since the last round that moved q by `tolerance` or more."""
    moved_since: dict[str, float] = field(default_factory=dict)
    """By party, how far q has moved since the party's last applied update: the sum of √(KL
    divergence) over the rounds since then. Parties without an applied update are missing.
    """
    absent: frozenset[str] = frozenset()
    """Parties that were late and get no requests until they return."""
    left: frozenset[str] = frozenset()
    """Parties that left permanently."""
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parties whose updates broke a bound, each with the details. Such a party gets no requests
    until it is readmitted (`readmit`).
    """
    previous: Natural | None = None
    """q at the end of the last round."""
    total: Natural | None = None
    """Sum of q's natural parameters over the `totalled` rounds that are averaged."""
    totalled: int = 0
    memory: Arrays | None = None
    """Memory of `Rules.combine` or `Rules.solver` between rounds."""
    stage: str | None = None
    """The stage of the open round, if chosen by a solver."""
    round: int = 0
    exchanges: int = 0
    applied: int = 0
    requests: int = 0
    refused: int = 0
    refused_in_a_row: int = 0
    caution: float = 1.0
    """Factor by which the damping is multiplied. It is halved if an update is refused, and doubled
    (up to 1) if one is applied.
    """
    finished: str | None = None

    @property
    def not_asked(self) -> frozenset[str]:
        """Parties that get no requests, because they left permanently or were excluded."""
        return self.left | self.left_out.keys()

    @property
    def result(self) -> Natural:
        """The result of the run: q, or its average over the last rounds.

        A mean of natural parameters is in the family and has less noise than a single q.
        """
        if self.total is None:
            return self.q
        return power(self.total, 1.0 / self.totalled)


def initial_state(rules: Rules, factors: dict[str, Natural] | None = None) -> ServerState:
    """Return the initial state: q is the prior times the given factors, and no request is open."""
    zero = rules.family.zero()
    start = {name: Factor((factors or {}).get(name, zero)) for name in rules.parties}
    q = product(rules.prior, (factor.natural for factor in start.values()))
    return ServerState(q=q, q_version=0, factors=start, public=rules.first_public, previous=q)


def open_requests(state: ServerState, only: str | None = None) -> list[Request]:
    """Return the open requests, or only the one with id `only`, as they were first sent."""
    wanted = state.open.values() if only is None else [state.open[only]]
    requests = []
    for o in wanted:
        carried = state.issued[o.posterior]
        requests.append(
            Request(
                id=o.id,
                party=o.party,
                visit=o.visit,
                version=o.version,
                q=carried.q if o.stage.needs_q else None,
                factor=(o.factor or state.factors[o.party].natural)
                if o.stage.needs_factor
                else None,
                damping=o.damping,
                initial=o.initial,
                stage=o.stage.name,
                public=carried.public,
            )
        )
    return requests
