"""Columns computed from other columns: transformations and interactions of a formula.

A derived column is a numeric column of the public schema. The values of its source columns are
clipped to their bounds, and the bounds of the derived column are computed from these bounds.

An interaction is the product of its factors. A numeric factor is first centred at its public
centre. This does not change the coefficient of the interaction, but main effects are then effects
at the centres. For bounded columns the centred product is nearly uncorrelated with the main
effects.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from tacit.data.expressions import Range, parse_expression, times
from tacit.data.formula import Term
from tacit.data.prepare import CellError, read_column
from tacit.data.schema.columns import ColumnConfig, Missing
from tacit.errors import ConfigError, DataError

_LEVEL = re.compile(r"(?P<name>.*)\[(?P<level>[^\[\]]*)\]", re.DOTALL)


def sources_of(config: ColumnConfig) -> tuple[str, ...]:
    """Return the names of the columns from which a derived column is computed; they may be derived
    too.
    """
    if config.expression is not None:
        return parse_expression(config.expression).columns
    return tuple(dict.fromkeys(_factor(one)[0] for one in config.product))


def raw_names(configs: Iterable[ColumnConfig], wanted: Iterable[str]) -> list[str]:
    """Return the names of the table columns from which the columns `wanted` are computed."""
    known = {config.name: config for config in configs}
    found: dict[str, None] = {}
    left = list(wanted)
    while left:
        name = left.pop(0)
        config = known.get(name)
        if config is None or not config.derived:
            found[name] = None
        else:
            left = [*sources_of(config), *left]
    return list(found)


def with_derived(
    frame: pl.DataFrame, configs: Sequence[ColumnConfig], wanted: Iterable[str]
) -> pl.DataFrame:
    """Return the table with additional columns: the derived columns among `wanted`.

    A derived value is missing if one of its sources is missing.
    """
    known = {config.name: config for config in configs}
    for name in wanted:
        config = known.get(name)
        if config is not None and config.derived and name not in frame.columns:
            frame = with_derived(frame, configs, sources_of(config))
            frame = frame.with_columns(_values(frame, config, known).alias(name))
    return frame


def _values(
    frame: pl.DataFrame, config: ColumnConfig, known: Mapping[str, ColumnConfig]
) -> pl.Series:
    gone = np.zeros(frame.height, dtype=bool)
    read = {}
    for name in sources_of(config):
        if name not in frame.columns:
            raise DataError(
                f'column "{name}" is not in the data, but the formula needs it for {config.name}; '
                "add the column, or remove that term"
            )
        source = known.get(name, ColumnConfig(name=name))
        read[name] = read_column(frame[name], source, pooled=False)
        gone |= read[name].missing
    if config.expression is not None:
        values = parse_expression(config.expression).values(
            {name: column.values for name, column in read.items()}
        )
    else:
        values = np.ones(frame.height)
        for factor in config.product:
            name, level = _factor(factor)
            column = read[name]
            if level is not None:
                values = values * (column.values == column.config.levels.index(level))
            else:
                affine = column.config.affine
                assert affine is not None, "a factor has a centre"
                values = values * (column.values - affine[0])
    broken = ~np.isfinite(values) & ~gone
    if broken.any():
        row = int(np.argmax(broken))
        name = next(iter(read))
        raise CellError(
            f'column "{name}", data row {row + 1}: {config.name} of {read[name].values[row]:g} is '
            f"{values[row]:g}",
            "correct the cell",
            "choose another transformation",
        )
    if config.low is not None and config.high is not None:
        values = np.clip(values, config.low, config.high)  # against rounding
    return pl.Series(np.where(gone, np.nan, values)).fill_nan(None)


def _factor(text: str) -> tuple[str, str | None]:
    found = _LEVEL.fullmatch(text)
    return (text, None) if found is None else (found["name"], found["level"])


def columns_of(
    terms: Sequence[Term],
    plain: Callable[[Term], ColumnConfig],
    scaled: Callable[[ColumnConfig], ColumnConfig],
) -> list[ColumnConfig]:
    """Return the schema of a formula's columns.

    The columns of x come first, in order, followed by the columns from which they are computed.

    Parameters
    ----------
    terms
        Terms of the formula.
    plain
        Function that returns the public schema of a term that is a column of the records.
    scaled
        Function that adds a centre and scale to a derived column without bounds, or raises an
        error.
    """
    features: dict[str, ColumnConfig] = {}
    others: dict[str, ColumnConfig] = {}

    def known(term: Term) -> ColumnConfig:
        name = term.column
        if name not in features and name not in others:
            made = _transformed(term, source, scaled) if term.expression else plain(term)
            others[name] = msgspec.structs.replace(made, feature=False)
        return features.get(name) or others[name]

    def source(name: str) -> ColumnConfig:
        return known(Term(name))

    for term in terms:
        if not term.factors:
            made = _transformed(term, source, scaled) if term.expression else plain(term)
            features[term.column] = msgspec.structs.replace(made, feature=True)
    for term in terms:
        if term.factors:
            for made in _products([known(one) for one in term.factors]):
                features[made.name] = made
    unused = [config for name, config in others.items() if name not in features]
    return [*features.values(), *unused]


def _transformed(
    term: Term,
    source: Callable[[str], ColumnConfig],
    scaled: Callable[[ColumnConfig], ColumnConfig],
) -> ColumnConfig:
    assert term.expression is not None
    expression = parse_expression(term.expression)
    sources = [source(name) for name in expression.columns]
    for one in sources:
        if one.levels:
            raise ConfigError(
                f"{term.column}: {one.name} is a category, not a number; use it without the "
                "transformation"
            )
    made = ColumnConfig(
        name=term.column, expression=term.expression, missing=_missing(term.column, sources)
    )
    if not all(one.bounded for one in sources):
        return scaled(made)
    ranges = {one.name: _bounds(one) for one in sources}
    low, high = expression.bounds(ranges)
    return msgspec.structs.replace(made, low=low, high=high)


def _bounds(config: ColumnConfig) -> Range:
    assert config.low is not None
    assert config.high is not None
    return config.low, config.high


def _missing(name: str, sources: Sequence[ColumnConfig]) -> Missing:
    """Return the setting `missing` of a derived column: "drop" if a source has "drop", else
    "refuse".

    A source with "indicator" or "level" raises an error.
    """
    for one in sources:
        if one.missing in ("indicator", "level"):
            raise ConfigError(
                f'{name}: missing = "{one.missing}" of {one.name} cannot be combined with a '
                'transformation or interaction; use "drop"'
            )
    return "drop" if any(one.missing == "drop" for one in sources) else "refuse"


def _products(factors: Sequence[ColumnConfig]) -> list[ColumnConfig]:
    """Return the schema of the columns of an interaction, one column per combination of
    non-reference levels.
    """
    name = ":".join(one.name for one in factors)
    missing = _missing(name, factors)
    choices = [
        [f"{one.name}[{level}]" for level in one.levels if level != one.reference]
        if one.levels
        else [one.name]
        for one in factors
    ]
    numbers = [one for one in factors if not one.levels]
    unit = numbers[0].unit if len(numbers) == 1 else None  # of the only number
    found = []
    for chosen in itertools.product(*choices):
        scale, limits = 1.0, (1.0, 1.0)
        for config in factors:
            if config.levels:
                limits = times(limits, (0.0, 1.0))
                continue
            if config.affine is None:
                raise ConfigError(
                    f"{name}: {config.name} has no bounds, and no centre and scale; declare its "
                    "bounds"
                )
            center, own = config.affine
            scale *= own
            inside = (-math.inf, math.inf)
            if config.bounded:
                low, high = _bounds(config)
                inside = (low - center, high - center)
            limits = times(limits, inside)
        bounded = math.isfinite(limits[0]) and math.isfinite(limits[1])
        found.append(
            ColumnConfig(
                name=":".join(chosen),
                product=chosen,
                center=0.0,
                scale=scale,
                missing=missing,
                unit=unit,
                low=limits[0] if bounded else None,
                high=limits[1] if bounded else None,
            )
        )
    return found
