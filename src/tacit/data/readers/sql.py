"""Read tables from SQL queries, through DuckDB."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from tacit.data.config import DataConfig
from tacit.data.frames import of_duckdb
from tacit.data.readers.files import schema, table_of_parties
from tacit.data.schema.table import Table
from tacit.errors import ConfigError, DataError


def read(data: DataConfig) -> Table:
    """Run `data.query` and return its rows. If it is a dictionary, run the query of each party.

    The database is opened read-only.
    """
    assert data.query is not None, "DataConfig requires it"
    if isinstance(data.query, str):
        return Table(frame=query_frame(data.database, data.query), schema=schema(data))
    frames = {
        name: query_frame(data.database, text, f'party "{name}": ')
        for name, text in data.query.items()
    }
    return table_of_parties(frames, schema(data))


def query_frame(database: str | None, query: str, where: str = "") -> pl.DataFrame:
    """Run a query and return its rows as a polars frame.

    Parameters
    ----------
    database
        Path of a DuckDB file, which is opened read-only; None if the query names the files to read.
    query
        The SQL query.
    where
        Text at the beginning of error messages.
    """
    try:
        import duckdb
    except ImportError:
        raise ConfigError(
            'data.source = "sql" needs DuckDB, which is not installed; pip install tacit[sql]'
        ) from None
    if database is not None and not Path(database).expanduser().is_file():
        raise DataError(f'data.database = "{database}"; there is no such file: check the path')
    place = ":memory:" if database is None else str(Path(database).expanduser())
    try:
        with duckdb.connect(place, read_only=database is not None) as connection:
            found = connection.execute(query)
            if found.description is None:
                raise DataError(
                    f"{where}data.query is not a SELECT statement; give a SELECT statement"
                )
            names = [column[0] for column in found.description]
            rows = found.fetchnumpy() if len(set(names)) == len(names) else None
    except duckdb.Error as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{where}data.query cannot be run ({reason}); fix the query") from None
    if rows is None:
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f'{where}data.query has two columns "{twice}"; rename one with AS')
    frame = replace(of_duckdb(names, rows, f"{where}the query"), of_file=True)
    table = frame.select(names)
    if table.is_empty():
        raise DataError(f"{where}data.query selects no rows; check its conditions")
    return table
