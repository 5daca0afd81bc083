"""Read tmlr.toml and make one job for each run of the TMLR study."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from tacit.data import DataConfig, PartitionConfig
from tacit.data.readers.download import cache_folder
from tacit.errors import ConfigError
from tacit.plan.baselines import Baseline
from tacit.privacy.guarantee import Aggregation
from tacit.server.settings import DampingSettings

DELTA = 1e-5
FIGURES = (1, 2, 3, 4, 5)
SHARDS = 5
"""The figure on the number of shards."""
REFERENCE = "non-private"
FORMAT = 1
"""Part of every job's digest. Increase it if the measurements of a run change, so that stored
results are not reused.
"""


Kind = Literal["dp-sgd", "dp-updates", "dp-parameters", "dp-own-factors", "dp-learned-variance"]


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One method with its hyperparameters. Without a `kind` it is `tacit.fit` without privacy."""

    label: str
    rounds: int
    kind: Kind | None = None
    options: dict[str, Any] = {}
    damping: float | DampingSettings | None = None
    aggregation: Aggregation = "plain"
    baseline: Baseline = "none"
    schedule: Literal["synchronous", "sequential"] = "synchronous"
    epsilon: float | None = None
    """Replaces the figure's ε."""

    def shortened(self, rounds: int) -> Recipe:
        """The same recipe with at most `rounds` rounds."""
        rounds, damping = min(rounds, self.rounds), self.damping
        if isinstance(damping, DampingSettings) and damping.rounds is not None:
            damping = msgspec.structs.replace(damping, rounds=min(rounds, damping.rounds))
        return msgspec.structs.replace(self, rounds=rounds, damping=damping)


class FigureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one of Figures 1 to 4."""

    title: str
    data: str
    parties: int
    epsilon: float
    methods: tuple[str, ...]
    more: tuple[str, ...] = ()
    """Variants that are only run if they are named."""
    hidden: int | None = None
    """Hidden units of a network; None: logistic regression."""
    stand_in: str | None = None
    """Data to use if the data of the paper are missing."""
    absent: str = ""
    """Text on the paper's methods that are not run, with the reasons."""
    change: dict[str, dict[str, Any]] = {}


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of Figure 5."""

    label: str
    epsilon: float
    clip: float
    local: dict[str, Any]
    """Options of the local steps of a shard."""
    rounds: int | None = None
    """Number of rounds; by default that of the figure."""
    damping: float | None = None
    """Damping; by default that of the figure."""

    def options(self, objective: str, shards: int) -> dict[str, Any]:
        """Return the options of method `dp-updates` for this line."""
        return {"objective": objective, "shards": shards, "clip": self.clip, **self.local}


class Shards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of Figure 5, on the number of shards."""

    title: str
    parties: int
    counts: tuple[int, ...]
    counts_mimic3: tuple[int, ...]
    rounds: int
    damping: float
    objective: str
    lines: dict[str, Line]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of --quick for Figures 3 to 5."""

    seeds: int
    splits: tuple[str, ...]
    methods: tuple[str, ...]
    rounds: int


class Quick(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of --quick for Figures 1 and 2, and for the lines of Figure 5."""

    seeds: int
    splits: tuple[str, ...]
    methods: tuple[str, ...]
    counts: tuple[int, ...]
    lines: tuple[str, ...]
    sample: Sample


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of tmlr.toml."""

    seeds: int
    data: dict[str, DataConfig]
    splits: dict[str, dict[str, dict[str, Any]]]
    methods: dict[str, dict[str, Any]]
    figures: dict[str, FigureSettings]
    shards: Shards
    quick: Quick


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run, with everything on which its numbers depend."""

    data: DataConfig
    partition: PartitionConfig
    recipe: Recipe
    hidden: int | None
    epsilon: float
    delta: float
    seed: int

    @property
    def digest(self) -> str:
        """Digest that names the file of its result; labels are not included."""
        recipe = msgspec.structs.replace(self.recipe, label="")
        plain = msgspec.to_builtins(msgspec.structs.replace(self, recipe=recipe))
        text = json.dumps([FORMAT, plain], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a job: figure, split, method (or line and number of shards) and seed."""

    figure: int
    split: str
    method: str
    job: Job
    count: int | None = None


def read_settings() -> Settings:
    """The settings of the study."""
    text = files("tacit_studies").joinpath("tmlr.toml").read_text(encoding="utf-8")
    return _located(msgspec.convert(tomllib.loads(text), Settings, strict=False))


def data_directory() -> Path:
    """The directory in which public data files are searched for."""
    given = os.environ.get("TACIT_DATA")
    return Path(given).expanduser() if given else cache_folder()


def _located(settings: Settings) -> Settings:
    """The settings with paths of files in the data directory."""
    replace = msgspec.structs.replace
    data = {
        name: one if one.path is None else replace(one, path=str(data_directory() / str(one.path)))
        for name, one in settings.data.items()
    }
    return replace(settings, data=data)


def on_stand_in(settings: Settings, figure: int) -> Settings | None:
    """Return settings in which a figure uses its replacement data, and its title says so.

    None if the figure has no replacement data.
    """
    what = settings.figures[str(figure)]
    if what.stand_in is None:
        return None
    title = f"{what.stand_in.upper()} in the place of {what.title}"
    here = msgspec.structs.replace(what, data=what.stand_in, title=title)
    return msgspec.structs.replace(settings, figures={**settings.figures, str(figure): here})


def only(settings: Settings, methods: Sequence[str]) -> Settings:
    """The settings with these methods only; they may be variants that are not run by default."""
    for name in methods:
        if name not in settings.methods:
            raise ConfigError(f"methods has {name!r}; choose from {', '.join(settings.methods)}")
    figures = {
        number: msgspec.structs.replace(
            figure,
            methods=tuple(name for name in (*figure.methods, *figure.more) if name in methods),
        )
        for number, figure in settings.figures.items()
    }
    return msgspec.structs.replace(settings, figures=figures)


def check_figure(figure: int | None) -> tuple[int, ...]:
    """The figures to make: the requested one, or all."""
    if figure is None:
        return FIGURES
    if figure not in FIGURES:
        raise ConfigError(f"--figure {figure}; the study has figures 1 to {FIGURES[-1]}")
    return (figure,)


def recipe_of(settings: Settings, figure: int, method: str) -> Recipe:
    """A method as that figure runs it: options that a figure changes replace the general ones."""
    change = settings.figures[str(figure)].change.get(method, {})
    return msgspec.convert(settings.methods[method] | change, Recipe)


def figure_cells(settings: Settings, figure: int, *, first: int, quick: bool) -> list[Cell]:
    """Every run of one of Figures 1 to 4; runs on the same records are adjacent."""
    what, small = settings.figures[str(figure)], settings.quick
    splits, methods, seeds = tuple(settings.splits[what.data]), what.methods, settings.seeds
    rounds = None
    if quick:
        few = small if figure <= 2 else small.sample
        splits, seeds = few.splits, few.seeds
        methods = tuple(name for name in what.methods if name in few.methods)
        rounds = small.sample.rounds
    cells = []
    together = partition_of(settings, what.data, "balanced", what.parties)
    for split in splits:
        apart = partition_of(settings, what.data, split, what.parties)
        for seed in range(first, first + seeds):
            for method in methods:
                recipe = recipe_of(settings, figure, method)
                job = Job(
                    data=settings.data[what.data],
                    # All records in one place are the same for every split.
                    partition=together if recipe.baseline == "central" else apart,
                    recipe=recipe if rounds is None else recipe.shortened(rounds),
                    hidden=what.hidden,
                    epsilon=what.epsilon if recipe.epsilon is None else recipe.epsilon,
                    delta=DELTA,
                    seed=seed,
                )
                cells.append(Cell(figure=figure, split=split, method=method, job=job))
    return cells


def shard_cells(settings: Settings, data: str, *, first: int, quick: bool) -> list[Cell]:
    """Every run of Figure 5 on that data set."""
    what, small = settings.shards, settings.quick
    counts = what.counts_mimic3 if data == "mimic3" else what.counts
    lines, seeds = tuple(what.lines), settings.seeds
    if quick:
        lines, seeds = small.lines, small.sample.seeds
        counts = tuple(count for count in counts if count in small.counts)
    partition = partition_of(settings, data, "balanced", what.parties)
    cells = []
    for seed in range(first, first + seeds):
        for name in lines:
            line = what.lines[name]
            for count in counts:
                recipe = Recipe(
                    label=line.label,
                    kind="dp-updates",
                    rounds=line.rounds or what.rounds,
                    damping=line.damping or what.damping,
                    options=line.options(what.objective, count),
                )
                job = Job(
                    data=settings.data[data],
                    partition=partition,
                    recipe=recipe,
                    hidden=None,
                    epsilon=line.epsilon,
                    delta=DELTA,
                    seed=seed,
                )
                cells.append(
                    Cell(figure=SHARDS, split="balanced", method=name, job=job, count=count)
                )
    return cells


def partition_of(settings: Settings, data: str, split: str, parties: int) -> PartitionConfig:
    """How a split distributes records over that many parties."""
    raw = {**settings.splits[data][split], "parties": parties}
    return msgspec.convert(raw, PartitionConfig, strict=False)
