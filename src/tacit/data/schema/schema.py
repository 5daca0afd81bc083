"""`tacit.Schema`: the public facts about columns, in Python or from a study file."""

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

    With privacy they must come from knowledge of the field or a code book, never from the records.

    Parameters
    ----------
    bounds
        (low, high) of each number, by column. Values outside are clipped.
    levels
        All values of each category, by column.
    scale
        (center, scale) of numbers: the value that becomes 0, and the difference that becomes 1.
        By default the midpoint and half-width of the bounds.
    missing
        Handling of empty cells, by column: "refuse" (the default), "drop", "indicator" (numbers)
        or "level" (categories).
    missing_values
        Texts and numbers that stand for an empty cell, by column: ["NA", 999].
    units
        Name of each number's unit, by column, for results: "year", or "10 years" for effects per
        ten years.

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
                raise ConfigError(f"levels[{name!r}] = {values!r}; give a list of all its levels")
            rows.setdefault(name, {}).update(levels=[_level(one) for one in values])
        for name, (center, width) in _pairs("scale", scale):
            rows.setdefault(name, {}).update(center=center, scale=width)
        for name, policy in _items("missing", missing):
            if name not in rows and policy == "level":
                raise ConfigError(
                    f"missing[{name!r}] = {policy!r}; declare the levels of that column as well"
                )
            rows.setdefault(name, {})["missing"] = policy
        for name, values in _items("missing_values", missing_values):
            if isinstance(values, str | int | float):
                raise ConfigError(
                    f"missing_values[{name!r}] = {values!r}; give a list, [{values!r}]"
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
        """Make a schema from columns that have been read.

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
        """(low, high) of each number that has bounds."""
        return {
            one.name: (one.low, one.high)
            for one in self.columns
            if one.low is not None and one.high is not None
        }

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """All values of each category."""
        return {one.name: one.levels for one in self.columns if one.levels}

    @property
    def scale(self) -> dict[str, tuple[float, float]]:
        """(center, scale) of each number, as declared or as implied by its bounds."""
        return {one.name: one.affine for one in self.columns if one.affine is not None}

    @property
    def units(self) -> dict[str, str]:
        """The unit of each number that has one."""
        return {one.name: one.unit for one in self.columns if one.unit is not None}

    @property
    def missing(self) -> dict[str, Missing]:
        """Handling of empty cells, by column."""
        return {one.name: one.missing for one in self.columns}

    @property
    def missing_values(self) -> dict[str, tuple[str, ...]]:
        """Texts that are treated as empty cells, for the columns that have some."""
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
        raise ConfigError(f"{argument} = {given!r}; give a dictionary by column name")
    return (given or {}).items()


def _pairs(argument: str, given: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    for name, pair in _items(argument, given):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            words = "(low, high)" if argument == "bounds" else "(center, scale)"
            raise ConfigError(f"{argument}[{name!r}] = {pair!r}; give two numbers, {words}")
        yield name, (pair[0], pair[1])


def read_columns(columns: Any) -> tuple[ColumnConfig, ...]:
    """Read a [columns] table; raises the first error with the others in its attribute `also`."""
    rows, faults = column_rows(columns)
    found = []
    for row in rows:
        made, wrong = find_faults(row, ColumnConfig, column_key(row["name"]))
        faults = [*faults, *wrong]
        found.append(made)
    raise_all(faults)
    return tuple(found)


def column_rows(columns: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Convert a [columns] table to a list of tables with names, and a list of its errors."""
    if not isinstance(columns, dict):
        return [], [f"columns = {short(columns)}; it must be a table of columns, e.g. {EXAMPLE}"]
    rows, faults = [], []
    for name, row in columns.items():
        if isinstance(row, dict) and "name" not in row:
            rows.append({"name": name, **row})
        elif isinstance(row, dict):
            faults.append(
                f"{column_key(name)}.name = {short(row['name'])}; the key is the name: drop it"
            )
        else:
            faults.append(f"{column_key(name)} = {short(row)}; it must be a table, e.g. {EXAMPLE}")
    return rows, faults
