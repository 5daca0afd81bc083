"""Local methods: how a party computes its reply. One file per method.

A method is a frozen value object. `answer` is pure and JAX-traceable. An engine jits it once and
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
    """The inputs, as arrays, from which one party computes its answer to one request.

    q is the current approximation of the posterior. A party's factor is its contribution to q: q is
    the product of the prior and the factors of all parties. A visit is one request to a party and
    its answer. The stage of a visit says which quantities the party computes.

    Parameters
    ----------
    records, weights
        The party's records, arranged by the method, and a weight of 1 for each record. Rows of
        padding have the weight 0.
    q, factor
        q and the party's factor. Each is None if the stage does not use it.
    start
        Starting point of an optimiser: q or, while q is still the prior, the starting point that
        the model suggests.
    begun
        Result of `LocalMethod.begin` for `start`. If it is None, the method computes this result.
    initial
        True if q is still the prior.
    visit
        Number of earlier visits to this party.
    stage
        Name of the stage. In the compiled function it is a constant.
    terms
        Clips, noise and other agreed numbers of a private method.
    secret
        Secret key from which a private method draws its batches and other random numbers.
    noise
        Integer noise of a private method, with one row for each release.
    public
        Arrays that the server publishes for this stage.
    memory
        Arrays that the method has stored at this party since the last visit.
    damping
        Share of the computed change of the factor that is sent to the server.
    words
        Three numbers: the seed of the run, a number that identifies the party, and the visit. The
        public random key (the argument `key` of `LocalMethod.answer`) is derived from them. The
        noise is not.
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
    """Result of a local method: the natural parameters of the local posterior, or other arrays, or
    both.

    Three fields are sent to the server: `released`, `loss`, and the change from q to `natural`
    multiplied by the damping.

    Parameters
    ----------
    natural
        Natural parameters of the local posterior; None if the method computes other arrays only.
    loss
        Negative expected log-likelihood −E[log p(xₘ | θ)] of the party's records xₘ at
        `Task.start`. It is None in a private method, because it would be another release.
    cost
        Privacy events of the release; None in a method that is not private.
    memory
        Arrays that stay at the party until its next visit.
    released
        Further arrays that are sent to the server.
    sound
        False if a sum was not finite. Nothing is sent in this case.
    """

    natural: Natural | None
    loss: Array | None
    cost: Any = None
    memory: Any = None
    released: Arrays = {}  # noqa: RUF012 - shared and never written to
    sound: Array | bool = True

    def leaving(self, task: Task) -> Arrays:
        """Return the arrays that the party sends: `released`, and the damped change of natural
        parameters.
        """
        if self.natural is None:
            return self.released
        return damped_update(self.natural, task.q, task.damping) | self.released


class Arranged(NamedTuple):
    """A party's records in the form that its method needs.

    Parameters
    ----------
    records
        One array per column.
    weights
        1 for each record and 0 for padding. The shape is that of the first axis of the records, or
        of the first two axes if records are grouped.
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
    """True if each party adds a share of one common noise and some parties declare a different
    clip.
    """
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
    """Base class of local methods. A local method computes the local posterior qₘ of party m.

    qₘ is the q that maximises E_q[log p(xₘ|θ)] − KL(q ‖ cavity), where xₘ are the records of party
    m and the cavity is the posterior without the factor of party m (TMLR eq. 3.5).
    """

    kind: ClassVar[str]
    second_order: ClassVar[bool] = False
    """True if answers contain the exact curvature of the likelihood. The answers of many parties
    may then be multiplied into a full-covariance q at once without damping.
    """
    eager: ClassVar[bool] = False
    """True if the method supports models that JAX cannot trace."""
    uses_key: ClassVar[bool] = True
    """True if `answer` needs the public random key. If False, the key is None in NumPy."""
    private: ClassVar[bool] = False
    """True if answers are releases that are charged to a budget: see `tacit.methods.private`."""
    dtype: str
    """Floating-point type of the records; natural parameters are always float64."""

    damping: ClassVar[float | None] = None
    """Default damping of this method; None: `resolved_damping` determines it."""
    usual_rounds: ClassVar[int] = USUAL_ROUNDS
    """Number of rounds if none is given."""
    average_last: float = 0.0
    """Share of the rounds, at the end of the run, over which the server averages q."""
    reads_public: ClassVar[bool] = False
    """True if `read` needs the public arrays of the server."""
    holds_prior: ClassVar[bool] = False
    """True if the method itself applies a prior that is not in the family. The server then does not
    approximate this prior by a factor (site prior).
    """
    takes_batches: ClassVar[bool] = False
    """True if q may start from the posterior of earlier records. The factors of new records then
    multiply this posterior, and nothing else in the method depends on the prior.
    """
    variable_axis: ClassVar[int] = 0
    """Number of the axis that grows with the number of records in the arrays of `arrange`. This
    axis may be padded.
    """

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        """Return the records with one row per record. A private method may group them by person or
        shard.
        """
        del party, seed
        return Arranged(records, np.ones(np.shape(next(iter(records.values())))[0]))

    def stage_at(self, visit: int) -> Stage:
        """Return the stage (kind of request) of visit number `visit`. A private method fixes all
        stages in advance.
        """
        del visit
        return Stage()

    def stage_table(self, rounds: int) -> dict[str, Stage]:
        """Return a dict from name to stage, for all stages of a run with `rounds` rounds."""
        each = (self.stage_at(visit) for visit in range(rounds))
        return {stage.name: stage for stage in each}

    def program(self, stage: str) -> str:
        """Return the name of the compiled program that computes the answer to a request of this
        stage.

        Several stages may share a program, which is then compiled only once. `answer` gets the name
        as `Task.stage`. `program_public` converts the public arrays of a stage to inputs of the
        program. `stage_released` converts outputs of the program to the released arrays of the
        stage. Both run in NumPy at the party.
        """
        return stage

    def program_public(self, stage: str, public: Arrays) -> Arrays:
        """Return the public arrays of a request of this stage in the form that the compiled program
        needs.
        """
        del stage
        return public

    def stage_released(self, stage: str, found: Arrays) -> Arrays:
        """Return the arrays that a party releases at this stage, from the output `found` of the
        compiled program.
        """
        del stage
        return found

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the arrays that a party releases in reply to a request of this
        stage.
        """
        del model, stage
        return family.shapes

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        """Return names and shapes of the integers in the reply to a request of this stage.

        The result is None if the reply contains floating-point arrays (`released_shapes`) instead.
        """
        del model, family, stage
        return None

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to the floating-point arrays of `released_shapes`, in NumPy.

        If the server learns only the sum over parties, the conversion must be linear in the
        integers. `asked.factor` is then the product of the factors of all parties.

        Parameters
        ----------
        model, family
            Model and family of the run.
        event
            Privacy event of the release, from the agreed plan. It determines the step of the
            lattice, by which integers are multiplied.
        asked
            The request to which the integers reply.
        integers
            The received integers, or their sum over parties.
        """
        raise NotImplementedError(
            f"method {self.kind!r} releases no integers; a method with `integer_shapes` must "
            "override `from_integers`"
        )

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
        """Return the public arrays of the first requests; by default zeros."""
        shapes = self.public_shapes(model, family, self.stage_at(0).name)
        return {name: np.zeros(shape) for name, shape in shapes.items()}

    def in_numpy(self, model: Model) -> bool:
        """True if `answer` computes with NumPy, for one party at a time; False if it is compiled by
        JAX.
        """
        return not model.traceable

    def memory(self, model: Model, family: Family) -> Natural | None:
        """Return the initial arrays of the method memory; None if the method stores nothing.

        The method stores these arrays at a party between visits. They never leave the party.
        """
        del model, family
        return None

    def begin(self, family: Family, start: Natural) -> dict[str, Array] | None:
        """Return the starting point `start` in the form that `answer` needs, or None if `answer`
        uses `start` itself.

        The conversion is done in NumPy, once for all parties that are computed together, because
        compiling it would take far longer than running it. A method that calls `answer` of another
        method with a different start sets `Task.begun` to None.
        """
        del family, start
        return None

    def read(
        self, model: Model, family: Family, natural: Natural, public: Arrays
    ) -> tuple[Family, Natural]:
        """Return the family and the natural parameters of the posterior of θ.

        `natural` and `public` are the server's state. `natural` may be in other coordinates than θ,
        for example in those of whitened features.
        """
        del model, public
        return family, natural

    def suited(self, model: Model) -> LocalMethod:
        """Return the method adapted to `model`.

        The result stores the properties of the model on which stages, sensitivity or shares of the
        budget depend.
        """
        del model
        return self

    def starts_at_prior(self, model: Model) -> bool:
        """True if q is the prior at the start of a run; False if q is then the model's starting
        point.
        """
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
        """Return True if a finished run converged, otherwise False, and the reason as text.

        The result is None if the general rules should decide.
        """
        del model, natural, finished, log
        return None

    def most_full(self, *, everyone: bool) -> int:
        """Return the largest number of parameters for which a full covariance is the default.

        `everyone` means that all parties answer every round.
        """
        del everyone
        return MAX_FULL_COVARIANCE

    def solver(self, model: Model, family: Family) -> Solver | None:
        """Return the solver with which the server chooses the stage and the public arrays of each
        round.

        The result is None if the parties choose their own steps.
        """
        del model, family
        return None

    def learns_scale(self, model: Model) -> bool:
        """True if this method learns the scale of the prior of a model that declares no prior."""
        del model
        return False

    @property
    def step_share(self) -> float | None:
        """Length of the step that an answer makes, relative to a full natural-gradient step. None
        if answers are not natural-gradient steps.
        """
        return 1.0 if self.second_order or self.eager else None

    def check_run(self, facts: RunFacts) -> None:
        """Raise a ConfigError if this method does not support the run that `facts` describes."""
        del facts

    @abc.abstractmethod
    def check(self, model: Model, family: Family) -> None:
        """Raise a ConfigError if this method does not support this model with this family."""

    @abc.abstractmethod
    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        """Return the answer of a party, computed from `task`.

        The function must be pure and, unless `in_numpy` is true, traceable by JAX. `model` and
        `family` are static arguments.
        """
