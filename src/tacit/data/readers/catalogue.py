"""Catalogue of data sources and their readers.

A reader is imported when its source is first used, because some readers are large: MIMIC-III alone
declares 714 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np

from tacit.data.config import WITH_SITES, DataConfig
from tacit.data.readers import cohort
from tacit.data.readers import normal_mean as gaussian_mean
from tacit.data.schema.table import SourceSchema, Table, listed
from tacit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """One line of `tacit data list`.

    Parameters
    ----------
    name
        Name of the data set, as in `tacit.datasets.load(name)`.
    description
        Short description of the records.
    outcome
        Name of the outcome column.
    origin
        Authors or publisher of the data.
    licence
        Terms of use.
    """

    name: str
    description: str
    records: int | None
    """Number of records; None if a file of the user determines it."""
    outcome: str
    origin: str
    licence: str
    file_based: bool
    """True: needs files (`tacit data fetch`)."""
    present: bool
    """True: can be loaded without a download."""
    sites: bool
    """True: has natural parties, for partition.kind = "source"."""


_ABOUT: dict[str, tuple[str, int | None, str, str, str]] = {
    "synthetic-cohort": (
        "hospital stays at unequal sites; readmission within 30 days",
        cohort.DEFAULT_RECORDS,
        cohort.OUTCOME,
        "generated from the seed; the true weights are known",
        "that of this project",
    ),
    "normal-mean": (
        "draws of one normal with an unknown mean",
        gaussian_mean.DEFAULT_RECORDS,
        "y",
        "generated from the seed",
        "that of this project",
    ),
    "adult": (
        "people of the 1994 US census; income above 50,000 dollars",
        48_842,
        "income",
        "Becker and Kohavi, UCI Machine Learning Repository, doi 10.24432/C5XW20",
        "CC BY 4.0",
    ),
    "rugged": (
        "countries' terrain ruggedness and income; a regression",
        170,
        "log(rgdppc_2000)",
        "Nunn and Puga, Review of Economics and Statistics 94(1), 2012",
        "none stated; published for replication",
    ),
    "heart": (
        "patients of four hospitals, which are the parties; heart disease",
        920,
        "disease",
        "Janosi, Steinbrunn, Pfisterer and Detrano, UCI Machine Learning Repository,"
        " doi 10.24432/C52P4X",
        "CC BY 4.0; name the principal investigators in publications",
    ),
    "breast-cancer": (
        "biopsies, 30 measurements each; malignant or benign",
        569,
        "diagnosis",
        "Wolberg, Street and Mangasarian, UCI Machine Learning Repository; comes with scikit-learn",
        "CC BY 4.0",
    ),
    "mimic3": (
        "intensive-care stays, 48 hours of 17 channels; death in hospital",
        21_139,
        "died",
        "Johnson et al., MIMIC-III v1.4, PhysioNet, doi 10.13026/C2XW26, prepared by the benchmark"
        " of Harutyunyan et al., Scientific Data 6, 2019",
        "PhysioNet Credentialed Health Data License 1.5.0; access on application",
    ),
    "file": (
        "your own CSV or Parquet table with a declared schema",
        None,
        "as declared",
        "data.path",
        "your own",
    ),
    "sql": (
        "your own tables: a query, or one per party, with a declared schema",
        None,
        "as declared",
        "data.database and data.query",
        "your own",
    ),
    "synthetic-topics": (
        "short documents of five themes; for topic models",
        600,
        "words",
        "generated from the seed",
        "that of this project",
    ),
    "wikipedia": (
        "English Wikipedia articles of late 2008 as counts of 7,702 words; for topic models",
        145_647,
        "words",
        "the counts are not published: put the files in TACIT_DATA/wiki",
        "that of Wikipedia's text",
    ),
    "documents": (
        "your own documents as scipy.sparse counts, and their vocabulary; for topic models",
        None,
        "words",
        "data.path",
        "your own",
    ),
    "posteriordb": (
        "19 data sets of statistical models with reference posteriors; for load_reference",
        None,
        "depends on the model",
        "Magnusson et al., posteriordb, github.com/stan-dev/posteriordb",
        "BSD-3-Clause",
    ),
}


def sources() -> list[SourceInfo]:
    """Return a description of every source, in the order of the documentation."""
    return [
        SourceInfo(
            name=name,
            description=description,
            records=records,
            outcome=outcome,
            origin=origin,
            licence=licence,
            file_based=name in _reader("download").REGISTRY
            or name in ("mimic3", "wikipedia", "posteriordb"),
            present=_present(name),
            sites=name in WITH_SITES,
        )
        for name, (description, records, outcome, origin, licence) in _ABOUT.items()
    ]


def public_records(data: DataConfig) -> int | None:
    """Return the number of records of a source; None if it depends on a file of the user."""
    return data.records or _ABOUT[data.source][1]


def _present(name: str) -> bool:
    if name == "mimic3":
        return _reader("mimic3.files").locate() is not None
    if name == "wikipedia":
        return _reader("corpus").present()
    if name == "posteriordb":
        return _reader("posteriordb").locate() is not None
    download = _reader("download")
    return name not in download.REGISTRY or download.locate(name) is not None


def _reader(name: str) -> ModuleType:
    return import_module(f"tacit.data.readers.{name}")


def declared(data: DataConfig, *, sites: int | None = None) -> SourceSchema:
    """Return the public schema of a source, without opening its files."""
    match data.source:
        case "synthetic-cohort":
            return cohort.schema(cohort.DEFAULT_SITES if sites is None else sites)
        case "normal-mean":
            return gaussian_mean.SCHEMA
        case "adult" | "rugged" | "heart":
            return _reader(data.source).SCHEMA
        case "breast-cancer":
            return _reader("breast_cancer").SCHEMA
        case "mimic3":
            return _reader("mimic3.schema").SCHEMA
    return _reader("files").schema(data)


def _check_site(data: DataConfig, sites: int | None) -> None:
    if data.site is None:
        return
    schema = declared(data, sites=sites)
    column = schema.declared(schema.site or "")
    assert column is not None, "DataConfig refuses a site of a source without sites"
    if data.site not in column.levels:
        raise ConfigError(
            f'data.site = "{data.site}"; the sites of source "{data.source}" are'
            f" {listed(column.levels)}: name one of them"
        )


def read_table(data: DataConfig, *, sites: int | None, seed: int) -> Table:
    """Read the raw table of a source. If `data.site` is set, only the rows of that site are
    returned.

    `sites` is the number of sites of the synthetic cohort; other sources ignore it. `seed` is the
    seed of generated data. For MIMIC-III it also selects the stays that balancing drops.
    """
    _check_site(data, sites)
    match data.source:
        case "synthetic-cohort":
            return cohort.read(
                records=data.records,
                sites=cohort.DEFAULT_SITES if sites is None else sites,
                seed=seed,
                site=data.site,
            )
        case "normal-mean":
            return gaussian_mean.read(
                records=data.records or gaussian_mean.DEFAULT_RECORDS,
                mean=data.mean,
                sd=data.sd,
                rng=np.random.default_rng([seed, cohort.GENERATE]),
            )
        case "adult" | "rugged":
            return _reader(data.source).read()
        case "heart":
            heart = _reader("heart")
            return heart.read(heart.HOSPITALS if data.site is None else (data.site,))
        case "breast-cancer":
            return _reader("breast_cancer").read()
        case "mimic3":
            reader = _reader("mimic3.table")
            return reader.read(path=data.path, balance=data.balance, seed=seed)
        case "sql":
            return _reader("sql").read(data)
    return _reader("files").read(data)
