"""tacit: private federated Bayesian inference.

Several parties fit one posterior together without sharing their records. The public names are
listed in `__all__`; each is imported on first use, so that `import tacit` is fast.

Importing tacit switches JAX to float64: natural parameters are sums over many records and parties,
which single precision cannot represent. Local computations use float32 explicitly where it
suffices. The import also makes JAX store compiled programs in the user's cache directory, so that a
second run does not compile them again; TACIT_COMPILATION_CACHE=off switches this cache off.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


def _configure_jax() -> None:
    """Switch JAX to float64 and give it a directory for compiled programs.

    JAX reads its environment variables when it is imported; afterwards only its configuration can
    be changed. A cache directory that the user has chosen is kept.
    """
    settings = {"jax_enable_x64": True}
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR") and (cache := _compilation_cache()):
        # JAX stores programs without a lock. A program that another process is still writing, or
        # was killed while writing, cannot be read. It is compiled instead, without a warning.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        settings |= {
            "jax_compilation_cache_dir": cache,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
    jax = sys.modules.get("jax")
    if jax is None:
        os.environ |= {name.upper(): str(value) for name, value in settings.items()}
        return
    if jax.config.jax_compilation_cache_dir:
        settings = {"jax_enable_x64": True}
    for name, value in settings.items():
        jax.config.update(name, value)


def _compilation_cache() -> str | None:
    """Return the directory for compiled programs, or None if the cache is switched off.

    TACIT_COMPILATION_CACHE is a directory or "off". The default is a directory inside the user's
    cache directory, one per kind of processor.
    """
    chosen = os.environ.get("TACIT_COMPILATION_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return str(Path(chosen).expanduser())
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    try:  # programs compiled for one processor may not run on another that shares the directory
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    processor = zlib.crc32(f"{flags}{platform.machine()}".encode())
    return str(home / "tacit" / "compiled" / f"{processor:08x}")


_configure_jax()

if TYPE_CHECKING:
    from tacit import datasets as datasets
    from tacit import families as families
    from tacit import methods as methods
    from tacit import models as models
    from tacit import schedules as schedules
    from tacit import sklearn as sklearn
    from tacit import testing as testing
    from tacit.data.federation import Federation
    from tacit.data.schema.schema import Schema
    from tacit.errors import TacitError
    from tacit.fitting.fit import check, fit, load
    from tacit.fitting.result import Fit
    from tacit.live.client import connect, serve
    from tacit.models.numpyro.model import from_numpyro
    from tacit.privacy.ledger.ledger import Ledger
    from tacit.privacy.settings import Privacy

_HOMES = {
    "Federation": "data.federation",
    "Fit": "fitting.result",
    "Ledger": "privacy.ledger.ledger",
    "Privacy": "privacy.settings",
    "Schema": "data.schema.schema",
    "TacitError": "errors",
    "check": "fitting.fit",
    "connect": "live.client",
    "fit": "fitting.fit",
    "from_numpyro": "models.numpyro.model",
    "load": "fitting.fit",
    "serve": "live.client",
}
_PACKAGES = ("datasets", "families", "methods", "models", "schedules", "sklearn", "testing")

__all__ = [
    "Federation",
    "Fit",
    "Ledger",
    "Privacy",
    "Schema",
    "TacitError",
    "check",
    "connect",
    "fit",
    "from_numpyro",
    "load",
    "serve",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"tacit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(import_module(f"tacit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
