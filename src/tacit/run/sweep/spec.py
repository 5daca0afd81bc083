"""Sweep files, and the runs that they describe."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import ConfigError, TacitError
from tacit.run.config import (
    Config,
    override,
    parse_config,
    plain_config,
    read_toml,
    set_key,
)
from tacit.run.sweep.job import Job
from tacit.support.table_reader import read_table
from tacit.support.tables import Table, plain

NOISE_SEED = "privacy.insecure_noise_seed"


class Sweep(Table, frozen=True, kw_only=True):
    """A base configuration and the changes to it.

    Every entry of `runs` is combined with every point of `grid` and with every seed. Keys are
    dotted as in `--set`. A nested table in `grid`, `runs` or `set` is equivalent to dotted keys.
    """

    base: str | dict[str, Any]
    """Path of the TOML file of a run, relative to the sweep file, or an inline configuration."""
    name: str = "sweep"
    """Title of the sweep; `tacit sweep` also derives the default name of its directory from it."""
    seeds: int | list[int] | None = None
    """List of seeds, or a number n for the seeds 0, …, n − 1; by default the seed of the base
    configuration.
    """
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys that are changed for every run."""
    grid: dict[str, Any] = msgspec.field(default_factory=dict)
    """List of values per key."""
    runs: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Individual runs, each a table of changed keys."""


def read_sweep(path: Path, overrides: tuple[str, ...] = ()) -> Sweep:
    """Read a sweep and its base configuration. Each of `overrides` is a change `key=value` of the
    base.
    """
    asked = read_table(read_toml(path), Sweep)
    if isinstance(asked.base, str):
        base = read_toml(path.parent / asked.base, overrides)
    else:
        base = copy.deepcopy(asked.base)
        for each in overrides:
            override(base, each)
    return msgspec.structs.replace(asked, base=base)


def expand(asked: Sweep) -> list[Job]:
    """Return all runs of a sweep, validated before anything runs.

    In a simulation the noise seed is set to the run's seed, unless the sweep sets it. If all runs
    had the same noise, their standard error would be too small.

    >>> grid = {"schedule": {"rounds": [2, 3]}}
    >>> base = {"privacy": "none", "data": {"source": "synthetic-cohort"}}
    >>> jobs = expand(Sweep(base=base, grid=grid, seeds=2))
    >>> [(job.case["schedule.rounds"], job.seed) for job in jobs]
    [(2, 0), (2, 1), (3, 0), (3, 1)]
    """
    cases = _cases(asked)
    seeds = list(range(asked.seeds)) if isinstance(asked.seeds, int) else asked.seeds
    if seeds is not None and not seeds:
        raise ConfigError(
            f"seeds = {asked.seeds!r}; give a list with at least one seed, or the number of seeds"
        )
    fixed = _flat(asked.set, "set")
    jobs: dict[str, Job] = {}
    for case, seed in itertools.product(cases, seeds or [None]):
        job = _job(asked, fixed, case, seed)
        if job.id in jobs:
            raise ConfigError(
                f"two runs of the sweep are the same: {_words(case)} with seed {job.seed}; leave "
                "one out"
            )
        jobs[job.id] = job
    return list(jobs.values())


def _cases(asked: Sweep) -> list[dict[str, Any]]:
    grid = _flat(asked.grid, "grid")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid: {key} = {values!r}; give a list of values")
    points = [dict(zip(grid, each, strict=True)) for each in itertools.product(*grid.values())]
    listed = [_flat(entry, "runs") for entry in asked.runs] or [{}]
    for entry in listed:
        both = sorted(entry.keys() & grid.keys())
        if both:
            raise ConfigError(f"{both[0]} is in runs and in grid; keep it in one of them")
    columns = list(dict.fromkeys(key for entry in listed for key in entry))
    # Every run has every column; values that equal the base's are empty.
    return [
        {key: entry.get(key) for key in columns} | point for entry in listed for point in points
    ]


def _job(asked: Sweep, fixed: dict[str, Any], case: dict[str, Any], seed: int | None) -> Job:
    raw = copy.deepcopy(asked.base)
    assert isinstance(raw, dict), "read_sweep reads the base"
    for key, value in (fixed | case).items():
        if value is not None:
            set_key(raw, key, value)
    if seed is not None:
        raw["seed"] = seed
        seeded = isinstance(raw.get("privacy"), dict) and "insecure_noise_seed" in raw["privacy"]
        if seeded and NOISE_SEED not in fixed | case:
            set_key(raw, NOISE_SEED, seed)
    raw["name"] = asked.name
    return make_job(raw, case)


def make_job(raw: dict[str, Any], case: dict[str, Any], runner: str | None = None) -> Job:
    """Make the job of one configuration. `case` contains the values that the sweep changes.

    >>> base = {"privacy": "none", "seed": 3, "data": {"source": "synthetic-cohort"}}
    >>> make_job(base, {}).seed
    3
    """
    try:
        config = parse_config(raw)
    except TacitError as error:
        raise type(error)(f"{_words(case)}: {error}") from None
    if config.engine.kind != "in-process":
        raise ConfigError(
            f"engine.kind = {config.engine.kind!r} in a sweep, which distributes runs, not "
            "parties; leave it out and use tacit sweep --engine ray"
        )
    return Job(
        id=_digest(config, None if runner is None else [runner, case]),
        case=case,
        seed=config.seed,
        config=plain_config(config),
        runner=runner,
    )


def _flat(table: dict[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if name in ("seed", "name"):
            raise ConfigError(f"{where} has {name}; set seeds or name at the top of the sweep file")
        inner = _flat(value, where, f"{name}.") if isinstance(value, dict) else {name: value}
        found |= inner
    return found


def _digest(config: Config, other: Any) -> str:
    """Return a digest of a run's configuration (without its name) and of other inputs."""
    body = msgspec.json.encode(
        plain(msgspec.structs.replace(config, name="")), order="deterministic"
    )
    if other is not None:
        body += msgspec.json.encode(other, order="deterministic")
    return hashlib.sha256(body).hexdigest()[:16]


def _words(case: dict[str, Any]) -> str:
    shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in case.items())
    return shown or "the base"
