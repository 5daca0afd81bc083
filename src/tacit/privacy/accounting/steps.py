"""Steps: the description of a release that all accountants share.

A step has a sampling scheme and distances. A distance is a sensitivity divided by the standard
deviation of the noise. Only this module converts clip, noise, lattice and adjacency to distances.
Libraries define a noise multiplier differently under replace-one: dp_accounting's PLD doubles the
sensitivity, and its RDP does not. Distances avoid this difference.
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
    """One release: its sampling scheme, and by how much one unit can move the sum.

    Distances are in standard deviations of the noise, and both are measured from the sum over a
    batch that contains the unit. `far` is the distance to the sum over the same batch of the
    neighbouring data set, in which the unit is replaced or, under add-or-remove-one, removed.
    `near` is the distance to the sum over a batch for which the unit was not sampled. A release
    with Laplace noise has the scheme "pure", and `far` is its ε.

    `one_way` is True for a sampled step under add-or-remove-one. The same one of two neighbouring
    data sets then contains the unit in all steps, so the two directions of the privacy loss are
    composed separately.
    """

    scheme: Scheme
    rate: float
    far: float
    near: float
    one_way: bool
    slack: float = 0.0
    """κ of the domination lemma (docs/methods/lattice.md): bound on the absolute log-ratio between
    the distribution of a release on a lattice and that of a continuous Gaussian after
    post-processing.
    """


def to_step(event: GaussianEvent, adjacency: Adjacency) -> Step:
    """Convert an event under an adjacency to a step.

    `far` and `near` of the step follow from the clip C of the event, its noise sd s, and its
    sensitivity under the adjacency. A sampling rate of 1 means no sampling.

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
    """Return the larger of 0 and `value`; return `if_nan` if `value` is NaN.

    >>> not_negative(-1e-17), not_negative(float("nan"))
    (0.0, inf)
    """
    # max(0.0, nan) would be 0.
    return if_nan if math.isnan(value) else max(0.0, value)


def refusal(event: GaussianEvent, adjacency: Adjacency) -> str | None:
    """Return the reason why no accountant can bound this event under this adjacency. Return None if
    there is no such reason.
    """
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
