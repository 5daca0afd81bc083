"""Local methods: how a party computes its reply. One file per method.

A method is a frozen value object. `answer` is pure and JAX-traceable: an engine jits it once and
maps it over any number of parties, with their data as arguments. Everything that is not mathematics
(request ids, repeated requests, damping) is in `tacit.party.compute`.
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
"""Largest number of parameters for which most methods use a full covariance by default."""


class Task(NamedTuple):
    """The inputs of one party's answer, as arrays.

    `weights` is 1 for a record and 0 for padding. `start` is the starting point of an optimiser: q,
    or, while q is still the prior (`initial`), the model's own starting point. `visit` counts the
    earlier requests to this party. A private method also gets its numbers (`terms`), its noise, and
    the key of its batches (`secret`). `stage` is the name of the visit's stage
    (`LocalMethod.stage_at`), known at compilation, and `public` the arrays that the server
    publishes for it; q and factor are None if the stage does not use them. `memory` is the method's
    memory at this party (`LocalMethod.memory`), and `damping` the share of its change that will be
    sent. `begun` is the result of `LocalMethod.begin` for `start`, or None if the method has to
    compute it. The public key of `answer` is derived from `words`, which are numbers computed from
    seed, party and visit; they are not a source of noise.

    Parameters
    ----------
    records, weights
        Arranged records, and 1 for a record, 0 for padding.
    q, factor
        Posterior and this party's factor, None if the stage does not use them.
    start, begun
        Starting point of an optimiser, and the result of `LocalMethod.begin` for it.
    initial
        True if q is still the prior.
    visit, stage
        Number of earlier requests, and the name of this one's stage.
    terms, secret, noise
        Terms of a private method, the key of its batches, and the integer noise of its releases,
        one row each.
    public
        Arrays that the server publishes for this stage.
    memory
        The method's memory at this party.
    damping
        Share of the change that is sent.
    words
        Numbers from which the public key is derived.
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
    """Result of a method: λ of the local posterior qₘ, or other arrays to release, or both.

    `released` leaves the party, and so does the damped change to `natural`. The loss is −E[log p(xₘ
    | θ)] at `Task.start`; a private method has none, because it would be another release, but has a
    cost. `memory` stays with the party until its next visit.

    Parameters
    ----------
    natural
        Natural parameters of the local posterior; None if there are none.
    loss
        Negative expected log-likelihood; None in a private method.
    cost
        Events that the release costs.
    memory
        Memory that stays with the party.
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
        """Return everything that leaves the party, by name."""
        if self.natural is None:
            return self.released
        return damped_update(self.natural, task.q, task.damping) | self.released


class Arranged(NamedTuple):
    """A party's records in the form that its method needs. `weights` has the shape of the one or
    two leading axes of the records.

    Parameters
    ----------
    records, weights
        Columns and their weights; 0 marks padding.
    """

    records: Records
    weights: np.ndarray


class RunFacts(NamedTuple):
    """Facts about a run that a plan passes to its method before anything runs."""

    schedule: str
    all_parties: bool
    """True if every party takes part in every round."""
    rounds: int
    tolerance: float
    one_noise: bool
    """True if the parties share one noise and some of them declare a clip of their own."""
    quorum: bool = False
    """True if a round may end before all of its parties have replied."""
    parties: int = 1
    dimension: int = 1
    """Number of parameters of the model."""
    full: bool = False
    """True if q has a full covariance."""
    gaussian_sites: bool = False
    """True if the model is a `tacit.models.capabilities.GaussianSites`."""
    implied_variance: bool = False
    """True if the model is a `tacit.models.capabilities.ImpliedVariance`."""


class LocalMethod(abc.ABC):
    """A way to find qₘ = argmax E_q[log p(xₘ|θ)] − KL(q ‖ cavity)  (TMLR eq. 3.5)."""

    kind: ClassVar[str]
    second_order: ClassVar[bool] = False
    """True if answers contain the exact curvature of the likelihood, so that answers of many
    parties may be multiplied into a full-covariance q at once without damping.
    """
    eager: ClassVar[bool] = False
    """True if the method supports models that JAX cannot trace."""
    uses_key: ClassVar[bool] = True
    """True if `answer` needs the public random key; otherwise none is made in NumPy."""
    private: ClassVar[bool] = False
    """True if answers are releases that are charged to a budget: see `tacit.methods.private`."""
    dtype: str
    """Floating-point type of the records; natural parameters are always float64."""

    damping: ClassVar[float | None] = None
    """Default damping of this method; None: `resolved_damping` determines it."""
    usual_rounds: ClassVar[int] = USUAL_ROUNDS
    """Number of rounds if none is given."""
    average_last: float = 0.0
    """The server averages q over this share of the rounds, at the end of the run."""
    reads_public: ClassVar[bool] = False
    """True if `read` needs the public arrays of the server."""
    holds_prior: ClassVar[bool] = False
    """True if the server's half applies a prior outside the family itself, so that it is not
    kept as a first factor.
    """
    takes_batches: ClassVar[bool] = False
    """True if q may start from the posterior of earlier records: factors of new records multiply
    it, and nothing else in the method depends on the prior.
    """
    variable_axis: ClassVar[int] = 0
    """Leading axis of the arrays of `arrange` that grows with the number of records; it may be
    padded.
    """

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        """Arrange the records, one row per record; a private method may group them by person or
        shard.
        """
        del party, seed
        return Arranged(records, np.ones(np.shape(next(iter(records.values())))[0]))

    def stage_at(self, visit: int) -> Stage:
        """Return the stage (kind of request) of a visit. A private method fixes all stages in
        advance.
        """
        del visit
        return Stage()

    def stage_table(self, rounds: int) -> dict[str, Stage]:
        """Return all stages of a run with `rounds` rounds, by name."""
        each = (self.stage_at(visit) for visit in range(rounds))
        return {stage.name: stage for stage in each}

    def program(self, stage: str) -> str:
        """Return the name of the compiled program for a stage, which `answer` gets as `Task.stage`.

        Stages that share a program save its compilation. `program_public` and `stage_released`
        convert their arrays, in NumPy and at the party.
        """
        return stage

    def program_public(self, stage: str, public: Arrays) -> Arrays:
        """Convert the public arrays of a request to the form that the stage's program needs."""
        del stage
        return public

    def stage_released(self, stage: str, found: Arrays) -> Arrays:
        """Convert the output of the stage's program to the arrays that the reply releases."""
        del stage
        return found

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the arrays that a reply to this stage releases."""
        del model, stage
        return family.shapes

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        """Return names and shapes of the integers in a reply to this stage.

        None if the reply contains floats: the arrays of `released_shapes`.
        """
        del model, family, stage
        return None

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to the arrays of `released_shapes`, in NumPy.

        `event` comes from the agreed plan and has the public step. If only a sum over parties is
        used, the conversion must be linear in the integers, and `asked.factor` is the product of
        all parties' factors.

        Parameters
        ----------
        model, family
            Model and family of the run.
        event
            The release, as agreed.
        asked
            The request of the release.
        integers
            The received integers, or their sum over parties.
        """
        raise NotImplementedError(f"{self.kind} sends no integers")

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the public arrays, besides q, in a request of this stage."""
        del model, family, stage
        return {}

    def result_shapes(self, model: Model, family: Family) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the public arrays that are needed to interpret the final
        posterior.
        """
        if not self.reads_public:
            return {}
        stages = self.stage_table(self.usual_rounds)
        return self.public_shapes(model, family, list(stages)[-1])

    def first_public(self, model: Model, family: Family) -> Arrays:
        """Return the public arrays of the first requests."""
        shapes = self.public_shapes(model, family, self.stage_at(0).name)
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def in_numpy(self, model: Model) -> bool:
        """True if `answer` computes with NumPy arrays, one party at a time; otherwise it is
        compiled.
        """
        return not model.traceable

    def memory(self, model: Model, family: Family) -> Natural | None:
        """Return the initial arrays of a party's memory: what the method stores there between
        visits.

        The memory never leaves the party. None if the method stores nothing.
        """
        del model, family
        return None

    def begin(self, family: Family, start: Natural) -> dict[str, Array] | None:
        """Convert `Task.start` to the form that `answer` needs; None if no conversion is needed.

        Computed in NumPy, once for all parties that are computed together: an operation on one
        matrix per round takes far longer to compile than to run. A method that calls `answer` of
        another method passes its own start, without the result of this function.
        """
        del family, start
        return None

    def read(
        self, model: Model, family: Family, natural: Natural, public: Arrays
    ) -> tuple[Family, Natural]:
        """Return family and natural parameters of θ's distribution, from the server's state."""
        del model, public
        return family, natural

    def suited(self, model: Model) -> LocalMethod:
        """Return the method with the facts about the model that accounting needs."""
        del model
        return self

    def starts_at_prior(self, model: Model) -> bool:
        """True if q starts at the prior; False if at the model's starting point."""
        del model
        return True

    @property
    def starts_at_q(self) -> bool:
        """True if `Task.start` is always q, even if the model has a starting point."""
        return False

    def for_run(self, facts: RunFacts) -> LocalMethod:
        """Return the method adapted to these facts about the run."""
        del facts
        return self

    def rounds_for(self, model: Model) -> int:
        """Return the default number of rounds for this model."""
        del model
        return self.usual_rounds

    def judged(
        self, model: Model, natural: Natural, finished: str | None, log: Sequence[Mapping[str, Any]]
    ) -> tuple[bool, str] | None:
        """Return whether a finished run converged, and why; None if the general rules decide."""
        del model, natural, finished, log
        return None

    def most_full(self, *, everyone: bool) -> int:
        """Return the largest number of parameters for which a full covariance is the default.

        `everyone` means that all parties answer every round.
        """
        del everyone
        return MAX_FULL_COVARIANCE

    def solver(self, model: Model, family: Family) -> Solver | None:
        """Return the solver with which the server chooses each round's stage and arrays; None if
        the parties choose their own steps.
        """
        del model, family
        return None

    def learns_scale(self, model: Model) -> bool:
        """True if the scale of an undeclared prior is learned."""
        del model
        return False

    @property
    def step_share(self) -> float | None:
        """Length of an answer relative to a full natural-gradient step; None for other kinds of
        answers.
        """
        return 1.0 if self.second_order or self.eager else None

    def check_run(self, facts: RunFacts) -> None:
        """Raise a ConfigError if this method does not support a run of that kind."""
        del facts

    @abc.abstractmethod
    def check(self, model: Model, family: Family) -> None:
        """Raise a ConfigError if this method does not support that model and family."""

    @abc.abstractmethod
    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        """Return the local posterior. Must be pure and traceable; `model` and `family` are
        static.
        """
