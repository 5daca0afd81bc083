"""Resolve the choices of a plan and refuse invalid ones.

Nothing here runs, reads a file or charges a ledger. `tacit.plan.plan.make_plan` uses these
functions.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from tacit.data.records import len_records
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, make_family
from tacit.methods import METHODS, Exact, LocalMethod, PrivateMethod
from tacit.methods.base import MAX_FULL_COVARIANCE, RunFacts
from tacit.models import Model, Records
from tacit.models.capabilities import Coefficients, GaussianSites, ImpliedVariance
from tacit.models.prior import PRIOR_PARTY
from tacit.plan.calibrate import PartyShape, Settled, clip_of
from tacit.privacy.secure_sums import Thresholds
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Schedule, StalenessDamping, resolved_damping
from tacit.support.compiler import jax

DEFAULT_TOLERANCE = 1e-5
"""Default tolerance: KL divergence per round in nats, which is a move of 0.005 sd in one
coordinate. `Exact` uses 0.
"""


@dataclass(frozen=True, kw_only=True)
class Live:
    """Facts about a live federation whose records are elsewhere."""

    total_units: int = 0
    """Number of units of all parties if public, else 0."""
    one_party: bool = False
    """True if `total_units` is the exact number of the only party."""
    quorum: int | None = None
    """Number of replies that complete a round; None: all."""
    divide_out: bool = False
    """True if the factor of a party that leaves permanently is divided out."""


def choose_family(
    kind: str, model: Model, *, private: bool = False, most_full: int = MAX_FULL_COVARIANCE
) -> Family:
    """Return the family of that name; "auto" means full covariance up to `most_full` parameters.

    Mean-field intervals are too narrow if coordinates are correlated, and many parties that update
    a mean-field q at once converge slowly. Up to hundreds of coordinates a full covariance costs
    little. Larger models, neural networks and private runs get the mean-field family: with d² noisy
    numbers instead of 2d, the noise would dominate.
    """
    if model.own_family is not None:
        if kind not in ("auto", model.own_family.kind):
            raise ConfigError(
                f"posterior = {kind!r} with model {model.kind!r}, whose posterior is "
                f"{model.own_family.kind!r}; leave posterior out"
            )
        return model.own_family
    if kind == "auto":
        several = model.multimodal or model.ties_at_prior
        full = not private and not several and model.dimension <= most_full
        kind = "full" if full else "mean-field"
    return make_family(kind, model.dimension)


def check_parties(model: Model, parties: dict[str, Records], seed: int, live: Live | None) -> None:
    """Refuse an invalid seed, invalid party names, or invalid records."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}; it must be in 0 … {2**32 - 1}")
    if not parties:
        raise DataError("there are no parties; give at least one")
    _check_records(model, {name: one for name, one in parties.items() if one or live is None})
    if PRIOR_PARTY in parties:
        raise ConfigError(f"party name {PRIOR_PARTY!r} is reserved for the prior; rename the party")


def check_likelihood(model: Model, parties: dict[str, Records]) -> None:
    """Refuse records whose log-likelihood is not finite at the starting point.

    Only for runs without privacy, because the outcome depends on exact records.
    """
    family = make_family("mean-field", model.dimension)
    start = model.start(family)
    theta = family.location_scale(model.prior(family) if start is None else start)[0]
    for name, records in parties.items():
        values = np.asarray(model.log_likelihood(theta, records))
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise DataError(
                f"party {name!r}: the log-likelihood of {bad.size} of {values.size} records is not "
                f"finite where the fit starts (record {bad[0] + 1}: {values.flat[bad[0]]}); drop "
                "values outside the support of the model's distribution, such as 0 under a "
                "logarithm, or change the model"
            )


def check_continued(method: LocalMethod, model: Model) -> None:
    """Refuse to continue an earlier run with a method that cannot start from its posterior."""
    if not method.takes_batches or model.has_site_prior:
        raise ConfigError(
            f"this run continues an earlier one with method.kind = {method.kind!r} and model "
            f"{model.kind!r}; an earlier posterior can be updated with method.kind = 'exact' "
            "(linear regression, declared prior_sd), 'expected-statistics' or 'dp-statistics': use "
            "one of these in both runs"
        )


def check_eager(method: LocalMethod, model: Model) -> None:
    """Refuse a method that needs gradients for a model written in NumPy."""
    if not (model.traceable or method.eager):
        usable = ", ".join(kind for kind, one in METHODS.items() if one.eager)
        raise ConfigError(
            f"method.kind = {method.kind!r} needs gradients, which model {model.kind!r} does not "
            f"have; choose one of auto, {usable}"
        )


def resolved_schedule(
    schedule: Schedule, method: LocalMethod, model: Model, family: Family, parties: int
) -> Schedule:
    """Return the schedule with defaults for unset rounds, damping and tolerance."""
    if schedule.rounds_unset:
        schedule = replace(schedule, rounds=method.rounds_for(model))
    if isinstance(method, PrivateMethod):
        method.check_schedule(schedule, parties)
        if isinstance(schedule.damping, StalenessDamping):
            raise ConfigError(
                f"schedule.damping.least with method.kind = {method.kind!r}; a private method "
                "accounts for its noise with a damping that is known in advance: give a number"
            )
    if schedule.parties_per_round is not None and schedule.parties_per_round > parties:
        raise ConfigError(
            f"schedule.parties_per_round = {schedule.parties_per_round}; there are only "
            f"{parties} parties"
        )
    if schedule.damping is None and method.damping is not None:
        schedule = replace(schedule, damping=method.damping)
    damping = resolved_damping(
        schedule,
        parties=parties,
        dimension=model.dimension,
        full=family.kind != "mean-field",
        second_order=method.second_order,
    )
    tolerance = schedule.tolerance
    if tolerance is None:
        tolerance = 0.0 if isinstance(method, Exact | PrivateMethod) else DEFAULT_TOLERANCE
    return replace(schedule, damping=damping, tolerance=tolerance)


def check_in_step(settled: dict[str, Settled], schedule: Schedule, live: Live | None) -> None:
    """Refuse shared noise that differs between visits if parties may be at different visits.

    In secure sums the visit number is the round, also for a party that was absent before.
    """
    apart = schedule.parties_per_round is not None or (live is not None and live.quorum is not None)
    differ = any(len(one.answers) > 1 for one in settled.values())
    if apart and differ:
        raise ConfigError(
            "the noise of this method differs by visit and is shared by the parties, but with "
            "schedule.parties_per_round or a quorum they would not be at the same visit, and a sum "
            "could have less noise than a party needs; visit all parties in every round, or use "
            "aggregation 'plain'"
        )


def check_integers_only(model: Model, family: Family, method: PrivateMethod, rounds: int) -> None:
    """Refuse releases that are not integers on one lattice, because only these can be masked."""
    for stage in method.stage_table(rounds):
        if method.integer_shapes(model, family, stage) is None:
            raise ConfigError(
                f"method.kind = {method.kind!r} with privacy.aggregation = 'secure' sends floats "
                f"at stage {stage!r}, and only integers can be masked: use 'plain'"
            )


def facts(
    schedule: Schedule,
    privacy: Privacy | None,
    live: Live | None = None,
    *,
    parties: int = 1,
    model: Model | None = None,
    family: Family | None = None,
) -> RunFacts:
    """Collect the facts about a run that a method may need; its schedule is resolved."""
    assert schedule.tolerance is not None
    clips = [] if privacy is None else [own.clip for own in privacy.parties.values()]
    return RunFacts(
        schedule=schedule.kind,
        all_parties=schedule.parties_per_round is None,
        rounds=schedule.rounds,
        tolerance=schedule.tolerance,
        one_noise=privacy is not None and privacy.aggregation != "plain" and any(clips),
        quorum=live is not None and live.quorum is not None,
        parties=parties,
        dimension=1 if model is None else model.dimension,
        full=isinstance(family, FullGaussian),
        gaussian_sites=isinstance(model, GaussianSites),
        implied_variance=isinstance(model, ImpliedVariance),
    )


def units_of(
    method: LocalMethod, privacy: Privacy | None, parties: dict[str, Records], live: Live | None
) -> dict[str, int]:
    """Return the number of units per party; estimated if the records are not in this process."""
    if privacy is None or not isinstance(method, PrivateMethod):
        return {}
    method = method.bind(unit=privacy.unit)
    method.check_unit()
    share = 1
    if live is not None and privacy.unit != "party":
        share = max(1, math.ceil(live.total_units / len(parties)))
    return {
        name: method.count_units(name, records) if records else share
        for name, records in parties.items()
    }


def settled_method(
    method: LocalMethod, privacy: Privacy | None, units: dict[str, int], live: Live | None
) -> LocalMethod:
    """Return the method with unit and adjacency set; refuse it if it does not match the privacy
    settings.
    """
    if privacy is None:
        if method.private:
            raise ConfigError(
                f"method.kind = {method.kind!r} is private, but privacy = 'none'; set a "
                "guarantee, e.g. [privacy] epsilon = 1.0, or choose another method"
            )
        return method
    if not isinstance(method, PrivateMethod):
        private = ", ".join(kind for kind, one in METHODS.items() if one.private)
        raise ConfigError(
            f"method.kind = {method.kind!r} sends exact updates and cannot meet privacy.epsilon = "
            f"{privacy.epsilon}; choose one of auto, {private}"
        )
    if privacy.delta == 0:
        _check_pure(method, privacy)
    _check_clips(method, privacy, list(units))
    total = 0
    if privacy.adjacency == "replace-one":
        total = sum(units.values())
        if live is not None and privacy.unit != "party":
            total = live.total_units
    return method.bind(
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        aggregation=privacy.aggregation,
        parties=len(units),
        total_units=total,
        pure=privacy.delta == 0,
    )


def _check_clips(method: PrivateMethod, privacy: Privacy, parties: list[str]) -> None:
    """Refuse clips that differ between parties if the server divides their sum by a single clip."""
    if privacy.aggregation == "plain" or not method.needs_one_clip:
        return
    if {clip_of(privacy, method, party) for party in parties} != {method.clip}:
        raise ConfigError(
            f"method.kind = {method.kind!r} with privacy.aggregation = {privacy.aggregation!r} and "
            "clips of parties other than method.clip; the server divides sums by the clip, so a "
            "party with a smaller one would have less noise than it is charged for: set only "
            "method.clip, or use aggregation 'plain'"
        )


def _check_pure(method: PrivateMethod, privacy: Privacy) -> None:
    """Refuse pure ε unless each party can add Laplace noise."""
    if not method.pure_noise:
        pure = ", ".join(
            kind
            for kind, one in METHODS.items()
            if issubclass(one, PrivateMethod) and one.pure_noise
        )
        raise ConfigError(
            f"privacy.delta = 0 with method.kind = {method.kind!r}, whose noise is Gaussian; pure "
            f"ε needs method.kind = {pure!r}, or set a small delta, e.g. 1e-9"
        )
    if privacy.aggregation != "plain":
        raise ConfigError(
            f"privacy.delta = 0 with privacy.aggregation = {privacy.aggregation!r}; a sum of "
            "shares is not Laplace noise: use 'plain'"
        )


def check_rounding(model: Model, method: LocalMethod) -> None:
    """Refuse models whose rounding errors depend on the number of records, if that is private.

    The compiler's order of summation depends on array shapes. Clipping bounds the contribution of
    one unit; but if rounding errors can grow, a unit that changes an array shape would change all
    contributions.
    """
    if not (model.rounding_grows and isinstance(method, PrivateMethod)):
        return
    if method.unit != "party" and (method.unit, method.adjacency) != ("record", "replace-one"):
        raise ConfigError(
            f"privacy.unit = {method.unit!r} and privacy.adjacency = {method.adjacency!r} with "
            f"model "
            f"{model.kind!r}, whose rounding errors depend on the number of records; "
            "protect a 'record' with adjacency = 'replace-one'"
        )


def shapes_of(schedule: Schedule, units: dict[str, int], seed: int) -> dict[str, PartyShape]:
    """Return the (public) number of visits and the number of units of each party."""
    names = tuple(units)
    chosen = [schedule.chosen(names, seed, number + 1) for number in range(schedule.rounds)]
    visits = Counter(name for names in chosen for name in names)
    return {name: PartyShape(visits[name], count) for name, count in units.items()}


def shares_of(privacy: Privacy, schedule: Schedule, parties: int, live: Live | None) -> int:
    """Return the number of messages that are summed before they become visible.

    With secure sums, only messages of parties that do not collude are counted.
    """
    if privacy.aggregation == "plain":
        return 1
    if privacy.aggregation == "server" and live is not None:
        raise ConfigError(
            "privacy.aggregation = 'server' in a live federation; a party cannot verify that "
            "the server adds the noise: use 'secure', 'trusted' or 'plain'"
        )
    if schedule.kind != "synchronous":
        raise ConfigError(
            f"privacy.aggregation = {privacy.aggregation!r} with schedule.kind = "
            f"{schedule.kind!r}, which publishes q after every message; use schedule.kind = "
            "'synchronous'"
        )
    asked = schedule.parties_per_round or parties
    if privacy.aggregation == "secure":
        if asked != parties:
            raise ConfigError(
                f"schedule.parties_per_round = {asked} with privacy.aggregation = 'secure', whose "
                "sums are over all parties: leave the key out"
            )
        return privacy.secure.among(parties).shares
    return asked if live is None or live.quorum is None else min(asked, live.quorum)


def check_memory(
    method: LocalMethod,
    model: Model,
    family: Family,
    schedule: Schedule,
    live: Live | None,
    *,
    secure: Thresholds | None = None,
) -> None:
    """Refuse a method that stores state at the parties unless every party takes part in every
    round.
    """
    if method.memory(model, family) is None:
        return
    if secure is not None and secure.quorum < secure.parties:
        raise ConfigError(
            f"method.kind = {method.kind!r} keeps a memory at each party, which needs all parties "
            f"in every round, but privacy.secure.quorum = {secure.quorum} of {secure.parties}: set "
            f"it to {secure.parties}"
        )
    all_parties = schedule.kind == "synchronous" and schedule.parties_per_round is None
    all_parties = all_parties and (live is None or live.quorum is None)
    if not all_parties:
        raise ConfigError(
            f"method.kind = {method.kind!r} keeps a factor at each party, which needs all parties "
            f"in every round: schedule.kind = {schedule.kind!r}, parties_per_round = "
            f"{schedule.parties_per_round}; use 'synchronous' without it, or method.sampling_rate"
        )


def _check_records(model: Model, parties: dict[str, Records]) -> None:
    """Refuse records that differ in form between parties, or that the model cannot read."""
    forms = {}
    for name, records in parties.items():
        if not isinstance(records, dict):
            raise DataError(
                f"party {name!r} has a {type(records).__name__} for records; give a dictionary of "
                "arrays, for documents tacit.datasets.document_records(counts, width=…)"
            )
        if not records or len_records(records) == 0:
            raise DataError(f"party {name!r} has no records; leave it out or give it some")
        lengths = {key: np.shape(column)[0] for key, column in records.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"party {name!r} has columns of unequal length {lengths}; make them equal"
            )
        forms[name] = {key: np.shape(column)[1:] for key, column in records.items()}
        for key, column in records.items():
            if np.asarray(column).dtype.kind == "f" and not np.all(np.isfinite(column)):
                raise DataError(
                    f"party {name!r}, column {key!r}: a value is not finite; fix it or drop "
                    "the record"
                )
    if not forms:
        return
    first = next(iter(parties))
    for name, form in forms.items():
        if form != forms[first]:
            raise DataError(
                f"party {name!r} has columns {form}, but {first!r} has {forms[first]}; give every "
                "party the same columns"
            )
    _check_shapes(model, first, forms[first])
    if model.traceable:
        _check_readable(model, parties[first])
    for name, records in parties.items():
        model.check_records(name, records)


def _check_shapes(model: Model, party: str, form: dict[str, tuple[int, ...]]) -> None:
    """Refuse an x whose number of columns differs from the model's, or a y with several columns."""
    if model.x_columns is None:
        return
    for key in ("x", "y"):
        if key not in form:
            raise DataError(
                f"party {party!r} has no column {key!r} (it has {', '.join(form)}); model "
                f"{model.kind!r} needs x and y: add it"
            )
    if form["x"] != (model.x_columns,):
        shape = ", ".join(map(str, ("n", *form["x"])))
        raise DataError(
            f"party {party!r}: x has shape ({shape}{'' if form['x'] else ','}), but model "
            f"{model.kind!r} has {model.x_columns} names; give x the shape (n, {model.x_columns}), "
            "or the model one name per column"
        )
    if form["y"] != ():
        raise DataError(
            f"party {party!r}: y has rows of shape {form['y']}; give one number per record, "
            "e.g. y.ravel()"
        )


def _check_readable(model: Model, records: Records) -> None:
    example = {key: np.asarray(column[:1]) for key, column in records.items()}
    theta = np.zeros(model.dimension)
    try:
        if isinstance(model, Coefficients):  # works on NumPy arrays without compiling
            shape = np.shape(model.log_likelihood(theta, example))
        else:
            shape = jax.eval_shape(model.log_likelihood, theta, example).shape
    except (KeyError, TypeError, ValueError, IndexError) as error:
        columns = ", ".join(f"{key} {np.shape(column)[1:]}" for key, column in records.items())
        raise DataError(
            f"model {model.kind!r} of dimension {model.dimension} cannot read records with columns "
            f"{columns} ({type(error).__name__}: {str(error).splitlines()[0]}); choose another "
            "model or add what it needs"
        ) from error
    if shape != (1,):
        raise ConfigError(
            f"log_likelihood of model {model.kind!r} returns shape {shape} for 1 record; it must "
            "return one number per record"
        )
