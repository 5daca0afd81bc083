"""`NaturalVI`: natural-gradient variational inference for any differentiable model. Not private.

At q, the likelihood of a party is approximated by a Gaussian, called a site. The site has the
precision −E_q[∇² log p] and the linear term E_q[∇ log p] − E_q[∇² log p]·mean. The prior times all
sites is the q after a full natural-gradient step (Khan and Lin 2017). Such steps commute with
linear maps of θ, so the result does not depend on the scales of the columns, and there is no
learning rate. Expectations are computed by quadrature for generalised linear models
(`WhitenedExpectations`, `GaussianSites`), and at fixed cubature points for other models.

**All parties in every round** (no quorum, at most `SOLVED_UP_TO` parameters): the server controls
the steps (`tacit.methods.natural.solver`). In each round it requests value, gradient and Hessian of
the log-likelihood at points that it chooses (`tacit.methods.natural.party`). The result equals that
of central variational inference, for any division of the records. It is identical for every
schedule, because a schedule only orders the requests of a round.

**More parameters**, with all parties in every round and a mean-field q: the server also controls
the steps. It requests products of the Hessian with chosen directions instead of the whole Hessian
(`tacit.methods.natural.wide`, `tacit.methods.natural.wide_party`).

**Otherwise** (some parties per round, or a quorum): a party minimises its local free energy and
replies with the change of its factor (`tacit.methods.natural.local`). A step that does not lower
the free energy is shortened.

If `steps` or `step_size` is given, a party takes exactly these steps and never shortens them.
Records are float64, because a column may vary little compared with its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian, MeanFieldGaussian, Natural
from tacit.expfam.rooted import RootedGaussian
from tacit.methods.base import Answer, Array, LocalMethod, RunFacts, Task
from tacit.methods.natural import local, party, plain, wide_party
from tacit.methods.natural.precision import shown_sites
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.methods.natural.solver import NaturalSolver
from tacit.methods.natural.stages import (
    DISPERSION,
    DISPERSION_COUNT,
    DRAWS,
    MODE,
    MORE,
    PUBLISHED,
    RELEASED,
    SLOPES,
    WEIGH,
    WIDE,
)
from tacit.methods.natural.wide import WideSolver
from tacit.methods.natural.wide_columns import Columns, intercepts
from tacit.models import Model
from tacit.models.capabilities import DiagonalExpectations, GaussianSites, HasEffects, InNumPy
from tacit.server.messages import UPDATE, Stage
from tacit.support.validation import check_fields

LEAST_SETTLED_KL = 1e-9
SOLVED_UP_TO = 1024
"""Largest number of parameters for which replies contain the full Hessian and q has a full
covariance by default.
"""
WIDE_ROUNDS = 200
"""Default number of rounds for more parameters."""
SAMPLING_ROUNDS = 15_000
"""Default number of rounds with `NaturalVI.sampling`. Most runs end far earlier."""


@dataclass(frozen=True, kw_only=True)
class NaturalVI(LocalMethod):
    """Natural-gradient steps on all records of a party.

    By default, step lengths are chosen automatically. A step that does not improve the objective is
    shortened.

    Parameters
    ----------
    steps
        Number of steps of fixed length per round. Only for generalised linear models.
    step_size
        Fixed length of each step, in (0, 1]. Only for generalised linear models.
    dtype
        Floating-point type of the records, "float32" or "float64".
    sampling
        True to sample the posterior by Hamiltonian Monte Carlo if it is too far from normal for
        the other corrections, for example with several weakly determined scales. This takes some
        hundreds or thousands of exchanges. All parties must answer every round.
    """

    kind: ClassVar[str] = "natural"
    second_order: ClassVar[bool] = True
    usual_rounds: ClassVar[int] = 100
    uses_key: ClassVar[bool] = False
    steps: int | None = None
    step_size: float | None = None
    dtype: str = "float64"
    sampling: bool = False
    _together: bool = False
    """True if every party answers every round; set by the plan."""
    _wide: bool = False
    """True if there are more than `SOLVED_UP_TO` parameters; set by the plan."""
    _parties: int = 1
    """Number of parties; set by the plan."""
    _tolerance: float = 1e-5
    """Tolerance of the schedule; set by the plan."""
    _dispersion: bool = False
    """True if replies in the stage that weighs draws include `DISPERSION`; set by the plan."""

    def __post_init__(self) -> None:
        check_fields(self, "method")
        if self.steps is not None and not self.steps >= 1:
            raise ConfigError(f"method.steps = {self.steps}; it must be at least 1")
        if self.step_size is not None and not 0 < self.step_size <= 1:
            raise ConfigError(f"method.step_size = {self.step_size}; it must be in (0, 1]")
        if self.sampling and not self.safeguarded:
            raise ConfigError(
                "method.sampling = true chooses its own steps; leave method.steps and "
                "method.step_size out"
            )

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(family, Gaussian):
            raise ConfigError(
                f"method.kind = 'natural' needs a Gaussian posterior, but this model has "
                f"{family.kind!r}; leave method out"
            )
        if not self.safeguarded and not isinstance(model, GaussianSites):
            raise ConfigError(
                f"method.steps and method.step_size need a generalised linear model, not "
                f"{model.kind!r}; leave them out"
            )
        many = model.dimension > SOLVED_UP_TO and not isinstance(model, GaussianSites)
        if many and isinstance(family, FullGaussian):
            raise ConfigError(
                f"posterior = 'full' with {model.dimension} parameters; a full covariance supports "
                f"at most {SOLVED_UP_TO}: leave posterior out"
            )

    def check_run(self, facts: RunFacts) -> None:
        if self.sampling:
            self._check_sampling(facts)
        if facts.dimension <= SOLVED_UP_TO or facts.gaussian_sites or self._in_step(facts):
            return
        raise ConfigError(
            f"method.kind = 'natural' with {facts.dimension} parameters needs all parties in every "
            "round; leave schedule.parties_per_round and quorum out, or use method.kind = "
            "'gradient-vi'"
        )

    def _check_sampling(self, facts: RunFacts) -> None:
        if not self._in_step(facts):
            raise ConfigError(
                "method.sampling = true needs all parties in every round; leave "
                "schedule.parties_per_round and quorum out, or set method.sampling = false"
            )
        if facts.dimension > SOLVED_UP_TO:
            raise ConfigError(
                f"method.sampling = true with {facts.dimension} parameters; it supports at most "
                f"{SOLVED_UP_TO}: set method.sampling = false"
            )
        if not facts.full:
            raise ConfigError(
                "method.sampling = true with a mean-field posterior; leave posterior out, or set "
                "method.sampling = false"
            )

    @property
    def safeguarded(self) -> bool:
        """True if step lengths are chosen automatically, i.e. neither `steps` nor `step_size` is
        given.
        """
        return self.steps is None and self.step_size is None

    @property
    def starts_at_q(self) -> bool:
        return self.safeguarded

    @property
    def step_share(self) -> float:
        if self.safeguarded or self.step_size is None:
            return 1.0
        return min(1.0, (self.steps or 1) * self.step_size)

    def most_full(self, *, everyone: bool) -> int:
        solved = everyone and self.safeguarded
        return SOLVED_UP_TO if solved else super().most_full(everyone=everyone)

    def rounds_for(self, model: Model) -> int:
        if self.sampling:
            return SAMPLING_ROUNDS
        return WIDE_ROUNDS if model.dimension > SOLVED_UP_TO else self.usual_rounds

    def _in_step(self, facts: RunFacts) -> bool:
        """True if step lengths are automatic and all parties answer in every round.

        The server can then choose the steps.
        """
        return facts.all_parties and not facts.quorum and self.safeguarded

    def for_run(self, facts: RunFacts) -> LocalMethod:
        wide = facts.dimension > SOLVED_UP_TO
        if not self._in_step(facts) or (wide and facts.full):
            return self
        return replace(
            self,
            _together=True,
            _wide=wide,
            _parties=facts.parties,
            _tolerance=facts.tolerance,
            _dispersion=facts.implied_variance and not wide,
        )

    # Where the server controls the steps

    @property
    def reads_public(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if requests contain q as a mean and a root of its covariance. Otherwise requests
        contain natural parameters of q, which would lose digits.
        """
        return self._together and not self._wide

    @property
    def holds_prior(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if each party adds its share of the log-prior to its reply.

        Parties add this share if the prior is not in the family of q.
        """
        return self._together

    def in_numpy(self, model: Model) -> bool:
        able = isinstance(model, InNumPy) and not model.has_site_prior
        able = able and (not self._wide or isinstance(model, DiagonalExpectations))
        plain = self._together and able
        return plain or super().in_numpy(model)

    def solver(self, model: Model, family: Family) -> NaturalSolver | WideSolver | None:
        if not self._together:
            return None
        assert isinstance(family, Gaussian)
        prior = None if model.has_site_prior else model.prior(family)
        settled = max(10.0 * self._tolerance, LEAST_SETTLED_KL)
        facts = ScaleFacts.of(model)
        if self._wide:
            assert isinstance(family, MeanFieldGaussian)
            free = isinstance(model, DiagonalExpectations) and not model.has_site_prior
            scales, columns = model.scale_coordinates, Columns.of(model)
            parts = (scales, facts, free, columns, intercepts(model))
            return WideSolver(family, prior, settled, *parts)
        sites = shown_sites(model)
        return NaturalSolver(
            family,
            prior,
            settled,
            model.scale_coordinates,
            facts,
            sites=sites,
            sampling=self.sampling,
            effects=model if self.sampling and isinstance(model, HasEffects) else None,
        )

    def learns_scale(self, model: Model) -> bool:
        return self._together and ScaleFacts.of(model) is not None

    def stage_at(self, visit: int) -> Stage:
        del visit
        first = WIDE if self._wide else MODE
        return Stage(first, needs_q=False, needs_factor=False) if self._together else Stage()

    def stage_table(self, rounds: int) -> dict[str, Stage]:
        if not self._together:
            return super().stage_table(rounds)
        names = [name for name in RELEASED if (name == WIDE) == self._wide]
        names = [name for name in names if name != SLOPES or self.sampling]
        return {name: Stage(name, needs_q=False, needs_factor=False) for name in names}

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        if stage in RELEASED:
            more = {DISPERSION: (DISPERSION_COUNT,)} if self._dispersion and stage == WEIGH else {}
            return RELEASED[stage](model.dimension) | more
        return super().released_shapes(model, family, stage)

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        if stage in PUBLISHED:
            return PUBLISHED[stage](model.dimension)
        return super().public_shapes(model, family, stage)

    def result_shapes(self, model: Model, family: Family) -> dict[str, tuple[int, ...]]:
        del family
        rooted = self._together and not self._wide
        return RootedGaussian(model.dimension).stored_shapes if rooted else {}

    def first_public(self, model: Model, family: Family) -> Arrays:
        if not self._together:
            return {}
        start = model.start(family) or model.prior(family)
        centre, scale = (np.asarray(part, np.float64) for part in family.location_scale(start))
        share = np.asarray(1.0 / self._parties)
        solver = self.solver(model, family)
        if isinstance(solver, WideSolver):
            return solver.first(centre, scale) | {"prior_share": share}
        return {"centre": centre, "prior_share": share}

    def read(
        self, model: Model, family: Family, natural: Natural, public: Arrays
    ) -> tuple[Family, Natural]:
        if "weighted" not in public or not isinstance(family, FullGaussian):
            return family, natural
        rooted = RootedGaussian(model.dimension)
        kept = [name for name in rooted.stored_shapes if name in public]
        return rooted, natural | {name: public[name] for name in kept}

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del key
        if task.stage == UPDATE:
            return local.answer(self, model, family, task)
        if task.stage == WIDE:
            if self.in_numpy(model) and isinstance(model, DiagonalExpectations):
                return Answer(None, None, released=wide_party.in_numpy(model, task))
            return Answer(None, None, released=wide_party.derivatives(model, task))
        if task.stage == WEIGH:
            assert isinstance(model, InNumPy)
            return Answer(None, None, released=plain.weighed(model, task))
        if task.stage == SLOPES:
            return Answer(None, None, released=self._slopes(model, task))
        if self.in_numpy(model) and isinstance(model, InNumPy):
            if task.stage in (DRAWS, MORE):
                return Answer(None, None, released=plain.at_draws(model, task))
            return Answer(None, None, released=plain.derivatives(model, family, task))
        if task.stage in (DRAWS, MORE):
            return Answer(None, None, released=party.at_draws(model, task))
        return Answer(None, None, released=party.derivatives(model, family, task))

    def _slopes(self, model: Model, task: Task) -> Arrays:
        if self.in_numpy(model) and isinstance(model, InNumPy):
            return plain.at_slopes(model, task)
        return party.at_slopes(model, task)

    def program(self, stage: str) -> str:
        if stage in (UPDATE, WIDE) or (self._dispersion and stage == WEIGH):
            return stage
        return party.program_of(stage)

    def program_public(self, stage: str, public: Arrays) -> Arrays:
        if stage == WIDE:
            return wide_party.program_public(public)
        if stage == UPDATE or (self._dispersion and stage == WEIGH):
            return public
        return party.program_public(stage, public)

    def stage_released(self, stage: str, found: Arrays) -> Arrays:
        return found if stage in (UPDATE, WIDE) else party.stage_released(stage, found)

    # Where a party answers alone

    def begin(self, family: Family, start: Natural) -> dict[str, Array]:
        return local.moments(family, start)

    def steps_of(self, model: GaussianSites, family: Family) -> int:
        """Return the number of steps of one answer: `steps` if given, otherwise 1 for a full
        covariance and 40 for a mean-field q.
        """
        del model
        return self.steps or (1 if isinstance(family, FullGaussian) else 40)

    def length_of(self, model: GaussianSites, family: Family) -> float:
        """Return the length of a step: `step_size` if given, otherwise 1 for a full covariance and
        the model's `mean_field_step` for a mean-field q.
        """
        if self.step_size is not None or isinstance(family, FullGaussian):
            return self.step_size or 1.0
        return model.mean_field_step
