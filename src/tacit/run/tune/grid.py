"""Grids: dicts from the dotted key of a setting to the values to try."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import ConfigError
from tacit.methods import METHODS
from tacit.run.config import Config, parse_config, plain_config

Settings = dict[str, Any]
"""Dict from dotted key to the value in a trial, for the keys that the trial changes."""
Grid = dict[str, tuple[Any, ...]]

TUNABLE = ("method", "schedule", "posterior")
"""First parts of the dotted keys that may be tuned. Model, data and privacy are not tuned."""


class Choice(NamedTuple):
    """Values to try for one setting: the configured value times each of `times`, and the values
    `others`.
    """

    times: tuple[float, ...] = ()
    others: tuple[Any, ...] = ()


ROUNDS, DAMPING = Choice(times=(0.5, 2.0)), Choice(others=(0.05, 0.2, 0.5, 1.0))
CLIP = Choice(times=(0.25, 0.5, 2.0, 4.0))
GRIDS: dict[str, dict[str, Choice]] = {
    "dp-sgd": {
        "method.clip": CLIP,
        "method.step_size": Choice(others=(0.02, 0.05, 0.1, 0.2)),
        "method.momentum": Choice(others=(0.0, 0.5, 0.8)),
        "schedule.rounds": ROUNDS,
    },
    "dp-scoring": {
        "method.empirical_bayes": Choice(others=(True,)),
        "schedule.rounds": ROUNDS,
    },
    "dp-scores": {"schedule.rounds": Choice(others=(14, 22))},
    "conjugate": {"schedule.rounds": Choice(others=(50, 200))},
    "dp-conjugate": {"schedule.rounds": Choice(others=(10, 14, 22))},
    "dp-updates": {
        "method.clip": CLIP,
        "method.shards": Choice(times=(0.25, 0.5, 2.0)),
        "schedule.damping": DAMPING,
        "schedule.rounds": ROUNDS,
    },
    "gradient-vi": {
        "method.learning_rate": Choice(times=(0.3, 3.0)),
        "schedule.damping": DAMPING,
        "schedule.rounds": ROUNDS,
    },
}
DEFAULT_GRID = {"schedule.damping": DAMPING, "schedule.rounds": ROUNDS}
UNITS_PER_SHARD = (1, 4, 10)
DRAWS_PER_TRIAL = 50


def default_grid(config: Config, kind: str, units: int) -> Grid:
    """Return the default values to try for each setting of the method `kind`. `units` is the
    approximate number of units per party.
    """
    table = dict(GRIDS.get(kind, DEFAULT_GRID))
    if kind not in GRIDS and METHODS[kind].private:
        table["method.clip"] = CLIP
    if config.private is not None and config.private.unit == "party":
        table.pop("method.shards", None)
    grid: Grid = {}
    for key, choice in table.items():
        now = _current(config, kind, key)
        known = choice.others
        if isinstance(now, int | float):
            known += tuple(_multiple(now, factor) for factor in choice.times)
        elif key == "method.shards":
            known += tuple(max(1, math.ceil(units / each)) for each in UNITS_PER_SHARD)
        grid[key] = tuple(dict.fromkeys((now, *known)))
    return grid


def parse_grid(texts: Sequence[str], table: Mapping[str, Any] | None = None) -> Grid:
    """Return one grid from texts of the form "key=v1,v2" (`--grid`) and a [tune.grid] table. If
    both contain a key, the text is used.

    >>> parse_grid(["schedule.rounds=10,20"], {"method": {"clip": [1.0, 2.0]}})
    {'method.clip': (1.0, 2.0), 'schedule.rounds': (10, 20)}
    """
    grid = _flat(table or {})
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError(
                f"--grid {text!r} is not of the form key=v1,v2; write e.g. --grid "
                "method.clip=0.5,1,2"
            )
        try:
            grid[key.strip()] = tuple(tomllib.loads(f"values = [{values}]")["values"])
        except tomllib.TOMLDecodeError:
            grid[key.strip()] = tuple(part.strip() for part in values.split(","))
    for key, values in grid.items():
        if key.split(".")[0] not in TUNABLE:
            raise ConfigError(
                f"the grid contains {key!r}, but only keys of {', '.join(TUNABLE)} can be tuned; "
                "leave it out"
            )
        if not values:
            raise ConfigError(f"the grid has no values for {key!r}; give at least one")
    return grid


def settings_to_try(grid: Grid, given: Mapping[str, Any], most: int, seed: int) -> list[Settings]:
    """Return at most `most` settings to try. A setting is a dictionary of the values that differ
    from the given configuration.

    The first setting is the given configuration, {}. If the grid has more than `most` combinations,
    the other settings are drawn at random. Each key keeps its given value with probability ½, so a
    setting changes only some of the keys.
    """
    rng = np.random.default_rng([seed, 0x7E57])
    every = math.prod(len(values) for values in grid.values())
    found: list[Settings] = [{}]

    def add(values: Sequence[Any]) -> None:
        changed = {k: v for k, v in zip(grid, values, strict=True) if v != given.get(k)}
        if changed not in found:
            found.append(changed)

    if every <= most:
        for values in itertools.product(*grid.values()):
            add(values)
        return found[:most]
    for _ in range(DRAWS_PER_TRIAL * most):  # the given values may not be in the grid
        if len(found) == most:
            break
        add(
            [
                given[key] if rng.random() < 0.5 else values[int(rng.integers(len(values)))]
                for key, values in grid.items()
            ]
        )
    return found


def with_settings(config: Config, settings: Settings, kind: str) -> Config:
    """Return a copy of the configuration with these settings. If one of them is a setting of the
    method, `method.kind` is set to `kind`.
    """
    raw = plain_config(config)
    named = any(key.startswith("method.") for key in settings)
    for key, value in (({"method.kind": kind} if named else {}) | settings).items():
        *parents, last = key.split(".")
        place = raw
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return parse_config(_without_none(raw))


def current_values(config: Config, kind: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the value of each key in the configuration, by key. If a key is not set, its value is
    the default of the method.
    """
    return {key: _current(config, kind, key) for key in keys}


def _current(config: Config, kind: str, key: str) -> Any:
    value: Any = plain_config(config)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None and key.startswith("method."):
        own = getattr(METHODS[kind], "__dataclass_fields__", {})
        name = key.removeprefix("method.")
        value = own[name].default if name in own else None
    if value is None and key == "schedule.rounds":
        value = METHODS[kind].usual_rounds
    return value


def _multiple(now: float, factor: float) -> int | float:
    return max(1, round(now * factor)) if isinstance(now, int) else now * factor


def _flat(table: Mapping[str, Any], above: str = "") -> Grid:
    found: Grid = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        elif isinstance(value, list | tuple):
            found[above + key] = tuple(value)
        else:
            raise ConfigError(f"tune.grid.{above}{key} = {value!r}; give a list of values to try")
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
