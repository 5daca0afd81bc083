"""Data sources, schemas and federations.

Modules are imported when one of their names is first used, so that a configuration can be checked
without loading an array library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tacit.data.config import ColumnConfig, DataConfig, PartitionConfig

if TYPE_CHECKING:
    from tacit.data.federation import (
        Federation,
        Records,
        load_federation,
        load_party,
        split,
    )
    from tacit.data.readers.catalogue import public_records
    from tacit.data.readers.cohort import Cohort, synthetic_cohort
    from tacit.data.schema.checks import unbounded
    from tacit.data.schema.public import public_schema
    from tacit.data.synthetic import synthetic_federation

__all__ = [
    "Cohort",
    "ColumnConfig",
    "DataConfig",
    "Federation",
    "PartitionConfig",
    "Records",
    "load_federation",
    "load_party",
    "public_records",
    "public_schema",
    "split",
    "synthetic_cohort",
    "synthetic_federation",
    "unbounded",
]

_HOME = {
    "Cohort": "readers.cohort",
    "Federation": "federation",
    "Records": "federation",
    "load_federation": "federation",
    "load_party": "federation",
    "synthetic_federation": "synthetic",
    "public_records": "readers.catalogue",
    "public_schema": "schema.public",
    "split": "federation",
    "synthetic_cohort": "readers.cohort",
    "unbounded": "schema.checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
