"""Read frontier.toml and make one sweep job for each run."""

from __future__ import annotations

import copy
import tomllib
from importlib.resources import files
from typing import Any

import msgspec

from tacit.errors import ConfigError
from tacit.methods import PrivateMethod
from tacit.models import LogisticRegression
from tacit.plan.checks import choose_family
from tacit.run.build import make_method
from tacit.run.config import parse_config, set_key
from tacit.run.sweep import Job, make_job
from tacit_studies.frontier_ablation import VARIANTS

REFERENCE = "non-private"
BALANCED = "balanced"
ABLATION = "ablation"
MANY = 100
RUNNER = "tacit_studies.frontier_ablation:run_job"
TRUSTED = {"plain": "none", "trusted": "the aggregator"}


class Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A method: the keys that it sets, and the keys that replace them with many parties."""

    label: str
    set: dict[str, Any]
    many: dict[str, Any] = {}

    @property
    def trusted(self) -> str:
        """Who must be trusted with more than the guarantee covers; a dash without privacy."""
        if self.set.get("privacy") == "none":
            return "–"
        if self.set.get("baseline") == "central":
            return "central holder"
        return TRUSTED[self.set.get("privacy.aggregation", "plain")]


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figure of the paper to compare with, and its ε."""

    figure: int
    epsilon: float


class FigureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of Figure 1 or 2."""

    title: str
    parties: int
    seeds: int
    published: Source


class Ablation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Setting of the ablation: no trusted party, balanced split."""

    parties: int
    epsilon: float
    seeds: int


class Few(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of --quick with many parties."""

    seeds: int
    epsilons: tuple[float, ...]
    methods: tuple[str, ...]


class Quick(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of --quick."""

    seeds: int
    splits: tuple[str, ...]
    epsilons: tuple[float, ...]
    methods: tuple[str, ...]
    many: Few


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of frontier.toml."""

    epsilons: tuple[float, ...]
    splits: tuple[str, ...]
    base: dict[str, Any]
    partitions: dict[str, dict[str, Any]]
    figures: dict[str, FigureSettings]
    methods: dict[str, Method]
    ablation: Ablation
    quick: Quick


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a run in the study.

    A method that has all records in one place does not depend on the split: its cells for all
    splits share one run.
    """

    figure: int | str
    split: str
    method: str
    epsilon: float | None
    """None without privacy."""
    job: Job


def read_settings() -> Settings:
    """The settings of the study."""
    text = files("tacit_studies").joinpath("frontier.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Settings, strict=False)


def refused(settings: Settings) -> dict[str, str]:
    """Methods that do not support logistic regression, each with the library's message."""
    found: dict[str, str] = {}
    model = LogisticRegression(("constant", "x"), prior_sd=1.0)
    for name, method in settings.methods.items():
        config = parse_config(_raw(settings, method, 0, {"kind": "balanced", "parties": 2}, None))
        made = make_method(config)
        if made is None:
            continue
        noisy = isinstance(made, PrivateMethod) and not made.wants_full
        try:
            made.check(model, choose_family("auto", model, private=noisy))
        except ConfigError as error:
            found[name] = str(error)
    return found


def figure_cells(
    settings: Settings, figure: int, absent: dict[str, str], *, first: int, quick: bool
) -> list[Cell]:
    """Every run of Figure 1 or 2; runs on the same records are adjacent."""
    what, small = settings.figures[str(figure)], settings.quick
    many = what.parties >= MANY
    splits, epsilons, seeds = settings.splits, settings.epsilons, what.seeds
    methods = tuple(settings.methods)
    if quick:
        few = small.many if many else small
        splits, epsilons, methods, seeds = small.splits, few.epsilons, few.methods, few.seeds
    cells = []
    together = settings.partitions[BALANCED] | {"parties": settings.figures["1"].parties}
    for split in splits:
        apart = settings.partitions[split] | {"parties": what.parties}
        for seed in range(first, first + seeds):
            for name in methods:
                method = settings.methods[name]
                if name in absent:
                    continue
                if many:
                    method = msgspec.structs.replace(method, set=method.set | method.many)
                # All records in one place are the same for every split.
                split_of = together if method.trusted == "central holder" else apart
                for epsilon in (None,) if name == REFERENCE else epsilons:
                    raw = _raw(settings, method, seed, split_of, epsilon)
                    job = make_job(raw, {"epsilon": epsilon}, RUNNER)
                    cells.append(
                        Cell(figure=figure, split=split, method=name, epsilon=epsilon, job=job)
                    )
    return cells


def ablation_cells(settings: Settings, *, first: int, quick: bool) -> list[Cell]:
    """Private scoring, whole and without one of its parts, and the run without privacy."""
    what = settings.ablation
    partition = settings.partitions[BALANCED] | {"parties": what.parties}
    cells = []
    for seed in range(first, first + (1 if quick else what.seeds)):
        raw = _raw(settings, settings.methods[REFERENCE], seed, partition, None)
        job = make_job(raw, {"epsilon": None}, RUNNER)
        cells.append(Cell(figure=ABLATION, split=BALANCED, method=REFERENCE, epsilon=None, job=job))
        for name in VARIANTS:
            raw = _raw(settings, settings.methods["scoring"], seed, partition, what.epsilon)
            case = {"epsilon": what.epsilon} | ({} if name == "whole" else {"variant": name})
            job = make_job(raw, case, RUNNER)
            cells.append(
                Cell(figure=ABLATION, split=BALANCED, method=name, epsilon=what.epsilon, job=job)
            )
    return cells


def unique_jobs(cells: list[Cell]) -> list[Job]:
    """The distinct runs of the cells."""
    return list({cell.job.id: cell.job for cell in cells}.values())


def _raw(
    settings: Settings,
    method: Method,
    seed: int,
    partition: dict[str, Any],
    epsilon: float | None,
) -> dict[str, Any]:
    raw = copy.deepcopy(settings.base) | {"seed": seed, "partition": dict(partition)}
    for key, value in method.set.items():
        set_key(raw, key, value)
    if isinstance(raw["privacy"], dict):
        raw["privacy"]["insecure_noise_seed"] = seed
        if epsilon is not None:
            raw["privacy"]["epsilon"] = epsilon
    return raw
