"""One row of a table or figure of a posterior, in the space its user thinks in."""

from __future__ import annotations

from typing import NamedTuple

NORMAL_95 = 1.959963984540054
"""Half-width, in standard deviations, of a normal's central 95 % interval."""


class Shown(NamedTuple):
    """A quantity with its central 95 % interval."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    real: bool = True
    """Whether it can have either sign: only then does an interval that excludes 0 mean anything."""

    @property
    def clear(self) -> bool:
        """Whether the sign is clear."""
        return self.real and (self.low > 0 or self.high < 0)
