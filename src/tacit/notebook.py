"""`fit`: a federation in a notebook."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from tacit.arguments import (
    as_method,
    as_parties,
    as_schedule,
    as_seed,
    check_model,
    check_observer,
    check_test,
)
from tacit.data import Federation
from tacit.data.documents import check_vocabulary
from tacit.data.layout import indicated_columns
from tacit.errors import ConfigError, DataError
from tacit.evaluate import predict, reliability, score
from tacit.federate import (
    Observer,
    Outcome,
    Plan,
    carry_out,
    cautions_of,
    learned_share,
    make_plan,
)
from tacit.local import LocalMethod, PrivateMethod, PrivateScoring
from tacit.models import LinearPredictor, Model, Records, TopicModel
from tacit.party import len_records
from tacit.posterior import Posterior
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.settings import Privacy
from tacit.server import Schedule
from tacit.shown import Shown
from tacit.topics.show import TopicTable
from tacit.verdict import Caution, missing_caution, warn

NOT_PRIVATE = (
    "Not private: parties send exact updates. Records stay where they are, but the updates and the "
    "posterior may reveal them; no differential privacy is applied."
)
TOO_NARROW = "Intervals do not contain the noise that was added for privacy: they are too narrow."
WIDE_ENOUGH = "Intervals contain the noise that was added for privacy, but not what clipping does."
NOT_DECLARED = (
    "Records were given as plain arrays without declared bounds: the guarantee holds for the "
    "arrays as they are, and covers no scaling, encoding or selection that looked at the data."
)
LEARNT_SCALE = (
    " The prior's scale was learnt from the same releases and is taken for known: where little was "
    "heard, intervals are far too narrow."
)

T = TypeVar("T")


class EvaluationWarning(UserWarning):
    """Something optional could not be computed; the posterior is unaffected."""


@dataclass
class Attempts:
    """Optional work after training: what fails is noted, so that the posterior is not lost."""

    failed: dict[str, str] = field(default_factory=dict)
    """By what was attempted: why it failed, in one line."""

    def attempt(self, what: str, work: Callable[[], T], *, otherwise: T) -> T:
        """The result of `work`, or `otherwise` and a note."""
        try:
            return work()
        except Exception as error:  # whatever it is: the run has been paid for
            reason = " ".join(str(error).split()) or type(error).__name__
            self.failed[what] = reason
            return otherwise


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
        found = cautions_of(outcome.plan, outcome.posterior, outcome.verdict)
        return [*found, *missing_caution(self.indicated)]

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
            f"{'not private' if self.guarantee is None else self.guarantee})"
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
        lines = [
            f"{row.name:<{width}}  {row.mean:8.3f}  [{row.low:8.3f}, {row.high:8.3f}]"
            for row in rows
        ]
        note = interval_note(self.outcome.plan)
        lines += [] if note is None else [f"warning: {note}"]
        return "\n".join([*lines, *self._measured(), *self._said(), self.privacy])

    def _said(self) -> list[str]:
        said = [f"Converged: {self.why}."] if self.converged else []
        return [*said, *(f"Warning: {text}" for text in self.cautions)]

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
        from tacit.report import plot_coefficients

        names, mean, sd, low, high, real = zip(*shown_rows(self.posterior), strict=True)
        warning = interval_note(self.outcome.plan)
        return plot_coefficients(names, mean, sd, low=low, high=high, real=real, warning=warning)


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
    >>> hospitals = tacit.data.load("synthetic-cohort", parties=3, records=300, seed=1)
    >>> fitted = tacit.fit(tacit.LogisticRegression, hospitals, privacy="none")
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
    undeclared, indicated = (), ()
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
            known = {}
            if issubclass(model, LinearPredictor):
                known = model.from_schema(parties.layout, parties.y_bounds, parties.levels)
            model = model(parties.names, **known)  # pyright: ignore[reportCallIssue]
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


def statement(plan: Plan) -> str:
    """What a plan protects, in words."""
    guarantee = plan.guarantee
    if guarantee is None:
        return NOT_PRIVATE
    assert isinstance(plan.method, PrivateMethod)
    intervals = WIDE_ENOUGH if plan.method.knows_noise(plan.family) else TOO_NARROW
    if _learns_scale(plan):
        intervals += LEARNT_SCALE
    if guarantee.caveat is not None:
        plain = msgspec.structs.replace(guarantee, caveat=None)
        return f"{guarantee.caveat}. With secret noise it would be {plain}. {intervals}"
    return f"Differential privacy: {guarantee}. {intervals}"


def _learns_scale(plan: Plan) -> bool:
    return isinstance(plan.method, PrivateScoring) and bool(plan.method.empirical_bayes)


def interval_note(plan: Plan) -> str | None:
    """Why the intervals of a run are known to be too narrow; None: they are not known to be."""
    if plan.guarantee is None:
        return None
    assert isinstance(plan.method, PrivateMethod)
    if not plan.method.knows_noise(plan.family):
        return TOO_NARROW
    return LEARNT_SCALE.strip() if _learns_scale(plan) else None


def intervals_block(plan: Plan) -> dict[str, Any]:
    """What result.json says about its intervals: their level and what is known to be wrong."""
    return {"level": 0.95, "warning": interval_note(plan)}


def cannot_evaluate(plan: Plan, test: Records | None) -> str | None:
    """Why the metrics of held-out records could not be computed; None: nothing speaks against it.

    Asked of the model with blank rows of the records' shape, before anything is spent. A model with
    a predictive distribution in closed form is not asked.
    """
    if test is None or plan.model.kind != "numpyro":
        return None
    import jax

    rows = {key: jax.ShapeDtypeStruct((2, *v.shape[1:]), v.dtype) for key, v in test.items()}
    try:
        jax.eval_shape(plan.model.response, np.zeros(plan.model.dimension), rows)
    except Exception as error:  # of a user's program: any
        return " ".join(str(error).split())
    return None


def check_bounded(federation: Federation) -> None:
    """Refuse a preparation that has looked at the data, or that no public bound limits."""
    if federation.unbounded:
        names = ", ".join(federation.unbounded[:5])
        raise ConfigError(
            f"a private run needs a public schema, but no declared bounds limit {names}; declare "
            "low and high in data.columns (levels of a category): what is taken from the data "
            "would be a release of its own"
        )


def check_declared(model: Model, parties: dict[str, Records]) -> tuple[str, ...]:
    """Refuse plain records beyond what the model's layout declares; name what it does not declare.

    A `Federation` clips to the declared bounds when it prepares the records. Plain arrays are the
    caller's own: they are compared with the bounds and never changed.
    """
    if not isinstance(model, LinearPredictor):
        return tuple(next(iter(parties.values()), {})) if model.listed else ()
    for name, records in parties.items():
        x = np.asarray(records["x"]) if "x" in records else np.zeros((0, len(model.layout)))
        if x.ndim != 2 or x.shape[1] != len(model.layout) or x.dtype.kind not in "fiub":
            continue  # the plan says what is wrong with it
        for place, feature in enumerate(model.layout):
            slack = 1e-9 * (1.0 + abs(feature.low) + abs(feature.high))
            column = x[:, place]
            inside = (column >= feature.low - slack) & (column <= feature.high + slack)
            if feature.kind != "bias" and math.isfinite(slack) and not np.all(inside):
                raise DataError(
                    f"party {name!r}, column {feature.source!r}: a value is outside of the "
                    f"declared bounds [{feature.low:g}, {feature.high:g}]; clip it to them, e.g. "
                    "numpy.clip(column, low, high), or declare wider ones"
                )
    return tuple(
        feature.source
        for feature in model.layout
        if feature.kind == "numeric" and not math.isfinite(feature.high - feature.low)
    )


def _check_fits(model: type[Model], federation: Federation) -> None:
    if not model.listed:
        raise ConfigError(
            f"model = {model.__name__} is a class; pass an instance, e.g. "
            f"{model.__name__}(10, words={len(federation.names)})"
        )
    needed = getattr(model, "output", None)
    if needed in ("bernoulli", "gaussian", "categorical") and needed != federation.output:
        raise ConfigError(
            f"model = {model.__name__} has a {needed} output, but target {federation.target!r} is "
            f"{federation.output}; choose another model"
        )


def site_summary(posterior: Posterior, seed: int) -> dict[str, dict[str, Any]]:
    """Mean, sd and central 95 % of each of the model's own quantities, element by element.

    `real` says that a quantity is a coordinate of θ as it is, so that it can have either sign; a
    scale, a probability or a derived quantity need not. Empty for a model whose θ is what its user
    thinks in.
    """
    summary = {}
    if not posterior.model.listed:  # nor is a draw of half a million coordinates made
        return summary
    sites = posterior.sites(seed=seed)
    theta = posterior.sample(seed=seed) if sites else np.zeros((0, 0))
    place = {name: index for index, name in enumerate(posterior.names)}
    for name, draws in sites.items():
        for index in np.ndindex(draws.shape[1:]):
            column = draws[(slice(None), *index)]
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            low, high = np.quantile(column, [0.025, 0.975])
            summary[label] = {
                "mean": float(column.mean()),
                "sd": float(column.std()),
                "low": float(low),
                "high": float(high),
                "real": label in place and bool(np.allclose(column, theta[:, place[label]])),
            }
    return summary


def shown_rows(posterior: Posterior) -> list[Shown]:
    """What a table or figure shows: a model's sites in their own space, or its coefficients."""
    sites = site_summary(posterior, seed=0)
    if sites:
        return [Shown(name, **site) for name, site in sites.items()]
    low, high = posterior.interval()
    return [
        Shown(name, float(m), float(s), float(a), float(b))
        for name, m, s, a, b in zip(
            posterior.names, posterior.mean, posterior.sd, low, high, strict=True
        )
    ]


def pooled(parties: dict[str, Records]) -> Records:
    """All records in one place: for evaluation of a simulation, never for training."""
    first = next(iter(parties.values()))
    whole = {key: np.concatenate([records[key] for records in parties.values()]) for key in first}
    if (
        "person" in first
    ):  # a party's codes mean nothing at another: nobody may become one with them
        counts = [int(records["person"].max()) + 1 for records in parties.values()]
        sizes = [len_records(records) for records in parties.values()]
        whole["person"] = whole["person"] + np.repeat(np.cumsum(counts) - counts, sizes)
    return whole


def measure(
    posterior: Posterior, train: Records | None, test: Records | None, draws: int, seed: int
) -> tuple[dict[str, Any], list[Any] | None]:
    """Metrics on the training and held-out records, and the reliability bins of the latter."""
    metrics: dict[str, Any] = {"train": None, "test": None}
    bins = None
    for split, records in (("train", train), ("test", test)):
        if records is None or len_records(records) == 0:
            continue
        if posterior.model.output == "other" and not posterior.model.traceable:
            if split == "test":
                metrics[split] = posterior.model.measured(posterior.natural, records, seed)
            continue
        prediction = _predict(posterior, records, draws, seed)
        metrics[split] = score(posterior.model, prediction, records)
        if split == "test" and posterior.model.output == "bernoulli":
            bins = reliability(prediction.mean, records["y"])
    return metrics, bins


def _predict(posterior: Posterior, records: Records, draws: int = 100, seed: int = 0) -> Any:
    return predict(
        posterior.model, posterior.family, posterior.natural, records, draws=draws, seed=seed
    )
