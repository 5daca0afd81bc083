"""Compositions: immutable collections of releases, from which accountants compute ε and δ."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, cast, get_args

from tacit.errors import ConfigError
from tacit.privacy.accounting.steps import Step, not_negative, refusal, to_step
from tacit.privacy.events import Adjacency, GaussianEvent

Accountant = Literal["pld", "rdp", "moments", "strong"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

Steps = tuple[tuple[Step, int], ...]


class _Module(Protocol):
    """Functions that each accountant module defines."""

    def refusal(self, step: Step) -> str | None:
        """Return the reason why this accountant cannot bound the privacy loss of `step`. Return
        None if the accountant can bound it.
        """
        ...

    def epsilon(self, steps: Steps, delta: float) -> float: ...

    def delta(self, steps: Steps, epsilon: float) -> float: ...


def _module(accountant: Accountant) -> _Module:
    if accountant not in ACCOUNTANTS:
        raise ConfigError(f"accountant = {accountant!r}; choose one of {', '.join(ACCOUNTANTS)}")
    return cast(_Module, import_module(f"tacit.privacy.accounting.{accountant}"))


def supported(event: GaussianEvent, adjacency: Adjacency, accountant: Accountant) -> str | None:
    """Return the reason why the accountant cannot bound this event under this adjacency. Return
    None if the accountant can bound it.

    >>> from tacit.privacy.events import Poisson
    >>> event = GaussianEvent(clip=1.0, noise_sd=1.0, sampling=Poisson(rate=0.1))
    >>> supported(event, "replace-one", "pld") is None
    True
    >>> supported(event, "replace-one", "moments")
    "the moments accountant has no bound for poisson sampling under replace-one: use 'pld'"
    """
    module = _module(accountant)
    if reason := refusal(event, adjacency):
        return reason
    step = to_step(event, adjacency)
    return None if step.scheme == "pure" else module.refusal(step)


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A collection of releases under one adjacency, for one accountant.

    A composition is immutable: `add` and `repeat` return new compositions. Two compositions of the
    same releases are equal and give equal ε and δ, in whatever order and grouping the releases were
    added.

    >>> event = GaussianEvent(clip=1.0, noise_sd=5.0)
    >>> spent = Composition(adjacency="add-or-remove-one").add(event, event)
    >>> spent == Composition(adjacency="add-or-remove-one").add(event).repeat(2)
    True
    """

    adjacency: Adjacency
    accountant: Accountant = "pld"
    steps: Steps = ()

    def __post_init__(self) -> None:
        _module(self.accountant)
        if self.adjacency not in get_args(Adjacency):
            raise ConfigError(
                f"adjacency = {self.adjacency!r}; choose one of {', '.join(get_args(Adjacency))}"
            )

    def add(self, *events: GaussianEvent) -> Composition:
        """Return a composition that also contains the given events.

        A `ConfigError` is raised for an event that the accountant cannot bound.
        """
        counts = dict(self.steps)
        for event in events:
            if reason := supported(event, self.adjacency, self.accountant):
                raise ConfigError(reason)
            step = to_step(event, self.adjacency)
            counts[step] = counts.get(step, 0) + int(event.count)
        return self._with(counts.items())

    def repeat(self, times: int) -> Composition:
        """Return a composition that contains each release `times` times."""
        if not (times >= 1 and times == int(times)):
            raise ConfigError(f"times = {times}; repeat a whole number of times, at least 1")
        return self._with((step, count * int(times)) for step, count in self.steps)

    def epsilon(self, delta: float) -> float:
        """Return ε of all releases at the given δ.

        The ε of releases with Laplace noise is added to the ε of all other releases. The result is
        `math.inf` if there is no bound, for example for Gaussian noise at δ = 0.
        """
        if not 0 <= delta < 1:
            raise ConfigError(f"delta = {delta}; it must be 0 or more and less than 1")
        pure, others = _pure(self.steps)
        if not others:
            return pure
        return math.inf if delta == 0 else pure + _epsilon(self.accountant, others, float(delta))

    def delta(self, epsilon: float) -> float:
        """Return δ of all releases at the given ε; 1 if there is no bound."""
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise ConfigError(f"epsilon = {epsilon}; it must be a finite number, 0 or more")
        pure, others = _pure(self.steps)
        if epsilon < pure:  # the pure releases alone exceed ε
            return 1.0
        return _delta(self.accountant, others, float(epsilon) - pure)

    def _with(self, counts: Iterable[tuple[Step, int]]) -> Composition:
        return Composition(
            adjacency=self.adjacency, accountant=self.accountant, steps=tuple(sorted(counts))
        )


def _pure(steps: Steps) -> tuple[float, Steps]:
    """Return the total ε of the releases with Laplace noise, rounded up, and the steps of all other
    releases.
    """
    each = [step.far * count for step, count in steps if step.scheme == "pure"]
    total = math.nextafter(math.fsum(each), math.inf) if each else 0.0
    return total, tuple(item for item in steps if item[0].scheme != "pure")


@functools.lru_cache(maxsize=512)
def _epsilon(accountant: Accountant, steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    slack = _slack(steps)
    found = float(_module(accountant).epsilon(steps, delta * math.exp(-slack)))
    return not_negative(found) + 2 * slack


@functools.lru_cache(maxsize=512)
def _delta(accountant: Accountant, steps: Steps, epsilon: float) -> float:
    if not steps:
        return 0.0
    slack = _slack(steps)
    found = float(_module(accountant).delta(steps, max(0.0, epsilon - 2 * slack)))
    return min(1.0, math.exp(slack) * not_negative(found))


def _slack(steps: Steps) -> float:
    # With this sum κ, discrete releases with the profile δ(ε) and the continuous Gaussians that
    # dominate them with the profile δ′(ε): δ(ε) ≤ e^κ δ′(ε − 2κ) (docs/methods/lattice.md).
    return math.fsum(step.slack * count for step, count in steps)
