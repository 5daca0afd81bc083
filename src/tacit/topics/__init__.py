"""Topic models: latent Dirichlet allocation with and without privacy.

The names are imported on first use. Learning topics together with other parties is not here yet:
`estep.expect` is the part of it that runs behind a party's wall.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.topics.lda import LDA
    from tacit.topics.show import TopicTable

__all__ = ["LDA", "TopicTable"]

_HOME = {"LDA": "lda", "TopicTable": "show"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
