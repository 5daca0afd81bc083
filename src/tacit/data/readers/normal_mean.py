"""Draws from a normal distribution, for the normal-mean model."""

from __future__ import annotations

import numpy as np
import polars as pl

from tacit.data.schema.table import SourceSchema, Table

DEFAULT_RECORDS = 10_000
SCHEMA = SourceSchema(columns=(), outcome="y", design=False)


def read(*, records: int, mean: float, sd: float, rng: np.random.Generator) -> Table:
    """Draw `records` values of y from a normal distribution. The table has no other column."""
    draws = mean + sd * rng.standard_normal(records)
    return Table(frame=pl.DataFrame({"y": draws}), schema=SCHEMA, true_values={"mean": mean})
