"""Local methods: how a party answers a round.

The names are imported on first use: a server needs `tacit.local.combine` and no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.local.base import Answer, Arranged, LocalMethod, Task
    from tacit.local.choose import choose_method
    from tacit.local.dpsgd import DPSGD
    from tacit.local.exact import Exact
    from tacit.local.gradient import GradientVI
    from tacit.local.hybrid import Hybrid
    from tacit.local.kinds import METHODS
    from tacit.local.natural import NaturalVI
    from tacit.local.private import PrivateMethod, Terms
    from tacit.local.scoring import PrivateScoring
    from tacit.local.statistics import ExpectedStatistics, PrivateStatistics
    from tacit.local.update import PrivateUpdate
    from tacit.local.whitened import Whitened

_HOME = {
    "Answer": "base",
    "Arranged": "base",
    "DPSGD": "dpsgd",
    "Exact": "exact",
    "ExpectedStatistics": "statistics",
    "GradientVI": "gradient",
    "Hybrid": "hybrid",
    "LocalMethod": "base",
    "METHODS": "kinds",
    "NaturalVI": "natural",
    "PrivateMethod": "private",
    "PrivateScoring": "scoring",
    "PrivateStatistics": "statistics",
    "PrivateUpdate": "update",
    "Task": "base",
    "Terms": "private",
    "Whitened": "whitened",
    "choose_method": "choose",
}

__all__ = [
    "DPSGD",
    "METHODS",
    "Answer",
    "Arranged",
    "Exact",
    "ExpectedStatistics",
    "GradientVI",
    "Hybrid",
    "LocalMethod",
    "NaturalVI",
    "PrivateMethod",
    "PrivateScoring",
    "PrivateStatistics",
    "PrivateUpdate",
    "Task",
    "Terms",
    "Whitened",
    "choose_method",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
