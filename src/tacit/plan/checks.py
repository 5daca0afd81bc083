"""Functions with which `make_plan` chooses defaults and refuses invalid settings.

They do not run anything, read a file or charge a ledger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
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
    """Public facts about a live federation, whose records are not in this process."""

    total_units: int = 0
    """Number of units of all parties if public, else 0."""
    one_party: bool = False
    """True if there is only one party and `total_units` is its exact number of units."""
    quorum: int | None = None
    """Number of replies that complete a round; None means all parties."""
    divide_out: bool = False
    """True if the factor of a party that leaves permanently is divided out."""


def choose_family(
    kind: str, model: Model, *, private: bool = False, most_full: int = MAX_FULL_COVARIANCE
) -> Family:
    """Return the family with the name `kind`.

    "auto" means a full covariance for up to `most_full` parameters, and mean-field for more. It
    always means mean-field for multimodal models such as neural networks. It also means mean-field
    if `private` is True, because a full covariance of d parameters would need noise in about d²
    numbers instead of 2d. Intervals of a mean-field q are too narrow if parameters are correlated,
    and q converges slowly if many parties update it at once.
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
    """Raise an error if the seed, a party name or the records are invalid."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}; give a whole number from 0 to {2**32 - 1}")
    if not parties:
        raise DataError("there are no parties; give at least one")
    _check_records(model, {name: one for name, one in parties.items() if one or live is None})
    if PRIOR_PARTY in parties:
        raise ConfigError(f"party name {PRIOR_PARTY!r} is reserved for the prior; rename the party")


def check_likelihood(model: Model, parties: dict[str, Records]) -> None:
    """Raise a DataError if the log-likelihood of a record is not finite at the starting point.

    This is used only in runs without privacy, because the error reveals something about a record.
    """
    for found in infinite_likelihoods(model, parties):
        raise DataError(
            f"{found}; drop records that are impossible under the model, such as a 0 whose "
            "logarithm is taken, or change the model"
        )


def infinite_likelihoods(model: Model, parties: dict[str, Records]) -> Iterator[str]:
    """Describe, for each party, the records whose log-likelihood is not finite at the starting
    point.
    """
    family = make_family("mean-field", model.dimension)
    start = model.start(family)
    theta = family.location_scale(model.prior(family) if start is None else start)[0]
    for name, records in parties.items():
        values = np.asarray(model.log_likelihood(theta, records))
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            yield (
                f"party {name!r}: the log-likelihood of {bad.size} of {values.size} records is not "
                f"finite at the starting point (the first is record {bad[0] + 1}, with "
                f"{values.flat[bad[0]]})"
            )


def check_continued(method: LocalMethod, model: Model) -> None:
    """Raise a ConfigError if the method cannot start from the posterior of an earlier run."""
    if not method.takes_batches or model.has_site_prior:
        raise ConfigError(
            f"method.kind = {method.kind!r} with model {model.kind!r} cannot continue an earlier "
            "run; in both runs, use method.kind = 'exact' (for linear regression with a declared "
            "prior_sd), 'expected-statistics' or 'dp-statistics'"
        )


def check_eager(method: LocalMethod, model: Model) -> None:
    """Raise a ConfigError if the method needs gradients and the model has none, because it computes
    in NumPy.
    """
    if not (model.traceable or method.eager):
        usable = ", ".join(kind for kind, one in METHODS.items() if one.eager)
        raise ConfigError(
            f"method.kind = {method.kind!r} needs gradients, which model {model.kind!r} does not "
            f"have; choose one of auto, {usable}"
        )


def resolved_schedule(
    schedule: Schedule, method: LocalMethod, model: Model, family: Family, parties: int
) -> Schedule:
    """Return the schedule with defaults for rounds, damping and tolerance where these are not
    set.
    """
    if schedule.rounds_unset:
        schedule = replace(schedule, rounds=method.rounds_for(model))
    if isinstance(method, PrivateMethod):
        method.check_schedule(schedule, parties)
        if isinstance(schedule.damping, StalenessDamping):
            raise ConfigError(
                f"schedule.damping.least cannot be used with method.kind = {method.kind!r}: a "
                "private method must know the damping in advance; set schedule.damping to a number"
            )
    if schedule.parties_per_round is not None and schedule.parties_per_round > parties:
        raise ConfigError(
            f"schedule.parties_per_round = {schedule.parties_per_round}; it must be at most "
            f"{parties}, the number of parties"
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
    """Raise a ConfigError if shared noise could be too small because parties are at different
    visits.

    This can happen if the noise differs between visits and not every party takes part in every
    round. Secure sums need no check, because all parties of a round are at the same visit.
    """
    apart = schedule.parties_per_round is not None or (live is not None and live.quorum is not None)
    differ = any(len(one.answers) > 1 for one in settled.values())
    if apart and differ:
        raise ConfigError(
            "the noise of this method is shared by the parties and differs between visits, but "
            "with schedule.parties_per_round or a quorum the parties of a round may be at "
            "different visits, and their sum may have too little noise; leave out both settings, "
            "or set privacy.aggregation = 'plain'"
        )


def check_integers_only(model: Model, family: Family, method: PrivateMethod, rounds: int) -> None:
    """Raise a ConfigError if the method releases numbers other than integers at some stage.

    Only integers can be masked for a secure sum.
    """
    for stage in method.stage_table(rounds):
        if method.integer_shapes(model, family, stage) is None:
            raise ConfigError(
                f"privacy.aggregation = 'secure' can mask only integers, but method.kind = "
                f"{method.kind!r} sends floats at stage {stage!r}; set privacy.aggregation = "
                "'plain'"
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
    """Collect the facts about a run that a method may need.

    `schedule` must be the result of `resolved_schedule`.
    """
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
    """Return the number of units of each party.

    For a party whose records are not in this process, it is the mean number of units per party.
    """
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
    """Return the method with unit, adjacency and aggregation of the privacy settings.

    A ConfigError is raised if the method does not support these settings.
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
    """Raise a ConfigError if parties have different clips and the server divides a sum by the
    clip.
    """
    if privacy.aggregation == "plain" or not method.needs_one_clip:
        return
    if {clip_of(privacy, method, party) for party in parties} != {method.clip}:
        raise ConfigError(
            f"with method.kind = {method.kind!r} and privacy.aggregation = "
            f"{privacy.aggregation!r}, all parties must have the clip method.clip, because the "
            "server divides sums by it; remove the clips in privacy.parties, or set "
            "privacy.aggregation = 'plain'"
        )


def _check_pure(method: PrivateMethod, privacy: Privacy) -> None:
    if not method.pure_noise:
        pure = ", ".join(
            kind
            for kind, one in METHODS.items()
            if issubclass(one, PrivateMethod) and one.pure_noise
        )
        raise ConfigError(
            f"privacy.delta = 0 with method.kind = {method.kind!r}, whose noise is Gaussian; set "
            f"method.kind = {pure!r} for pure ε, or a small privacy.delta, e.g. 1e-9"
        )
    if privacy.aggregation != "plain":
        raise ConfigError(
            f"privacy.delta = 0 with privacy.aggregation = {privacy.aggregation!r}; pure ε needs "
            "Laplace noise, which cannot be divided among parties: set privacy.aggregation = "
            "'plain'"
        )


def check_rounding(model: Model, method: LocalMethod) -> None:
    """Raise a ConfigError if the number of records is private and rounding errors could reveal it.

    One more unit may change the shape of an array, and with it the order of summation. For some
    models the rounding errors then change the contributions of all units, which clipping does not
    bound.
    """
    if not (model.rounding_grows and isinstance(method, PrivateMethod)):
        return
    if method.unit != "party" and (method.unit, method.adjacency) != ("record", "replace-one"):
        raise ConfigError(
            f"privacy.unit = {method.unit!r} and privacy.adjacency = {method.adjacency!r} hide the "
            f"number of records, but rounding errors of model {model.kind!r} depend on it; set "
            "privacy.unit = 'record' and privacy.adjacency = 'replace-one'"
        )


def shapes_of(schedule: Schedule, units: dict[str, int], seed: int) -> dict[str, PartyShape]:
    """Return the number of visits (which is public) and the number of units of each party."""
    names = tuple(units)
    chosen = [schedule.chosen(names, seed, number + 1) for number in range(schedule.rounds)]
    visits = Counter(name for names in chosen for name in names)
    return {name: PartyShape(visits[name], count) for name, count in units.items()}


def shares_of(privacy: Privacy, schedule: Schedule, parties: int, live: Live | None) -> int:
    """Return the number of messages that are summed before the server or the public sees the sum.

    In secure sums, the messages of parties that may collude are not counted.
    """
    if privacy.aggregation == "plain":
        return 1
    if privacy.aggregation == "server" and live is not None:
        raise ConfigError(
            "privacy.aggregation = 'server' cannot be used in a live federation, because a party "
            "cannot verify that the server adds the noise; use 'secure', 'trusted' or 'plain'"
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
                "sums are over all parties; leave parties_per_round out"
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
    """Raise a ConfigError if the method stores a memory at the parties but a round may skip a
    party.
    """
    if method.memory(model, family) is None:
        return
    if secure is not None and secure.quorum < secure.parties:
        raise ConfigError(
            f"method.kind = {method.kind!r} stores a memory at each party, which needs all parties "
            f"in every round, but privacy.secure.quorum = {secure.quorum}; set it to "
            f"{secure.parties}, the number of parties"
        )
    all_parties = schedule.kind == "synchronous" and schedule.parties_per_round is None
    all_parties = all_parties and (live is None or live.quorum is None)
    if not all_parties:
        raise ConfigError(
            f"method.kind = {method.kind!r} stores a memory at each party, which needs all parties "
            f"in every round, but schedule.kind = {schedule.kind!r} and "
            f"schedule.parties_per_round = {schedule.parties_per_round}; use schedule.kind = "
            "'synchronous' without parties_per_round and quorum, or sample records by "
            "method.sampling_rate instead"
        )


def _check_records(model: Model, parties: dict[str, Records]) -> None:
    forms = {}
    for name, records in parties.items():
        if not isinstance(records, dict):
            raise DataError(
                f"the records of party {name!r} are a {type(records).__name__}; give a dictionary "
                "of arrays, or for documents tacit.datasets.document_records(counts, width=…)"
            )
        if not records or len_records(records) == 0:
            raise DataError(f"party {name!r} has no records; add records, or leave the party out")
        lengths = {key: np.shape(column)[0] for key, column in records.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"the columns of party {name!r} have different lengths {lengths}; give one entry "
                "per record"
            )
        forms[name] = {key: np.shape(column)[1:] for key, column in records.items()}
        for key, column in records.items():
            if np.asarray(column).dtype.kind == "f" and not np.all(np.isfinite(column)):
                raise DataError(
                    f"party {name!r}, column {key!r}: a value is not finite; correct it, drop "
                    "the record, or replace it by a number that a NumPyro model masks"
                )
    if not forms:
        return
    first = next(iter(parties))
    for name, form in forms.items():
        if form != forms[first]:
            raise DataError(
                f"party {name!r} has columns of shape {form}, but party {first!r} has "
                f"{forms[first]}; give every party the same columns"
            )
    _check_shapes(model, first, forms[first])
    if model.traceable:
        _check_readable(model, parties[first])
    for name, records in parties.items():
        model.check_records(name, records)


def _check_shapes(model: Model, party: str, form: dict[str, tuple[int, ...]]) -> None:
    if model.x_columns is None:
        return
    for key in ("x", "y"):
        if key not in form:
            raise DataError(
                f"party {party!r} has no column {key!r} (it has {', '.join(form)}), which model "
                f"{model.kind!r} needs; add it"
            )
    if form["x"] != (model.x_columns,):
        shape = ", ".join(map(str, ("n", *form["x"])))
        raise DataError(
            f"party {party!r}: x has shape ({shape}{'' if form['x'] else ','}), but model "
            f"{model.kind!r} has {model.x_columns} names; give x the shape (n, {model.x_columns}), "
            "or give the model one name per column of x"
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
            "model, or give the columns that it needs"
        ) from error
    if shape != (1,):
        raise ConfigError(
            f"log_likelihood of model {model.kind!r} returns shape {shape} for 1 record; it must "
            "return one number per record"
        )


def check_events(method: PrivateMethod, settled: dict[str, Settled]) -> None:
    """Raise a ConfigError if a method declares several events at one visit."""
    for party in settled.values():
        for visit in range(party.visits):
            count = len(party.events_at(visit))
            if count > 1:
                raise ConfigError(
                    f"method.kind = {method.kind!r} has {count} events at visit {visit}, but a "
                    "visit has at most one; return one event (with a count for several releases of "
                    "equal clip and noise), or make the releases at different visits"
                )
