"""Read the user's CSV or Parquet files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from tacit.data.config import SUFFIXES, DataConfig
from tacit.data.derived import raw_names
from tacit.data.prepare import as_text
from tacit.data.readers.separators import (
    not_utf8,
    ragged_line,
    refuse_encoding,
    refuse_header,
    separator_of,
)
from tacit.data.schema.table import PARTY, SourceSchema, Table, listed
from tacit.errors import DataError


def schema(data: DataConfig) -> SourceSchema:
    """Return the declared schema without opening any file."""
    assert data.outcome is not None, "DataConfig requires it for a file"
    return SourceSchema(columns=data.columns, outcome=data.outcome, positive=data.positive)


def read(data: DataConfig) -> Table:
    """Read the file or files of `data.path`.

    If there are several files and `data.party` is not set, each file is one party.
    """
    assert data.path is not None, "DataConfig requires it for a file"
    paths = found_paths(data.path)
    if len(paths) == 1 and isinstance(data.path, str) and not is_pattern(data.path):
        frame = read_file(paths[0], f'data.path = "{data.path}"', separator=data.separator)
        return Table(frame=frame, schema=schema(data))
    frames = {
        path: read_file(path, f'data.path: "{path}"', separator=data.separator) for path in paths
    }
    if data.party is None:
        names = party_names(paths)
        return table_of_parties(dict(zip(names, frames.values(), strict=True)), schema(data))
    same = _same_columns({str(path): frame for path, frame in frames.items()}, schema(data))
    return Table(frame=pl.concat(same), schema=schema(data))


def table_of_parties(frames: Mapping[str, pl.DataFrame], schema: SourceSchema) -> Table:
    """Combine the tables of several parties, with a column that names the party of each row."""
    parts = _same_columns(frames, schema)
    labelled = [
        part.with_columns(pl.lit(name).alias(PARTY))
        for name, part in zip(frames, parts, strict=True)
    ]
    return Table(frame=pl.concat(labelled), schema=schema, parties=tuple(frames))


def _same_columns(frames: Mapping[str, pl.DataFrame], schema: SourceSchema) -> list[pl.DataFrame]:
    """Return the tables, changed so that all have the same columns and types.

    Features and outcome must be present in every table. Any other column is filled with nulls in
    tables that lack it. Models do not use such columns, but a ledger identifies records by all
    columns.
    """
    wanted = {*raw_names(schema.columns, (one.name for one in schema.features)), schema.outcome}
    wanted.discard("")  # no outcome
    for name, frame in frames.items():
        for column in wanted - {*frame.columns}:
            raise DataError(
                f'{name} has no column "{column}"; add it, or use one of the columns '
                f"{listed(frame.columns)}"
            )
    names = dict.fromkeys(name for frame in frames.values() for name in frame.columns)
    alike = {name: _alike([_column(frame, name) for frame in frames.values()]) for name in names}
    return [pl.DataFrame([alike[name][place] for name in names]) for place in range(len(frames))]


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    if name in frame.columns:
        return frame[name]
    return pl.Series(name, [None] * frame.height, pl.Null)


def _alike(columns: list[pl.Series]) -> list[pl.Series]:
    """Convert columns to a common type: to numbers if all of them are numeric, otherwise to
    text.
    """
    kinds = {column.dtype for column in columns} - {pl.Null}
    if len(kinds) > 1 and all(kind.is_numeric() for kind in kinds):
        return [column.cast(pl.Float64) for column in columns]
    if len(kinds) > 1:
        return [as_text(column) for column in columns]
    kind = next(iter(kinds), pl.String)
    return [column.cast(kind) for column in columns]


def is_pattern(path: str) -> bool:
    """True if a path contains * or ?."""
    return any(sign in path for sign in "*?")


def found_paths(path: str | Sequence[str]) -> list[Path]:
    """Return the files named by a path, by a pattern or by a list of paths and patterns."""
    given = [path] if isinstance(path, str) else list(path)
    files: list[Path] = []
    for one in given:
        if is_pattern(one):
            whole = Path(one).expanduser()
            start = Path(whole.anchor or ".")
            matches = sorted(start.glob(str(whole.relative_to(whole.anchor))))
            matches = [match for match in matches if match.name.lower().endswith(SUFFIXES)]
            if not matches:
                raise DataError(
                    f'data.path = "{one}"; no file with the ending {", ".join(SUFFIXES)} matches: '
                    "check the pattern"
                )
            files += matches
        else:
            files.append(Path(one).expanduser())
    for file in files:
        if files.count(file) > 1:
            raise DataError(f'data.path contains "{file}" twice; list it once')
    return files


def party_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the parties: the names of the files without their extensions."""
    names = [path.name.removesuffix(".gz").rpartition(".")[0] or path.name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f'data.path contains two files called "{name}", but each file is a party with the '
                "name of the file; rename one, or set data.party to the column with the party names"
            )
    return names


def read_file(path: Path, where: str, *, separator: str = ",") -> pl.DataFrame:
    """Read a CSV or Parquet file.

    CSV cells are read as text, so that error messages can quote them. Semicolons and tabs between
    columns are recognised in the header (`separator_of`). `where` is the beginning of error
    messages.
    """
    path = path.expanduser()
    if not path.is_file():
        raise DataError(f"{where}; there is no such file: check the path")
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{where}; the name must end in one of {', '.join(SUFFIXES)}")
    try:
        if name.endswith(".parquet"):
            frame = pl.read_parquet(path)
        else:
            refuse_encoding(path, where)
            tabs = name.endswith((".tsv", ".tsv.gz"))
            separator = "\t" if tabs else separator_of(path, where, separator)
            frame = _read_csv(path, where, separator)
    except (PolarsError, OSError, EOFError, csv.Error) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{where}; the file cannot be read ({reason}): fix the file, or export it again"
        ) from error
    if frame.is_empty():
        raise DataError(f"{where}; the file has no rows: choose another file")
    return frame


def _read_csv(path: Path, where: str, separator: str) -> pl.DataFrame:
    refuse_header(path, where, separator)
    try:
        return pl.read_csv(path, separator=separator, infer_schema=False)
    except PolarsError as error:
        if "utf-8" in str(error):
            raise not_utf8(where) from None
        ragged = ragged_line(path, separator)
        if ragged is None:
            raise
        raise DataError(f"{where}; the file cannot be read: {ragged}") from None
