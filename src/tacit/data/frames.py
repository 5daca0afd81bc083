"""Convert data frames of any library to polars columns.

pandas, polars, Arrow tables and DuckDB relations are read through narwhals. Dictionaries of
columns, NumPy structured arrays and files are supported too. Only the columns that a study uses are
converted, so that other columns may have any type. Missing values become null. In pandas and NumPy,
NaN is a missing value; in polars and Arrow it is a number, which is refused later.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tacit.data.readers.files import read_file
from tacit.data.schema.table import listed
from tacit.errors import DataError

TIMES = (datetime.date, datetime.time, datetime.timedelta)
FRAMES = "a pandas, polars or Arrow table, a dictionary of columns, or the path of a file"


@dataclass(frozen=True)
class RawFrame:
    """A table whose columns are read one by one."""

    where: str
    """Name of the table for error messages."""
    names: tuple[str, ...]
    rows: int
    read: Callable[[str], pl.Series]
    of_file: bool = False
    """True for a table read from a file. `select` then accepts columns of dates and times; a later
    check refuses them.
    """

    def select(self, names: Iterable[str]) -> pl.DataFrame:
        """Read the named columns; raise an error for an unknown name."""
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in self.names:
                raise DataError(
                    f'{self.where}: there is no column "{name}"; the columns are '
                    f"{listed(self.names)}"
                )
        found = {name: self.read(name).alias(name) for name in wanted}
        for name, series in found.items():
            if series.dtype.is_temporal() and not self.of_file:
                raise _dates(name, self.where)
        return pl.DataFrame(list(found.values()))

    def others(self, names: Iterable[str]) -> pl.DataFrame:
        """Read all columns that are not in `names` and can be read.

        A ledger also uses these columns to identify records.
        """
        used, found = set(names), []
        for name in self.names:
            if name not in used:
                with contextlib.suppress(DataError):  # a column that no study could use
                    found.append(self.read(name).alias(name))
        return pl.DataFrame(found)


def is_frame(value: Any) -> bool:
    """True if a value is a single table. A dictionary of columns is one; a dictionary of tables is
    not.
    """
    if isinstance(value, str | Path):
        return True
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, Mapping):
        return bool(value) and all(_is_column(one) for one in value.values())
    return _as_narwhals(value) is not None


def _is_column(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.names is None
    if isinstance(value, str | Path | Mapping):
        return False
    if isinstance(value, list | tuple):
        return not any(isinstance(one, Path | Mapping) or is_table(one) for one in value)
    return is_series(value)


def is_series(value: Any) -> bool:
    """True if the value is a column of pandas, polars or Arrow."""
    import narwhals.stable.v2 as nw

    try:
        nw.from_native(value, series_only=True)
    except TypeError:
        return False
    return True


def is_table(value: Any) -> bool:
    """True if the value is a data frame of a supported library."""
    return _as_narwhals(value) is not None


def _as_narwhals(value: Any) -> Any:
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import NarwhalsError

    if isinstance(value, str | bytes | int | float | list | tuple | dict | type(None)):
        return None
    try:
        return nw.from_native(value)
    except TypeError:
        return None
    except NarwhalsError as error:
        raise DataError(
            f"the data frame cannot be read ({' '.join(str(error).split())}); rename columns so "
            "that all names differ"
        ) from None


def raw_frame(value: Any, where: str, *, separator: str = ",") -> RawFrame:
    """Open a table of any supported kind.

    Parameters
    ----------
    value
        A table, a dictionary of columns, a structured array, or the path of a file.
    where
        Name of the table in messages, e.g. 'party "north"'.
    separator
        Separator of CSV files.
    """
    if isinstance(value, str | Path):
        return _of_polars(read_file(Path(value), str(value), separator=separator), where)
    if isinstance(value, np.ndarray):
        return _of_array(value, where)
    if isinstance(value, Mapping):
        return _of_columns(value, where)
    frame = _as_narwhals(value)
    if frame is None:
        verb = "are" if where.endswith("records") else "is"
        raise DataError(f"{where} {verb} of type {type(value).__name__}; give {FRAMES}")
    return _of_narwhals(frame, where)


def _of_polars(frame: pl.DataFrame, where: str) -> RawFrame:
    return RawFrame(where, tuple(frame.columns), frame.height, frame.get_column, of_file=True)


def _of_array(array: np.ndarray, where: str) -> RawFrame:
    if array.dtype.names is None:
        shape = " × ".join(map(str, array.shape))
        raise DataError(
            f"{where} is an array of {shape} numbers without column names; give a data frame, e.g. "
            "pandas.DataFrame(array, columns=[…])"
        )
    return _of_columns({name: array[name] for name in array.dtype.names}, where)


def _of_columns(columns: Mapping[Any, Any], where: str) -> RawFrame:
    lengths = {}
    for name, column in columns.items():
        _check_name(name, where)
        if not isinstance(column, list | tuple | np.ndarray) and not is_series(column):
            raise DataError(
                f'{where}, column "{name}" is a {type(column).__name__}; give a list or an array'
            )
        if isinstance(column, np.ndarray) and column.ndim != 1:
            raise DataError(
                f'{where}, column "{name}" has {column.ndim} dimensions; give one value per record'
            )
        lengths[str(name)] = len(column)
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: columns have unequal lengths {lengths}; make them equal")
    rows = next(iter(lengths.values()), 0)

    def read(name: str) -> pl.Series:
        column = columns[name]
        if is_series(column):
            import narwhals.stable.v2 as nw

            return _of_series(nw.from_native(column, series_only=True), name, where)
        return _of_values(column, name, where)

    return RawFrame(where, tuple(lengths), rows, read)


def _of_narwhals(frame: Any, where: str) -> RawFrame:
    import narwhals.stable.v2 as nw

    if isinstance(frame, nw.LazyFrame):
        native = nw.to_native(frame)
        if hasattr(native, "fetchnumpy"):  # a DuckDB relation, without pyarrow
            return of_duckdb(native.columns, native.fetchnumpy(), where)
        frame = frame.collect(backend="polars")
    for name in frame.columns:
        _check_name(name, where)

    def read(name: str) -> pl.Series:
        return _of_series(frame[name], name, where)

    return RawFrame(where, tuple(frame.columns), len(frame), read)


def of_duckdb(names: Iterable[str], rows: Mapping[str, Any], where: str) -> RawFrame:
    """Convert columns that DuckDB returned as NumPy arrays to a table; NULL becomes None."""
    return _of_columns({name: _unmasked(rows[name]) for name in names}, where)


def _unmasked(column: Any) -> Any:
    if isinstance(column, np.ma.MaskedArray):
        return column.tolist() if column.mask.any() else np.asarray(column)
    return column if isinstance(column, np.ndarray) else list(column)  # a Categorical for ENUM


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise DataError(f"{where}: column name {name!r} is not text; rename it, e.g. {str(name)!r}")


def _of_series(series: Any, name: str, where: str) -> pl.Series:
    """Convert a narwhals column to a polars column."""
    import narwhals.stable.v2 as nw

    native = nw.to_native(series)
    if isinstance(native, pl.Series):
        return _plain(native, name, where)
    kind = series.dtype
    missing = np.asarray(series.is_null().to_numpy(), dtype=bool)
    if kind.is_float() or (kind.is_integer() and not missing.any()):
        values = pl.Series(name, np.asarray(series.to_numpy()))
        return values.set(pl.Series(missing), None) if missing.any() else values
    values = [None if gone else one for gone, one in zip(missing, series.to_list(), strict=True)]
    if isinstance(kind, nw.Categorical | nw.Enum):
        return _of_categories(values, series.cat.get_categories().to_list(), name, where)
    return _of_values(values, name, where)


def _plain(series: pl.Series, name: str, where: str) -> pl.Series:
    """Convert a polars column to a type that tacit supports."""
    kind = series.dtype
    if kind == pl.Object:
        return _of_values(series.to_list(), name, where)
    if isinstance(kind, pl.Decimal):
        return series.cast(pl.Float64)
    if kind.is_nested() or kind == pl.Binary:
        raise _wrong_values(name, where, str(kind))
    return series


def _of_categories(values: list[Any], categories: list[Any], name: str, where: str) -> pl.Series:
    """Convert a categorical column to an ordered `pl.Enum` if all categories are text, otherwise to
    a column of plain values.
    """
    if categories and all(isinstance(one, str) for one in categories):
        return pl.Series(name, values, dtype=pl.Enum(categories))
    return _of_values(values, name, where)


def _of_values(values: Any, name: str, where: str) -> pl.Series:
    """Convert Python or NumPy values to a column of numbers, booleans, text or times."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        unit = f"{values.dtype.kind}8[us]"
        return pl.Series(name, values.astype(unit))
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        series = pl.Series(name, np.ascontiguousarray(values))
        return series.fill_nan(None) if values.dtype.kind == "f" else series
    cells = [_cell(one) for one in (values.tolist() if isinstance(values, np.ndarray) else values)]
    kinds = {type(one) for one in cells if one is not None}
    if kinds <= {bool}:
        return pl.Series(name, cells, dtype=pl.Boolean)
    if kinds <= {int, float, bool}:
        numeric = [None if one is None else float(one) for one in cells]
        return pl.Series(name, numeric, dtype=pl.Float64)
    if kinds <= {str, int, float, bool}:
        return pl.Series(name, [_text(one) for one in cells], dtype=pl.String)
    if kinds and all(issubclass(kind, TIMES) for kind in kinds):
        return _of_times(cells, name, where)
    strange = next(kind for kind in kinds if kind not in (str, int, float, bool))
    raise _wrong_values(name, where, strange.__name__)


def _of_times(cells: list[Any], name: str, where: str) -> pl.Series:
    """Convert dates or times to a column.

    Models do not support such a column, but a ledger uses it to identify records.
    """
    if all(isinstance(one, datetime.date | None) for one in cells):
        text = [None if one is None else one.isoformat() for one in cells]
        with contextlib.suppress(pl.exceptions.PolarsError):
            return pl.Series(name, text).str.to_datetime(time_unit="us", strict=True)
    try:
        return pl.Series(name, cells)
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        raise _dates(name, where) from None


def _cell(value: Any) -> Any:
    """Convert a value to a plain Python value, and markers of missing values to None."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, decimal.Decimal | numbers.Real):
        number = float(value)
        return None if number != number else number
    if isinstance(value, np.str_):
        return str(value)
    return value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _dates(name: str, where: str) -> DataError:
    return DataError(
        f'{where}, column "{name}" holds dates or times; convert it to a number, e.g. years since '
        "a public date"
    )


def _wrong_values(name: str, where: str, kind: str) -> DataError:
    return DataError(
        f'{where}, column "{name}" holds values of type {kind}; give numbers, text or booleans, '
        "one per record"
    )


def frame_library(data: Any) -> str | None:
    """Return "pandas" or "pyarrow" if the records are frames of that library, else None.

    Parameters
    ----------
    data
        The records of a fit: one table, or a dict from party names to tables, of which only the
        first is examined.
    """
    import narwhals.stable.v2 as nw

    if isinstance(data, Mapping):
        data = next(iter(data.values()), None)
    if nw.dependencies.is_pandas_dataframe(data) or nw.dependencies.is_pandas_series(data):
        return "pandas"
    return "pyarrow" if nw.dependencies.is_pyarrow_table(data) else None


def to_library(found: pl.DataFrame, library: str | None, index: Any = None) -> Any:
    """Convert a polars frame to a frame of another library.

    Parameters
    ----------
    found
        The frame.
    library
        "pandas", "pyarrow", or None for polars. If the library is not installed, the result is
        the polars frame.
    index
        The index of a pandas frame.
    """
    if library is None or find_spec(library) is None:
        return found
    if library == "pyarrow":
        return found.to_arrow()
    import pandas

    columns = {name: found[name].to_numpy() for name in found.columns}
    return pandas.DataFrame(columns, index=index)


def like_frame(found: Any, given: Any) -> Any:
    """Convert a polars frame to the library of `given`, and keep the index of a pandas `given`."""
    return to_library(found, frame_library(given), getattr(given, "index", None))
