"""Run settings on synthetic federations."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from tacit.data import Federation, public_records, public_schema, synthetic_federation
from tacit.data.records import len_records
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, TacitError
from tacit.methods import DPSGD, PrivateUpdate
from tacit.models import Model, Records
from tacit.plan.auto import choose_method
from tacit.plan.baselines import as_baseline
from tacit.plan.calibrate import LargeDeltaWarning
from tacit.plan.plan import Plan
from tacit.results import evaluate
from tacit.run.build import make_method, make_model, make_schedule
from tacit.run.config import Config
from tacit.run.run import check_private, plan_for
from tacit.run.tune.grid import Settings, with_settings
from tacit.run.tune.outcomes import outcome_of

RECORDS_PER_PARTY = 1000
TEST_RECORDS = 4000


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A setting with its score on each federation so far or, if a run failed, with the reason."""

    settings: Settings
    scores: tuple[float, ...] = ()
    failure: str | None = None

    @property
    def mean(self) -> float:
        """Mean score over federations; −∞ for a setting that failed."""
        return float(np.mean(self.scores)) if self.scores and not self.failure else -math.inf

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean score; None for fewer than two federations."""
        return _standard_error(self.scores)

    def gain_over(self, other: Trial) -> tuple[float, float | None]:
        """Return the mean of the difference between the two trials' scores on the same federation,
        and the standard error of this mean.
        """
        pairs = [a - b for a, b in zip(self.scores, other.scores, strict=False)]
        return (float(np.mean(pairs)) if pairs else -math.inf), _standard_error(pairs)


def _standard_error(values: tuple[float, ...] | list[float]) -> float | None:
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _shared(plan: Plan) -> Plan:
    """Return a copy of the plan in which the clip of the method is 1. Trials with different clips
    then use the same compiled code.

    The releases do not change, because `DPSGD` and `PrivateUpdate` clip at the value in
    `Plan.settled` and not at the clip of the method. Plans with other methods are returned
    unchanged.
    """
    method = plan.method
    if isinstance(method, DPSGD | PrivateUpdate):
        return replace(plan, method=replace(method, clip=1.0))
    return plan


@dataclass
class TrialRunner:
    """Runs trials of one configuration on synthetic federations."""

    config: Config
    records: int | None
    seed: int
    model: Model = field(init=False)
    kind: str = field(init=False)
    made: tuple[str, ...] = field(init=False)
    _plans: dict[tuple, Plan] = field(default_factory=dict, init=False)
    _made_up: tuple[int, Federation] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        config, data = self.config, self.config.data
        sites = config.partition.parties if config.partition.kind == "source" else None
        schema = public_schema(data, sites=sites)
        check_private(config, schema)
        self.model = make_model(config, schema)
        if not self.model.traceable:
            raise ConfigError(
                f"tune cannot simulate records of model.kind = {self.model.kind!r}; choose "
                "its settings, such as clip_share and sampling_rate, on public records"
            )
        known = public_records(data)
        self.kind = config.method.kind
        if self.kind == "auto":
            method, _ = choose_method(
                self.model,
                privacy=config.private,
                schedule=make_schedule(config),
                parties=config.partition.parties,
            )
            self.kind = method.kind
        default = RECORDS_PER_PARTY * config.partition.parties
        source = "public" if known else "a default: set it with --records"
        if self.records is not None:
            source = "as given"
        else:
            self.records = max(1, round((known or default) * (1 - data.held_out)))
        self.made = (
            f"{self.records:,} training records per federation ({source}), {TEST_RECORDS:,} more "
            "for scoring",
            "categories uniform over the declared levels; numbers normal around the declared "
            "centre, truncated to the bounds; columns independent",
            f"θ from the prior of model {self.model.kind!r}, y from the model given θ",
        )

    @property
    def units(self) -> int:
        """Approximate number of units per party."""
        assert self.records is not None
        return max(1, math.ceil(self.records / max(1, len(self._federation(0).parties))))

    def tried(self, trial: Trial, number: int) -> Trial:
        """Run the settings of a trial on one more simulated federation, and return the extended
        trial.

        `number` is the index of the federation. If the run succeeds, its score is added to the
        trial; otherwise the reason for the failure is added. A trial that has failed before is
        returned unchanged.
        """
        if trial.failure is not None:
            return trial
        try:
            with warnings.catch_warnings():
                # Warnings concern the real run; `tacit check` shows them.
                warnings.simplefilter("ignore", LargeDeltaWarning)
                value = self._score(trial.settings, number)
        except TacitError as error:
            return replace(trial, failure=" ".join(str(error).split()))
        if value is None:
            return replace(trial, failure="its predictive distribution is not finite")
        return replace(trial, scores=(*trial.scores, value))

    def _score(self, settings: Settings, number: int) -> float | None:
        federation = self._federation(number)
        plan = self._plan(settings, federation.parties, number)
        posterior = carry_out(plan).posterior
        assert federation.test is not None
        values = evaluate(
            self.model, posterior.family, posterior.natural, federation.test,
            draws=self.config.evaluate.draws, seed=number,
        )  # fmt: skip
        return None if values is None else values["log_predictive_density"]

    def _plan(self, settings: Settings, parties: dict[str, Records], number: int) -> Plan:
        """Return the plan of a trial with these settings. The seed of its noise depends on
        `number`, the index of the federation.
        """
        form = tuple((name, len_records(records)) for name, records in parties.items())
        key = (repr(settings), form)
        config = with_settings(self.config, settings, self.kind)
        privacy = config.private
        if privacy is not None:
            insecure_noise_seed = int(np.random.default_rng([self.seed, number]).integers(2**32))
            privacy = msgspec.structs.replace(privacy, insecure_noise_seed=insecure_noise_seed)
            config = msgspec.structs.replace(config, privacy=privacy)
        if key not in self._plans:
            self._plans[key] = _shared(plan_for(config, self.model, parties))
        there = as_baseline(
            config.baseline, parties, make_method(config), make_schedule(config),
            private=privacy is not None,
        )[0]  # fmt: skip
        return replace(self._plans[key], parties=there, privacy=privacy)

    def _federation(self, number: int) -> Federation:
        if self._made_up is None or self._made_up[0] != number:
            assert self.records is not None
            made = synthetic_federation(
                msgspec.structs.replace(self.config.data, balance=False),
                self.config.partition,
                records=self.records,
                test=TEST_RECORDS,
                outcome=outcome_of(self.model),
                seed=int(np.random.default_rng([self.seed, number, 1]).integers(2**32)),
            )
            self._made_up = (number, made)
        return self._made_up[1]
