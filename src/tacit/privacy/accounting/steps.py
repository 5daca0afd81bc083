"""A release as every accountant sees it: a sampling scheme and distances in units of the noise.

This is the one place where clip, noise and relation become numbers for an accountant. Distances are
sensitivity / noise_sd, so that no library's own convention for a noise multiplier under
substitution (dp_accounting's PLD doubles the sensitivity, its RDP does not) can enter.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from tacit.errors import ConfigError
from tacit.privacy.events import GaussianEvent, Poisson, Relation, WithoutReplacement

Scheme = Literal["all", "poisson", "without-replacement"]


class Step(NamedTuple):
    """One release: how its batch is drawn and how far one unit can move the sum, over the noise.

    `far` is the distance of the sums with the unit and with its replacement (or without it), `near`
    the distance of the sum with the unit from the one of a batch that the unit is not in.
    `one_way`: which of two neighbours has the unit is the same in every step, so that the two
    directions of the privacy loss are composed apart (add-or-remove) and not mixed (substitute).
    """

    scheme: Scheme
    rate: float
    far: float
    near: float
    one_way: bool


def to_step(event: GaussianEvent, relation: Relation) -> Step:
    """The step of an event under a relation; a rate of 1 is no sampling.

    | sampling            | relation      | far            | near           |
    |---------------------|---------------|----------------|----------------|
    | none                | either        | sensitivity/s  | sensitivity/s  |
    | Poisson             | add-or-remove | C/s            | C/s            |
    | Poisson             | substitute    | sensitivity/s  | C/s            |
    | without replacement | substitute    | sensitivity/s  | sensitivity/s  |

    >>> to_step(GaussianEvent(clip=1.0, noise_sd=4.0), "substitute").far
    0.5
    """
    if reason := refusal(event, relation):
        raise ConfigError(reason)
    far = event.sensitivity(relation) / event.noise_sd
    sampling = event.sampling
    if sampling is None or sampling.rate == 1:
        return Step("all", 1.0, far, far, False)
    if isinstance(sampling, Poisson):
        near = event.clip / event.noise_sd
        return Step("poisson", sampling.rate, far, near, relation == "add-or-remove")
    return Step("without-replacement", sampling.rate, far, far, False)


def refusal(event: GaussianEvent, relation: Relation) -> str | None:
    """Why no accountant bounds this event under this relation, or None."""
    if relation not in get_args(Relation):
        return f"relation = {relation!r}; it must be one of {', '.join(get_args(Relation))}"
    if not isinstance(event, GaussianEvent):
        return f"{type(event).__name__} is not an event an accountant knows: use GaussianEvent"
    if event.count != int(event.count):
        return f"count = {event.count}; it must be a whole number of releases"
    if isinstance(event.sampling, WithoutReplacement) and relation == "add-or-remove":
        return (
            "sampling without replacement tells the number of units, which is private under "
            "add-or-remove: use Poisson sampling, or the relation 'substitute'"
        )
    return None
