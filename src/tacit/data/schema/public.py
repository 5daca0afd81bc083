"""What a model needs to know of the data, for whoever holds none of it.

A server that coordinates parties has their public configuration and no record. The columns that
the parties' records will have follow from that alone; a few made-up rows show their form.
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

EXAMPLE = "example"
ROWS = 8


def public_schema(data: DataConfig, *, sites: int | None = None) -> Federation:
    """The federation of a configuration without its records: none of their files is opened.

    Names, outcome, output and unbounded columns are those that `load_federation` and `load_party`
    give. The one party, "example", has 8 made-up rows, inside the declared bounds and levels, of
    the same columns, types and shapes as real ones; `raw` is empty, so that no ledger takes them
    for records. `sites` is how many sites the synthetic cohort has, for a kept column "site".

    >>> schema = public_schema(DataConfig(source="rugged"))
    >>> schema.names, schema.parties["example"]["x"].shape
    (('intercept', 'cont_africa', 'rugged', 'cont_africa*rugged'), (8, 4))
    """
    if data.scaling == "pooled":
        raise ConfigError(
            'data.scaling = "pooled"; without records there is nothing to pool: declare the'
            ' schema and say "public"'
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
        # Two rows a person, as records of one person are what the column is for.
        persons=None if data.person is None else np.arange(ROWS) // 2,
    )
    whole = msgspec.structs.replace(data, held_out=0.0)
    nothing = np.zeros(ROWS, dtype=bool)
    example = assemble(read, whole, {EXAMPLE: np.arange(ROWS)}, nothing, ())
    return replace(example, raw={})


def known_outcome(schema: SourceSchema) -> ColumnConfig:
    """The outcome's column; its levels must not be left for each party's records to tell."""
    config = outcome_config(schema)
    if schema.positive is not None and not config.levels:
        raise ConfigError(
            f'outcome = "{schema.outcome}" has no levels, and without records none can be found:'
            f" declare them as columns.{schema.outcome}.levels"
        )
    return config


def _made_up(config: ColumnConfig, number: int) -> Column:
    """Rows of one column, spread over what is declared and unlike those of the next column."""
    # Multiples of an irrational number fill (0, 1) evenly; nothing is drawn, so nothing varies.
    share = (0.5 + (np.arange(ROWS) + number / ROWS) * (np.sqrt(5) - 1) / 2) % 1
    if config.kind == "categorical":
        values = (np.arange(ROWS) + number) % len(config.levels)
    else:
        low, high = declared_range(config)
        values = low + share * (high - low)
    return Column(config=config, values=values, missing=np.zeros(ROWS, dtype=bool))


def declared_range(config: ColumnConfig) -> tuple[float, float]:
    """The bounds of a number, or, where there are none, a scale around its centre."""
    if config.low is not None and config.high is not None:
        return config.low, config.high
    center, scale = config.affine or (0.0, 1.0)
    return center - scale, center + scale
