"""Coefficients of a regression in the units of the user's columns.

A regression is fitted to scaled columns x = (v − c)/s, where v is a value of the user's column, and
the centre c and the scale s are in the public schema. A coordinate of θ is therefore the effect of
a change of v by s. The coefficients in the user's units are

    β = θ/s,    β₀ = θ₀ − Σ θ c/s,

where θ₀ is the intercept of the fit and the sum is over all columns. This map is linear. It is
applied to the mean and covariance of a normal posterior, and to every draw of any other posterior.

A numeric outcome is scaled as (y − c_y)/s_y. To undo this, the intercept and all other coefficients
are multiplied by s_y, and then c_y is added to the intercept. For an outcome with K levels only
differences between levels are identified, so the coefficients of K − 1 levels are given relative to
the first level.

Reports, the terminal and `Fit.summary` all use `Coefficient`, which is stored in result.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from tacit.data.derived import sources_of
from tacit.data.schema.columns import ColumnConfig
from tacit.data.schema.layout import layout_of
from tacit.data.schema.units import EXAMPLE, parse_unit
from tacit.errors import ConfigError
from tacit.expfam import Gaussian
from tacit.models import Model
from tacit.models.capabilities import Coefficients
from tacit.models.glm.normal import LOG_NOISE
from tacit.results.posterior import INTERVAL, Posterior
from tacit.results.summary import Coefficient
from tacit.support.blas import one_blas_thread
from tacit.support.validation import choose_from

INTERCEPT = "intercept"
NOISE = "noise sd"
"""Name of the row for the standard deviation of the outcome around its mean, if this is inferred.
"""
Per = Mapping[str, float | str]
"""Dict from a column to the change of this column whose effect is reported: 10, or "10 years"."""


class Term(NamedTuple):
    """A row of the table of coefficients."""

    text: str
    name: str
    """Name of the row's coordinate of θ."""
    column: str | None
    """The numeric column that the row belongs to; None for levels and the intercept."""
    unit: str | None = None


class UnitMap(NamedTuple):
    """Map from θ to coefficients in the units of the columns: matrix @ θ + offset."""

    terms: tuple[Term, ...]
    matrix: np.ndarray
    offset: np.ndarray

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Return the coefficients for one θ, or for draws of θ of shape (…, dimension)."""
        return theta @ self.matrix.T + self.offset


def unit_map(
    model: Model,
    columns: Sequence[ColumnConfig] | None,
    outcome: str | None = None,
    *,
    per: Per | None = None,
) -> UnitMap | None:
    """Return the map from θ to coefficients in the units of the columns.

    Parameters
    ----------
    model
        The fitted model.
    columns
        The public schema; None for plain arrays, whose coefficients are not converted.
    outcome
        Name of the outcome.
    per
        Dict from a column to the change of this column whose effect is reported, e.g. 10 or "10
        years". The default change is the unit in the schema, or 1.

    Returns
    -------
    UnitMap or None
        None for a model without linear predictors, such as a neural network.
    """
    if not isinstance(model, Coefficients):
        return None
    features = [one for one in columns or () if one.feature and one.name != outcome]
    if columns is None or layout_of(features) != model.layout:
        width = len(model.layout)
        names = model.names[:width] if not model.levels else tuple(_columns_of(model))
        block = np.eye(width)
        terms = [Term(name, name, name) for name in names]
        _refuse_unknown(per, names)
        for row, name in enumerate(names):
            size, unit = _unit_of(None, (per or {}).get(name))
            block[row] *= size
            terms[row] = terms[row]._replace(unit=unit)
        return _for_levels(model, terms, block, np.zeros(width))
    block, terms = _block(features, per, {one.name: one for one in columns})
    offset = np.zeros(len(terms))
    target = next((one for one in columns if one.name == outcome), None)
    if model.predicts_in_outcome_unit and target is not None and not target.levels:
        center, scale = target.center, target.scale
        if center is not None and scale is not None:
            block, offset[0] = block * scale, center
    return _for_levels(model, terms, block, offset)


def _columns_of(model: Coefficients) -> list[str]:
    prefix = f"{model.levels[0]}: "
    return [name.removeprefix(prefix) for name in model.names[: len(model.layout)]]


def _block(
    features: Iterable[ColumnConfig], per: Per | None, columns: Mapping[str, ColumnConfig]
) -> tuple[np.ndarray, list[Term]]:
    """Return the matrix that maps θ to the coefficients of one linear predictor, and one `Term` per
    row of the matrix.
    """
    terms = [Term(INTERCEPT, INTERCEPT, None)]
    scales, shifts = [1.0], [0.0]
    numeric = []
    for config in features:
        made = _terms(config)
        if config.kind == "numeric":
            numeric.append(config.name)
            if config.product:
                numeric += [one for one in sources_of(config) if not columns[one].levels]
            size, unit = _column_unit(config, per or {}, columns)
            assert config.affine is not None, "a numeric column without center and scale"
            center, scale = config.affine
            made[0] = made[0]._replace(unit=unit)
            terms += made
            scales += [size / scale, *[1.0] * (len(made) - 1)]
            shifts += [-center / scale, *[0.0] * (len(made) - 1)]
        else:
            terms += made
            scales += [1.0] * len(made)
            shifts += [0.0] * len(made)
    _refuse_unknown(per, numeric)
    block = np.diag(scales)
    block[0] += np.array(shifts)
    return block, terms


def _terms(config: ColumnConfig) -> list[Term]:
    """Return one term for each column of x that is made from this column of the records."""
    against = "" if config.reference is None else f" vs {config.reference}"
    missing = Term(f"{config.name}: missing{against}", f"{config.name} missing", None)
    if config.kind == "numeric":
        found = [Term(config.name, config.name, config.name)]
        return [*found, missing] if config.missing == "indicator" else found
    found = [
        Term(f"{config.name}: {level}{against}", f"{config.name}={level}", None)
        for level in config.levels
        if level != config.reference
    ]
    return [*found, missing] if config.missing == "level" else found


def _for_levels(
    model: Coefficients, terms: Sequence[Term], block: np.ndarray, offset: np.ndarray
) -> UnitMap:
    """Return the map from all of θ to coefficients, given the matrix for one linear predictor.

    If each level of the outcome has a linear predictor, the coefficients of a level are given as
    differences from those of the first level.
    """
    if not model.levels:
        further = np.zeros((len(terms), len(model.names) - len(terms)))  # of no column
        return UnitMap(tuple(terms), np.hstack([block, further]), offset)
    first, *others = model.levels
    width = len(terms)
    matrix = np.zeros((len(others) * width, len(model.levels) * width))
    rows = []
    for place, level in enumerate(others):
        at = slice(place * width, (place + 1) * width)
        matrix[at, (place + 1) * width : (place + 2) * width] = block
        matrix[at, :width] = -block
        rows += [
            one._replace(text=f"{level} vs {first}: {one.text}", name=f"{level}: {one.name}")
            for one in terms
        ]
    return UnitMap(tuple(rows), matrix, np.tile(offset, len(others)))


def _column_unit(
    config: ColumnConfig, per: Per, columns: Mapping[str, ColumnConfig]
) -> tuple[float, str | None]:
    if config.name in per or not config.product:
        return _unit_of(config.unit, per.get(config.name))
    size, words = 1.0, []
    for name in sources_of(config):
        if not columns[name].levels:
            own, unit = _unit_of(columns[name].unit, per.get(name))
            size *= own
            words.append((unit, unit or name))
    if not any(unit for unit, _ in words):
        return size, None
    return size, " × ".join(word for _, word in words)


def _unit_of(declared: str | None, wanted: float | str | None) -> tuple[float, str | None]:
    """Return the change of a column whose effect is reported, as a number and as text.

    >>> _unit_of("year", None), _unit_of("year", 10), _unit_of(None, "10 years")
    ((1.0, 'year'), (10.0, '10 year'), (10.0, '10 years'))
    """
    own = None if declared is None else parse_unit(declared)
    if wanted is None:
        return (1.0, None) if own is None else (own[0], declared)
    if isinstance(wanted, str):
        parsed = parse_unit(wanted)
        if parsed is None:
            raise ConfigError(f"per = {wanted!r}; {EXAMPLE}")
        return parsed[0], wanted
    try:
        size = float(wanted)
    except (TypeError, ValueError):
        size = math.nan
    if not 0 < size < math.inf:
        raise ConfigError(f'per = {wanted!r}; give a number above 0, or text such as "10 years"')
    word = "" if own is None else own[1]
    if size == 1 and word:
        return size, word
    return size, f"{size:g} {word}".strip()


def _refuse_unknown(per: Per | None, known: Sequence[str]) -> None:
    for name in per or ():
        if name not in known:
            raise ConfigError(f"per has {name!r}; {choose_from(name, known)}")


def coefficients(
    posterior: Posterior,
    columns: Sequence[ColumnConfig] | None,
    outcome: str | None = None,
    *,
    learned: Sequence[float] | None = None,
    level: float = INTERVAL,
    per: Per | None = None,
) -> list[Coefficient]:
    """Return every coefficient of a regression in the unit of its column, with a central interval.

    Parameters
    ----------
    posterior
        The posterior of θ.
    columns, outcome, per
        As for `unit_map`.
    learned
        1 − (posterior sd / prior sd)² of each coordinate of θ; the coordinates must be uncorrelated
        under the prior.
    level
        Probability of the intervals.

    Returns
    -------
    list of Coefficient
        Empty for a model without linear predictors.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level = {level}; it must be between 0 and 1")
    family = posterior.family
    found = unit_map(posterior.model, columns, outcome, per=per)
    if found is None or not isinstance(family, Gaussian):
        return []
    with one_blas_thread():
        mean, variance = family.free_project(family.free(posterior.natural), found.matrix)
    mean, sd = np.asarray(mean) + found.offset, np.sqrt(np.asarray(variance))
    share = None if learned is None else _learned(posterior.sd, sd, found.matrix, learned)
    width = NormalDist().inv_cdf(0.5 + level / 2)
    reach = width * sd
    rows = [
        Coefficient(
            term=term.text,
            name=term.name,
            unit=term.unit,
            mean=float(mean[i]),
            sd=float(sd[i]),
            low=float(mean[i] - reach[i]),
            high=float(mean[i] + reach[i]),
            learned=None if share is None else float(share[i]),
        )
        for i, term in enumerate(found.terms)
    ]
    unit = _outcome_scale(columns, outcome)
    known = None if learned is None else learned[-1]
    return [*rows, *(_noise(posterior, unit, width, known) if LOG_NOISE in posterior.names else ())]


def _outcome_scale(columns: Sequence[ColumnConfig] | None, outcome: str | None) -> float:
    target = next((one for one in columns or () if one.name == outcome), None)
    return 1.0 if target is None or target.scale is None else target.scale


def _noise(
    posterior: Posterior, unit: float, width: float, learned: float | None
) -> list[Coefficient]:
    """Return the table row of the noise sd, in the outcome's unit. Its posterior is log-normal."""
    middle, sd = float(posterior.mean[-1]) + math.log(unit), float(posterior.sd[-1])
    mean = _exp(middle + 0.5 * sd**2)
    return [
        Coefficient(
            term=NOISE,
            name=LOG_NOISE,
            mean=mean,
            sd=mean * math.sqrt(math.expm1(min(sd**2, 700.0))),
            low=_exp(middle - width * sd),
            high=_exp(middle + width * sd),
            learned=learned,
        )
    ]


def _learned(
    coordinate_sd: np.ndarray, sd: np.ndarray, matrix: np.ndarray, learned: Sequence[float]
) -> np.ndarray:
    """Return 1 − (sd / prior sd)² of each coefficient. The coordinates of θ must be uncorrelated
    under the prior.
    """
    left = np.maximum(1.0 - np.asarray(learned), np.finfo(float).tiny)
    prior = np.square(matrix) @ (np.square(coordinate_sd) / left)
    return 1.0 - np.square(sd) / prior


def ratio_name(model: Model) -> str | None:
    """Return "odds ratio" or "rate ratio", the name of exp(coefficient); None for other models."""
    return model.ratio if isinstance(model, Coefficients) else None


def as_ratios(rows: Iterable[Coefficient]) -> list[Coefficient]:
    """Return exp of every coefficient except the intercept; `mean` is then the posterior median.

    For a normal coefficient, exp(mean) is the median of the ratio, and exp of the ends of its
    interval are quantiles of the ratio. `sd` is the sd of the ratio.
    """
    ratios = []
    for row in rows:
        if row.name == INTERCEPT or row.name.endswith(f": {INTERCEPT}"):
            continue
        variance = row.sd**2
        log_sd = row.mean + 0.5 * variance + 0.5 * _log_expm1(variance)
        ratios.append(
            Coefficient(
                term=row.term,
                name=row.name,
                unit=row.unit,
                mean=_exp(row.mean),
                sd=_exp(log_sd),
                low=_exp(row.low),
                high=_exp(row.high),
                learned=row.learned,
            )
        )
    return ratios


def _log_expm1(value: float) -> float:
    """Return log(exp(value) − 1) without overflow."""
    return value + math.log1p(-math.exp(-value)) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
