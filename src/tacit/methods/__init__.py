"""Local methods: how a party computes its update.

The classes are imported on first use, so that a server does not load JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.methods.base import Answer, Arranged, LocalMethod, Task
    from tacit.methods.conjugate.method import ConjugateStages, PrivateConjugateStages
    from tacit.methods.dpsgd.method import DPSGD
    from tacit.methods.exact import Exact
    from tacit.methods.gradient import GradientVI
    from tacit.methods.hybrid import Hybrid
    from tacit.methods.kinds import METHODS
    from tacit.methods.natural.method import NaturalVI
    from tacit.methods.private import Clipped, PrivateMethod, Terms
    from tacit.methods.scores.method import PrivateScores
    from tacit.methods.scoring.method import PrivateScoring
    from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
    from tacit.methods.update.method import PrivateUpdate
    from tacit.methods.whitening import Whitened

_HOME = {
    "Answer": "base",
    "Arranged": "base",
    "Clipped": "private",
    "ConjugateStages": "conjugate.method",
    "DPSGD": "dpsgd.method",
    "Exact": "exact",
    "ExpectedStatistics": "statistics.method",
    "GradientVI": "gradient",
    "Hybrid": "hybrid",
    "LocalMethod": "base",
    "METHODS": "kinds",
    "NaturalVI": "natural.method",
    "PrivateConjugateStages": "conjugate.method",
    "PrivateMethod": "private",
    "PrivateScores": "scores.method",
    "PrivateScoring": "scoring.method",
    "PrivateStatistics": "statistics.method",
    "PrivateUpdate": "update.method",
    "Task": "base",
    "Terms": "private",
    "Whitened": "whitening",
}

__all__ = [
    "DPSGD",
    "METHODS",
    "Answer",
    "Arranged",
    "Clipped",
    "ConjugateStages",
    "Exact",
    "ExpectedStatistics",
    "GradientVI",
    "Hybrid",
    "LocalMethod",
    "NaturalVI",
    "PrivateConjugateStages",
    "PrivateMethod",
    "PrivateScores",
    "PrivateScoring",
    "PrivateStatistics",
    "PrivateUpdate",
    "Task",
    "Terms",
    "Whitened",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
