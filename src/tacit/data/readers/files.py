"""The user's CSV or Parquet table, read by the declared schema."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from tacit.data.config import DataConfig
from tacit.data.schema.table import SourceSchema, Table
from tacit.errors import DataError


def schema(data: DataConfig) -> SourceSchema:
    """Declared schema; opens no file."""
    assert data.outcome is not None, "DataConfig requires it for a file"
    return SourceSchema(columns=data.columns, outcome=data.outcome, positive=data.positive)


def read(data: DataConfig) -> Table:
    """Read the file; CSV cells stay text so that errors can show them."""
    assert data.path is not None, "DataConfig requires it for a file"
    path = Path(data.path).expanduser()
    if not path.is_file():
        raise DataError(f'data.path = "{data.path}"; there is no such file: check the path')
    name = path.name.lower()
    separator = "\t" if name.endswith((".tsv", ".tsv.gz")) else data.separator
    try:
        frame = (
            pl.read_parquet(path)
            if name.endswith(".parquet")
            else pl.read_csv(path, separator=separator, infer_schema=False)
        )
    except (PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f'data.path = "{data.path}"; the file cannot be read ({reason}): fix or re-export it'
        ) from error
    if frame.is_empty():
        raise DataError(f'data.path = "{data.path}"; the file has no rows')
    return Table(frame=frame, schema=schema(data))
