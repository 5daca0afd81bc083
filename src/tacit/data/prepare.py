"""Convert raw cells to numbers by the declared schema.

Reading a column checks every cell and handles missing values. Encoding creates the columns of x.
Between these two steps, rows are split into training and held-out rows, so that pooled statistics,
if requested, use training rows only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import polars as pl

from tacit.data.codes import DECIMAL_COMMA, GROUPED, THOUSANDS
from tacit.data.config import ColumnConfig
from tacit.data.schema.columns import LARGEST
from tacit.errors import DataError
from tacit.support.argument_names import column_key

LEVELS_SHOWN = 50
LEADING_ZERO = r"^[+-]?0\d"
WHOLE = r"^([+-]?\d+)\.0*$"
"""A whole number with a decimal point."""


class CellError(DataError):
    """A cell that cannot be used.

    The message is "<found>; <fix>, or <otherwise>", where `otherwise` is a change of the schema or
    formula. It does not apply to new records of a finished fit.
    """

    def __init__(self, found: str, fix: str, otherwise: str) -> None:
        super().__init__(f"{found}; {fix}, or {otherwise}")
        self.found, self.fix = found, fix

    def __reduce__(self) -> tuple[type[DataError], tuple[str]]:
        return DataError, (str(self),)  # for other processes, the message is enough


class OutsideBoundsWarning(UserWarning):
    """Warning that values outside the declared bounds were clipped to them."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column after reading.

    `values` contains numbers, or the indices of levels in `config.levels`. `missing` marks missing
    values.
    """

    config: ColumnConfig
    values: np.ndarray
    missing: np.ndarray
    notes: tuple[str, ...] = ()
    outside: int = 0
    """Number of values that were clipped to the bounds."""

    @property
    def present(self) -> int:
        """Number of values that are not missing."""
        return int(np.sum(~self.missing))

    def rows(self, keep: np.ndarray) -> Column:
        return replace(self, values=self.values[keep], missing=self.missing[keep])


def as_text(series: pl.Series) -> pl.Series:
    """Convert cells to text without surrounding spaces; whole numbers are written without a decimal
    point.
    """
    if series.dtype.is_float():
        whole = (series == series.round()) & (series.abs() < 2**53)
        integers = series.cast(pl.Int64, strict=False).cast(pl.String)
        series = integers.zip_with(whole.fill_null(False), series.cast(pl.String))
    stripped = series.cast(pl.String).str.strip_chars()
    return stripped.set(stripped == "", None)


def names_of(series: pl.Series) -> pl.Series:
    """Convert the cells of a category to names, by `as_text`.

    In a column of texts that are all numbers, whole numbers are written without a decimal point
    too. A data frame and its CSV file therefore have the same names.
    """
    text = as_text(series)
    if len(text) == text.null_count() or text.cast(pl.Float64, strict=False).null_count() > (
        text.null_count()
    ):
        return text
    return text.str.replace(WHOLE, "${1}")


def named_levels(text: pl.Series, levels: Sequence[str]) -> pl.Series:
    """Replace numbers that equal a declared level by this level: "2.0" by "2".

    This applies if all levels are different numbers without leading zeros. A text with a leading
    zero ("02") is no number here.
    """
    names = pl.Series(list(levels), dtype=pl.String)
    numbers = names.cast(pl.Float64, strict=False)
    plain = numbers.is_finite().fill_null(False) & ~names.str.contains(LEADING_ZERO)
    if not levels or not plain.all() or numbers.n_unique() < len(levels):
        return text
    values = text.cast(pl.Float64, strict=False)
    values = values.set(text.str.contains(LEADING_ZERO).fill_null(False), None)
    found = values.replace_strict(numbers, names, default=None, return_dtype=pl.String)
    return found.zip_with(found.is_not_null(), text)


def missing_cells(series: pl.Series, codes: Sequence[str], *, numeric: bool = False) -> pl.Series:
    """Return a mask of the cells that equal a code for a missing value.

    Numbers are compared as numbers: the code 999 also stands for the text "999.0". If `numeric` is
    false, the cells may be names, and texts with leading zeros ("099") are compared as texts only.

    Parameters
    ----------
    series
        The cells: texts, numbers or categories.
    codes
        The codes, e.g. `ColumnConfig.missing_values`.
    numeric
        True for a column of numbers.
    """
    if not codes:
        return pl.repeat(False, len(series), dtype=pl.Boolean, eager=True)
    text = as_text(series)
    values = text.cast(pl.Float64, strict=False)
    if not numeric:
        values = values.set(text.str.contains(LEADING_ZERO).fill_null(False), None)
    known = pl.Series(list(codes), dtype=pl.String)
    equal = values.is_in(known.cast(pl.Float64, strict=False).drop_nulls().implode())
    return text.is_in(known.implode()).fill_null(False) | equal.fill_null(False)


def read_column(series: pl.Series, config: ColumnConfig, *, pooled: bool) -> Column:
    """Check and convert one column; the first invalid cell raises an error that names its row."""
    if config.kind == "numeric":
        column = _read_numeric(series, config)
    else:
        column = _read_categorical(series, config, pooled=pooled)
    if config.missing == "refuse" and column.missing.any():
        choices = '"drop" or "level"' if config.levels else '"drop" or "indicator"'
        raise CellError(
            f'column "{config.name}", data row {_first(column.missing)}: the value is missing',
            "fill it in",
            f"declare {column_key(config.name)}.missing = {choices} in the schema",
        )
    return column


def _first(mask: np.ndarray) -> int:
    """Return the number of the first marked row; rows count from 1, without the header."""
    return int(np.argmax(mask)) + 1


def _read_categorical(series: pl.Series, config: ColumnConfig, *, pooled: bool) -> Column:
    if series.dtype == pl.Boolean:
        series = _named_booleans(series, config.levels)
    text = as_text(series)
    if {level.lower() for level in config.levels} == {"false", "true"}:  # written by any library
        text = text.str.to_lowercase().replace({level.lower(): level for level in config.levels})
    gone = missing_cells(text, config.missing_values) & ~text.is_in(config.levels).fill_null(False)
    text = text.set(gone, None)
    notes: tuple[str, ...] = ()
    if not config.levels and pooled:
        text = names_of(text)
        levels = tuple(text.drop_nulls().unique().sort().to_list())
        config = msgspec.structs.replace(config, levels=levels)
        notes = (f'column "{config.name}": its {len(levels)} levels come from pooled data',)
    text = named_levels(text, config.levels)
    missing = text.is_null().to_numpy()
    table = {level: code for code, level in enumerate(config.levels)}
    codes = text.replace_strict(table, default=-1, return_dtype=pl.Int64).to_numpy()
    unknown = (codes < 0) & ~missing
    if unknown.any():
        row = _first(unknown)
        shown = ", ".join(config.levels[:LEVELS_SHOWN])
        more = f", … ({len(config.levels)} in all)" if len(config.levels) > LEVELS_SHOWN else ""
        raise DataError(
            f'column "{config.name}", data row {row}: "{text[row - 1]}" is not a declared level;'
            f" the levels are {shown}{more}"
        )
    return Column(config=config, values=np.where(missing, 0, codes), missing=missing, notes=notes)


def _named_booleans(series: pl.Series, levels: Sequence[str]) -> pl.Series:
    """Convert booleans to the declared levels: to "true" and "false", or to "1" and "0"."""
    names = {level.lower(): level for level in levels}
    for no, yes in (("false", "true"), ("0", "1")):
        if no in names and yes in names:
            return series.replace_strict(
                {True: names[yes], False: names[no]}, return_dtype=pl.String
            )
    return series.cast(pl.String)


def _read_numeric(series: pl.Series, config: ColumnConfig) -> Column:
    if series.dtype.is_temporal():
        raise DataError(
            f'column "{config.name}" holds dates or times, not numbers; convert it, e.g. to years'
            " since a public date"
        )
    if isinstance(series.dtype, pl.Enum | pl.Categorical):
        series = series.cast(pl.String)
    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(
            f'column "{config.name}" has type {series.dtype}, not a number;'
            ' store it as a number or declare kind = "categorical"'
        )
    gone = missing_cells(series, config.missing_values, numeric=True)
    if series.dtype == pl.String:
        series = as_text(series).set(gone, None)
    numbers = series.cast(pl.Float64, strict=False)
    unparsed = (numbers.is_null() & series.is_not_null()).to_numpy()
    if unparsed.any():
        row = _first(unparsed)
        refuse_decimal_comma(series, f'column "{config.name}"')
        raise CellError(
            f'column "{config.name}", data row {row}: "{series[row - 1]}" is not a number',
            "fix the cell",
            _as_missing(config, series[row - 1]),
        )
    missing = (numbers.is_null() | gone).to_numpy()
    values = numbers.fill_null(0.0).to_numpy()
    broken = ~np.isfinite(values) & ~missing
    if broken.any():
        row = _first(broken)
        raise CellError(
            f'column "{config.name}", data row {row}: the value is {values[row - 1]}',
            "fix the cell",
            _as_missing(config, values[row - 1]),
        )
    return _within_bounds(np.where(missing, 0.0, values), missing, config)


def _as_missing(config: ColumnConfig, value: object) -> str:
    """Return the advice to declare a value as a code for missing."""
    key = column_key(config.name)
    return f'declare {key}.missing_values = ["{value}"] and {key}.missing = "drop"'


def refuse_large(values: np.ndarray, missing: np.ndarray, config: ColumnConfig) -> None:
    """Raise an error for a number whose size exceeds `LARGEST`, in a column without bounds."""
    large = np.isfinite(values) & (np.abs(values) > LARGEST) & ~missing
    if not large.any():
        return
    row = _first(large)
    shown = f"{values[row - 1]:g}"
    raise CellError(
        f'column "{config.name}", data row {row}: {shown} exceeds {LARGEST:g}, the largest size of '
        "a number",
        "fix the cell",
        "choose another transformation" if config.derived else _as_missing(config, shown),
    )


def refuse_decimal_comma(series: pl.Series, what: str) -> None:
    """Raise an error if a column of numbers contains commas, as in "64,5" or "27,200".

    Such a text is not read as a number, because "1,234" may be 1.234 or 1234.

    Parameters
    ----------
    series
        A column of texts.
    what
        Name of the column at the beginning of the error message, e.g. 'column "age"'.
    """
    decimal, thousands, grouped = (
        series.str.contains(pattern).fill_null(False)
        for pattern in (DECIMAL_COMMA, THOUSANDS, GROUPED)
    )
    comma = decimal | thousands | grouped
    plain = series.cast(pl.Float64, strict=False).is_not_null() | series.is_null()
    if not comma.any() or not (comma | plain).all():
        return
    sure = comma & ~(decimal & thousands)  # "27,200" may be either
    row = _first((sure if sure.any() else comma).to_numpy())
    text = series[row - 1]
    advice = (
        "has commas between thousands; remove them, or give the frame of pandas.read_csv(path, "
        'sep=…, thousands=",")'
    )
    if decimal[row - 1] or grouped[row - 1]:
        dots = ', thousands="."' if grouped.any() else ""
        advice = (
            "has a decimal comma; write numbers with a point, or give the frame of "
            f'pandas.read_csv(path, sep=";", decimal=","{dots})'
        )
    if not sure.any():
        small, large = (float(text.replace(",", sign)) for sign in (".", ""))
        advice = (
            f"may be {small:g} or {large:.15g}; write it with a point or without a comma, or give "
            'the frame of pandas.read_csv(path, sep=…, decimal=",") in the first case and of '
            'pandas.read_csv(path, sep=…, thousands=",") in the second'
        )
    raise DataError(f'{what}, data row {row}: "{text}" {advice}')


def _within_bounds(values: np.ndarray, missing: np.ndarray, config: ColumnConfig) -> Column:
    if config.low is None or config.high is None:
        refuse_large(values, missing, config)
        return Column(config=config, values=values, missing=missing)
    outside = ((values < config.low) | (values > config.high)) & ~missing
    notes: tuple[str, ...] = ()
    if outside.any():
        if config.outside == "refuse":
            row = _first(outside)
            raise CellError(
                f'column "{config.name}", data row {row}: {values[row - 1]:g} is outside'
                f" [{config.low:g}, {config.high:g}]",
                "fix the cell",
                'widen the bounds or declare outside = "clip"',
            )
        notes = (
            f'column "{config.name}": values clipped to [{config.low:g}, {config.high:g}]:'
            f" {outside.sum()}",
        )
    clipped = np.where(missing, 0.0, np.clip(values, config.low, config.high))
    return Column(
        config=config, values=clipped, missing=missing, notes=notes, outside=int(outside.sum())
    )


def count_outside(columns: Iterable[Column]) -> dict[str, int]:
    """Return the number of clipped values of each column in which values were clipped."""
    return {column.config.name: column.outside for column in columns if column.outside}


def share_outside(columns: Iterable[Column]) -> dict[str, float]:
    """Return the share of clipped values of each column in which values were clipped. The columns
    must have all their rows.
    """
    return {
        column.config.name: column.outside / column.present for column in columns if column.outside
    }


def warn_outside(
    clipped: Mapping[str, int], columns: Iterable[ColumnConfig], where: str, *, stacklevel: int
) -> None:
    """Warn about clipped values, with exact counts.

    Call this only where the user may see the records.
    """
    if not clipped:
        return
    known = {config.name: config for config in columns}
    each = ", ".join(
        f"{count} value{'' if count == 1 else 's'} of {name} to [{known[name].low:g}, "
        f"{known[name].high:g}]"
        for name, count in clipped.items()
    )
    warnings.warn(
        f"{where} outside the declared bounds were clipped: {each}; correct the values, or widen "
        "the bounds if they are plausible",
        OutsideBoundsWarning,
        stacklevel=stacklevel + 1,
    )


def with_pooled_scale(column: Column, train: np.ndarray) -> Column:
    """Return the column with centre and scale computed from the training rows of all parties.

    These statistics are not private.
    """
    if column.config.kind == "categorical":
        return column
    seen = column.values[train][~column.missing[train]]
    center = float(seen.mean()) if len(seen) else 0.0
    deviation = float(seen.std()) if len(seen) else 0.0
    scale = deviation if deviation > 0 else 1.0
    return replace(
        column, config=msgspec.structs.replace(column.config, center=center, scale=scale)
    )


def column_names(config: ColumnConfig) -> tuple[str, ...]:
    """Return the names of the columns of x that one source column becomes.

    >>> column_names(ColumnConfig(name="chol", low=100, high=400, missing="indicator"))
    ('chol', 'chol missing')
    """
    if config.kind == "numeric":
        names = (config.name,)
        extra = config.missing == "indicator"
    else:
        kept = (level for level in config.levels if level != config.reference)
        names = tuple(f"{config.name}={level}" for level in kept)
        extra = config.missing == "level"
    return (*names, f"{config.name} missing") if extra else names


def encode(columns: Sequence[Column], rows: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the design matrix, with the intercept first, and the names of its columns.

    The names depend only on the schema, so that they are the same for all parties.
    """
    names = ["intercept"]
    for column in columns:
        names.extend(column_names(column.config))
    x = np.zeros((rows, len(names)))
    x[:, 0] = 1.0
    at = 1
    for column in columns:
        config = column.config
        if config.kind == "numeric":
            affine = config.affine
            assert affine is not None, "the configuration refuses a feature without a scale"
            x[:, at] = np.where(column.missing, 0.0, (column.values - affine[0]) / affine[1])
            if config.missing == "indicator":
                x[:, at + 1] = column.missing
        else:
            codes = np.where(column.missing, len(config.levels), column.values)
            place = np.arange(len(config.levels) + 1)
            # Only missing = "level" has a column for missing values; other such rows are dropped.
            shown = ~column.missing if config.missing != "level" else np.ones(rows, dtype=bool)
            if config.reference is not None:
                left_out = config.levels.index(config.reference)
                place[left_out:] -= 1
                shown &= codes != left_out
            x[np.flatnonzero(shown), at + place[codes[shown]]] = 1.0
        at += len(column_names(config))
    return x, tuple(names)


def without_intercept(x: np.ndarray) -> np.ndarray:
    """Return the design matrix without its first column, the intercept, for a model without an
    outcome.
    """
    return np.ascontiguousarray(x[:, 1:])


def as_kept(column: Column) -> np.ndarray:
    """Return the values of a column of data.keep: indices of levels, or unscaled numbers.

    A missing level gets the index after the last level. A missing number becomes the declared
    centre, or NaN if no centre is declared.
    """
    if column.config.kind == "categorical":
        return np.where(column.missing, len(column.config.levels), column.values)
    affine = column.config.affine
    return np.where(column.missing, affine[0] if affine else np.nan, column.values)
