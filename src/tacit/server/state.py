"""What the server knows: q, every party's factor with its version, and what it has asked.

Immutable: `tacit.server.step` returns a new state, and parts that did not change are the same
objects, which is how the checkpoint knows what to write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tacit.arrays import Arrays, Natural
from tacit.expfam import Family
from tacit.pvi import power, product
from tacit.server.combine import Combine
from tacit.server.messages import Reply, Request, Stage
from tacit.server.schedule import Schedule

Log = tuple[dict[str, Any], ...]


class Factor(NamedTuple):
    """tₘ with the number of updates it has had and of requests its party has had.

    `base` is tₘ at the point from which the last step was made, where step lengths are searched.
    """

    natural: Natural
    version: int = 0
    visits: int = 0
    base: Natural | None = None


class Open(NamedTuple):
    """A request that may be answered, once. `posterior` names the q that it carries."""

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
    """The factor that it carries, if updates of other parties have changed its party's since."""


class Published(NamedTuple):
    """What open requests carry: q and the public arrays of their round."""

    q: Natural
    public: Arrays


def _only_stage(visit: int) -> Stage:
    del visit
    return Stage()


@dataclass(frozen=True)
class Rules:
    """What does not change during a run."""

    family: Family
    schedule: Schedule
    parties: tuple[str, ...]
    seed: int
    prior: Natural
    site_prior: bool = False
    """True when the first party is the prior itself, kept as a factor (`Model.has_site_prior`)."""
    average_last: int = 0
    """Over how many of the last rounds q is averaged; 0: the last q is the result."""
    combine: Combine | None = None
    """How updates that carry noise are put together; None: they are exact and multiplied."""
    own_factors: bool = False
    """True when updates are exact and a factor takes its party's own, whatever `combine` adds."""
    keeps_factors: bool = True
    """False when no stage reads factors; they are then neither updated nor stored."""
    most_visits: int | None = None
    """How often a party may be asked, whatever its pace; None: no limit."""
    quorum: int | None = None
    """With how many answers a round may do when others are late; None: everybody's."""
    line_search: bool = False
    """True: updates add up to a natural-gradient step, and a step that raised the free energy is
    halved (`tacit.server.line_search`)."""
    first_public: Arrays = field(default_factory=dict)
    """What the first requests publish besides q."""
    reads_public: bool = False
    """Whether the posterior is read with the public arrays."""
    stage_at: Callable[[int], Stage] = _only_stage
    """The stage of a party's visit, which every request names."""
    released: Callable[[str], dict[str, tuple[int, ...]]] | None = None
    """Names and shapes of what a reply to that stage releases; None: natural parameters."""
    divide_out: bool = False
    """True: the factor of a party that leaves for good is divided out of q; False: it stays."""
    leave_out: bool = False
    """True: a party whose updates alone make q improper, round after round, is left out."""
    report_steps: bool = True
    """Whether the log says how far a round moved q; False: a run does not end before its rounds."""


@dataclass(frozen=True)
class ServerState:
    """Everything that a restarted server needs to go on as if nothing had happened."""

    q: Natural
    q_version: int
    factors: dict[str, Factor]
    open: dict[str, Open] = field(default_factory=dict)
    issued: dict[int, Published] = field(default_factory=dict)
    """What open requests carry, by the number of their posterior."""
    public: Arrays = field(default_factory=dict)
    """What the next requests publish besides q."""
    arrived: dict[str, Reply] = field(default_factory=dict)
    """Answers waiting for the rest of a synchronous round."""
    waiting: tuple[str, ...] = ()
    """Parties still to be visited in a sequential round."""
    losses: dict[str, float | None] = field(default_factory=dict)
    heard: frozenset[str] = frozenset()
    """Parties whose updates were taken since a round last moved q by `tolerance` or more."""
    moved_since: dict[str, float] = field(default_factory=dict)
    """For each party that has contributed: Σ √last_change of the rounds since, inclusive."""
    absent: frozenset[str] = frozenset()
    """Parties that were late and are not asked until they are back."""
    left: frozenset[str] = frozenset()
    """Parties that are gone for good."""
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parties whose update broke a bound, and what it was; not asked until `readmit`."""
    previous: Natural | None = None
    """q at the end of the last round."""
    total: Natural | None = None
    """Σ λ_q over the rounds that are averaged, and their number."""
    totalled: int = 0
    memory: Arrays | None = None
    """What `Rules.combine` keeps from one round to the next."""
    base: Natural | None = None
    """The q from which the last step was made, where step lengths are searched."""
    base_energy: float | None = None
    """Its free energy; None: not known, or somebody has come or gone since."""
    shortened: int = 0
    """How many steps were halved since one was last taken."""
    round: int = 0
    exchanges: int = 0
    applied: int = 0
    requests: int = 0
    refused: int = 0
    refused_in_a_row: int = 0
    caution: float = 1.0
    """Multiplies the damping: halved when an update is refused, doubled back when one is taken."""
    finished: str | None = None

    @property
    def not_asked(self) -> frozenset[str]:
        """Parties that no round waits for: gone for good, or left out."""
        return self.left | self.left_out.keys()

    @property
    def result(self) -> Natural:
        """What a run ends with: q, or its average over the last rounds.

        Under noise every q is the answer plus that round's noise; a mean of natural parameters is
        in the family and carries less of it.
        """
        if self.total is None:
            return self.q
        return power(self.total, 1.0 / self.totalled)


def initial_state(rules: Rules, factors: dict[str, Natural] | None = None) -> ServerState:
    """q is the prior times the given factors (none by default), nothing asked yet."""
    zero = rules.family.zero()
    start = {name: Factor((factors or {}).get(name, zero)) for name in rules.parties}
    q = product(rules.prior, (factor.natural for factor in start.values()))
    return ServerState(q=q, q_version=0, factors=start, public=rules.first_public, previous=q)


def open_requests(state: ServerState, only: str | None = None) -> list[Request]:
    """The requests still to be answered (or the one of that id), as they were first sent."""
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
