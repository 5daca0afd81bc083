"""`tacit.Schema`: the public facts about columns, given in Python or in a TOML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.data.schema.columns import ColumnConfig, Missing
from tacit.errors import ConfigError
from tacit.support.argument_names import column_key, python_names
from tacit.support.table_reader import find_faults, read_toml_file
from tacit.support.tables import raise_all, short

EXAMPLE = "age = { low = 18, high = 105 }"


class Schema:
    """Public facts about columns that every party may know before any record is read.

    In a private run they must come from knowledge of the field or a code book, never from the
    records.

    Parameters
    ----------
    bounds
        A dict from numeric columns to (low, high). Values outside are clipped.
    levels
        A dict from categorical columns to all their values.
    scale
        A dict from numeric columns to (center, scale). A value v becomes (v − center) / scale. The
        default is the midpoint and half the width of the bounds.
    missing
        A dict from columns to the handling of empty cells: "refuse" (the default) raises an error,
        "drop" drops the row, "indicator" (numeric columns) adds a 0/1 column, and "level"
        (categorical columns) adds a level.
    missing_values
        A dict from columns to the texts and numbers that stand for an empty cell, e.g. ["NA", 999].
    units
        A dict from numeric columns to the unit of measurement in which results show effects:
        "year", or "10 years" for effects per ten years.

    Examples
    --------
    >>> schema = Schema(bounds={"age": (18, 105)}, levels={"smoker": ("no", "yes")})
    >>> schema.bounds, schema.levels
    ({'age': (18.0, 105.0)}, {'smoker': ('no', 'yes')})
    """

    columns: tuple[ColumnConfig, ...]
    """All facts, column by column, as in the [columns] table of a study file."""

    def __init__(
        self,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        levels: Mapping[str, Sequence[str | float | bool]] | None = None,
        scale: Mapping[str, tuple[float, float]] | None = None,
        missing: Mapping[str, Missing] | None = None,
        units: Mapping[str, str] | None = None,
        missing_values: Mapping[str, Sequence[str | float]] | None = None,
    ) -> None:
        rows: dict[str, dict[str, Any]] = {}
        for name, (low, high) in _pairs("bounds", bounds):
            rows.setdefault(name, {}).update(low=low, high=high)
        for name, values in _items("levels", levels):
            if isinstance(values, str):
                raise ConfigError(
                    f"levels[{name!r}] = {values!r}; give a list of all levels of the column"
                )
            rows.setdefault(name, {}).update(levels=[_level(one) for one in values])
        for name, (center, width) in _pairs("scale", scale):
            rows.setdefault(name, {}).update(center=center, scale=width)
        for name, policy in _items("missing", missing):
            if name not in rows and policy == "level":
                raise ConfigError(
                    f"missing[{name!r}] = {policy!r} needs declared levels; add them as"
                    f" levels[{name!r}]"
                )
            rows.setdefault(name, {})["missing"] = policy
        for name, values in _items("missing_values", missing_values):
            if isinstance(values, str | int | float):
                raise ConfigError(
                    f"missing_values[{name!r}] = {values!r}; give a list, e.g. [{values!r}]"
                )
            rows.setdefault(name, {})["missing_values"] = [_level(one) for one in values]
        for name, unit in _items("units", units):
            rows.setdefault(name, {})["unit"] = unit
        with python_names():
            self.columns = read_columns(rows)

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """Read the [columns] table of a TOML file.

        Parameters
        ----------
        path
            A study file, or any TOML file with a [columns] table. Other keys are not read.
        """
        raw = read_toml_file(Path(path))
        if "columns" not in raw:
            raise ConfigError(f"{path} has no [columns] table; add one, e.g. {EXAMPLE}")
        return cls.of(read_columns(raw["columns"]))

    @classmethod
    def of(cls, columns: Iterable[ColumnConfig]) -> Schema:
        """Make a schema from the declarations of columns.

        Parameters
        ----------
        columns
            The public facts about each column.
        """
        schema = cls()
        schema.columns = tuple(columns)
        return schema

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """(low, high) of each numeric column that has bounds."""
        return {
            one.name: (one.low, one.high)
            for one in self.columns
            if one.low is not None and one.high is not None
        }

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """All values of each categorical column."""
        return {one.name: one.levels for one in self.columns if one.levels}

    @property
    def scale(self) -> dict[str, tuple[float, float]]:
        """(center, scale) of each numeric column, as declared or else the midpoint and half-width
        of its bounds.
        """
        return {one.name: one.affine for one in self.columns if one.affine is not None}

    @property
    def units(self) -> dict[str, str]:
        """The unit of each numeric column that has one."""
        return {one.name: one.unit for one in self.columns if one.unit is not None}

    @property
    def missing(self) -> dict[str, Missing]:
        """How empty cells of each column are handled."""
        return {one.name: one.missing for one in self.columns}

    @property
    def missing_values(self) -> dict[str, tuple[str, ...]]:
        """Texts that are treated as empty cells, for each column that has such texts."""
        return {one.name: one.missing_values for one in self.columns if one.missing_values}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        return f"Schema({', '.join(one.name for one in self.columns)})"


def _level(value: Any) -> Any:
    """Return a level as text: 1 becomes "1", and True becomes "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) else value


def _items(argument: str, given: Any) -> Iterable[tuple[str, Any]]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{argument} = {given!r}; give a dictionary with column names as keys")
    return (given or {}).items()


def _pairs(argument: str, given: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    for name, pair in _items(argument, given):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            words = "(low, high)" if argument == "bounds" else "(center, scale)"
            raise ConfigError(f"{argument}[{name!r}] = {pair!r}; give two numbers, {words}")
        yield name, (pair[0], pair[1])


def read_columns(columns: Any) -> tuple[ColumnConfig, ...]:
    """Return the columns that a [columns] table declares.

    If there are errors, the first is raised, and its attribute `also` contains the others.
    """
    rows, faults = column_rows(columns)
    found = []
    for row in rows:
        made, wrong = find_faults(row, ColumnConfig, column_key(row["name"]))
        faults = [*faults, *wrong]
        found.append(made)
    raise_all(faults)
    return tuple(found)


def column_rows(columns: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the columns of a [columns] table, and a list of error messages.

    Each column is a dictionary that contains its name as "name".
    """
    if not isinstance(columns, dict):
        return [], [f"columns = {short(columns)}; it must be a table of columns, e.g. {EXAMPLE}"]
    rows, faults = [], []
    for name, row in columns.items():
        if isinstance(row, dict) and "name" not in row:
            rows.append({"name": name, **row})
        elif isinstance(row, dict):
            faults.append(
                f"{column_key(name)}.name = {short(row['name'])}; the table's key is the column's "
                "name: leave name out"
            )
        else:
            faults.append(f"{column_key(name)} = {short(row)}; it must be a table, e.g. {EXAMPLE}")
    return rows, faults
