"""Successive halving over settings, scored on synthetic federations.

All settings use the same federations and noise, so differences between scores of two settings vary
less than the scores themselves. After each stage, the better half of the settings and the given
configuration continue with about twice as many federations. Finally the best setting is compared
with the given configuration on new federations, as many as in all stages, because the best of many
noisy scores is too high on average. Only a gain in this comparison is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tacit.errors import ConfigError
from tacit.run.config import Config
from tacit.run.tune.grid import Grid, current_values, default_grid, settings_to_try, with_settings
from tacit.run.tune.trials import Trial, TrialRunner

NOTHING_SPENT = "No budget was spent: only synthetic records were used."
FIRST_SHARE = 4
"""The number of federations in the first stage is the total number (`repeats`) divided by this."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of tuning. `best.settings` is empty if no setting was better than the given
    configuration.
    """

    config: Config
    kind: str
    """Kind of the local method, resolved if "auto"."""
    grid: Grid
    trials: tuple[Trial, ...]
    """All trials. Those that reached the last stage come first, in order of their score."""
    best: Trial
    check: tuple[Trial, Trial] | None
    """Trials of the best setting and of the given configuration on new federations; None if no
    setting had a better score than the given configuration.
    """
    made: tuple[str, ...]
    """Description of the synthetic records."""
    seconds: float

    @property
    def given(self) -> Trial:
        """The trial with the given configuration."""
        return next(trial for trial in self.trials if not trial.settings)

    @property
    def tuned(self) -> Config:
        """The configuration with the best settings."""
        return with_settings(self.config, self.best.settings, self.kind)

    @property
    def holds(self) -> bool:
        """True if the best setting was also better than the given one on new federations."""
        return self.check is not None and self.check[0].gain_over(self.check[1])[0] > 0


def tune(
    config: Config,
    *,
    trials: int | None = None,
    repeats: int | None = None,
    records: int | None = None,
    grid: Grid | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Compare settings of a configuration on synthetic records, and return the best.

    Up to `trials` settings, including the given one, are compared by held-out log-likelihood on up
    to `repeats` synthetic federations. `records` is the total number of training records of a
    federation. By default it is taken from the table [tune] or the data source, or is a fixed
    number per party. The defaults of the other arguments are in [tune]. Real records are not read.
    """
    started = time.perf_counter()
    _check_counts(trials=trials, repeats=repeats, records=records)
    options = config.tune
    seed = config.seed if seed is None else seed
    most, last = trials or options.trials, repeats or options.repeats
    runner = TrialRunner(config, records or options.records, seed)
    grid = grid or default_grid(config, runner.kind, runner.units)
    given = current_values(config, runner.kind, list(grid))
    running = [Trial(settings=one) for one in settings_to_try(grid, given, most, seed)]
    stages = _stages(len(running), last)
    total = sum(count * new for count, new in stages) + 2 * last
    done = 0

    def advance(trials: list[Trial], number: int) -> list[Trial]:
        nonlocal done
        after = []
        for trial in trials:
            after.append(runner.tried(trial, number))
            done += 1
            if progress is not None:
                progress(done, total, f"{len(trials)} settings, {number + 1} federations")
        return after

    running, over = _by_halving(running, [new for _, new in stages], advance)
    best, check = running[0], None
    if best.settings:
        pair = [Trial(settings=best.settings), Trial(settings={})]
        for number in range(last, 2 * last):
            pair = advance(pair, number)
        check = (pair[0], pair[1])
    result = Tuned(
        config=config,
        kind=runner.kind,
        grid=grid,
        trials=(*running, *over),
        best=best,
        check=check,
        made=runner.made,
        seconds=time.perf_counter() - started,
    )
    if check is not None and not result.holds:
        result = replace(result, best=result.given)
    return result


def _by_halving(
    running: list[Trial],
    federations: Sequence[int],
    advance: Callable[[list[Trial], int], list[Trial]],
) -> tuple[list[Trial], list[Trial]]:
    """Run the trials in stages. Before each stage except the first, the worse half of the trials is
    dropped.

    `federations` is the number of additional federations of each stage, and `advance` runs trials
    on one federation. Returns the remaining trials, the best first, and the dropped trials.
    """
    over: list[Trial] = []
    first = 0
    for stage, new in enumerate(federations):
        if stage:
            running, dropped = _halved(running)
            over[:0] = dropped
        for number in range(first, first + new):  # one federation in memory at a time
            running = advance(running, number)
            _refuse_hopeless(running)
        first += new
    return sorted(running, key=lambda trial: -trial.mean), over


def _halved(trials: list[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Return the better half of the trials, and the other half. The trial of the given
    configuration is always in the first list.
    """
    keep = max(1, math.ceil(len(trials) / 2))
    ranked = sorted(trials, key=lambda trial: -trial.mean)
    stays = [trial for i, trial in enumerate(ranked) if i < keep or not trial.settings]
    return stays, [trial for trial in ranked if trial not in stays]


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and not value >= 1:
            raise ConfigError(f"--{name} {value}; it must be at least 1")


def _stages(settings: int, last: int) -> list[tuple[int, int]]:
    """Return a pair per stage: the approximate number of trials, and the number of additional
    federations.
    """
    upto = [max(1, last // FIRST_SHARE), max(1, last // 2), last]
    stages, before = [], 0
    for federations in dict.fromkeys(upto):
        stages.append((settings, federations - before))
        settings, before = max(1, math.ceil(settings / 2)), federations
    return stages


def _refuse_hopeless(running: list[Trial]) -> None:
    given = next(trial for trial in running if not trial.settings)
    if given.failure is not None and all(trial.failure for trial in running):
        raise ConfigError(
            f"all settings fail; first fix the given configuration, which fails: {given.failure}"
        )
