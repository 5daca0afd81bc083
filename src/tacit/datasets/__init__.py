"""Built-in data sets and files, read into federations.

`load` returns a `tacit.Federation`, `list` describes every data set, and `fetch` downloads the
files of a public data set. `load_posterior_data` and `load_reference` read posteriordb: records of
published models and long NUTS runs to compare a posterior with.
"""

from __future__ import annotations

from typing import Any, Literal

from tacit.data.bags import document_records
from tacit.data.config import WITH_SITES, DataConfig, PartitionConfig
from tacit.data.federation import Federation, load_federation
from tacit.data.readers.catalogue import SourceInfo
from tacit.data.readers.catalogue import sources as list
from tacit.data.readers.corpus import Corpus, load_corpus
from tacit.data.readers.download import fetch
from tacit.data.readers.posteriordb import (
    SOURCE,
    ReferenceStatistics,
    list_posteriors,
    load_posterior_data,
    load_reference,
)
from tacit.data.schema.schema import Schema
from tacit.errors import ConfigError
from tacit.support.tables import fields_of
from tacit.support.validation import near_word

__all__ = [
    "Corpus",
    "ReferenceStatistics",
    "SourceInfo",
    "document_records",
    "fetch",
    "list",
    "list_posteriors",
    "load",
    "load_corpus",
    "load_posterior_data",
    "load_reference",
]


def load(
    name: str = "synthetic-cohort",
    *,
    parties: int | None = None,
    kind: Literal["balanced", "skew", "source"] | None = None,
    party: str | None = None,
    size_skew: float = 0.0,
    label_skew: float = 0.0,
    schema: Schema | None = None,
    seed: int = 0,
    **data: Any,
) -> Federation:
    """Read a data set, prepare its records and split them between parties.

    Parameters
    ----------
    name
        A data set of `tacit.datasets.list()`, or "file", with the path of your file as `path`.
    parties
        Number of parties; by default the number of sites of the data set, or 10.
    kind
        How records are assigned to parties: "balanced" (equal shares), "skew" (unequal shares)
        or "source" (the sites of the data set). By default determined by the other arguments.
    party
        The column that names the party of each record.
    size_skew, label_skew
        How much parties differ in size and in their share of positive outcomes.
    schema
        The public schema of the columns of a file.
    seed
        Seed of the split, and of generated records.
    **data
        Further keys of the [data] table of a configuration file, such as `held_out`, `records`,
        `path`, `outcome`, `positive` or `person`.

    Returns
    -------
    Federation
        The records of every party, and the held-out records.

    Examples
    --------
    >>> federation = load("normal-mean", parties=4, records=100, held_out=0.2, seed=1)
    >>> [len(records["y"]) for records in federation.parties.values()]
    [20, 20, 20, 20]
    """
    _check_arguments(name, data)
    columns = () if schema is None else schema.columns
    given = DataConfig(source=name, party=party, columns=columns, **data)
    kind = kind or _kind(name, parties, party, skewed=size_skew != 0 or label_skew != 0)
    partition = PartitionConfig(
        kind=kind,
        parties=10 if parties is None else parties,
        size_skew=size_skew,
        label_skew=label_skew,
    )
    return load_federation(given, partition, seed)


def _kind(
    name: str, parties: int | None, party: str | None, *, skewed: bool
) -> Literal["balanced", "skew", "source"]:
    """Return how records are assigned to parties: "skew", "source" (sites of the data set) or
    "balanced".
    """
    if skewed:
        return "skew"
    own_sites = name in WITH_SITES and (parties is None or name == "synthetic-cohort")
    return "source" if own_sites and party is None else "balanced"


def _check_arguments(name: str, data: dict[str, Any]) -> None:
    if name == SOURCE:
        raise ConfigError(
            'tacit.datasets.load cannot load "posteriordb", which has a model for each data set; '
            "use load_posterior_data and load_reference"
        )
    known = {*fields_of(DataConfig)} - {"source", "party", "columns"}
    for key in data.keys() - known:
        taken = [*known, "parties", "kind", "party", "size_skew", "label_skew", "schema", "seed"]
        near = near_word(key, taken)
        advice = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(taken))}"
        raise ConfigError(f"tacit.datasets.load takes no argument {key!r}; {advice}")
