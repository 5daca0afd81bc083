"""The part of a plan that all parties share."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.expfam import Family
from tacit.methods import LocalMethod
from tacit.models import Model


@dataclass(frozen=True)
class Agreement:
    """The part of a plan that all parties share: model, family, method and seeds."""

    model: Model
    family: Family
    method: LocalMethod
    seed: int
    insecure_noise_seed: int | None = None
    """Seed of a private method's noise in a simulation. If None, the noise key is secret and
    random.
    """
