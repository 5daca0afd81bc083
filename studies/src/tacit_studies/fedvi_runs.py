"""The thesis's two experiments, run in its three modes and followed exchange by exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from tacit.data.readers.download import locate
from tacit.data.records import pooled
from tacit.datasets import load
from tacit.engines.execute import carry_out
from tacit.errors import DataError
from tacit.expfam import Family, MeanFieldGaussian, Natural
from tacit.expfam.gaussian import Gaussian
from tacit.methods import Exact, GradientVI, LocalMethod
from tacit.models import LinearRegression, Model, NormalMean, Records
from tacit.plan.checks import choose_family
from tacit.plan.plan import make_plan
from tacit.results import exact_posterior, mean_field_optimum
from tacit.results.posterior import Posterior
from tacit.server.schedule import SCHEDULES
from tacit.server.state import Log, ServerState

MODES = tuple(SCHEDULES)
NOISE_SD = 1.0
PARTIES = {"mean": 10, "rugged": 3}
VISITS = ((10, 30, 100, 300, 1000), (1, 10, 100))
QUICK_VISITS = ((10, 100), (1, 100))
"""Steps and draws of a visit that are compared."""
COEFFICIENTS = ("α", "β₁", "β₂", "β₃")
"""The thesis's names of bias, cont_africa, rugged and cont_africa*rugged."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All settings of an experiment except the mode."""

    label: str
    family: str
    method: LocalMethod
    rounds: int
    damping: float | None = None
    """None: tacit's default for the mode and family."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, its parties and its settings."""

    name: str
    title: str
    model: Model
    parties: dict[str, Records]
    settings: tuple[Setting, ...]
    modes: tuple[str, ...] = MODES

    @property
    def records(self) -> Records:
        """The records of all parties, for the exact posterior."""
        return pooled(self.parties)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One run: its final q, and its distance from the best q after each exchange.

    `excess` is the loss (negative ELBO, nats) above its minimum over the family, in closed form;
    the first entry is that of the prior, before any exchange.
    """

    experiment: str
    setting: Setting
    mode: str
    posterior: Posterior
    damping: float
    refused: int
    exchanges: np.ndarray
    excess: np.ndarray
    minimum: float
    best_mean: np.ndarray
    best_sd: np.ndarray

    @property
    def mean_error(self) -> float:
        """Largest relative error of a mean."""
        return float(np.max(np.abs(self.posterior.mean / self.best_mean - 1.0)))

    @property
    def sd_error(self) -> float:
        """Largest relative error of an sd."""
        return float(np.max(np.abs(self.posterior.sd / self.best_sd - 1.0)))

    def reached(self, nats: float) -> int | None:
        """Exchanges until the loss is first within `nats` of its minimum; None: never."""
        inside = np.flatnonzero(self.excess <= nats)
        return int(self.exchanges[inside[0]]) if len(inside) else None


def gradient_method(*, quick: bool, steps: int | None = None, draws: int = 10) -> GradientVI:
    """Adam as in the thesis: 1000 steps and 10 draws per visit; 100 steps if `quick`."""
    steps = steps or (100 if quick else 1000)
    return GradientVI(steps=steps, draws=draws, learning_rate=0.05, dtype="float64")


def mean_experiment(*, seed: int, quick: bool) -> Experiment:
    """Thesis §4.1: 10,000 draws of N(5, 1) at 10 parties, prior N(0, 1), unit noise."""
    data = load(
        "normal-mean",
        parties=PARTIES["mean"],
        records=10_000,
        mean=5.0,
        sd=1.0,
        held_out=0,
        seed=seed,
    )
    return Experiment(
        name="mean",
        title="Proof of concept",
        model=NormalMean(noise_sd=1.0),
        parties=data.parties,
        settings=(
            Setting(
                label="GradientVI",
                family="mean-field",
                method=gradient_method(quick=quick),
                rounds=10 if quick else 20,
                damping=1.0,
            ),
            Setting(label="Exact", family="mean-field", method=Exact(), rounds=20),
        ),
    )


def rugged_experiment(*, seed: int, quick: bool) -> Experiment:
    """Thesis §4.2: log GDP on Africa, ruggedness and their product, at 3 parties."""
    if locate("rugged") is None:
        raise DataError(
            "the rugged terrain data are not on this machine; run `tacit data fetch rugged`, or "
            "set TACIT_DATA to a folder that has rugged/rugged_data.csv"
        )
    data = load("rugged", parties=PARTIES["rugged"], held_out=0, seed=seed)
    return Experiment(
        name="rugged",
        title="Bayesian regression",
        model=LinearRegression(data.names, noise_sd=NOISE_SD, prior_sd=1.0),
        parties=data.parties,
        settings=(
            Setting(
                label="GradientVI, mean-field",
                family="mean-field",
                method=gradient_method(quick=quick),
                rounds=100 if quick else 600,
            ),
            Setting(label="Exact, mean-field", family="mean-field", method=Exact(), rounds=600),
            Setting(label="Exact, full", family="full", method=Exact(), rounds=20),
        ),
    )


def damping_experiment(rugged: Experiment) -> Experiment:
    """The mean-field regression with one damping in all three modes, for several dampings."""
    settings = tuple(
        Setting(label=f"ρ = {name}", family="mean-field", method=Exact(), rounds=100, damping=rho)
        for name, rho in (("1", 1.0), ("1/2", 0.5), ("1/3", 1 / 3))
    )
    return replace(rugged, name="damping", title="Damping", settings=settings)


def visit_experiment(mean: Experiment, *, quick: bool) -> Experiment:
    """The Gaussian mean with several numbers of steps and draws per visit, sequential only.

    The regression is left out, because its expectations are in closed form and nothing is drawn.
    """
    settings = tuple(
        Setting(
            label=f"{steps} steps, {draws} draws",
            family="mean-field",
            method=gradient_method(quick=quick, steps=steps, draws=draws),
            rounds=5,
            damping=1.0,
        )
        for steps, draws in product(*(QUICK_VISITS if quick else VISITS))
    )
    title = "Steps and draws"
    return replace(mean, name="visit", title=title, settings=settings, modes=("sequential",))


def follow(experiment: Experiment, setting: Setting, mode: str, *, seed: int) -> Trace:
    """Run one setting in one mode, and record q after every exchange.

    The number of rounds is fixed, so that the modes are compared at equal exchanges.
    """
    model = experiment.model
    plan = make_plan(
        model,
        experiment.parties,
        family=setting.family,
        method=setting.method,
        schedule=SCHEDULES[mode](rounds=setting.rounds, damping=setting.damping, tolerance=0.0),
        seed=seed,
    )
    records = [experiment.records]
    mean, covariance = exact_posterior(model, records)
    precision = np.linalg.inv(covariance)
    sd = np.sqrt(np.diagonal(covariance))
    if setting.family == "mean-field":
        mean, sd = mean_field_optimum(model, records)
    seen = [(0, excess_loss(plan.family, model.prior(plan.family), mean, precision))]

    def watch(state: ServerState, _log: Log) -> None:
        seen.append((state.exchanges, excess_loss(plan.family, state.q, mean, precision)))

    outcome = carry_out(plan, observe=watch)
    exchanges, excess = zip(*seen, strict=True)
    return Trace(
        experiment=experiment.name,
        setting=setting,
        mode=mode,
        posterior=outcome.posterior,
        damping=plan.schedule.damping_at(1),
        refused=outcome.state.refused,
        exchanges=np.array(exchanges),
        excess=np.array(excess),
        minimum=least_loss(experiment, setting.family),
        best_mean=mean,
        best_sd=sd,
    )


def excess_loss(family: Family, q: Natural, mean: np.ndarray, precision: np.ndarray) -> float:
    """Negative ELBO of q above the minimum in its family, if the posterior is N(mean, Λ⁻¹).

        ½ (m − μ)ᵀΛ(m − μ) + ½ Σⱼ (rⱼ − 1 − log rⱼ)

    with r the eigenvalues of ΛS (for a mean-field q, the products Λⱼⱼ sⱼ²). This is KL(q ‖ p) minus
    the KL of the best q, without the cancellation of a difference.
    """
    assert isinstance(family, Gaussian)
    gap = family.usual(q)["mean"] - mean
    covariance = family.covariance(q)
    if isinstance(family, MeanFieldGaussian):
        ratio = np.diagonal(precision) * np.diagonal(covariance)
    else:
        factor = np.linalg.cholesky(precision)
        ratio = np.linalg.eigvalsh(factor.T @ covariance @ factor)
    spread = np.sum((ratio - 1.0) - np.log1p(ratio - 1.0))
    return max(0.0, float(0.5 * (gap @ precision @ gap + spread)))


def least_loss(experiment: Experiment, kind: str) -> float:
    """The negative ELBO of the best q of a family: −log p(records) for the full family."""
    model, records = experiment.model, experiment.records
    family = choose_family(kind, model)
    if isinstance(family, MeanFieldGaussian):
        mean, sd = mean_field_optimum(model, [records])
        q = family.natural(mean=mean, sd=sd)
    else:
        mean, covariance = exact_posterior(model, [records])
        q = family.natural(mean=mean, covariance=covariance)
    return negative_elbo(experiment, family, q)


def negative_elbo(experiment: Experiment, family: Family, q: Natural) -> float:
    """−E_q[log p(records | θ)] + KL(q ‖ prior), exact because log p is quadratic in θ."""
    model, records = experiment.model, experiment.records
    assert isinstance(family, Gaussian)
    assert isinstance(model, NormalMean | LinearRegression)
    form, _ = model.quadratic_form(records, np.ones(len(records["y"])))
    at_mean = np.sum(model.log_likelihood(family.usual(q)["mean"], records))
    spread = 0.5 * np.sum(form * family.covariance(q))
    return float(spread - at_mean + family.kl(q, model.prior(family)))
