"""A federation without real records, made from the public configuration.

A server has the public configuration but no records. The configuration determines the columns of
the parties' records. A few synthetic rows show their types and shapes.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from tacit.data.config import CORPORA, ColumnConfig, DataConfig
from tacit.data.federation import Federation, assemble
from tacit.data.prepare import Column
from tacit.data.readers.catalogue import declared
from tacit.data.rows import ReadRows, check_keep
from tacit.data.schema.outcome import as_y, outcome_config
from tacit.data.schema.table import SourceSchema
from tacit.errors import ConfigError
from tacit.support.argument_names import column_key

EXAMPLE = "example"
ROWS = 8


def public_schema(data: DataConfig, *, sites: int | None = None) -> Federation:
    """Return a federation with the public facts of a configuration and synthetic records.

    No file is opened. Names, outcome, output and unbounded columns are those of `load_federation`.
    The only party is "example". It has 8 synthetic rows within the declared bounds and levels, with
    the same columns, types and shapes as real records. The field `raw` is empty, so that a ledger
    does not mistake these rows for real records. `sites` is the number of sites of the synthetic
    cohort, which determines the levels of its column "site".

    >>> schema = public_schema(DataConfig(source="rugged"))
    >>> schema.names, schema.parties["example"]["x"].shape
    (('intercept', 'cont_africa', 'rugged', 'cont_africa*rugged'), (8, 4))
    """
    if data.scaling == "pooled":
        raise ConfigError(
            'data.scaling = "pooled" needs records, and there are none here; declare the schema'
            ' in [columns] and set data.scaling = "public"'
        )
    if data.source in CORPORA:
        from tacit.data.readers.corpora import corpus_schema

        return corpus_schema(data)
    schema = declared(data, sites=sites)
    check_keep(schema, data)
    outcome = known_outcome(schema)
    made_up = {c.name: _made_up(c, number) for number, c in enumerate(schema.columns, start=1)}
    read = ReadRows(
        schema=schema,
        features=[made_up[column.name] for column in schema.features],
        kept=[made_up[name] for name in data.keep],
        y=as_y(_made_up(outcome, 0), schema.positive),
        groups=None,
        # Two rows per person.
        persons=None if data.person is None else np.arange(ROWS) // 2,
    )
    whole = msgspec.structs.replace(data, held_out=0.0)
    nothing = np.zeros(ROWS, dtype=bool)
    example = assemble(read, whole, {EXAMPLE: np.arange(ROWS)}, nothing, ())
    return replace(example, raw={})


def known_outcome(schema: SourceSchema) -> ColumnConfig:
    """Return the schema of the outcome column.

    An error is raised if the outcome needs levels and none are declared.
    """
    config = outcome_config(schema)
    if schema.positive is not None and not config.levels:
        raise ConfigError(
            f'outcome = "{schema.outcome}" has no declared levels, and there are no records to '
            f"read them from; declare them as {column_key(schema.outcome)}.levels"
        )
    return config


def _made_up(config: ColumnConfig, number: int) -> Column:
    """Return `ROWS` synthetic values of one column, spread over its declared range or levels.

    Columns with different `number` have different values.
    """
    # Multiples of an irrational number fill (0, 1) evenly and deterministically.
    share = (0.5 + (np.arange(ROWS) + number / ROWS) * (np.sqrt(5) - 1) / 2) % 1
    if config.kind == "categorical":
        values = (np.arange(ROWS) + number) % len(config.levels)
    else:
        low, high = declared_range(config)
        values = low + share * (high - low)
    return Column(config=config, values=values, missing=np.zeros(ROWS, dtype=bool))


def declared_range(config: ColumnConfig) -> tuple[float, float]:
    """Return the bounds of a numeric column: as declared, or else center − scale and center +
    scale.
    """
    if config.low is not None and config.high is not None:
        return config.low, config.high
    center, scale = config.affine or (0.0, 1.0)
    return center - scale, center + scale
