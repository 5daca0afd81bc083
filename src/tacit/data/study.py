"""Federations of data frames and files: an outcome, columns, parties and a public schema.

With privacy, bounds and levels come from the schema alone. Without privacy, undeclared ones are
read from the records, and the federation's notes say so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec
import numpy as np
import polars as pl

from tacit.data.codes import ISO_DATE, UNKNOWN, MissingCodeWarning, is_coded, missing_code
from tacit.data.config import TABULAR, ColumnConfig, DataConfig, PartitionConfig
from tacit.data.derived import columns_of, with_derived
from tacit.data.federation import Federation, federation_of_table
from tacit.data.formula import Formula, Term
from tacit.data.frames import FRAMES, RawFrame, frame_library, is_frame, raw_frame
from tacit.data.prepare import (
    as_text,
    missing_cells,
    names_of,
    refuse_decimal_comma,
    refuse_large,
    warn_outside,
)
from tacit.data.readers.files import found_paths, is_pattern, party_names, table_of_parties
from tacit.data.rows import located
from tacit.data.schema.schema import Schema
from tacit.data.schema.table import SourceSchema, Table, listed
from tacit.errors import ConfigError, DataError
from tacit.support.validation import near_word

MAX_LEVELS = 50
"""A text column with more distinct values than this must be written as C(column)."""
WHERE_CALLED = 7
"""Number of stack frames between a warning about records and the line that called `tacit.fit`."""
ONE_PARTY = "records"
"""Name of the party of a single table without a party column."""


class FrameConfig(DataConfig, frozen=True, kw_only=True):
    """The settings of `DataConfig` for records in memory."""

    keys_of: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "frame": ("columns", "outcome", "positive", "person", *TABULAR)
    }
    source: str = "frame"


def open_parties(data: Any, party: str | None) -> dict[str, RawFrame]:
    """Open the tables of one or several parties.

    Parameters
    ----------
    data
        A table (of several parties if `party` is given), a dict from party names to tables, a
        pattern such as "data/*.csv", or a list of files, one per party.
    party
        The column that names the party of each record.
    """
    if isinstance(data, Mapping) and not is_frame(data):
        if party is not None:
            raise ConfigError(
                f"party = {party!r}, but the records are a dictionary of parties; leave party out"
            )
        if not data:
            raise DataError("there are no parties; give at least one")
        return {_party_name(name): raw_frame(one, f'party "{name}"') for name, one in data.items()}
    if isinstance(data, list | tuple) and data and all(isinstance(o, str | Path) for o in data):
        return _open_files([str(one) for one in data], party)
    if isinstance(data, str | Path) and is_pattern(str(data)):
        return _open_files([str(data)], party)
    if not is_frame(data):
        raise DataError(
            f"the records are a {type(data).__name__}; give {FRAMES}, or a dictionary with one of "
            "these per party"
        )
    where = f'"{data}"' if isinstance(data, str | Path) else "the data frame"
    return {ONE_PARTY: raw_frame(data, where)}


def _open_files(paths: list[str], party: str | None) -> dict[str, RawFrame]:
    files = found_paths(paths)
    names = party_names(files) if party is None else [str(file) for file in files]
    return {name: raw_frame(file, f'"{file}"') for name, file in zip(names, files, strict=True)}


def _party_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise DataError(f"party name {name!r} is not text; use e.g. {str(name).strip()!r}")
    return name


def federation_from(
    data: Any,
    formula: Formula,
    *,
    party: str | None = None,
    schema: Schema | None = None,
    person: str | None = None,
    held_out: float = 0.0,
    private: bool = False,
    counts: bool = False,
    numeric: bool | None = None,
    seed: int = 0,
) -> Federation:
    """Prepare the records of data frames or files for a formula.

    Parameters
    ----------
    data, party
        As for `open_parties`.
    formula
        Outcome and columns.
    schema
        The public schema.
    person
        The column that identifies the person of a record.
    held_out
        Share of the records that is held out of training.
    private
        True: bounds and levels must come from the schema.
    counts
        True: the outcome is a count and is not rescaled.
    numeric
        True: the outcome is a number; False: it has levels; None: by the schema and the records.
    seed
        Seed of the held-out split.
    """
    if not (isinstance(held_out, int | float) and 0 <= held_out < 1):
        raise ConfigError(f"held_out = {held_out!r}; give a share of the records in [0, 1)")
    frames = open_parties(data, party)
    first = next(iter(frames.values()))
    declared = {} if schema is None else {column.name: column for column in schema.columns}
    every = list(declared) if private else list(dict.fromkeys([*declared, *first.names]))
    terms = formula.columns([name for name in every if name not in (party, person)])
    names = list(dict.fromkeys(name for term in terms for name in term.sources))
    _check_roles(formula, names, party, person, first)
    _check_schema(declared.values(), frames)
    wanted = [one for one in (*names, formula.outcome, party, person) if one]
    whole = _table_of(frames, wanted, formula.outcome, private=private)
    read = _Reader(declared, private, whole.frame, formula.outcome, party)
    try:
        columns, positive = _columns(read, formula, terms, numeric=numeric, counts=counts)
    except DataError as error:
        raise located(error, whole) if len(frames) > 1 else error from None
    if party is not None and party in declared:  # its levels and `missing`
        columns = (*columns, msgspec.structs.replace(declared[party], feature=False))
    config = FrameConfig(
        columns=columns, outcome=formula.outcome, positive=positive, party=party,
        person=person, held_out=float(held_out), scaling="public",
    )  # fmt: skip
    return replace(_federation(config, whole, read, seed=seed), frames=frame_library(data))


def _check_schema(columns: Iterable[ColumnConfig], frames: Mapping[str, RawFrame]) -> None:
    """Refuse a declared column that no table has; the formula need not use it."""
    there = list(dict.fromkeys(name for frame in frames.values() for name in frame.names))
    for one in columns:
        if one.name not in there and not one.derived:
            near = near_word(one.name, there)
            advice = f'did you mean "{near}"?' if near else f"the columns are {listed(there)}"
            raise ConfigError(f'the schema declares "{one.name}", which no table has; {advice}')


def _columns(
    read: _Reader, formula: Formula, terms: Sequence[Term], *, numeric: bool | None, counts: bool
) -> tuple[tuple[ColumnConfig, ...], str | None]:
    """Return the schema of the columns of the terms and of the outcome, and the level of the
    outcome that is y = 1, or None.
    """
    columns = columns_of(terms, read.feature, read.scaled)
    if not formula.outcome:
        return tuple(columns), None
    outcome, positive = read.outcome(formula, numeric=numeric, counts=counts)
    return (*columns, outcome), positive


def _table_of(
    frames: Mapping[str, RawFrame], wanted: Sequence[str], outcome: str, *, private: bool
) -> Table:
    """Return the table of all parties with the columns `wanted`; in a private fit, with all
    columns.
    """
    selected = {name: frame.select(wanted) for name, frame in frames.items()}
    for name, frame in selected.items():
        if frame.is_empty():
            if len(frames) == 1:
                raise DataError("the table has no records; give at least one")
            raise DataError(f"{frames[name].where} has no records; leave it out, or add records")
    if private:  # all columns, so that another formula gives the same data set in a ledger
        selected = {
            name: part.hstack(frames[name].others(wanted)) for name, part in selected.items()
        }
    return table_of_parties(selected, SourceSchema(columns=(), outcome=outcome))


def _federation(config: FrameConfig, whole: Table, read: _Reader, *, seed: int) -> Federation:
    """Return the federation of the parties in a table."""
    parties = whole.parties if config.party is None else ()
    assert config.outcome is not None
    source = SourceSchema(columns=config.columns, outcome=config.outcome, positive=config.positive)
    table = Table(frame=whole.frame, schema=source, parties=parties, notes=tuple(read.notes))
    found = federation_of_table(table, config, PartitionConfig(), seed)
    warn_outside(found.clipped, config.columns, "values", stacklevel=WHERE_CALLED)
    for name, code in read.suspects.items():
        warnings.warn(
            f'column "{name}": {code:g} looks like a code for a missing value, but is used as a '
            f'number; declare Schema(missing_values={{"{name}": [{code:g}]}}, missing={{"{name}": '
            '"drop"}), or its bounds if it is a number',
            MissingCodeWarning,
            stacklevel=WHERE_CALLED,
        )
    # Levels that were read from records are not public, and neither are such bounds.
    unbounded = tuple(dict.fromkeys((*found.unbounded, *read.inferred)))
    return replace(found, scaling="pooled" if read.inferred else "public", unbounded=unbounded)


def _check_roles(
    formula: Formula, names: Sequence[str], party: str | None, person: str | None, first: RawFrame
) -> None:
    """Refuse a column with two roles, and names that are missing from the first table."""
    roles = {"party": party, "person": person}
    for role, name in roles.items():
        if name is None:
            continue
        if not isinstance(name, str):
            raise ConfigError(f"{role} = {name!r}; give the name of a column")
        if name == formula.outcome and name:
            raise ConfigError(f"{role} = {name!r} is the outcome too; name another column")
        if name in names:
            raise ConfigError(
                f"{role} = {name!r} is a term of the formula too; remove the term, or name another "
                f"column as {role}"
            )
    outcomes = (formula.outcome,) if formula.outcome else ()
    for name in (*names, *outcomes, *(one for one in roles.values() if one is not None)):
        if name not in first.names:
            near = near_word(name, first.names)
            advice = f'did you mean "{near}"?' if near else f"its columns: {listed(first.names)}"
            raise DataError(f'{first.where} has no column "{name}"; {advice}')


class _Reader:
    """Completes the public schema: from declarations or, without privacy, from records."""

    def __init__(
        self,
        declared: Mapping[str, ColumnConfig],
        private: bool,
        frame: pl.DataFrame,
        outcome: str,
        party: str | None = None,
    ) -> None:
        self.declared, self.private, self.frame = declared, private, frame
        self.outcome_name, self.party = outcome, party
        self.notes: list[str] = []
        self.known: dict[str, ColumnConfig] = {}
        self.inferred: list[str] = []
        """Columns with bounds, levels or other facts that were read from records."""
        self.suspects: dict[str, float] = {}
        """Values that look like codes for missing, by column."""

    def note(self, name: str, text: str) -> None:
        """Add a note that `text`, a fact about column `name`, was read from records."""
        kind = "outcome" if name == self.outcome_name else "column"
        self.notes.append(f'{kind} "{name}": {text} from records')
        self.inferred.append(name)

    def feature(self, term: Term) -> ColumnConfig:
        """Return the schema of a term's column: the declared schema or, if the column is not
        declared, a schema read from the records.
        """
        name = term.column
        config = self.declared.get(name, ColumnConfig(name=name))
        known = bool(config.levels) or config.affine is not None
        if not known and self.frame[name].dtype == pl.Boolean:  # a type, not a value
            config = _with_levels(config, ("false", "true"))
        elif self.private and not config.bounded:
            raise ConfigError(_no_bounds(name))
        elif not known:
            config = self.read(config, categorical=term.categorical)
        if term.categorical and not config.levels:
            raise ConfigError(
                f"C({name}): {name} is declared as a number; declare its levels in the schema, or "
                f"write {name}"
            )
        config = msgspec.structs.replace(config, feature=True)
        self.known[name] = config
        if not config.levels:
            return config
        reference = term.reference or config.reference or config.levels[0]
        if reference not in config.levels:
            raise ConfigError(
                f"C({name}, {reference!r}): {reference!r} is not a level; the levels of {name} are "
                f"{listed(config.levels)}"
            )
        return msgspec.structs.replace(config, reference=reference)

    def scaled(self, config: ColumnConfig) -> ColumnConfig:
        """Add to a transformation without bounds the centre and scale of its values in the
        records.
        """
        frame = with_derived(self.frame, [*self.known.values(), config], [config.name])
        center, scale = _location_scale(frame[config.name], config)
        self.note(config.name, f"centre {center:.6g} and scale {scale:.6g} come")
        found = msgspec.structs.replace(config, center=center, scale=scale)
        self.known[config.name] = found
        return found

    def read(self, config: ColumnConfig, *, categorical: bool) -> ColumnConfig:
        """Read the schema of an undeclared column from the records."""
        series = self.frame[config.name]
        if categorical or not _is_number(series, config):
            if not categorical:
                _refuse_mixed(series, config, f"write C({config.name}) if it is a category")
            levels = _levels(series, config)
            if not categorical and pl.Series(levels).str.contains(ISO_DATE).all():
                raise _dates(config.name)
            if len(levels) > MAX_LEVELS and not categorical:
                raise DataError(
                    f'column "{config.name}" has {len(levels)} different texts; '
                    f"write C({config.name}) if it is a category, or leave it out"
                )
            if len(levels) == 1:
                self.notes.append(
                    f'column "{config.name}": all records have the level {levels[0]!r}, so it has '
                    "no coefficient"
                )
            self.note(config.name, f"its {len(levels)} levels come")
            return _with_levels(config, levels)
        numbers = _numbers(series, config)
        self.suspect(config.name, numbers)
        if is_coded(numbers):
            self.notes.append(
                f'column "{config.name}": whole numbers from {min(numbers):g} to {max(numbers):g} '
                f"are used as a number, with one effect per step; write C({config.name}) if they "
                "are codes of a category"
            )
        center, scale = _location_scale(series, config)
        self.note(config.name, f"centre {center:.6g} and scale {scale:.6g} come")
        return msgspec.structs.replace(config, center=center, scale=scale)

    def suspect(self, name: str, numbers: set[float]) -> None:
        """If a value of the column looks like a code for missing data, store it as suspect."""
        code = missing_code(numbers)
        if code is not None:
            self.suspects[name] = code

    def outcome(
        self, formula: Formula, *, numeric: bool | None, counts: bool
    ) -> tuple[ColumnConfig, str | None]:
        """Return the schema of the outcome, and the level that becomes y = 1 (None if there is no
        such level).
        """
        name, series = formula.outcome, self.frame[formula.outcome]
        config = self.declared.get(name, ColumnConfig(name=name))
        if config.missing not in ("refuse", "drop"):
            raise ConfigError(
                f'missing = "{config.missing}" for the outcome {name}; use "drop" or "refuse"'
            )
        known = bool(config.levels) or config.bounded
        text = series.dtype != pl.Boolean and not _is_number(series, config)
        if numeric and not config.levels and text:
            raise DataError(
                f'outcome "{name}" holds text, but this family needs a number; choose another'
                " family"
            )
        if series.dtype == pl.Boolean and not known and not numeric:
            config = _with_levels(config, ("false", "true"))
        elif numeric is False and not config.levels and _is_number(series, config):
            config = self.yes_no(config, series, formula.positive)
        elif not known and self.private and not counts:
            raise ConfigError(
                f'outcome "{name}" is not declared; with privacy its kind must be public: add '
                f'levels={{"{name}": [0, 1]}} to the schema (the last is y = 1), or '
                f'bounds={{"{name}": (low, high)}} for a number'
            )
        elif not known and numeric is not True:
            config = self.read_outcome(config, series, formula.positive)
        if numeric and config.levels:
            raise ConfigError(
                f"outcome {name!r} has the levels {listed(config.levels)}, but this family needs a "
                "number; choose another family"
            )
        if config.levels:
            return self.levels_of_outcome(config, formula)
        if formula.positive is not None:
            raise ConfigError(
                f"{name}[{formula.positive!r}]: {name} is a number and has no levels; write {name} "
                "without the level"
            )
        return self.numeric_outcome(config, series, counts=counts), None

    def read_outcome(
        self, config: ColumnConfig, series: pl.Series, positive: str | None
    ) -> ColumnConfig:
        """Read the schema of an undeclared outcome: two values mean yes/no, texts are levels."""
        if _is_number(series, config):
            numbers = _numbers(series, config)
            others = numbers - {0.0, 1.0}
            if len(numbers) == 3 and len(others) == 1 and min(others).is_integer():
                _refuse_third_code(config.name, min(others))
            if len(numbers) > 2:
                return config
            found = self.yes_no(config, series, positive)
            self.note(config.name, "its type (yes/no) comes")
            return found
        _refuse_mixed(series, config, "declare its levels in the schema if it is a category")
        levels = _levels(series, config)
        if len(levels) > MAX_LEVELS:
            raise DataError(
                f'outcome "{config.name}" has {len(levels)} different texts; it must be a '
                "number or one of a few levels"
            )
        unknown = [one for one in levels if one.lower() in UNKNOWN]
        if unknown:
            raise DataError(
                f'outcome "{config.name}" has the level "{unknown[0]}"; if this stands for '
                f'missing, declare Schema(missing_values={{"{config.name}": ["{unknown[0]}"]}}, '
                f'missing={{"{config.name}": "drop"}}); if it is a level, declare '
                f'Schema(levels={{"{config.name}": […]}})'
            )
        self.note(config.name, "its levels come")
        return _with_levels(config, levels)

    def refuse_other_than_counts(self, config: ColumnConfig, series: pl.Series) -> None:
        """Raise an error for the first value that is negative or not a whole number.

        This applies with declared bounds too: a count is clipped only at the largest one.
        """
        numbers = as_text(series) if series.dtype == pl.String else series
        numbers = numbers.cast(pl.Float64, strict=False)
        gone = missing_cells(series, config.missing_values, numeric=True).to_numpy()
        values = numbers.fill_null(0.0).to_numpy()
        wrong = ((values < 0) | (values != np.round(values))) & np.isfinite(values) & ~gone
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        party = None if self.party is None else self.frame[self.party][row]
        where = "" if party is None else f'party "{party}": '
        what = "negative" if values[row] < 0 else "not a whole number"
        raise DataError(
            f'{where}column "{config.name}", data row {row + 1}: {values[row]:g} is {what}, but '
            'this family needs counts; correct it, or choose another family, e.g. family="linear"'
        )

    def yes_no(self, config: ColumnConfig, series: pl.Series, positive: str | None) -> ColumnConfig:
        """Return the schema of a numeric yes/no outcome, with the levels 0 and 1.

        Without privacy, two other numbers are allowed if the formula names the one that is y = 1.
        """
        if self.private or _numbers(series, config) <= {0.0, 1.0}:
            return _with_levels(config, ("0", "1"))
        levels = list(_levels(series, config))
        if len(levels) == 2 and positive is not None:
            return _with_levels(config, tuple(levels))
        name, shown = config.name, listed(levels[:5]) + (", …" if len(levels) > 5 else "")
        if len(levels) > 2:
            raise DataError(
                f'outcome "{name}" is a number with {len(levels)} different values ({shown}), but '
                'this family needs yes or no; choose another family, e.g. family="linear"'
            )
        if len(levels) == 1:
            raise DataError(
                f'outcome "{name}" is {shown} in all records, so nothing can be learned from it; '
                "use another outcome"
            )
        raise DataError(
            f'outcome "{name}" has two values, {levels[0]} and {levels[1]}; name the one that is '
            f'y = 1, e.g. {name}["{levels[1]}"] ~ …, or set family="linear" if it is a number'
        )

    def levels_of_outcome(
        self, config: ColumnConfig, formula: Formula
    ) -> tuple[ColumnConfig, str | None]:
        name, positive = config.name, formula.positive
        if positive is not None and positive not in config.levels:
            raise ConfigError(
                f"{name}[{positive!r}]: {positive!r} is not a level; the levels of {name} are "
                f"{listed(config.levels)}"
            )
        if len(config.levels) < 2:
            raise DataError(
                f'outcome "{name}" has one value in all records, so nothing can be learned from '
                "it; use another outcome"
            )
        if positive is None and len(config.levels) == 2:
            positive = config.levels[1]
        return config, positive

    def numeric_outcome(
        self, config: ColumnConfig, series: pl.Series, *, counts: bool
    ) -> ColumnConfig:
        """Return the schema of a numeric outcome, with centre and scale added if `config` has none.

        The outcome is centred and scaled in the same way as a numeric column, so that the prior of
        a model has the same meaning for every unit of measurement. If `counts` is true, the outcome
        consists of counts and is not scaled. Without privacy, the largest count is then used as the
        upper bound if no bounds are declared.
        """
        if not self.private and not config.bounded:
            self.suspect(config.name, _numbers(series, config))
        if counts:
            self.refuse_other_than_counts(config, series)
            if config.low is None and not self.private:
                _refuse_large(series, config)
                most = max(_numbers(series, config), default=1.0)
                self.note(config.name, "its largest count comes")
                return msgspec.structs.replace(config, low=0.0, high=max(1.0, most))
            return config
        if config.center is None and config.affine is not None:
            center, scale = config.affine
        elif config.center is None:
            center, scale = _location_scale(series, config)
            self.note(config.name, f"centre {center:.6g} and scale {scale:.6g} come")
        else:
            return config
        return msgspec.structs.replace(config, center=center, scale=scale)


def _no_bounds(name: str) -> str:
    return (
        f'column "{name}" has no public bounds, which privacy needs; declare them: '
        f'schema=tacit.Schema(bounds={{"{name}": (low, high)}}) for a number, '
        f'levels={{"{name}": […]}} for a category, from a code book and not from the records'
    )


def _with_levels(config: ColumnConfig, levels: tuple[str, ...]) -> ColumnConfig:
    return ColumnConfig(
        name=config.name,
        levels=levels,
        missing=config.missing,
        missing_values=config.missing_values,
    )


def _present(series: pl.Series, config: ColumnConfig, *, numeric: bool = False) -> pl.Series:
    """Return the values that are not missing; `numeric` as for `missing_cells`."""
    text = series.dtype in (pl.String, pl.Categorical) or isinstance(series.dtype, pl.Enum)
    if text:
        series = as_text(series)
    return series.filter(
        ~missing_cells(series, config.missing_values, numeric=numeric)
    ).drop_nulls()


def _is_number(series: pl.Series, config: ColumnConfig) -> bool:
    """True for a numeric column, and for a text column in which every value is a number."""
    if series.dtype.is_temporal():
        raise _dates(config.name)
    if series.dtype.is_numeric() or series.dtype == pl.Null:
        return True
    if isinstance(series.dtype, pl.Enum | pl.Categorical) or series.dtype == pl.Boolean:
        return False
    present = _present(series, config)
    return present.cast(pl.Float64, strict=False).null_count() == 0


def _dates(name: str) -> DataError:
    return DataError(
        f'column "{name}" holds dates or times; convert it to a number, e.g. years since a public '
        "date"
    )


def _refuse_mixed(series: pl.Series, config: ColumnConfig, category: str) -> None:
    """Refuse a text column if most but not all cells are numbers, or if numbers have decimal
    commas. The error names the first cell that is not a number.
    """
    if series.dtype != pl.String:
        return
    text = as_text(series)
    text = text.set(missing_cells(text, config.missing_values), None)
    refuse_decimal_comma(text, f'column "{config.name}"')
    numbers = text.cast(pl.Float64, strict=False)
    unparsed = (numbers.is_null() & text.is_not_null()).to_numpy()
    if 2 * unparsed.sum() >= text.len() - text.null_count():
        return
    row = int(np.argmax(unparsed))
    raise DataError(
        f'column "{config.name}", data row {row + 1}: "{text[row]}" is not a number, unlike most '
        f'values; correct it, declare Schema(missing_values={{"{config.name}": ["{text[row]}"]}}, '
        f'missing={{"{config.name}": "drop"}}), or {category}'
    )


def _refuse_third_code(name: str, code: float) -> NoReturn:
    """Refuse an outcome with the values 0, 1 and a third number.

    The third number could be a code for a missing value, a level or a count.
    """
    raise DataError(
        f'outcome "{name}" has three values, 0, 1 and {code:g}; if {code:g} stands for missing, '
        f'declare Schema(missing_values={{"{name}": [{code:g}]}}, missing={{"{name}": "drop"}}); '
        f'otherwise levels={{"{name}": […]}} for a category, or family="linear" or "poisson" for a '
        "number"
    )


def _numbers(series: pl.Series, config: ColumnConfig) -> set[float]:
    return set(_present(series, config, numeric=True).cast(pl.Float64).unique().to_list())


def _levels(series: pl.Series, config: ColumnConfig) -> tuple[str, ...]:
    """Return the values of a category, in the order of a categorical type or else sorted."""
    present = _present(series, config)
    if not len(present):
        raise DataError(f'column "{config.name}" has no values; leave it out')
    if series.dtype == pl.Boolean:
        return ("false", "true")
    found = set(names_of(present).to_list())
    if isinstance(series.dtype, pl.Enum):
        return tuple(one for one in series.dtype.categories.to_list() if one in found)
    _check_spelling(config.name, sorted(found))
    numbers = pl.Series(list(found)).cast(pl.Float64, strict=False)
    return tuple(sorted(found, key=None if numbers.null_count() else float))


def _check_spelling(name: str, levels: list[str]) -> None:
    """Refuse levels read from records that differ only in case or spaces: "yes" and "Yes"."""
    first: dict[str, str] = {}
    for level in levels:
        before = first.setdefault(" ".join(level.split()).casefold(), level)
        if before != level:
            raise DataError(
                f'column "{name}" has the levels {before!r} and {level!r}, which differ only in '
                "case or spaces; make them equal, or declare both in the schema: "
                f'Schema(levels={{"{name}": […]}})'
            )


def _refuse_large(series: pl.Series, config: ColumnConfig) -> None:
    """Raise an error if a number is too large for a mean or an sd."""
    numbers = as_text(series) if series.dtype == pl.String else series
    numbers = numbers.cast(pl.Float64, strict=False)
    missing = numbers.is_null() | missing_cells(series, config.missing_values, numeric=True)
    refuse_large(numbers.fill_null(0.0).to_numpy(), missing.to_numpy(), config)


def _location_scale(series: pl.Series, config: ColumnConfig) -> tuple[float, float]:
    _refuse_large(series, config)
    values = _present(series, config, numeric=True).cast(pl.Float64).to_numpy()
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise DataError(f'column "{config.name}" has no values; leave it out')
    deviation = float(finite.std())
    return float(finite.mean()), deviation if deviation > 0 else 1.0
