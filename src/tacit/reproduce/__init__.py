"""Studies that do a source's experiments again, each with one call.

The registry is all that is imported here: a study loads its arrays and compilers when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all and what comes next."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study: what it does again, and the module whose `reproduce` does it."""

    name: str
    description: str
    module: str

    def __call__(
        self,
        out: Path,
        *,
        seed: int = 0,
        quick: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write tables, figures and a page to `out`; the tables as data."""
        run = import_module(self.module).reproduce
        return run(out, seed=seed, quick=quick, progress=progress)


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="fedvi",
            description="the federated VI thesis, ch. 4: a Gaussian mean and rugged terrain, "
            "sequential, synchronous and asynchronous",
            module="tacit.reproduce.fedvi",
        ),
    )
}

__all__ = ["STUDIES", "Progress", "Study"]
