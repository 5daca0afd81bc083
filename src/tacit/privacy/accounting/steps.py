"""Accountant steps: a sampling scheme and distances in units of the noise.

Clip, noise, lattice and adjacency are converted to an accountant's numbers only here. Distances are
sensitivity / noise_sd (in integers, if the release is on a lattice), which avoids the libraries'
conventions for a noise multiplier under replace-one (dp_accounting's PLD doubles the sensitivity,
its RDP does not).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from tacit.errors import ConfigError
from tacit.privacy.events import (
    Adjacency,
    GaussianEvent,
    LaplaceEvent,
    Poisson,
    WithoutReplacement,
)

Scheme = Literal["all", "poisson", "without-replacement", "pure"]


class Step(NamedTuple):
    """One release: sampling scheme, and how far one unit moves the sum, in standard deviations of
    noise.

    `far` is the distance between the sums with the unit and with its replacement (or without it);
    `near` is the distance between the sum with the unit and the sum of a batch that excludes it. A
    release with Laplace noise has the scheme "pure": `far` is its ε, the largest possible loss.
    With `one_way` (add-or-remove-one) the same one of the two data sets contains the unit in every
    step, so the two directions of the privacy loss are composed separately. Otherwise
    (replace-one) they are mixed.
    """

    scheme: Scheme
    rate: float
    far: float
    near: float
    one_way: bool
    slack: float = 0.0
    """κ of the domination lemma: the log-ratio between a release on a lattice and a processed
    Gaussian.
    """


def to_step(event: GaussianEvent, adjacency: Adjacency) -> Step:
    """Convert an event under an adjacency to a step; a rate of 1 means no sampling.

    | sampling            | adjacency         | far            | near           |
    |---------------------|-------------------|----------------|----------------|
    | none                | either            | sensitivity/s  | sensitivity/s  |
    | Poisson             | add-or-remove-one | C/s            | C/s            |
    | Poisson             | replace-one       | sensitivity/s  | C/s            |
    | without replacement | replace-one       | sensitivity/s  | sensitivity/s  |

    >>> to_step(GaussianEvent(clip=1.0, noise_sd=4.0), "replace-one").far
    0.5
    """
    if reason := refusal(event, adjacency):
        raise ConfigError(reason)
    far = event.distance(event.sensitivity(adjacency))
    if isinstance(event, LaplaceEvent):
        return Step("pure", 1.0, far, far, False)
    slack = 0.0 if event.lattice is None else event.lattice.slack
    sampling = event.sampling
    if sampling is None or sampling.rate == 1:
        return Step("all", 1.0, far, far, False, slack)
    if isinstance(sampling, Poisson):
        near = event.distance(event.clip)
        one_way = adjacency == "add-or-remove-one"
        return Step("poisson", sampling.rate, far, near, one_way, slack)
    return Step("without-replacement", sampling.rate, far, far, False, slack)


def not_negative(value: float, *, if_nan: float = math.inf) -> float:
    """Return the larger of 0 and a computed bound; for NaN return `if_nan` (`max(0.0, nan)` would
    be 0).

    >>> not_negative(-1e-17), not_negative(float("nan"))
    (0.0, inf)
    """
    return if_nan if math.isnan(value) else max(0.0, value)


def refusal(event: GaussianEvent, adjacency: Adjacency) -> str | None:
    """Return why no accountant bounds this event under this adjacency, or None."""
    if adjacency not in get_args(Adjacency):
        return f"adjacency = {adjacency!r}; it must be one of {', '.join(get_args(Adjacency))}"
    if not isinstance(event, GaussianEvent):
        return f"{type(event).__name__} is not an event that accountants support: use GaussianEvent"
    if event.count != int(event.count):
        return f"count = {event.count}; it must be a whole number of releases"
    if isinstance(event.sampling, WithoutReplacement) and adjacency == "add-or-remove-one":
        return (
            "sampling without replacement reveals the number of units, which is private under "
            "add-or-remove-one: use Poisson sampling, or the adjacency 'replace-one'"
        )
    return None
