"""`fit`: a federation in a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tacit.data import Federation
from tacit.data.documents import check_vocabulary
from tacit.data.records import pooled
from tacit.data.schema.layout import indicated_columns
from tacit.engines.execute import Observer, Outcome, carry_out
from tacit.errors import ConfigError
from tacit.methods import LocalMethod, PrivateScoring
from tacit.methods.scoring.method import check_units
from tacit.models import Model, ModelSchema, Records, TopicModel
from tacit.models.lda.table import TopicTable
from tacit.models.registry import build
from tacit.plan.arguments import (
    _check_fits,
    as_method,
    as_parties,
    as_schedule,
    as_seed,
    check_bounded,
    check_declared,
    check_model,
    check_observer,
    check_test,
)
from tacit.plan.plan import make_plan
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.settings import Privacy
from tacit.results.diagnostics import cautions_of, learned_share
from tacit.results.evaluation import Attempts, EvaluationWarning, _predict, measure
from tacit.results.posterior import Posterior
from tacit.results.shown import shown_rows
from tacit.results.statements import (
    NOT_DECLARED,
    clipping_statement,
    interval_note,
    statement,
)
from tacit.results.verdict import Caution, missing_caution, warn
from tacit.server.schedule import Schedule


@dataclass(frozen=True, repr=False)
class Fit:
    """A posterior, how it came about and how good it is."""

    outcome: Outcome
    metrics: dict[str, dict[str, float | None] | None]
    undeclared: tuple[str, ...] = ()
    """Columns of plain arrays in a private fit that no public bounds were declared for."""
    indicated: tuple[str, ...] = ()
    """Columns whose missing values are a constant beside an indicator."""

    @property
    def posterior(self) -> Posterior:
        """The posterior."""
        return self.outcome.posterior

    @property
    def history(self) -> list[dict[str, Any]]:
        """One entry a round: loss (negative ELBO), KL moved, exchanges, damping."""
        return [line for line in self.outcome.log if line["event"] == "round"]

    @property
    def converged(self) -> bool:
        """Whether the posterior is the one that the model and the records have; see `why`."""
        return self.outcome.verdict.converged

    @property
    def why(self) -> str:
        """Why it is thought to have converged, or not, in one sentence."""
        return self.outcome.verdict.why

    @property
    def learned(self) -> dict[str, float] | None:
        """1 − (posterior sd / prior sd)² of each coefficient; None where the prior has no sd."""
        share = learned_share(self.outcome.plan, self.posterior)
        if share is None:
            return None
        return dict(zip(self.posterior.names, share.tolist(), strict=True))

    @property
    def cautions(self) -> list[str]:
        """Reasons not to believe these numbers as they stand; empty: none is known."""
        return [one.text for one in self._cautions()]

    def _cautions(self) -> list[Caution]:
        outcome = self.outcome
        found = cautions_of(outcome.plan, outcome.posterior, outcome.verdict, outcome.clipped)
        return [*found, *missing_caution(self.indicated)]

    @property
    def clipped(self) -> float | None:
        """The share of units whose contribution the clip shortened, at the end of a simulation.

        Measured only where `Privacy.noise_seed` is set: with secret noise this exact share would
        be a further release. None then, and without privacy.
        """
        return None if self.outcome.clipped is None else self.outcome.clipped.share

    @property
    def guarantee(self) -> Guarantee | None:
        """What this fit promises, counted on its own; None without privacy."""
        return self.outcome.plan.guarantee

    @property
    def privacy(self) -> str:
        """What this fit protects, in words."""
        said = statement(self.outcome.plan)
        return f"{said} {NOT_DECLARED}" if self.undeclared else said

    def __repr__(self) -> str:
        """Never the records: they would end up in saved notebooks."""
        state = self.outcome.state
        return (
            f"Fit({self.posterior!r}, {len(self.outcome.plan.parties)} parties, "
            f"{state.round} rounds, {'converged' if self.converged else 'NOT CONVERGED'}, "
            f"{'not private' if self.guarantee is None else self.guarantee}"
            f"{'' if self.clipped is None else f', {self.clipped:.0%} of units clipped'})"
            + "".join(f"\nWarning: {text}" for text in self.cautions)
        )

    def predict(self, records: Records) -> np.ndarray:
        """E[y | x] under the posterior: a probability for a Bernoulli model, a row of them, one a
        level, for a categorical one.
        """
        return _predict(self.posterior, records).mean

    def summary(self) -> str:
        """Coefficients (a NumPyro model's sites, in their own space) with 95 % intervals."""
        if not self.posterior.model.listed:
            return "\n".join([*self._measured(), *self._said(), self.privacy])
        rows = shown_rows(self.posterior)
        width = max(len(row.name) for row in rows)
        texts = [row.texts for row in rows]
        digits = max(8, *(len(text) for row in texts for text in row))
        lines = [
            f"{row.name:<{width}}  {mean:>{digits}}  [{low:>{digits}}, {high:>{digits}}]"
            for row, (mean, _, low, high) in zip(rows, texts, strict=True)
        ]
        note = interval_note(self.outcome.plan)
        lines += [] if note is None else [f"warning: {note}"]
        return "\n".join([*lines, *self._measured(), *self._said(), self.privacy])

    def _said(self) -> list[str]:
        said = [f"Converged: {self.why}."] if self.converged else []
        if self.outcome.clipped is not None:
            said.insert(0, f"Clipping: {clipping_statement(self.outcome.clipped)}")
        return [*(f"Warning: {text}" for text in self.cautions), *said]

    def _measured(self) -> list[str]:
        lines = []
        private = self.guarantee is not None and self.guarantee.caveat is None
        remark = " (exact, not covered by the guarantee)" if private else ""
        for split, values in self.metrics.items():
            if values:
                shown = ", ".join(f"{k} {v:.4f}" for k, v in values.items() if v is not None)
                lines.append(f"{split}{remark}: {shown}")
        return lines

    def topics(self, vocabulary: Sequence[str], *, top: int = 10) -> TopicTable:
        """The most probable words of each topic of a topic model; `.plot()` is a figure."""
        model = self.posterior.model
        if not isinstance(model, TopicModel):
            raise ConfigError(f"model {model.kind!r} has no topics; see summary()")
        concentration = self.posterior.natural["log"] + 1.0
        return TopicTable.of(concentration, check_vocabulary(vocabulary, model.words), top)

    def plot(self) -> Any:
        """A matplotlib figure of the coefficients with 95 % intervals."""
        if not self.posterior.model.listed:
            raise ConfigError(f"model {self.posterior.model.kind!r} has no coefficients to plot")
        from tacit.results.figures import plot_coefficients

        names, mean, sd, low, high, real = zip(*shown_rows(self.posterior), strict=True)
        warning = interval_note(self.outcome.plan)
        return plot_coefficients(
            names, mean, sd,
            low=low, high=high, real=real, warning=warning, converged=self.converged,
        )  # fmt: skip


def fit(
    model: Model | type[Model],
    parties: Federation | dict[str, Records],
    *,
    privacy: Literal["none"] | Privacy,
    test: Records | None = None,
    family: str = "auto",
    method: LocalMethod | str | None = None,
    schedule: Schedule | str | None = None,
    seed: int = 0,
    observe: Observer | None = None,
) -> Fit:
    """Federate a model over parties in this process.

    `model` may be a class such as `LogisticRegression`: it is then made for the federation's
    column names. `method` and `schedule` may be names such as "natural-vi" and "sequential", which
    have their defaults. `privacy` has to be said: `Privacy(epsilon=1.0)`, or "none" for exact
    updates. A private fit keeps no ledger: what other fits spent on the same records is not
    counted.

    >>> import tacit
    >>> hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)
    >>> fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy="none")
    >>> fitted.posterior.mean.shape == (len(hospitals.names),)
    True
    """
    if privacy != "none" and not isinstance(privacy, Privacy):
        raise ConfigError(
            f"privacy = {privacy!r}; give tacit.Privacy(epsilon=…, delta=…), or 'none' to train "
            "without"
        )
    check_model(model)
    check_observer(observe)
    seed = as_seed(seed)
    if not isinstance(parties, Federation):
        parties = as_parties(parties)
    undeclared, indicated, plain = (), (), isinstance(parties, dict)
    if isinstance(parties, dict):
        if isinstance(privacy, Privacy) and isinstance(model, Model):
            undeclared = check_declared(model, parties)
    else:
        if isinstance(privacy, Privacy):
            check_bounded(parties)
        test = parties.test if test is None else test
        indicated = indicated_columns(parties.layout)
        if isinstance(model, type):
            _check_fits(model, parties)
            model = build(model, model.Settings(), ModelSchema.of(parties))
        parties = parties.parties
    if isinstance(model, type):
        raise ConfigError(
            f"model = {model.__name__} is a class and the parties are plain records; pass an "
            f"instance, e.g. {model.__name__}(names)"
        )
    plan = make_plan(
        model,
        parties,
        family=family,
        method=as_method(method),
        schedule=as_schedule(schedule),
        seed=seed,
        privacy=None if privacy == "none" else privacy,
    )
    if plain and isinstance(plan.method, PrivateScoring):
        check_units(model, parties)
    check_test(parties, test)
    outcome = carry_out(plan, observe=observe)
    # An exact training score would be a release that nobody has paid for.
    train = pooled(parties) if privacy == "none" else None
    attempts = Attempts()
    metrics, _ = attempts.attempt(
        "metrics",
        lambda: measure(outcome.posterior, train, test, 100, seed),
        otherwise=({"train": None, "test": None}, None),
    )
    for what, why in attempts.failed.items():
        warnings.warn(f"{what} could not be computed: {why}", EvaluationWarning, stacklevel=2)
    fitted = Fit(outcome, metrics, undeclared, indicated)
    warn(fitted._cautions())
    return fitted
