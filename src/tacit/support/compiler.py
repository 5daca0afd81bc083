"""JAX, imported when it is first used.

Plans, method declarations, the ledger and the server of a federation compile nothing. Modules that
declare methods and mechanisms import `jax` and `jnp` from here. Importing these modules is
therefore fast, and a server does not need JAX.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _ImportedWhenUsed(ModuleType):
    """Module proxy that imports the module on first attribute access."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = _ImportedWhenUsed("jax")
    jnp = _ImportedWhenUsed("jax.numpy")

__all__ = ["jax", "jnp"]
