"""Terrain ruggedness and income: 170 countries (Nunn and Puga, 2012), a regression."""

from __future__ import annotations

import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.readers.download import local_files
from tacit.data.schema.table import SourceSchema, Table

OUTCOME = "log(rgdppc_2000)"

COLUMNS = (
    # Unscaled, so that the coefficients match the literature.
    ColumnConfig(name="cont_africa", low=0, high=1, center=0, scale=1),
    ColumnConfig(name="rugged", low=0, high=10, center=0, scale=1),
    ColumnConfig(name="cont_africa*rugged", low=0, high=10, center=0, scale=1),
    ColumnConfig(name=OUTCOME, low=0, high=15, center=0, scale=1, missing="drop"),
)
SCHEMA = SourceSchema(columns=COLUMNS, outcome=OUTCOME)


def read() -> Table:
    """Read the table.

    A country without an income for the year 2000 has an empty outcome and is dropped later.
    """
    frame = pl.read_csv(
        local_files("rugged") / "rugged_data.csv", separator=";", infer_schema=False
    ).with_columns(pl.col("cont_africa", "rugged", "rgdppc_2000").cast(pl.Float64))
    frame = frame.with_columns(
        (pl.col("cont_africa") * pl.col("rugged")).alias("cont_africa*rugged"),
        pl.col("rgdppc_2000").log().alias(OUTCOME),
    )
    return Table(frame=frame, schema=SCHEMA)
