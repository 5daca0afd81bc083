"""Ranges of the numbers in [model] and [method], checked when a file is read.

The models and methods check their own arguments. Their modules need an array library, so what
holds for a key whatever the kind is written here once more, in the same words: a bad number is
then reported together with the other faults of a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tacit.errors import ConfigError
from tacit.support.validation import SMALLEST_SD

Range = tuple[Callable[[float], bool], str]

AT_LEAST_ONE: Callable[[float], bool] = lambda value: value >= 1  # noqa: E731
SD: Range = (
    lambda value: SMALLEST_SD <= value <= 1 / SMALLEST_SD,
    f"it must be > 0 and finite: in {SMALLEST_SD:g} … {1 / SMALLEST_SD:g}",
)
NORM: Range = (lambda value: 0 < value < math.inf, "a norm bound is a finite number > 0")
MODEL_RANGES: Mapping[str, Range] = {
    "prior_mean": (math.isfinite, "it must be a finite number"),
    "prior_sd": SD,
    "noise_sd": SD,
    "hidden": (AT_LEAST_ONE, "a hidden layer needs at least 1 unit"),
    "largest": (lambda value: 1 <= value < math.inf, "the largest count is finite and ≥ 1"),
}
METHOD_RANGES: Mapping[str, Range] = {
    "steps": (AT_LEAST_ONE, "at least 1 step a round is needed"),
    "step_size": (lambda value: 0 < value <= 1, "it must be in (0, 1]"),
    "batch_size": (
        AT_LEAST_ONE,
        "it must be at least 1, or be left out to use every record at each step",
    ),
    "learning_rate": (lambda value: 0 < value < math.inf, "it must be a finite number > 0"),
    "draws": (AT_LEAST_ONE, "at least 1 draw is needed"),
    "clip": NORM,
    "clip_end": NORM,
    "noise_end": NORM,
    "step_end": NORM,
    "precision_weight": NORM,
    "gradient_clip": NORM,
    "whiten_bound": NORM,
    "momentum": (lambda value: 0 <= value < 1, "it must be in [0, 1)"),
    "averaged_share": (lambda value: 0 <= value <= 1, "it is in [0, 1]"),
    "most_noise": (lambda value: value > 0, "it must be > 0"),
    "shards": (AT_LEAST_ONE, "at least 1 is needed"),
}


def check_ranges(table: Any, key: str, ranges: Mapping[str, Range]) -> None:
    """Raise a ConfigError for the first number of a table that is out of its range."""
    for name, (holds, advice) in ranges.items():
        value = getattr(table, name)
        if value is not None and not holds(value):
            raise ConfigError(f"{key}.{name} = {value}; {advice}")
