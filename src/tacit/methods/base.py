"""Local methods: how a party computes its reply. One file per method.

A method is a frozen value object. `answer` is pure and JAX-traceable: an engine jits it once and
maps it over as many parties as it likes, with their data as arguments. Everything that is not
mathematics (request ids, replays, damping) is in `tacit.party.compute`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays, Natural
from tacit.expfam import Family
from tacit.models import Model, Records
from tacit.privacy.events import GaussianEvent
from tacit.pvi import damped_update
from tacit.server.combine import Solver
from tacit.server.messages import UPDATE, Asked, Stage
from tacit.server.schedule import USUAL_ROUNDS

MAX_FULL_COVARIANCE = 256
"""Parameters up to which a full covariance is the default of most methods."""


class Task(NamedTuple):
    """What one party has to answer, as arrays.

    `weights` is 1 for a record and 0 for padding. `start` is where an optimiser begins: q, or,
    while q is still the prior (`initial`), the model's own starting point. `visit` counts the
    requests that this party has had. A private method also gets its numbers (`terms`), its noise,
    and the key of its batches (`secret`). `stage` is the name of the visit's stage
    (`LocalMethod.stage_at`), known when it is compiled, and `public` what the server publishes for
    it; q and factor are None where the stage does not read them. `memory` is what the method kept
    at this party (`LocalMethod.memory`), and `damping` the part of its change that will be sent.
    `begun` is what `LocalMethod.begin` made of `start`, or None, in which case the method does so
    itself. `words` are the numbers of seed, party and visit that the public key of `answer` is made
    of: no source of noise.

    Parameters
    ----------
    records, weights
        Arranged records, and 1 for a record, 0 for padding.
    q, factor
        Posterior and this party's factor, None where the stage does not read them.
    start, begun
        Where an optimiser begins, and what `LocalMethod.begin` made of it.
    initial
        Whether q is still the prior.
    visit, stage
        Number of earlier requests, and the name of this one's stage.
    terms, secret, noise
        Terms of a private method, the key of its batches, and the integer noise of its releases,
        one row each.
    public
        What the server publishes for this stage.
    memory
        What the method kept at this party.
    damping
        Share of the change that is sent.
    words
        Numbers that the public key is made of.
    """

    records: Records
    weights: Array
    q: Any
    factor: Any
    start: Any
    initial: Array
    visit: Array | int = 0
    terms: Any = None
    secret: Array = None
    noise: Array = None
    stage: str = UPDATE
    public: Arrays = {}  # noqa: RUF012 - shared and never written to
    memory: Any = None
    damping: Array | float = 1.0
    begun: Any = None
    words: Array = None


class Answer(NamedTuple):
    """What a method computed: λ of the local posterior qₘ, or other arrays to release, or both.

    What leaves the party is `released`, and of `natural` the damped change. The loss is
    −E[log p(xₘ | θ)] at `Task.start`; a private method has none, which would be another release,
    but a cost. `memory` stays with the party until its next visit.

    Parameters
    ----------
    natural
        Natural parameters of the local posterior; None if there are none.
    loss
        Negative expected log-likelihood; None in a private method.
    cost
        Events that the release costs.
    memory
        What stays with the party.
    released
        Further arrays that leave the party.
    sound
        False if a sum was not finite, in which case nothing is sent.
    """

    natural: Natural | None
    loss: Array | None
    cost: Any = None
    memory: Any = None
    released: Arrays = {}  # noqa: RUF012 - shared and never written to
    sound: Array | bool = True

    def leaving(self, task: Task) -> Arrays:
        """Everything that leaves the party, by name."""
        if self.natural is None:
            return self.released
        return damped_update(self.natural, task.q, task.damping) | self.released


class Arranged(NamedTuple):
    """A party's records as its method wants them: `weights` has their one or two leading axes.

    Parameters
    ----------
    records, weights
        Columns and their weights; 0 marks padding.
    """

    records: Records
    weights: np.ndarray


class RunFacts(NamedTuple):
    """What a plan tells its method before anything runs."""

    schedule: str
    all_parties: bool
    """True if every party is asked in every round."""
    rounds: int
    tolerance: float
    one_noise: bool
    """Whether the parties share one noise although their clips differ."""
    quorum: bool = False
    """Whether a round may do without some of its parties."""
    parties: int = 1
    dimension: int = 1
    """Number of parameters of the model."""
    full: bool = False
    """Whether q has a full covariance."""
    gaussian_sites: bool = False
    """Whether the model is a `tacit.models.capabilities.GaussianSites`."""
    implied_variance: bool = False
    """Whether the model is a `tacit.models.capabilities.ImpliedVariance`."""


class LocalMethod(abc.ABC):
    """A way to find qₘ = argmax E_q[log p(xₘ|θ)] − KL(q ‖ cavity)  (TMLR eq. 3.5)."""

    kind: ClassVar[str]
    second_order: ClassVar[bool] = False
    """True when answers carry the likelihood's curvature exactly, so that those of many parties
    may be multiplied into a full-covariance q at once without damping."""
    eager: ClassVar[bool] = False
    """Whether it can serve a model that is not traceable."""
    uses_key: ClassVar[bool] = True
    """Whether `answer` needs the public random key; without it none is made in NumPy."""
    private: ClassVar[bool] = False
    """True when answers are releases with a cost: see `tacit.methods.private`."""
    dtype: str
    """Floating-point type of the records: natural parameters are float64 whatever this is."""

    damping: ClassVar[float | None] = None
    """The damping that this method wants where none was asked for; None: `resolved_damping`."""
    usual_rounds: ClassVar[int] = USUAL_ROUNDS
    """Number of rounds if none is given."""
    average_last: float = 0.0
    """The share of the rounds, the last ones, over which the server averages q."""
    reads_public: ClassVar[bool] = False
    """Whether `read` needs the public arrays of the server."""
    holds_prior: ClassVar[bool] = False
    """True when the server's half applies a prior outside the family itself: none is kept as a
    first factor."""
    takes_batches: ClassVar[bool] = False
    """True if q may start from the posterior of earlier records: factors of new records multiply
    it, and nothing else of the method depends on the prior."""
    variable_axis: ClassVar[int] = 0
    """The leading axis of `arrange` that grows with the records and may be padded."""

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        """The records as one row each; a private method may group them by person or by shard."""
        del party, seed
        return Arranged(records, np.ones(np.shape(next(iter(records.values())))[0]))

    def stage_at(self, visit: int) -> Stage:
        """The stage of a party's visit. A private method fixes all of them in advance."""
        del visit
        return Stage()

    def stage_table(self, rounds: int) -> dict[str, Stage]:
        """Every stage that a request of a run with that many rounds can have, by name."""
        each = (self.stage_at(visit) for visit in range(rounds))
        return {stage.name: stage for stage in each}

    def program(self, stage: str) -> str:
        """Name of the compiled program that answers a stage: `Task.stage` of `answer`.

        Stages that can share a program save its compilation. `program_public` and `stage_released`
        translate, in NumPy and at the party.
        """
        return stage

    def program_public(self, stage: str, public: Arrays) -> Arrays:
        """What a request of that stage publishes, in the form that its program reads."""
        del stage
        return public

    def stage_released(self, stage: str, found: Arrays) -> Arrays:
        """What the reply to that stage releases, from what its program has computed."""
        del stage
        return found

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a reply to that stage releases."""
        del model, stage
        return family.shapes

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        """Names and shapes of the integers that a reply to that stage carries.

        None: it carries floats, the arrays of `released_shapes`.
        """
        del model, family, stage
        return None

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """The arrays of `released_shapes` that released integers stand for, in NumPy.

        `event` is that of the agreed plan and has the public step. Linear in the integers where
        only a sum over parties is read, with the product of their factors in `asked`.

        Parameters
        ----------
        model, family
            Those of the run.
        event
            The release, as agreed.
        asked
            What the release answers.
        integers
            What arrived, or its sum over parties.
        """
        raise NotImplementedError(f"{self.kind} sends no integers")

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a request of that stage publishes besides q."""
        del model, family, stage
        return {}

    def result_shapes(self, model: Model, family: Family) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the public arrays with which the final posterior is read."""
        if not self.reads_public:
            return {}
        stages = self.stage_table(self.usual_rounds)
        return self.public_shapes(model, family, list(stages)[-1])

    def first_public(self, model: Model, family: Family) -> Arrays:
        """What the server publishes with the first requests."""
        shapes = self.public_shapes(model, family, self.stage_at(0).name)
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def in_numpy(self, model: Model) -> bool:
        """True if `answer` computes with NumPy arrays, one party at a time; else it is compiled."""
        return not model.traceable

    def memory(self, model: Model, family: Family) -> Natural | None:
        """What a party starts with, as arrays, if the method keeps anything there between visits.

        It never leaves the party. None: nothing is kept.
        """
        del model, family
        return None

    def begin(self, family: Family, start: Natural) -> dict[str, Array] | None:
        """`Task.start` in the form that `answer` needs, if it differs; else None.

        Computed in NumPy, once for all parties that are answered together: an operation on one
        matrix per round takes far longer to compile than to run. A method that calls `answer` of
        another method passes its own start, without the result of this function.
        """
        del family, start
        return None

    def read(
        self, model: Model, family: Family, natural: Natural, public: Arrays
    ) -> tuple[Family, Natural]:
        """The distribution that a state of the server stands for: its family and λ of θ."""
        del model, public
        return family, natural

    def suited(self, model: Model) -> LocalMethod:
        """The method with the facts about the model that accounting needs."""
        del model
        return self

    def starts_at_prior(self, model: Model) -> bool:
        """Whether q starts at the prior, or where the model says."""
        del model
        return True

    @property
    def starts_at_q(self) -> bool:
        """Whether `Task.start` is q from the first visit on, whatever the model's own start is."""
        return False

    def for_run(self, facts: RunFacts) -> LocalMethod:
        """The method, adapted to who answers when."""
        del facts
        return self

    def rounds_for(self, model: Model) -> int:
        """Number of rounds for that model if none is given."""
        del model
        return self.usual_rounds

    def judged(
        self, model: Model, natural: Natural, finished: str | None, log: Sequence[Mapping[str, Any]]
    ) -> tuple[bool, str] | None:
        """Whether a run that ended so converged, and why; None: the general rules decide."""
        del model, natural, finished, log
        return None

    def most_full(self, *, everyone: bool) -> int:
        """Parameters up to which a full covariance is the default.

        `everyone` says that all parties answer every round.
        """
        del everyone
        return MAX_FULL_COVARIANCE

    def solver(self, model: Model, family: Family) -> Solver | None:
        """What chooses the stages and contents of rounds, where the server controls the steps."""
        del model, family
        return None

    def learns_scale(self, model: Model) -> bool:
        """Whether the scale of a prior that the model does not declare is learnt."""
        del model
        return False

    @property
    def step_share(self) -> float | None:
        """Which part of a whole natural-gradient step an answer is; None: it is no such step."""
        return 1.0 if self.second_order or self.eager else None

    def check_run(self, facts: RunFacts) -> None:
        """Raise a ConfigError if this method cannot serve a run of that kind."""
        del facts

    @abc.abstractmethod
    def check(self, model: Model, family: Family) -> None:
        """Raise a ConfigError if this method cannot serve that model and family."""

    @abc.abstractmethod
    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        """The local posterior. Pure and traceable; `model` and `family` are static."""
