"""scikit-learn estimators: regressions of one or several parties, and topics of documents.

The estimators are imported on first use. `LDA` fits the topics of one party's documents; for
several parties use `tacit.fit` and `tacit.models.TopicModel`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.models.lda.table import TopicTable
    from tacit.sklearn.regression import LinearRegression, LogisticRegression, PoissonRegression
    from tacit.sklearn.topics import LDA

__all__ = ["LDA", "LinearRegression", "LogisticRegression", "PoissonRegression", "TopicTable"]

_HOME = {
    "LDA": "tacit.sklearn.topics",
    "LinearRegression": "tacit.sklearn.regression",
    "LogisticRegression": "tacit.sklearn.regression",
    "PoissonRegression": "tacit.sklearn.regression",
    "TopicTable": "tacit.models.lda.table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
