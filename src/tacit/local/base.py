"""How a party answers a round: one file a method.

A method is a frozen value object. `answer` is pure and JAX-traceable: an engine jits it once and
maps it over as many parties as it likes, with their data as arguments. Everything that is not
mathematics (request ids, replays, damping) is in `tacit.party`.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

from tacit.expfam import Family, Natural
from tacit.models import Model, Records

Array = Any


class Task(NamedTuple):
    """What one party has to answer, as arrays.

    `weights` is 1 for a record and 0 for padding. `start` is where an optimiser begins: q, or,
    while q is still the prior (`initial`), the model's own starting point.
    """

    records: Records
    weights: Array
    q: Natural
    factor: Natural
    start: Natural
    initial: Array


class Answer(NamedTuple):
    """λ of the local posterior qₘ, and the loss −E[log p(xₘ | θ)] at `Task.start`."""

    natural: Natural
    loss: Array


class LocalMethod(abc.ABC):
    """A way to find qₘ = argmax E_q[log p(xₘ|θ)] − KL(q ‖ cavity)  (TMLR eq. 3.5)."""

    kind: ClassVar[str]
    second_order: ClassVar[bool] = False
    """True when answers carry the likelihood's curvature exactly, so that those of many parties
    may be multiplied into a full-covariance q at once without damping."""
    dtype: str
    """Floating-point type of the records: natural parameters are float64 whatever this is."""

    @abc.abstractmethod
    def check(self, model: Model, family: Family) -> None:
        """Raise a ConfigError if this method cannot serve that model and family."""

    @abc.abstractmethod
    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        """The local posterior. Pure and traceable; `model` and `family` are static."""
